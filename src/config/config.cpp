// config.cpp — the table of options, and values from and to text.
#include "src/config/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "src/base/check.h"
#include "src/base/text.h"

namespace convoy {

static constexpr unsigned kRanked = kTrain | kEval | kBenchAllreduce | kBenchTrain | kPlan;
static constexpr unsigned kModel = kTrain | kBenchTrain | kImport | kPlan;
static constexpr unsigned kCompute =
    kTrain | kEval | kPredict | kBenchTrain | kBenchKernels | kPlan;
static constexpr unsigned kFrom = kEval | kPredict | kExport;
static constexpr unsigned kSets = kTrain | kEval | kCheck | kBenchData;

static const Option kOptions[] = {
    {"data", "Data", &Config::data, "DIR",
     "folder of class folders, or of train/ and val/ (or validation/, test/) that hold them; "
     "without it a generated set of three shapes",
     kSets, false, true},
    {"val", "Data", &Config::val, "DIR", "folder of the validation set", kTrain | kEval | kCheck},
    {"val-split", "Data", &Config::val_split, "F", "part of each class held back for validation",
     kTrain | kEval | kCheck, true, false, 0, 0.9},
    {"classes", "Data", &Config::classes, "A,B,C",
     "keep only these class folders, in this order; for import: the names of the classes",
     kSets | kImport | kBenchTrain | kPlan, true},
    {"generated", "Data", &Config::generated, "N", "images of the generated set; a sixth validates",
     kSets, true, false, 24, 1e6},
    {"augment", "Data", &Config::augment, "crop|resize|none",
     "random resized crop and flip; whole image and flip; neither; without it crop, for the "
     "generated set resize",
     kTrain | kBenchData, true},
    {"augment-on", "Data", &Config::augment_on, "cpu|device",
     "who resizes, flips and normalises: the threads that decode, or --device from the pixels of "
     "the crop; the same numbers",
     kTrain | kEval | kPredict | kBenchData},
    {"max-bad", "Data", &Config::max_bad, "F",
     "part of the images that may fail to decode before the run stops", kTrain | kEval, true, false,
     0, 1},
    {"decode-threads", "Data", &Config::decode_threads, "D",
     "threads that decode images; 0: one for each two processors", kSets | kPredict, false, false,
     0, 1024},

    {"model", "Model", &Config::model, "NAME|FILE",
     "tiny, alexnet, vgg16, resnet18, resnet34, resnet50, or a text file (see `trainer models`)",
     kModel, true, true},
    {"size", "Model", &Config::size, "S", "input height and width; 0: the model's own",
     kModel | kBenchData, true, true, 0, 4096},
    {"bn-group", "Model", &Config::bn_group, "G",
     "images in a batch norm group; 0: a rank's whole share", kTrain | kBenchTrain | kPlan, true,
     false, 0, 1e6},
    {"init", "Model", &Config::init, "FILE",
     "start from these weights (safetensors, torchvision's names); what does not fit starts fresh",
     kTrain},
    {"freeze", "Model", &Config::freeze, "N|PREFIX",
     "keep the first N layers, or the parameters of this prefix, as they are", kTrain | kPlan,
     true},

    {"batch", "Training", &Config::batch, "B", "images of a step, over all ranks",
     kTrain | kEval | kBenchTrain | kBenchData | kPlan, true, true, 1, 1 << 24},
    {"epochs", "Training", &Config::epochs, "E", "passes over the training set", kTrain, true, true,
     0, 1e6},
    {"steps", "Training", &Config::steps, "K", "stop after K steps; 0: when the epochs are done",
     kTrain | kBenchTrain, true, false, 0, 1e15},
    {"optimizer", "Training", &Config::optimizer, "sgd|adamw", "how weights follow gradients",
     kTrain | kBenchTrain | kPlan, true},
    {"lr", "Training", &Config::lr, "LR",
     "learning rate of the global batch; 0: 0.1·B/256 with batch norm, 0.01·B/128 without, 0.001 "
     "for adamw",
     kTrain, true, true, 0, 1e3},
    {"momentum", "Training", &Config::momentum, "M", "of SGD (for adamw: beta 1)",
     kTrain | kBenchTrain, true, false, 0, 0.9999},
    {"nesterov", "Training", &Config::nesterov, "", "Nesterov's form of momentum", kTrain, true},
    {"weight-decay", "Training", &Config::weight_decay, "W", "on weights, not on biases and norms",
     kTrain, true, false, 0, 10},
    {"schedule", "Training", &Config::schedule, "constant|step|cosine",
     "how the learning rate goes on after the warm-up", kTrain, true},
    {"warmup", "Training", &Config::warmup, "E", "epochs of linear warm-up, fractions allowed",
     kTrain, true, false, 0, 1e6},
    {"step-epochs", "Training", &Config::step_epochs, "E",
     "epochs between two drops of `--schedule step`", kTrain, true, false, 1e-3, 1e6},
    {"gamma", "Training", &Config::gamma, "F", "factor of each drop", kTrain, true, false, 0, 1},
    {"label-smoothing", "Training", &Config::label_smoothing, "S",
     "part of the target spread over all classes", kTrain, true, false, 0, 0.999},
    {"seed", "Training", &Config::seed, "N",
     "start values, order, augmentation and dropout follow from it",
     kTrain | kBenchTrain | kSets | kPlan, true, false, 0, 9e18},

    {"device", "Device", &Config::device, "cpu|cuda[:I]|simt",
     "where to compute: cuda is a GPU of its own for each rank of a host, cuda:1 one by number; "
     "without it the best there is",
     kCompute},
    {"threads", "Device", &Config::threads, "T",
     "compute threads; 0: as many as this process may use", kCompute, false, false, 0, 4096},

    {"conv", "Device", &Config::conv, "auto|winograd|direct",
     "how 3x3 and 5x5 convolutions are computed", kCompute},
    {"precision", "Device", &Config::precision, "fp32|tf32|bf16",
     "what convolutions and linear layers multiply in on a GPU; tf32 and bf16 use its tensor "
     "cores, and sum in fp32; with bf16 activations take half the memory",
     kCompute},
    {"gemm", "Device", &Config::gemm, "own|cublas",
     "what multiplies in linear layers on a GPU: own kernels, or cuBLAS where it is installed",
     kCompute},

    {"graph", "Device", &Config::graph, "auto|on|off",
     "a step, from pixels to new weights, as one recorded graph of the GPU; auto: where that "
     "is possible, on: likewise, and a line says where not",
     kTrain | kBenchTrain},

    {"coord", "Ranks", &Config::coord, "HOST:PORT",
     "where the ranks meet; rank 0 serves it unless a coordinator already listens there",
     kRanked | kCoordinator, false, true},
    {"rank", "Ranks", &Config::rank, "N", "this process's number; without it assigned on arrival",
     kRanked, false, true, -1, 1e5},
    {"world", "Ranks", &Config::world, "W",
     "number of ranks; rank 0 or the coordinator must know it", kRanked | kCoordinator, false, true,
     1, 1e5},
    {"port", "Ranks", &Config::port, "P",
     "port to listen on; 0: the coordinator's number or the next free one", kRanked, false, false,
     0, 65535},
    {"advertise", "Ranks", &Config::advertise, "HOST[:PORT]",
     "address to tell the other ranks; without it what the connection to the coordinator shows",
     kRanked},
    {"iface", "Ranks", &Config::iface, "NAME|ADDRESS|CIDR",
     "which interface, address or network to use; without it the route to the coordinator's",
     kRanked},
    {"join-timeout", "Ranks", &Config::join_timeout, "S",
     "seconds to wait for the coordinator and the other ranks", kRanked, false, false, 0.1, 1e7},
    {"share", "Ranks", &Config::share, "W|A:B:C|auto",
     "this rank's weight when a batch is cut, or on rank 0 all of them; auto: by measured speed",
     kTrain | kPlan},
    {"bucket", "Ranks", &Config::bucket, "MB",
     "gradients sent at a time; 0: by latency and bandwidth of the slowest edge, 1 to 25 MB",
     kTrain | kBenchTrain | kPlan, true, false, 0, 4096},
    {"preflight", "Ranks", &Config::preflight, "on|off",
     "a second of measuring before a job of several ranks: edges, compute, expected speed", kTrain,
     true},

    {"wire", "Ranks", &Config::wire, "fp32|bf16",
     "how sums travel; bf16 halves the bytes, sums are made in fp32",
     kTrain | kBenchTrain | kBenchAllreduce | kPlan, true},
    {"factors", "Ranks", &Config::factors, "auto|on|off",
     "gradients of linear layers as their factors, formed on every rank: where that is fewer "
     "bytes, always, never",
     kTrain | kBenchTrain | kPlan, true},
    {"sync-every", "Ranks", &Config::sync_every, "H",
     "train H steps on each rank alone, then average weights and momentum; 1: sum every gradient",
     kTrain | kBenchTrain | kPlan, true, false, 1, 1e9},
    {"stall", "Ranks", &Config::stall, "S",
     "seconds without progress after which every log says who all wait for", kRanked, false, false,
     0.1, 1e7},

    {"out", "Output", &Config::out, "PATH", "run folder (runs/<time>), or the file to write",
     kTrain | kExport | kImport, false, true},
    {"resume", "Output", &Config::resume, "DIR",
     "go on from the newest valid checkpoint of a run folder", kTrain},
    {"from", "Output", &Config::from, "PATH",
     "run folder, checkpoint or .safetensors file to take the model from", kFrom},
    {"save-every", "Output", &Config::save_every, "E",
     "epochs between two checkpoints, fractions allowed; 0: at the end only", kTrain, true, false,
     0, 1e6},
    {"keep", "Output", &Config::keep, "N", "checkpoints to keep, the best one besides", kTrain,
     false, false, 1, 1e6},
    {"log-every", "Output", &Config::log_every, "N", "steps between two lines", kTrain, false,
     false, 1, 1e9},
    {"quiet", "Output", &Config::quiet, "", "only what matters",
     kTrain | kEval | kPredict | kCoordinator},
    {"json", "Output", &Config::json, "", "one JSON object a line on stdout",
     kEval | kPredict | kBenchTrain | kBenchKernels | kBenchAllreduce | kBenchData | kPlan},

    {"bytes", "Bench", &Config::bytes, "LIST", "sizes to sum", kBenchAllreduce},
    {"compute", "Bench", &Config::compute, "S",
     "sleep S seconds a step in place of computing, while gradients travel: many hosts on few "
     "cores",
     kBenchTrain, true, false, 0, 3600},
    {"forward", "Bench", &Config::forward, "", "forward passes only, as eval and predict do them",
     kBenchTrain, true},
    {"filter", "Bench", &Config::filter, "WORD", "only rows whose name has this in it",
     kBenchKernels},
    {"layout", "Output", &Config::layout, "oihw|krsc",
     "torchvision's order of weights, or the one used here", kExport},
};

std::span<const Option> options() { return kOptions; }

const Option* find_option(const std::string& name) {
    for (const Option& option : kOptions)
        if (option.name == name) return &option;
    return nullptr;
}

std::string get_option(const Config& config, const Option& option) {
    return std::visit(
        [&](auto field) {
            using T = std::decay_t<decltype(config.*field)>;
            if constexpr (std::is_same_v<T, bool>) return std::string(config.*field ? "1" : "0");
            return fmt::format("{}", config.*field);
        },
        option.field);
}

template <class T>
static T parse_number(const Option& option, const std::string& text) {
    T value{};
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || !std::isfinite(double(value)))
        fail("--", option.name, " cannot be '", text, "': it takes ",
             std::is_integral_v<T> ? "a whole number" : "a number", " (", option.help, ")");
    if (double(value) < option.low || double(value) > option.high)
        fail("--", option.name, " cannot be ", text, ": it must be between ", option.low, " and ",
             option.high, " (", option.help, ")");
    return value;
}

