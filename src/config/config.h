// config.h — every default of the program, and the table of options.
//
// The table (config.cpp) is the only place with the name, help and scope of an option. The command
// line, the environment (CONVOY_<OPTION>), the settings that rank 0 sends to the other ranks,
// meta.json and --help are made from it. rules.cpp has the defaults of single commands, and the
// options that exclude or need each other.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "src/base/input_size.h"

namespace convoy {

// The choices of some options. The table of options has their names, in the same order.
enum class OptimizerKind { kSgd, kAdamw, kMuon };
enum class Schedule { kConstant, kStep, kCosine, kOneCycle, kRange };
enum class GraphMode { kAuto, kOn, kOff };
enum class WireType { kFp32, kBf16 };
enum class FactorMode { kAuto, kOn, kOff };
enum class SyncKind { kRing, kServer, kAsync };
enum class Toggle { kOn, kOff };
enum class ShardMode { kAll, kMine };
enum class Tta { kOff, kFlip, kShift };  // test-time augmentation
enum class FileFormat { kAuto, kTar, kTfrecord, kSafetensors, kOnnx };
enum class Augment;      // data/images/augment.h
enum class Flip;         // "
enum class AutoAugment;  // data/images/policy.h
enum class Precision;    // kernels/backend.h

struct ByteSize {
    size_t bytes = 0;
};

constexpr size_t kDefaultBucketBytes = 4 << 20;  // of gradients, if no link was measured

struct Config {
    // data
    std::string data, val;
    double val_split = 0;
    std::string classes;  // "a,b,c"
    int label_offset = 0;
    std::string cache;
    ByteSize cache_size{10ull << 30};
    int generated = 3000;
    ShardMode shards = ShardMode::kAll;
    std::string shuffle = "full";
    Augment augment{};  // crop; without --data the command line makes it resize
    Flip flip{};        // random
    int translate = 0;
    std::string jitter;          // "0.4" or "0.4:0.4:0.4:0.1"
    AutoAugment auto_augment{};  // off
    double erase = 0, mixup = 0, cutmix = 0;
    double max_bad = 0.01;
    int decode_threads = 0;
    ByteSize cache_decoded;

    // model
    std::string model = "tiny";
    InputSize size{0, 0, 0};
    int bn_group = 32;
    std::string init, freeze;
    int freeze_epochs = 0;

    // training
    int64_t batch = 64;
    int accumulate = 1, replicas = 1;
    int epochs = 10;
    int64_t steps = 0;
    OptimizerKind optimizer = OptimizerKind::kSgd;
    double lr = 0, momentum = 0.9, weight_decay = 5e-4;
    Schedule schedule = Schedule::kCosine;
    double warmup = 0.5;
    double step_epochs = 30, gamma = 0.1;
    double label_smoothing = 0;
    bool balance = false;
    double clip_norm = 0, ema = 0, lr_decay_layers = 1;
    int early_stop = 0;
    int64_t seed = 1;

    // device
    std::string device;
    int threads = 0;
    Precision precision{};  // fp32
    GraphMode graph = GraphMode::kAuto;

    // ranks
    std::string coord;
    int rank = -1, world = 0, local_rank = -1;
    int port = 0;
    std::string advertise, share;
    Toggle shm = Toggle::kOn;       // on: auto
    std::string token_file, token;  // token: from CONVOY_TOKEN only, as ps shows command lines
    bool open = false;
    double join_timeout = 600;
    WireType wire = WireType::kFp32;
    FactorMode factors = FactorMode::kAuto;
    SyncKind sync = SyncKind::kRing;
    int servers = 1;
    int staleness = 3;  // INT_MAX: none
    int sync_every = 1;
    bool outer = false;  // --sync diloco
    double outer_lr = 0.7, outer_momentum = 0.9;
    int pipeline = 1, micro = 8;
    std::string split;
    double stall = 30;
    Toggle elastic = Toggle::kOn;
    int min_world = 1;
    int64_t check_every = 100;
    bool alone = false, join = false;
    Toggle preflight = Toggle::kOn;

    // output
    std::string out, resume, from, settings;
    double save_every = 1;
    int keep = 2;
    int log_every = 10;
    double minutes = 10;  // of tune
    bool plan = false;    // tune --plan
    bool quiet = false, verbose = false, json = false, tensorboard = false;
    std::string page;   // "": none; "on": at the default address
    std::string trace;  // "FIRST:LAST"

    // cost; 0: not given
    double price_per_hour = 0, watts = 0, grams_per_kwh = 0;

    // bench, export
    std::string bytes = "1K,64K,1M,16M,64M,244M";
    double compute = 0;
    bool forward = false;
    std::string filter;

    // eval, predict
    std::string report, explain;
    double min_top1 = 0, min_recall = 0;
    Tta tta = Tta::kOff;

    bool with_preprocessing = false;
    FileFormat format = FileFormat::kAuto;

