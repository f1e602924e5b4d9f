// config.cpp — the table of options, and values from and to text.
#include "src/config/config.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include "net/control/wire.h"
#include "src/base/text.h"

namespace convoy {

static constexpr Limits from(double low, double high) { return {low, high}; }
// Groups of commands. A fit trains; a trial is a short run of `tune` or `tune --lr`.
static constexpr unsigned kFit = kTrain | kFinetune;
static constexpr unsigned kTrial = kTune | kLrFind;
static constexpr unsigned kFits = kFit | kTrial;
static constexpr unsigned kRanked = kFits | kPlan | kEval | kBenchAllreduce | kBenchTrain;
static constexpr unsigned kSteps = kFits | kPlan | kBenchTrain;
static constexpr unsigned kModel = kSteps | kImport;
static constexpr unsigned kBenches = kBenchTrain | kBenchKernels | kBenchAllreduce | kBenchData;
static constexpr unsigned kCompute =
    kFit | kLrFind | kPlan | kEval | kPredict | kBenchTrain | kBenchKernels;
static constexpr unsigned kSets = kFits | kEval | kCheck | kPack | kBenchData;
static constexpr unsigned kChanges = kFits | kBenchData;
static constexpr unsigned kTalks =
    kFits | kPlan | kEval | kPredict | kCheck | kPack | kExport | kImport | kDoctor | kBenches;

using C = Config;

static const Option kOptions[] = {
    {"data", "Data", &C::data, "PATH", kSets & ~kPack, kFollows | kFirst,
     "class folders, shards, a list of image files, or FIFO:N"},
    {"val", "Data", &C::val, "PATH", kFit | kTune | kEval | kCheck | kPack, kFollows | kCommon,
     "validation images, given as in --data"},
    {"val-split", "Data", &C::val_split, "F", kFit | kTune | kEval | kCheck | kPack,
     kJob | kFixed | kCommon, "fraction of each class held back for validation", from(0, 0.9)},
    {"classes", "Data", &C::classes, "A,B,C", kSets | kModel, kJob | kFixed,
     "classes to use, in this order; all: every folder; import: names"},
    {"label-offset", "Data", &C::label_offset, "N", kSets, kJob,
     "number of the first class in labels; 1 for TFRecords of ImageNet", from(-1e6, 1e6)},
    {"cache", "Data", kCacheOption, "DIR[:SIZE]", kSets | kPredict, kCommon,
     "folder for remote shards, up to SIZE (10G), and for indexes"},
    {"generated", "Data", &C::generated, "N", kSets, kJob | kFixed,
     "generated images; a sixth is for validation", from(24, 1e6)},
    {"shards", "Data", &C::shards, "all|mine", kFit | kLrFind, kJob,
     "all: every rank sees the same files; mine: each rank has its part"},
    {"shuffle", "Data", &C::shuffle, "full|window=N", kChanges, kJob,
     "order of images: random, or shards in turn, mixed among N images"},
    {"augment", "Data", kAugmentOption, "crop|resize|none[,flip,…]", kChanges, kJob | kCommon,
     "crop, resize or none; flip, jitter=B, erase=P, mixup=A, ..."},
    {"max-bad", "Data", &C::max_bad, "F", kFits | kEval | kPack, kJob,
     "fraction of images that may be bad (5 always may, of 20); 0: none", from(0, 1)},
    {"decode-threads", "Data", &C::decode_threads, "auto|D",
     kFit | kLrFind | kEval | kPredict | kCheck | kPack | kBenchData, 0,
     "threads that decode; auto: half of the processors (pack, check: all)", from(0, 1024)},
    {"cache-decoded", "Data", &C::cache_decoded, "SIZE", kChanges, 0,
     "bytes of memory, such as 2G, for images that are kept decoded"},

    {"model", "Model", &C::model, "NAME|FILE", kModel, kJob | kFixed | kFirst,
     "network: a name of `trainer models`, or a text file"},
    {"size", "Model", &C::size, "auto|HxWxC", kModel | kBenchData, kJob | kFixed | kFirst,
     "input size, such as 224, 80x64 or 28x28x1; auto: the model's own"},
    {"bn-group", "Model", &C::bn_group, "G", kSteps, kJob | kFixed,
     "batch norm's statistics are of at most G images; 0: a rank's share", from(0, 1e6)},
    {"init", "Model", &C::init, "FILE", kTrain, kCommon,
     "file of weights to start from, .safetensors or .pth"},
    {"freeze", "Model", &C::freeze, "N|PREFIX", kFits | kPlan, kJob | kFixed,
     "layers kept as they are: first N, names with PREFIX, batchnorm"},
    {"freeze-epochs", "Model", &C::freeze_epochs, "E", kFit, kJob,
     "passes in which the last layer trains alone, before all layers do", from(0, 1e6)},

    {"batch", "Training", &C::batch, "B", kSteps | kEval | kBenchData | kBenchKernels,
     kJob | kFirst, "images per step, over all ranks", from(1, 1 << 24)},
    {"accumulate", "Training", &C::accumulate, "N", kFit | kLrFind, kJob,
     "micro-batches per step on each rank (gradient accumulation)", from(1, 1e6)},
    {"replicas", "Training", &C::replicas, "R", kFit | kLrFind, kJob | kHidden,
     "copies of the network in a process, of --threads RxT", from(1, 1024)},
    {"epochs", "Training", &C::epochs, "E", kFit, kJob | kFirst, "passes over the training set",
     from(0, 1e6)},
    {"steps", "Training", &C::steps, "K", kFit | kLrFind | kBenchTrain, kJob,
     "steps after which the run ends; 0: after --epochs", from(0, 1e15)},
    {"optimizer", "Training", &C::optimizer, "sgd|adamw|muon", kSteps, kJob | kFixed | kCommon,
     "update rule: sgd, adamw or muon"},
    {"lr", "Training", &C::lr, "auto|LR", kFits, kJob | kFirst,
     "learning rate; auto: by optimizer and batch", from(1e-12, 1e3)},
    {"momentum", "Training", &C::momentum, "M", kFits | kBenchTrain, kJob,
     "momentum of SGD and Muon, beta 1 of AdamW", from(0, 0.9999)},
    {"weight-decay", "Training", &C::weight_decay, "W", kFits, kJob,
     "weight decay, except for biases and norms", from(0, 10)},
    {"schedule", "Training", kScheduleOption, "constant|step[:E:F]|cosine|onecycle", kFit,
     kJob | kCommon, "learning rate: constant, step:E:F, cosine or onecycle"},
    {"warmup", "Training", &C::warmup, "E", kFit, kJob,
     "epochs of linear warm-up; may be a fraction", from(0, 1e6)},
    {"label-smoothing", "Training", &C::label_smoothing, "S", kFits, kJob,
     "part of the target that is spread over all classes", from(0, 0.999)},
    {"balance", "Training", &C::balance, "", kFits, kJob,
     "let rare classes count as much as frequent ones (logit adjustment)"},
    {"clip-norm", "Training", &C::clip_norm, "X", kFits, kJob,
     "largest norm of the gradient of all parameters; 0: no limit", from(0, 1e30)},
    {"ema", "Training", &C::ema, "D", kFits, kJob | kFixed,
     "decay per step of averaged weights, such as 0.999; 0: no average", from(0, 0.999999)},
    {"lr-decay-layers", "Training", &C::lr_decay_layers, "G", kFits, kJob,
     "divisor of the first layer's rate; falls evenly to 1 at the last", from(1, 1000)},
    {"early-stop", "Training", &C::early_stop, "N", kFit, kJob | kCommon,
     "validations without a better top1 that end the run; 0: never", from(0, 1e6)},
    {"seed", "Training", &C::seed, "N", kSets | kSteps, kJob | kFixed,
     "seed of initial weights, image order, augmentation and dropout", from(0, 9e18)},

    {"device", "Device", &C::device, "cpu|cuda[:I]|simt", kCompute, kCommon,
     "cpu, cuda, cuda:I or simt (the emulator)"},
    {"threads", "Device", kThreadsOption, "auto|T|RxT", kCompute | kTune, kCommon,
     "compute threads, or R model replicas of T threads each"},
    {"precision", "Device", &C::precision, "fp32|tf32|bf16", kCompute | kTune, kCommon,
     "number format of matrix products: fp32, tf32 or bf16"},
    {"graph", "Device", &C::graph, "auto|on|off", kFits | kBenchTrain, kHidden,
     "record a training step as a CUDA graph"},

    {"coord", "Ranks", &C::coord, "HOST:PORT", kRanked | kHealth | kDoctor, kFirst,
     "coordinator's address, the same on all ranks; rank 0 serves it"},
    {"rank", "Ranks", &C::rank, "N", kRanked, kFirst, "number of this rank, from 0",
     from(-1, wire::kMaxWorld - 1)},
    {"world", "Ranks", &C::world, "W", kRanked, kFirst, "number of ranks; only rank 0 must know it",
     from(1, wire::kMaxWorld)},
    {"local-rank", "Ranks", &C::local_rank, "N", kRanked, kHidden,
     "number of this rank on its host, from 0: picks its GPU", from(0, 1e5)},
    {"port", "Ranks", &C::port, "auto|P", kRanked | kHealth | kDoctor, 0,
     "port to listen on; auto: the coordinator's or the next free one", from(0, 65535)},
    {"advertise", "Ranks", &C::advertise, "HOST[:PORT]", kRanked, 0, "address for the other ranks"},
    {"shm", "Ranks", &C::shm, "auto|off", kRanked & ~kTune, 0,
     "on rank 0: shared memory between ranks on one host"},
    {"token-file", "Ranks", &C::token_file, "FILE", kRanked | kHealth, kCommon,
     "file with the secret that authenticates and encrypts"},
    {"open", "Ranks", &C::open, "", kRanked, 0, "accept ranks of other machines without a token"},
    {"join-timeout", "Ranks", &C::join_timeout, "S", kRanked, 0,
     "seconds to wait for the coordinator and the other ranks", from(0.1, 1e7)},
    {"share", "Ranks", &C::share, "W|A:B:C|auto", kFits | kPlan, 0,
     "a rank's share of a batch, relative to others; rank 0: of all, or auto"},
    {"preflight", "Ranks", &C::preflight, "on|off", kFits, kJob | kHidden,
     "measure links and ranks before training"},
    {"wire", "Ranks", &C::wire, "fp32|bf16", (kSteps & ~kTune) | kBenchAllreduce, kJob | kCommon,
     "number format of sums on the network; bf16 halves the bytes"},
    {"factors", "Ranks", &C::factors, "auto|on|off", kSteps & ~kTune, kJob | kHidden,
     "send a linear layer's gradient as its two factors"},
    {"sync", "Ranks", kSyncOption, "ring|average:H|diloco:H|server[:S]|async[:S]|pipeline:S",
     kFit | kLrFind | kBenchTrain, kJob | kCommon,
     "ring, average:H, diloco:H, server[:S], async[:S] or pipeline:S"},
    {"split", "Ranks", &C::split, "LAYER,…", kFit, kJob | kHidden,
     "last layer of each stage of a pipeline except the last one"},
    {"stall", "Ranks", &C::stall, "S", kRanked, kHidden,
     "seconds without progress until logs name the rank that all wait for", from(0.1, 1e7)},
    {"elastic", "Ranks", &C::elastic, "on|off", kFits, 0,
     "on rank 0: continue without a lost rank; off: end the job"},
    {"join", "Ranks", &C::join, "", kTrain, kCommon, "add this rank to a running job"},
    {"min-world", "Ranks", &C::min_world, "N", kFits, 0,
     "on rank 0: with fewer ranks, save and wait for ranks that --join", from(1, wire::kMaxWorld)},
    {"check-every", "Ranks", &C::check_every, "N", kFits, kJob | kHidden,
     "steps between two comparisons of the ranks' weights", from(0, 1e9)},
    {"alone", "Ranks", &C::alone, "", kFits, 0,
     "on rank 0: continue without a majority (risks two jobs)"},

    {"out", "Output", &C::out, "PATH", kFits | kExport | kImport | kDoctor, kFirst,
     "run folder, or the file or folder to write"},
    {"resume", "Output", &C::resume, "DIR", kTrain, kCommon,
     "run folder whose newest valid checkpoint to continue from"},
    {"from", "Output", &C::from, "PATH", kEval | kPredict | kExport, 0,
     "run folder, checkpoint or .safetensors file of the model to use"},
    {"report", "Output", &C::report, "DIR", kEval, kJob,
     "folder for a page and JSON: accuracy, confusions, worst mistakes"},
    {"tta", "Output", &C::tta, "off|flip|shift", kEval, kJob,
     "average the logits of image and mirror image; shift: also moved"},
    {"min-top1", "Output", &C::min_top1, "F", kEval, kJob,
     "exit status 3 if fewer than this fraction of images is right", from(0, 1)},
    {"min-recall", "Output", &C::min_recall, "F", kEval, kJob,
     "exit status 3 if, of any class, fewer than this fraction is right", from(0, 1)},
    {"explain", "Output", &C::explain, "DIR", kPredict, 0,
     "folder for heat maps of the evidence for each class (Grad-CAM)"},
    {"settings", "Output", &C::settings, "FILE", kSteps, 0,
     "file with lines NAME VALUE, as `tune` writes it; options win"},
    {"minutes", "Output", &C::minutes, "M", kTune, kCommon,
     "minutes after which no further measurement begins", from(0.01, 1e6)},
    {"plan", "Output", &C::plan, "", kPlan | kTune, kCommon,
     "measure links and ranks, and predict the speed of a job"},
    {"save-every", "Output", &C::save_every, "E", kFit, kJob,
     "epochs between two checkpoints, or a fraction; 0: only at the end", from(0, 1e6)},
    {"keep", "Output", &C::keep, "N", kFit, kFollows,
     "checkpoints to keep in addition to the best one", from(1, 1e6)},
    {"log-every", "Output", &C::log_every, "N", kFit, kFollows,
     "steps between two lines of the log", from(1, 1e9)},
    {"tensorboard", "Output", &C::tensorboard, "", kFit | kLrFind, kJob,
     "write curves for TensorBoard into the run folder"},
    {"page", "Output", &C::page, "[ADDR:PORT]", kFit | kLrFind | kPage, kJob | kBare | kCommon,
     "show the run on a web page and at /metrics, at 127.0.0.1:29480"},
    {"trace", "Output", &C::trace, "FIRST:LAST", kFits, kJob,
     "steps that each rank records for ui.perfetto.dev, at most 100"},
    {"quiet", "Output", &C::quiet, "", kTalks, kCommon, "print only errors, notices and results"},
    {"verbose", "Output", &C::verbose, "", kTalks, 0, "print decisions and times as well"},
    {"json", "Output", &C::json, "", (kTalks & ~(kPack | kExport | kImport)) | kModels, kCommon,
     "print one JSON object per line, and messages to stderr"},
    {"format", "Output", &C::format, "auto|tar|tfrecord|safetensors|onnx", kPack | kExport, 0,
     "pack: tar or tfrecord; export: onnx (as --out x.onnx) or safetensors"},
    {"with-preprocessing", "Output", &C::with_preprocessing, "", kExport, 0,
     "take pixels from 0 to 255 and give probabilities"},

    {"shard-size", "Pack", &C::shard_size, "SIZE", kPack, 0,
     "bytes of images after which a new shard begins"},
    {"max-side", "Pack", &C::max_side, "S", kPack, 0,
     "longest side in pixels of stored images; 0: as they are", from(0, 65535)},
    {"keep-order", "Pack", &C::keep_order, "", kPack, kHidden,
     "write images class by class instead of permuted by --seed"},

    {"price", "Cost", &C::price_per_hour, "P", kFit, 0,
     "price of this machine per hour, in any currency, for the summary", from(0, 1e9)},
    {"watts", "Cost", &C::watts, "auto|W", kFit, 0,
     "power of this machine in watts; auto: measured by RAPL", from(0, 1e6)},
    {"grams-per-kwh", "Cost", &C::grams_per_kwh, "G", kFit, 0,
     "grams of CO2 equivalent per kWh, for the summary", from(0, 1e5)},

    {"bytes", "Bench", &C::bytes, "LIST", kBenchAllreduce, kJob, "sizes to sum, in bytes"},
    {"compute", "Bench", &C::compute, "S", kBenchTrain, kJob,
     "seconds to sleep per step instead of computing", from(0, 3600)},
    {"forward", "Bench", &C::forward, "", kBenchTrain, kJob,
     "time only forward passes, as eval and predict run them"},
    {"filter", "Bench", &C::filter, "WORD", kBenchKernels, 0,
     "print only rows whose name contains WORD"},
};

std::span<const Option> options() { return kOptions; }

const Option* find_option(const std::string& name) {
    for (const Option& option : kOptions)
        if (option.name == name) return &option;
    return nullptr;
}

std::string environment_name(const std::string& option) {
    std::string name = "CONVOY_" + option;
    for (char& c : name) c = c == '-' ? '_' : char(std::toupper(c));
    return name;
}

std::string option_name(const Option& option) {
    return option.flags & kHidden ? environment_name(option.name) : cat("--", option.name);
}

// Options of other trainers, and what has their effect here.
static constexpr std::pair<const char*, const char*> kOtherNames[] = {
    {"--learning-rate", "--lr"},
    {"--workers", "--decode-threads"},
    {"--num-workers", "--decode-threads"},
    {"--arch", "--model"},
    {"--pretrained", "trainer finetune WEIGHTS, or --init WEIGHTS"},
    {"--gpus", "--device cuda:I on each rank; tools/launch -n N starts N ranks"},
    {"--nproc-per-node", "tools/launch -n N"},
    {"--amp", "--precision bf16"},
    {"--gamma", "--schedule step:E:F"},
    {"--step-size", "--schedule step:E:F"},
    {"--flip", "--augment crop,flip"},
    {"--jitter", "--augment crop,jitter=B:C:S:H"},
    {"--auto-augment", "--augment crop,randaugment or crop,trivial"},
    {"--mixup", "--augment crop,mixup=A"},
    {"--cutmix", "--augment crop,cutmix=A"},
};

std::string replacement(const std::string& name) {
    for (const auto& [other, instead] : kOtherNames)
        if (other == name) return instead;
    const Option* option = find_option(name.starts_with("--") ? name.substr(2) : "");
    return option && option->flags & kHidden
               ? cat("the automatic choice, or ", option_name(*option))
               : "";
}

// Whether 0 of this number or size is written "auto".
static bool has_auto(const Option& option) {
    return std::string_view(option.value).starts_with("auto|");
}

static const Option& option_named(const std::string& name) {
    const Option* option = find_option(name);
    ENSURE(option, "--", name);
    return *option;
}

std::string byte_size_text(ByteSize size) {
    size_t unit = 0, bytes = size.bytes;
    for (; bytes > 0 && bytes % 1024 == 0 && unit < 4; ++unit) bytes /= 1024;
    return cat(bytes, std::string("KMGT").substr(unit - (unit > 0), unit > 0));
}

std::string get_option(const Config& config, const std::string& name) {
    const Option& option = option_named(name);
    const std::string text = std::visit(
        [&]<class T>(T field) -> std::string {
            if constexpr (std::is_same_v<T, Composite>) {
                return field.text(config);
            } else {
                const auto& value = config.*field;
                using V = std::decay_t<decltype(value)>;
                if constexpr (std::is_enum_v<V>)
                    return split(option.value, '|').at(size_t(value));
                else if constexpr (std::is_same_v<V, bool>)
                    return value ? "1" : "0";
                else if constexpr (std::is_same_v<V, ByteSize>)
                    return byte_size_text(value);
                else if constexpr (std::is_same_v<V, InputSize>)
                    return input_size_text(value);
                else
                    return cat(value);
            }
        },
        option.field);
    return has_auto(option) && text == "0" ? "auto" : text;
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
static T parse_value(const Option& option, const std::string& text, const std::string& who) {
    if constexpr (std::is_same_v<T, std::string>) {
        return text;
    } else if constexpr (std::is_same_v<T, bool>) {
        if (text == "1" || text == "true") return true;
        if (text == "0" || text == "false") return false;
        fail(who, " cannot be '", text, "': it is 1 (on) or 0 (off)");
    } else if constexpr (std::is_enum_v<T>) {
        const std::vector<std::string> names = split(option.value, '|');
        const auto found = std::ranges::find(names, text);
        if (found == names.end())
            fail(who, " cannot be '", text, "': there are ", join_text(names));
        return T(found - names.begin());
    } else if constexpr (std::is_same_v<T, ByteSize>) {
        const ByteSize size = parse_size(has_auto(option) && text == "auto" ? "0" : text, who);
        if (size.bytes > 0 && size.bytes < 1024)
            fail(who, " cannot be ", text, ": it must be 0 or at least 1K (", option.help, ")");
        return size;
    } else if constexpr (std::is_same_v<T, InputSize>) {
        if (text == "0" || text == "auto") return InputSize(0, 0, 0);
        const std::optional<InputSize> size = parse_input_size(text);
        if (!size) fail(who, " cannot be '", text, "': it takes ", kInputSizeForms);
        return *size;
    } else {
        if (has_auto(option) && text == "auto") return T(0);
        const std::optional<T> value = to_number<T>(text);
        if (!value || !std::isfinite(double(*value)))
            fail(who, " cannot be '", text, "': it takes ",
                 std::is_integral_v<T> ? "a whole number" : "a number", " (", option.help, ")");
        if (double(*value) < option.limits.low || double(*value) > option.limits.high)
            fail(who, " cannot be ", text, ": it must be between ", option.limits.low, " and ",
                 option.limits.high, " (", option.help, ")");
        return *value;
    }
}

void set_option(Config& config, const std::string& name, const std::string& text,
                const std::string& who) {
    const Option& option = option_named(name);
    const std::string source = who.empty() ? option_name(option) : who;
    if (!is_utf8(text)) fail(source, " '", text, "' is not UTF-8");
    std::visit(
        [&]<class T>(T field) {
            if constexpr (std::is_same_v<T, Composite>)
                field.set(config, text, source);
            else
                config.*field =
                    parse_value<std::decay_t<decltype(config.*field)>>(option, text, source);
        },
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

std::map<std::string, std::string> read_settings(const std::string& path) {
    std::ifstream file(path);
    if (!file) fail("--settings ", path, ": ", std::strerror(errno));
    std::map<std::string, std::string> settings;
    for (std::string text; std::getline(file, text);) {
        std::istringstream line{std::string(without_bom(text))};
        std::string name, value;
        if (!(line >> name) || name[0] == '#') continue;
        std::getline(line >> std::ws, value);
        if (value.ends_with('\r')) value.pop_back();
        if (const std::string instead = replacement("--" + name);
            !find_option(name) && !instead.empty())
            fail("--settings ", path, ": there is no option ", name, "; use ", instead);
        if (!find_option(name) || value.empty() || name == "settings")
            fail("--settings ", path, ": '", printable(text),
                 "' is not an option and its value, such as 'batch 64'");
        settings[name] = value;
    }
    return settings;
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