// "sgd|adamw" is a list of all there is; "NAME|FILE" is not.
static void check_choice(const Option& option, const std::string& text) {
    const std::string all = option.value;
    if (all.find('|') == std::string::npos ||
        all.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789|") != std::string::npos)
        return;
    const std::vector<std::string> choices = split(all, '|');
    if (text != get_option(Config{}, option) &&
        std::find(choices.begin(), choices.end(), text) == choices.end())
        fail("--", option.name, " cannot be '", text, "': there are ", join_text(choices));
}

void set_option(Config& config, const Option& option, const std::string& text) {
    std::visit(
        [&](auto field) {
            using T = std::decay_t<decltype(config.*field)>;
            if constexpr (std::is_same_v<T, std::string>) {
                check_choice(option, text);
                config.*field = text;
            } else if constexpr (std::is_same_v<T, bool>) {
                if (text != "0" && text != "1" && text != "true" && text != "false")
                    fail("--", option.name, " cannot be '", text, "': it is on or off (1 or 0)");
                config.*field = text == "1" || text == "true";
            } else {
                config.*field = parse_number<T>(option, text);
            }
        },
        option.field);
}

std::map<std::string, std::string> job_settings(const Config& config) {
    std::map<std::string, std::string> settings;
    for (const Option& option : kOptions)
        if (option.job) settings[option.name] = get_option(config, option);
    return settings;
}

void apply_settings(Config& config, const std::map<std::string, std::string>& settings) {
    for (const auto& [name, text] : settings)
        if (const Option* option = find_option(name); option && option->job)
            set_option(config, *option, text);
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