    // pack
    ByteSize shard_size{size_t(128) << 20};
    int max_side = 0;
    bool keep_order = false;
};

// Commands, as bits: which options a command takes. kPlan, kLrFind: tune --plan, tune --lr.
enum Command : unsigned {};
inline constexpr Command kTrain{1 << 0}, kFinetune{1 << 1}, kEval{1 << 2}, kPredict{1 << 3},
    kExport{1 << 4}, kImport{1 << 5}, kCheck{1 << 6}, kPack{1 << 7}, kModels{1 << 8}, kTune{1 << 9},
    kPlan{1 << 10}, kLrFind{1 << 11}, kPage{1 << 12}, kToken{1 << 13}, kHealth{1 << 14},
    kDoctor{1 << 15}, kBenchTrain{1 << 16}, kBenchKernels{1 << 17}, kBenchAllreduce{1 << 18},
    kBenchData{1 << 19};

enum OptionFlag : unsigned {
    kJob = 1,      // the same on every rank: rank 0's value
    kFollows = 2,  // rank 0's value on ranks whose users give none
    kFirst = 4,    // shown by `trainer --help`
    kCommon = 8,   // shown by --help of a command that has many options
    kBare = 16,    // the value may be left out
    kHidden = 32,  // for tests and benches: only the variable CONVOY_<OPTION> sets it
    kFixed = 64,   // --resume cannot change it: with another value it would be another run
};

struct Limits {
    double low = -1e18, high = 1e18;
};

// An option that sets several fields, such as --sync async:2:4 (composite_options.cpp). The text
// can be read back to the same fields. set() throws Error that begins with `who` if the text does
// not fit; then some fields may be set already.
struct Composite {
    std::string (*text)(const Config& config);
    void (*set)(Config& config, const std::string& text, const std::string& who);
};
extern const Composite kAugmentOption, kCacheOption, kScheduleOption, kSyncOption, kThreadsOption;

struct Option {
    const char* name;   // "batch": --batch, CONVOY_BATCH
    const char* group;  // heading in --help
    std::variant<bool Config::*, int Config::*, int64_t Config::*, double Config::*,
                 std::string Config::*, OptimizerKind Config::*, Precision Config::*,
                 GraphMode Config::*, WireType Config::*, FactorMode Config::*, Toggle Config::*,
                 ShardMode Config::*, FileFormat Config::*, ByteSize Config::*, InputSize Config::*,
                 Tta Config::*, Composite>
        field;
    const char* value;  // placeholder in --help: "B"; for an enumeration its names, in order
    unsigned commands, flags;
    const char* help;
    Limits limits = {};  // of a number

    bool is_flag() const { return std::holds_alternative<bool Config::*>(field); }
};

std::span<const Option> options();
const Option* find_option(const std::string& name);  // null if there is none
// How a user gives an option: "--batch", or "CONVOY_GRAPH" if it is hidden.
std::string option_name(const Option& option);
std::string environment_name(const std::string& option);  // "lr-decay" → "CONVOY_LR_DECAY"

// What to give instead of an option of another trainer ("--learning-rate"), or of an option that
// only an environment variable sets; "" for all others.
std::string replacement(const std::string& name);

// "64", "64K", "4M", "1G" or "1T": bytes, in powers of 1024. Throws Error that begins with `who`.
ByteSize parse_size(const std::string& text, const std::string& who);
std::string byte_size_text(ByteSize size);  // the shortest text that parse_size takes

// An option's value as text, by the option's name.
std::string get_option(const Config& config, const std::string& name);
// Throws Error: "--batch cannot be '3x': …". `who`: what gave the text, such as "CONVOY_BATCH", if
// it was not the option itself.
void set_option(Config& config, const std::string& name, const std::string& text,
                const std::string& who = "");

// The options of `command` that rank 0 sends to the other ranks (kJob, kFollows), with their texts.
std::map<std::string, std::string> job_settings(const Config& config, Command command);
// Sets the options; ignores pairs that are no such option.
void apply_settings(Config& config, const std::map<std::string, std::string>& settings);
// Reads the file of --settings: lines "name value", # comments. Does not parse values. Throws
// Error.
std::map<std::string, std::string> read_settings(const std::string& path);

// A default of some commands that differs from the default in Config. `shown`: its text in --help,
// if it differs from `value`. If `value` is null, the row changes only --help.
struct CommandDefault {
    unsigned commands;
    const char *option, *value, *shown = value;
};
std::span<const CommandDefault> command_defaults();

// Throws Error if options that `command` takes exclude or need each other (rules.cpp). given: for
// the message, what gave each option. own_only: checks only options that rank 0 does not decide.
void check_rules(const Config& config, Command command,
                 const std::map<std::string, std::string>& given, bool own_only = false);

// What the command line and the environment gave.
struct CommandLine {
    Command command = kTrain;
    Config config;
    std::map<std::string, std::string> given;  // option → what gave it: "--batch", "CONVOY_BATCH"
    std::vector<std::string> files;            // words without an option
    std::string help;                          // not empty: print this and exit
};

// The number of classes if there is no data: --classes is a number or a list of names; default 3.
int class_count(const Config& config);

}  // namespace convoy
