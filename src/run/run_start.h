// run_start.h — what a run says before its first step: settings, network, ranks.
#pragma once

#include <string>
#include <vector>

#include "src/job/job_setup.h"
#include "src/model/model.h"
#include "src/train/optimizer.h"

namespace convoy {

struct RunStart {
    const JobSetup& setup;
    Model& model;
    const Optimizer& optimizer;
    const Backend& backend;
    size_t activation_bytes;
    int decode_threads;
    int64_t steps_per_epoch, total_steps;
    double base_lr;
    const std::string& folder;
    const std::vector<std::string>& expectations;  // the pre-flight's
};

// A table of settings, the network layer by layer, and of several ranks who they are.
void print_start(const RunStart& start, Log& log);

}  // namespace convoy
