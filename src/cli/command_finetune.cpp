// command_finetune.cpp — finetune: trains from the weights in a file, with defaults for that.
#include <filesystem>

#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/torch_file.h"
#include "src/checkpoint/weights.h"
#include "src/cli/commands.h"
#include "src/session/device_choice.h"
#include "src/step/learning_rate.h"

namespace convoy {

int command_finetune(const CommandLine& given, Log& log, const Stop& stop) {
    if (given.files.size() != 1)
        fail(
            "finetune takes one file of weights: trainer finetune WEIGHTS.pth --data DIR (the "
            "other ranks of a job run `trainer train`)");
    CommandLine line = given;
    line.command = kTrain;
    line.files.clear();
    Config& config = line.config;
    if (config.data.empty() && !given.given.contains("generated"))
        fail("finetune needs your images: trainer finetune ", given.files[0], " --data DIR");
    config.init = given.files[0];
    if (std::filesystem::exists(config.init)) config.init = find_model_file(config.init, log);
    if (!given.given.contains("lr")) {
        config.lr *= double(config.batch) / 64;
        if (config.optimizer != OptimizerKind::kSgd)  // as in training from scratch
            config.lr = 0, config.lr = base_learning_rate(config, true);
    }
    {
        Log unheard(nullptr);  // the run reads the file again, and logs what it leaves out
        const SafeTensors weights = read_weights(config.init, unheard);
        if (!given.given.contains("model")) {
            config.model = recognised_model(weights, config.init, *make_backend("cpu"));
            log.info(config.init, ": weights of ", config.model);
        }
        // Weights that Convoy trained see images best at the size they know.
        const auto known = [&](const char* what) {
            const auto found = weights.metadata.find(what);
            return found == weights.metadata.end() ? "" : found->second;
        };
        const auto size = parse_input_size(known("size"));
        if (size && !given.given.contains("size") &&
            known("model_text") == model_text(config.model)) {
            config.size = *size;
            log.info(config.init, ": trained at ", input_size_text(*size));
        }
    }
    return run_in_job(line, log, stop, train_in_job);
}

}  // namespace convoy
