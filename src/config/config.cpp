// config.cpp — the table of options, and values from and to text.
#include "src/config/config.h"

#include <algorithm>
#include <cmath>

#include "net/wire.h"
#include "src/base/check.h"
#include "src/base/number.h"
#include "src/base/text.h"

namespace convoy {

static constexpr Limits from(double low, double high) { return {low, high}; }
static constexpr unsigned kRanked = kTrain | kEval | kBenchAllreduce | kBenchTrain | kPlan;
static constexpr unsigned kSteps = kTrain | kBenchTrain | kPlan;
static constexpr unsigned kModel = kTrain | kBenchTrain | kImport | kPlan;
static constexpr unsigned kCompute =
    kTrain | kEval | kPredict | kBenchTrain | kBenchKernels | kPlan;
static constexpr unsigned kBenches = kBenchTrain | kBenchKernels | kBenchAllreduce | kBenchData;
static constexpr unsigned kTalks = kTrain | kEval | kPredict | kCheck | kPack | kCoordinator |
                                   kExport | kImport | kPlan | kDoctor | kBenches;
static constexpr unsigned kSets = kTrain | kEval | kCheck | kPack | kBenchData;

using C = Config;
static constexpr Limits kAny;

static const Option kOptions[] = {
    {"data", "Data", &C::data, "PATH", kSets, kFollows | kFirst, kAny,
     "folder of class folders, or of train/ and val/ (or validation/, test/) that hold them; "
     "folder or pattern of tar, TFRecord, CIFAR or IDX shards; list of path, tab, label; default: "
     "generated images of three shapes"},
    {"val", "Data", &C::val, "PATH", kTrain | kEval | kCheck | kPack, kFollows, kAny,
     "the validation set, as --data"},
    {"val-split", "Data", &C::val_split, "F", kTrain | kEval | kCheck | kPack, kJob, from(0, 0.9),
     "fraction of each class held back for validation"},
    {"classes", "Data", &C::classes, "A,B,C", kSets | kModel, kJob, kAny,
     "class folders to use, in this order; for import: the names of the classes"},
    {"label-offset", "Data", &C::label_offset, "N", kSets, kJob, from(-1e6, 1e6),
     "number of the first class in the labels of shards and lists; 1 for TFRecords of ImageNet"},
    {"cache", "Data", &C::cache, "DIR", kSets | kPredict, 0, kAny,
     "folder for blocks of remote shards, and for indexes of shards that lie where nothing can be "
     "written; default: none, and ~/.cache/convoy"},
    {"cache-size", "Data", &C::cache_size, "SIZE", kSets | kPredict, 0, kAny,
     "bytes of remote shards that --cache may hold, such as 500M or 20G"},
    {"generated", "Data", &C::generated, "N", kSets, kJob, kAny,
     "number of generated images of shapes, 24 to 1000000; a sixth is for validation"},
    {"shards", "Data", &C::shards, "all|mine", kTrain, kJob, kAny,
     "all: every rank sees the same files; mine: each rank's --data holds its own part of the set"},
    {"samples", "Data", &C::samples, "N[:M]", kTrain, kFollows | kHidden, kAny,
     "images of an epoch, where --data is a pipe (a FIFO, the NAME of FIFOs NAME_0, NAME_1, …, or "
     "-) that carries tar or TFRecord; M: of --val, if that is one"},
    {"shuffle", "Data", &C::shuffle, "full|window=N", kTrain | kBenchData, kJob, kAny,
     "order of an epoch: full: a permutation of all images; window=N: shards in another order each "
     "epoch, shuffled among N images at a time"},
    {"augment", "Data", &C::augment, "crop|resize|none", kTrain | kBenchData, kJob, kAny,
     "crop: random resized crop and flip; resize: whole image and flip (the default for generated "
     "images)"},
    {"flip", "Data", &C::flip, "random|alternating|off", kTrain | kBenchData, kJob, kAny,
     "mirror images left to right: by a coin each epoch; by a coin in the first epoch and then "
     "every other epoch; or never"},
    {"translate", "Data", &C::translate, "N", kTrain | kBenchData, kJob, from(0, 8192),
     "move images by up to N pixels each way, mirrored at the edge"},
    {"jitter", "Data", &C::jitter, "B,C,S,H", kTrain | kBenchData, kJob, kAny,
     "change brightness, contrast and saturation by factors up to 1 ± B, C, S and the hue by up to "
     "H (at most 0.5) turns, in any order; one number is B, C and S"},
    {"auto-augment", "Data", &C::auto_augment, "off|randaugment|trivial", kTrain | kBenchData, kJob,
     kAny,
     "RandAugment (2 operations, magnitude 9 of 30) or TrivialAugmentWide, with torchvision's "
     "operations"},
    {"erase", "Data", &C::erase, "P", kTrain | kBenchData, kJob, from(0, 1),
     "probability of erasing a random part of an image"},
    {"mixup", "Data", &C::mixup, "A", kTrain | kBenchData, kJob, from(0, 1000),
     "blend each image and its label with another's, by a part drawn from Beta(A, A)"},
    {"cutmix", "Data", &C::cutmix, "A", kTrain | kBenchData, kJob, from(0, 1000),
     "paste a part of another image into each image and mix the labels alike; with --mixup too: "
     "one or the other"},
    {"max-bad", "Data", &C::max_bad, "F", kTrain | kEval | kPack, kJob, from(0, 1),
     "fraction of the images that may fail to decode before the run stops"},
    {"max-pixels", "Data", &C::max_pixels, "N", kSets | kPredict, kJob | kHidden, from(1, 1e9),
     "pixels of the largest image that is decoded; one that claims more is bad"},
    {"decode-threads", "Data", &C::decode_threads, "D", kSets | kPredict, 0, from(0, 1024),
     "threads that decode images; 0: half as many as processors"},
    {"decode", "Data", &C::decode, "exact|fast", kTrain | kEval | kPredict | kBenchData,
     kJob | kHidden, kAny,
     "fast: JPEGs much larger than the input are halved while they are decoded, which changes "
     "pixels a little"},
    {"cache-decoded", "Data", &C::cache_decoded, "SIZE", kTrain | kBenchData, 0, kAny,
     "memory, such as 2G, for images that are kept decoded after their first use; 0: none"},

    {"model", "Model", &C::model, "NAME|FILE", kModel, kJob | kFirst, kAny,
     "tiny, alexnet, vgg16, resnet18, resnet34, resnet50, mobilenet_v2, squeezenet1_1, "
     "densenet121, googlenet, shallow, or a text file (see `trainer models`)"},
    {"size", "Model", &C::size, "HxWxC", kModel | kBenchData, kJob | kFirst, kAny,
     "input size: 224 (square), 80x64 (height x width), 28x28x1 (grey); 0: the model's own"},
    {"bn-group", "Model", &C::bn_group, "G", kSteps, kJob, from(0, 1e6),
     "most images in a batch norm group: a batch is cut evenly; 0: all of a rank's share"},
    {"init", "Model", &C::init, "FILE", kTrain, 0, kAny,
     "start from the weights in this file, safetensors or PyTorch's .pth (torchvision's names); "
     "what does not fit starts fresh"},
    {"freeze", "Model", &C::freeze, "N|PREFIX", kTrain | kPlan, kJob, kAny,
     "do not train the first N layers, or the parameters whose names begin with PREFIX"},
    {"freeze-epochs", "Model", &C::freeze_epochs, "E", kTrain, kJob, from(0, 1e6),
     "in the first E epochs train the last layer alone, which takes a fraction of the time; then "
     "all, with a fresh optimizer; needs --lr"},

    {"batch", "Training", &C::batch, "B", kSteps | kEval | kBenchData | kBenchKernels,
     kJob | kFirst, from(1, 1 << 24), "images in a step, over all ranks"},
    {"accumulate", "Training", &C::accumulate, "N", kTrain, kJob, from(1, 1e6),
     "pieces that a rank's part of a batch goes through the network in, one after the other, with "
     "one update: an Nth of the memory for activations"},
    {"replicas", "Training", &C::replicas, "K", kTrain, kJob, from(1, 1024),
     "copies of the network in this process, each with a Kth of the threads, that train a batch "
     "together; on CPUs; often faster for small images"},
    {"epochs", "Training", &C::epochs, "E", kTrain, kJob | kFirst, from(0, 1e6),
     "passes over the training set"},
    {"steps", "Training", &C::steps, "K", kTrain | kBenchTrain, kJob, from(0, 1e15),
     "stop after K steps; 0: after --epochs"},
    {"optimizer", "Training", &C::optimizer, "sgd|adamw|lars|lamb|muon", kSteps, kJob, kAny,
     "SGD with momentum, or AdamW; on CPUs also LARS and LAMB, for large batches, and Muon"},
    {"lr", "Training", &C::lr, "LR", kTrain, kJob | kFirst, from(0, 1e3),
     "learning rate for the global batch; 0: 0.1·B/256 with batch norm, 0.01·B/128 without, 0.001 "
     "for adamw, B/256 for lars, 0.005·√(B/512) for lamb, 0.02 for muon"},
    {"momentum", "Training", &C::momentum, "M", kTrain | kBenchTrain, kJob, from(0, 0.9999),
     "momentum of SGD, LARS and Muon, beta 1 of AdamW and LAMB"},
    {"weight-decay", "Training", &C::weight_decay, "W", kTrain, kJob, from(0, 10),
     "weight decay; not applied to biases and norms"},
    {"schedule", "Training", &C::schedule, "constant|step|cosine|onecycle|range", kTrain, kJob,
     kAny,
     "learning rate after the warm-up; onecycle: from lr/25 up to lr in 30 % of the run, then down "
     "to nothing, without a warm-up; range: from lr/1000000 up to lr, to an end where the loss "
     "grows "
     "to four times its least (lr-find)"},
    {"warmup", "Training", &C::warmup, "E", kTrain, kJob, from(0, 1e6),
     "epochs of linear warm-up; may be a fraction"},
    {"step-epochs", "Training", &C::step_epochs, "E", kTrain, kJob, from(1e-3, 1e6),
     "epochs between two drops of --schedule step"},
    {"gamma", "Training", &C::gamma, "F", kTrain, kJob, from(0, 1),
     "factor of each drop of --schedule step"},
    {"label-smoothing", "Training", &C::label_smoothing, "S", kTrain, kJob, from(0, 0.999),
     "part of the target spread over all classes"},
    {"clip-norm", "Training", &C::clip_norm, "X", kTrain, kJob, from(0, 1e30),
     "scale the gradient down to the norm X, over all parameters and ranks, where it is larger; 0: "
     "never"},
    {"ema", "Training", &C::ema, "D", kTrain, kJob, from(0, 0.999999),
     "validate and save a moving average of the weights in which those before a step count D, such "
     "as 0.999, and less in the first steps; 0: the weights themselves"},
    {"lr-decay-layers", "Training", &C::lr_decay_layers, "G", kTrain, kJob, from(1, 1000),
     "divide the learning rate by G from each layer or block to the one before it; 1: all have the "
     "same"},
    {"early-stop", "Training", &C::early_stop, "N", kTrain, kJob, from(0, 1e6),
     "end after N validations without a better top1; 0: never"},
    {"seed", "Training", &C::seed, "N", kTrain | kBenchTrain | kSets | kPlan, kJob, from(0, 9e18),
     "seed of start values, image order, augmentation and dropout"},

    {"device", "Device", &C::device, "cpu|cuda[:I]|simt", kCompute, 0, kAny,
     "where to compute: cuda: a GPU for each rank of a host; cuda:I: GPU number I; simt: the CUDA "
     "emulator; default: a GPU if there is one"},
    {"threads", "Device", &C::threads, "T", kCompute, 0, from(0, 4096),
     "compute threads; 0: as many as physical cores that this process may use"},
    {"conv", "Device", &C::conv, "auto|winograd|direct", kCompute, kHidden, kAny,
     "algorithm of 3x3 and 5x5 convolutions on CPUs; auto: the faster one, layer by layer"},
    {"precision", "Device", &C::precision, "fp32|tf32|bf16", kCompute, 0, kAny,
     "number format of products; tf32 (GPUs) and bf16 use tensor cores, bf16 on a CPU AMX or "
     "VDPBF16PS, and sum in fp32; bf16 also halves the memory of activations"},
    {"gemm", "Device", &C::gemm, "own|cublas", kCompute, kHidden, kAny,
     "matrix products of linear layers on a GPU: own kernels, or cuBLAS where it is installed"},
    {"graph", "Device", &C::graph, "auto|on|off", kTrain | kBenchTrain, kHidden, kAny,
     "record a training step as one CUDA graph; auto: where possible; on: and say why where it is "
     "not"},

    {"coord", "Ranks", &C::coord, "HOST:PORT", kRanked | kCoordinator | kHealth | kDoctor, kFirst,
     kAny, "where the ranks meet; rank 0 serves this address unless a coordinator already does"},
    {"rank", "Ranks", &C::rank, "N", kRanked, kFirst, from(-1, wire::kMaxWorld - 1),
     "number of this rank; default: assigned on arrival"},
    {"world", "Ranks", &C::world, "W", kRanked | kCoordinator, kFirst, from(1, wire::kMaxWorld),
     "number of ranks; rank 0 or the coordinator must know it"},
    {"local-rank", "Ranks", &C::local_rank, "N", kRanked, kHidden, from(0, 1e5),
     "number of this rank on its host, from 0: picks its GPU; default: counted"},
    {"port", "Ranks", &C::port, "P", kRanked | kHealth | kDoctor, 0, from(0, 65535),
     "port to listen on; 0: the coordinator's port or the next free one"},
    {"advertise", "Ranks", &C::advertise, "HOST[:PORT]", kRanked, 0, kAny,
     "address for the other ranks; default: the one that the coordinator sees"},
    {"iface", "Ranks", &C::iface, "NAME|ADDRESS|CIDR", kRanked, kHidden, kAny,
     "interface, address or network to use; default: the route to the coordinator"},
    {"shm", "Ranks", &C::shm, "auto|off", kRanked, 0, kAny,
     "on rank 0: ranks of one host form sums in memory that they share, where they can open it, "
     "and "
     "one of them sends large sums to other hosts; off: all send to their neighbours"},
    {"token-file", "Ranks", &C::token_file, "FILE", kRanked | kCoordinator | kHealth, 0, kAny,
     "let in only ranks that have the token in FILE, and encrypt all that ranks send; `trainer "
     "token` prints one; default: the token in CONVOY_TOKEN, or none"},
    {"open", "Ranks", &C::open, "", kRanked | kCoordinator, 0, kAny,
     "without a token, let ranks on other machines in: whoever reaches the port can join and read "
     "the model"},
    {"join-timeout", "Ranks", &C::join_timeout, "S", kRanked, 0, from(0.1, 1e7),
     "seconds to wait for the coordinator and the other ranks"},
    {"share", "Ranks", &C::share, "W|A:B:C|auto", kTrain | kPlan, 0, kAny,
     "this rank's weight when a batch is divided; on rank 0 also all weights, or auto: by measured "
     "speed"},
    {"bucket", "Ranks", &C::bucket, "SIZE", kSteps, kJob | kHidden, kAny,
     "bytes of gradients sent at a time, such as 512K or 4M; 0: 1M to 25M, by the slowest link"},
    {"preflight", "Ranks", &C::preflight, "on|off", kTrain, kJob | kHidden, kAny,
     "measure links and compute speed before training with several ranks; takes a second or two"},
    {"wire", "Ranks", &C::wire, "fp32|bf16", kSteps | kBenchAllreduce, kJob, kAny,
     "number format of sums on the network; bf16 halves the bytes"},
    {"factors", "Ranks", &C::factors, "auto|on|off", kSteps, kJob | kHidden, kAny,
     "send the two factors of a linear layer's gradient instead of the gradient; auto: where that "
     "is fewer bytes"},
    {"sync", "Ranks", &C::sync, "ring|server|async", kTrain, kJob, kAny,
     "sum gradients on a ring; or send them to servers that update the weights: once a step, or "
     "(async) for each rank at its own pace"},
    {"servers", "Ranks", &C::servers, "S", kTrain, kJob, from(1, wire::kMaxWorld),
     "with --sync server or async: ranks that serve, each a part of the weights, and train too"},
    {"staleness", "Ranks", &C::staleness, "K|none", kTrain, kJob, kAny,
     "with --sync async: steps that a rank may be ahead of the slowest; 0: as --sync server"},
    {"sync-every", "Ranks", &C::sync_every, "H", kSteps, kJob, from(1, 1e9),
     "train H steps on each rank alone, then average weights and momentum; 1: sum the gradients of "
     "every step"},
    {"outer", "Ranks", &C::outer, "off|sgd|nesterov", kTrain, kJob, kAny,
     "with --sync-every: take the mean movement of the weights as a gradient, with momentum of its "
     "own (nesterov is DiLoCo); off: go to the mean"},
    {"outer-lr", "Ranks", &C::outer_lr, "LR", kTrain, kJob, from(0, 100),
     "learning rate of --outer"},
    {"outer-momentum", "Ranks", &C::outer_momentum, "M", kTrain, kJob, from(0, 0.9999),
     "momentum of --outer"},
    {"pipeline", "Ranks", &C::pipeline, "S", kTrain, kJob, from(1, 256),
     "cut the model into S stages, each on a rank of its own; with more ranks, replicas of the "
     "pipeline share a batch"},
    {"micro", "Ranks", &C::micro, "M", kTrain, kJob, from(1, 1e6),
     "with --pipeline: pieces that a batch goes through the stages in"},
    {"pipeline-order", "Ranks", &C::pipeline_order, "1f1b|gpipe", kTrain, kJob, kAny,
     "with --pipeline: a backward pass after each forward pass as soon as there can be one; or all "
     "forward passes first, which takes the memory of all pieces"},
    {"recompute", "Ranks", &C::recompute, "", kTrain, kJob, kAny,
     "with --pipeline: keep the activations of one piece, and form those of the others again "
     "before "
     "their backward pass: less memory for up to a third more computing"},
    {"split", "Ranks", &C::split, "LAYER,…", kTrain, kJob, kAny,
     "with --pipeline: the last layer of each stage but the last one, such as features.8, or conv4 "
     "for the fourth convolution; default: where the longest stage is shortest, as measured"},
    {"stall", "Ranks", &C::stall, "S", kRanked, kHidden, from(0.1, 1e7),
     "seconds without progress after which every log names the rank that all wait for"},
    {"give-up", "Ranks", &C::give_up, "S", kTrain, kHidden, from(0, 1e6),
     "on rank 0: seconds without progress after which the others go on without that rank; with "
     "--elastic off the job ends; 0: wait"},
    {"elastic", "Ranks", &C::elastic, "on|off", kTrain, 0, kAny,
     "on rank 0: go on with the ranks that are left when one is lost; off: end with a checkpoint"},
    {"join", "Ranks", &C::join, "", kTrain, 0, kAny,
     "take part in a job that trains, from the end of a step on, as one more rank"},
    {"min-world", "Ranks", &C::min_world, "N", kTrain, 0, from(1, wire::kMaxWorld),
     "on rank 0: where fewer than N ranks are left, save and wait until others --join"},
    {"check-every", "Ranks", &C::check_every, "N", kTrain, kJob | kHidden, from(0, 1e9),
     "a checksum tells every N steps and before a checkpoint whether all ranks hold the same "
     "weights and optimizer state; those that differ take what most hold; 0: at the end of an "
     "epoch alone"},
    {"alone", "Ranks", &C::alone, "", kTrain, 0, kAny,
     "on rank 0: go on even where most of the ranks do not answer and may be training together, as "
     "when a network is cut in two"},

    {"out", "Output", &C::out, "PATH", kTrain | kExport | kImport | kDoctor, kFirst, kAny,
     "run folder, or the file or folder to write"},
    {"resume", "Output", &C::resume, "DIR", kTrain, 0, kAny,
     "continue from the newest valid checkpoint of a run folder; with the same --out: or start "
     "there if it holds none"},
    {"from", "Output", &C::from, "PATH", kEval | kPredict | kExport, 0, kAny,
     "run folder, checkpoint or .safetensors file of the model to use"},
    {"report", "Output", &C::report, "DIR", kEval, kJob, kAny,
     "write a page and JSON there: accuracy with its interval, each class, confusions, calibration "
     "and the worst mistakes"},
    {"min-top1", "Output", &C::min_top1, "F", kEval, kJob, from(0, 1),
     "exit with status 3 where a smaller part of the images is right"},
    {"min-recall", "Output", &C::min_recall, "F", kEval, kJob, from(0, 1),
     "exit with status 3 where of any class a smaller part is right"},
    {"explain", "Output", &C::explain, "DIR", kPredict, 0, kAny,
     "write each image there, with a heat map of where the model saw its class beside (Grad-CAM)"},
    {"settings", "Output", &C::settings, "FILE", kTrain | kBenchTrain | kPlan, 0, kAny,
     "take options from the lines of FILE, each a name and a value, as `tune` writes them; others "
     "win"},
    {"minutes", "Output", &C::minutes, "M", kTune, 0, from(0.01, 1e6),
     "begin no further measurement after M minutes"},
    {"save-every", "Output", &C::save_every, "E", kTrain, kJob, from(0, 1e6),
     "epochs between two checkpoints; may be a fraction; 0: only at the end"},
    {"keep", "Output", &C::keep, "N", kTrain, kFollows, from(1, 1e6),
     "checkpoints to keep, besides the best one"},
    {"log-every", "Output", &C::log_every, "N", kTrain, kFollows, from(1, 1e9),
     "steps between two lines"},
    {"tensorboard", "Output", &C::tensorboard, "", kTrain, kJob, kAny,
     "write curves for TensorBoard into the run folder, under tb/"},
    {"page", "Output", &C::page, "[ADDRESS:PORT]", kTrain | kPage, kJob | kBare, kAny,
     "show the run on a web page of rank 0, and to Prometheus at /metrics; default address: "
     "127.0.0.1:29480; any but loopback needs the token of the URL that is printed"},
    {"trace", "Output", &C::trace, "FIRST:LAST", kTrain, kJob, kAny,
     "write these steps of all ranks, at most 100, into the run folder for ui.perfetto.dev; the "
     "last three are written when a rank gets SIGUSR2, and on a stall, a loss or an error"},
    {"quiet", "Output", &C::quiet, "", kTalks, 0, kAny,
     "print only errors, notices and what was asked for; no progress bars"},
    {"verbose", "Output", &C::verbose, "", kTalks, 0, kAny,
     "print times and decisions too: seconds before each line, waits for images, checkpoints, "
     "variables that were options, and processor time"},
    {"json", "Output", &C::json, "",
     kTrain | kEval | kPredict | kCheck | kPlan | kDoctor | kTune | kModels | kBenches, 0, kAny,
     "print one JSON object a line, and messages to stderr; train: the events of RUN/log.jsonl"},
    {"layout", "Output", &C::layout, "oihw|krsc", kExport, kHidden, kAny,
     "order of the dimensions of weights: torchvision's, or the one used here"},
    {"format", "Output", &C::format, "auto|tar|tfrecord|safetensors|onnx", kPack | kExport, 0, kAny,
     "what to write; pack: tar (WebDataset's, auto) or tfrecord (of tf.train.Example); export: "
     "safetensors (auto) or onnx"},
    {"with-preprocessing", "Output", &C::with_preprocessing, "", kExport, 0, kAny,
     "with --format onnx: take pixels from 0 to 255 (uint8, NxHxWxC), and give probabilities too"},

    {"shard-size", "Pack", &C::shard_size, "SIZE", kPack, 0, kAny,
     "bytes of images after which a new shard begins; counted before --max-side makes them "
     "smaller"},
    {"max-side", "Pack", &C::max_side, "S", kPack, 0, from(0, 65535),
     "images with a longer side become JPEGs with a side of S; 0: all stay as they are"},
    {"keep-order", "Pack", &C::keep_order, "", kPack, kHidden, kAny,
     "write images class by class, as they lie; default: permuted by --seed"},

    {"price-per-hour", "Cost", &C::price_per_hour, "P", kTrain, 0, from(0, 1e9),
     "price of an hour of this rank's machine, in any currency, for the summary; 0: not given"},
    {"watts", "Cost", &C::watts, "W", kTrain, 0, from(0, 1e6),
     "power of this rank's machine in watts; 0: what RAPL measures of its processors, if it can"},
    {"grams-per-kwh", "Cost", &C::grams_per_kwh, "G", kTrain, 0, from(0, 1e5),
     "grams of CO2 equivalent for a kWh, for the summary; rank 0's value; 0: not given"},

    {"bytes", "Bench", &C::bytes, "LIST", kBenchAllreduce, kJob, kAny, "sizes to sum"},
    {"compute", "Bench", &C::compute, "S", kBenchTrain | kPlan, kJob, from(0, 3600),
     "sleep S seconds a step instead of computing: the network of many hosts on a few cores"},
    {"forward", "Bench", &C::forward, "", kBenchTrain, kJob, kAny,
     "run only forward passes, as eval and predict do"},
    {"filter", "Bench", &C::filter, "WORD", kBenchKernels, 0, kAny,
     "print only rows whose name contains WORD"},
};

std::span<const Option> options() { return kOptions; }

const Option* find_option(const std::string& name) {
    for (const Option& option : kOptions)
        if (option.name == name) return &option;
    return nullptr;
}

// Commands and options of earlier versions, and what to use instead.
static constexpr std::pair<const char*, const char*> kRemoved[] = {
    {"--nesterov", "--momentum"},
    {"--quality", "--max-side; its JPEGs have quality 90"},
    {"--target-top1", "--early-stop"},
    {"--augment-on", "--decode-threads: images are prepared on the CPU"},
    {"--histograms", "--tensorboard, which has the curves"},
    {"--fragments", "--sync-every alone: all weights are averaged at once"},
    {"--flows", "one connection: an edge of the ring has no other"},
    {"report", "`eval --report DIR` for one model, and TensorBoard (--tensorboard) for runs"},
    {"watch", "`trainer page RUN` or the lines that train prints"},
};

const char* replacement(const std::string& name) {
    for (const auto& [old, instead] : kRemoved)
        if (old == name) return instead;
    return nullptr;
}

// Of a number for which 0 is "auto".
static bool has_auto(const Option& option) {
    return std::string_view(option.value).starts_with("auto|");
}

static const Option& option_named(const std::string& name) {
    const Option* option = find_option(name);
    ENSURE(option, "--", name);
    return *option;
}

// The shortest text that parse_size takes.
static std::string size_text(size_t bytes) {
    size_t unit = 0;
    for (; bytes > 0 && bytes % 1024 == 0 && unit < 4; ++unit) bytes /= 1024;
    return cat(bytes, std::string("KMGT").substr(unit - (unit > 0), unit > 0));
}

std::string get_option(const Config& config, const std::string& name) {
    const Option& option = option_named(name);
    return std::visit(
        [&]<class T>(T Config::*field) -> std::string {
            const T& value = config.*field;
            if constexpr (std::is_enum_v<T>)
                return split(option.value, '|').at(size_t(value));
            else if constexpr (std::is_same_v<T, bool>)
                return value ? "1" : "0";
            else if constexpr (std::is_same_v<T, ByteSize>)
                return size_text(value.bytes);
            else if constexpr (std::is_same_v<T, InputSize>)
                return input_size_text(value);
            else
                return has_auto(option) && cat(value) == "0" ? "auto" : cat(value);
        },
        option.field);
}

ByteSize parse_size(const std::string& text, const std::string& who) {
    const size_t unit = text.find_first_of("KMGT");
    const auto number = to_number<size_t>(text.substr(0, unit));
    const size_t shift =
        unit == text.npos ? 0 : 10 * (1 + std::string_view("KMGT").find(text[unit]));
    if (!number || *number > SIZE_MAX >> shift || (shift > 0 && unit + 1 != text.size()))
        fail(who, " cannot be '", text, "': it takes a size in bytes, such as 512K or 4M");
    return {*number << shift};
}

template <class T>
static T parse_number(const Option& option, const std::string& text, const std::string& who) {
    const std::optional<T> value = to_number<T>(text);
    if (!value || !std::isfinite(double(*value)))
        fail(who, " cannot be '", text, "': it takes ",
             std::is_integral_v<T> ? "a whole number" : "a number", " (", option.help, ")");
    if (double(*value) < option.limits.low || double(*value) > option.limits.high)
        fail(who, " cannot be ", text, ": it must be between ", option.limits.low, " and ",
             option.limits.high, " (", option.help, ")");
    return *value;
}

template <class T>
static T parse_value(const Option& option, const std::string& text, const std::string& who) {
    if constexpr (std::is_same_v<T, std::string>) {
        return text;
    } else if constexpr (std::is_same_v<T, bool>) {
        if (text == "1" || text == "true") return true;
        if (text == "0" || text == "false") return false;
        fail(who, " cannot be '", text, "': it is 1 (on) or 0 (off)");
    } else if constexpr (std::is_enum_v<T>) {
        const std::vector<std::string> names = split(option.value, '|');
        const auto found = std::find(names.begin(), names.end(), text);
        if (found == names.end())
            fail(who, " cannot be '", text, "': there are ", join_text(names));
        return T(found - names.begin());
    } else if constexpr (std::is_same_v<T, ByteSize>) {
        const ByteSize size = parse_size(text, who);
        if (size.bytes > 0 && size.bytes < 1024)
            fail(who, " cannot be ", text, ": it must be 0 or at least 1K (", option.help, ")");
        return size;
    } else if constexpr (std::is_same_v<T, InputSize>) {
        if (text == "0") return InputSize(0, 0, 0);
        const std::optional<InputSize> size = parse_input_size(text);
        if (!size) fail(who, " cannot be '", text, "': it takes ", kInputSizeForms);
        return *size;
    } else {
        return parse_number<T>(option, has_auto(option) && text == "auto" ? "0" : text, who);
    }
}

void set_option(Config& config, const std::string& name, const std::string& text,
                const std::string& who) {
    const Option& option = option_named(name);
    const std::string source = who.empty() ? "--" + name : who;
    if (!is_utf8(text)) fail(source, " '", text, "' is not UTF-8");
    std::visit(
        [&]<class T>(T Config::*field) { config.*field = parse_value<T>(option, text, source); },
        option.field);
}

std::map<std::string, std::string> job_settings(const Config& config, Command command) {
    std::map<std::string, std::string> settings;
    for (const Option& option : kOptions)
        if ((option.flags & (kJob | kFollows)) && (option.commands & command))
            settings[option.name] = get_option(config, option.name);
    return settings;
}

void apply_settings(Config& config, const std::map<std::string, std::string>& settings) {
    for (const auto& [name, text] : settings)
        if (const Option* option = find_option(name); option && (option->flags & (kJob | kFollows)))
            set_option(config, name, text);
}

int class_count(const Config& config) {
    const std::string& text = config.classes;
    if (text.empty()) return 3;
    if (text.find_first_not_of("0123456789") != std::string::npos)
        return int(split(text, ',').size());
    const int count = text.size() < 8 ? std::stoi(text) : 0;
    if (count < 1 || count > 1 << 20) fail("--classes cannot be ", text, ": 1 to ", 1 << 20);
    return count;
}

}  // namespace convoy
