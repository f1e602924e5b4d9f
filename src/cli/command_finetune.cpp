// command_finetune.cpp — finetune: `train` from weights in a file, with other defaults.
#include "src/checkpoint/torch_file.h"
#include "src/checkpoint/weights.h"
#include "src/cli/commands.h"
#include "src/job/device_choice.h"
#include "src/train/learning_rate.h"

namespace convoy {

// What is not given. The learning rate is for a batch of 64.
static constexpr std::pair<const char*, const char*> kDefaults[] = {
    {"lr", "0.02"},           {"epochs", "6"},
    {"freeze-epochs", "1"},   {"lr-decay-layers", "1.2"},
    {"weight-decay", "1e-4"}, {"label-smoothing", "0.05"}};

static int command_finetune(const CommandLine& given, Log& log, const Stop& stop) {
    if (given.files.size() != 1)
        fail(
            "finetune takes one file of weights: trainer finetune WEIGHTS.pth --data DIR; other "
            "ranks of a job run `trainer train`");
    for (const char* name : {"init", "resume"})
        if (given.given.contains(name))
            fail(
                "--", name, " does not go with finetune, which begins with ", given.files[0],
                name == std::string("resume") ? ": trainer --resume RUN goes on with its run" : "");
    CommandLine line = given;
    line.command = kTrain;
    line.files.clear();
    Config& config = line.config;
    config.init = given.files[0];
    for (const auto& [name, value] : kDefaults)
        if (!given.given.contains(name)) set_option(config, name, value);
    if (!given.given.contains("lr")) {
        config.lr *= double(config.batch) / 64;
        if (config.optimizer != OptimizerKind::kSgd)  // as in training from scratch
            config.lr = 0, config.lr = base_learning_rate(config, true);
    }
    if (!given.given.contains("model")) {
        const auto backend = make_backend("cpu");
        config.model = recognised_model(read_weights(config.init, log), config.init, *backend);
        log.info(config.init, ": weights of ", config.model);
    }
    // Few epochs: with one frozen, and one to train.
    config.freeze_epochs = std::min(config.freeze_epochs, std::max(config.epochs - 1, 0));
    return run_in_job(line, log, stop, train_in_job);
}

const CommandRow kFinetuneRow =
    with_files({"finetune", Command(kTrain | kFinetune), "WEIGHTS --data DIR [options]",
                "train further from PyTorch's or our weights, with a fresh last layer; the model "
                "is recognised",
                command_finetune});

}  // namespace convoy
