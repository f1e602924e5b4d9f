// config.h — every default of the program, once; and one row an option.
//
// The table of options is the only place where an option's name, help and scope stand. Command
// line, environment (CONVOY_<OPTION>), the settings that rank 0 hands to the others, meta.json and
// --help are all made from it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace convoy {

struct Config {
    // data
    std::string data, val;
    double val_split = 0;
    std::string classes;  // "a,b,c"
    int generated = 3000;
    std::string augment, augment_on = "cpu";
    double max_bad = 0.01;
    int decode_threads = 0;

    // model
    std::string model = "tiny";
    int size = 0;
    int bn_group = 32;
    std::string init, freeze;

    // training
    int64_t batch = 64;
    int epochs = 10;
    int64_t steps = 0;
    std::string optimizer = "sgd";
    double lr = 0;
    double momentum = 0.9;
    bool nesterov = false;
    double weight_decay = 5e-4;
    std::string schedule = "cosine";
    double warmup = 0.5;
    double step_epochs = 30, gamma = 0.1;
    double label_smoothing = 0;
    int64_t seed = 1;

    // device
    std::string device;
    int threads = 0;
    std::string conv = "auto", precision = "fp32", gemm = "own", graph = "auto";

    // ranks
    std::string coord;
    int rank = -1, world = 0;
    int port = 0;
    std::string advertise, iface, share;
    double join_timeout = 600;
    double bucket = 0;
    std::string wire = "fp32", factors = "auto";
    int sync_every = 1;
    double stall = 30;
    std::string preflight = "on";

    // output
    std::string out, resume, from;
    double save_every = 1;
    int keep = 3;
    int log_every = 10;
    bool quiet = false, json = false;

    // bench, export
    std::string bytes = "1K,64K,1M,16M,64M,244M";
    double compute = 0;
    bool forward = false;
    std::string filter, layout = "oihw";
};

// Commands, as bits: which options a command takes.
enum Command : unsigned {
    kTrain = 1,
    kEval = 2,
    kPredict = 4,
    kCheck = 8,
    kCoordinator = 16,
    kExport = 32,
    kImport = 64,
    kBenchTrain = 128,
    kBenchKernels = 256,
    kBenchAllreduce = 512,
    kBenchData = 1024,
    kModels = 2048,
    kPlan = 4096,
};

struct Option {
    const char* name;   // "batch": --batch, CONVOY_BATCH
    const char* group;  // heading in --help
    std::variant<bool Config::*, int Config::*, int64_t Config::*, double Config::*,
                 std::string Config::*>
        field;
    const char* value;  // what stands for the value in --help: "B"
    const char* help;
    unsigned commands;
    bool job = false;    // the same on every rank: rank 0's value is the job's
    bool first = false;  // among those that the short help shows
    double low = -1e18, high = 1e18;
};

// --augment-on device: loaders deliver pixels, and the backend makes them the network's input.
inline bool augments_on_device(const Config& config) { return config.augment_on == "device"; }

std::span<const Option> options();
const Option* find_option(const std::string& name);

std::string get_option(const Config& config, const Option& option);
// Throws Error naming the option and what it takes: "--batch cannot be '3x': …".
void set_option(Config& config, const Option& option, const std::string& text);

// All options that are the same on every rank, as pairs; and back.
std::map<std::string, std::string> job_settings(const Config& config);
void apply_settings(Config& config, const std::map<std::string, std::string>& settings);

// What one command line and environment said.
struct CommandLine {
    Command command = kTrain;
    std::string command_name = "train";
    Config config;
    std::map<std::string, std::string> given;  // option → who gave it: "--batch", "CONVOY_BATCH"
    std::vector<std::string> files;            // words without an option
    // What launchers say of this rank's place on its host, as it stands in the environment:
    // LOCAL_RANK, SLURM_LOCALID, OMPI_COMM_WORLD_LOCAL_RANK, CUDA_VISIBLE_DEVICES.
    std::map<std::string, std::string> launcher;
    std::string help;  // not empty: print this and be done
};

// Throws Error: unknown command or option (with the nearest one), a value that does not fit, two
// environment variables that disagree.
CommandLine parse_command_line(const std::vector<std::string>& words,
                               const std::map<std::string, std::string>& environment);

// RANK, WORLD_SIZE, MASTER_ADDR/PORT, Open MPI, Slurm, Kubernetes: fills rank, world, coord where
// no flag did, and launcher.
void apply_launcher(CommandLine& line, const std::map<std::string, std::string>& environment);

// Of --classes where there is no data: a number, or as many as there are names; 3 without it.
int class_count(const Config& config);

}  // namespace convoy
