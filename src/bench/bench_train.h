// bench_train.h — training steps without the input pipeline: how fast, and what the network costs.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "net/communicator.h"
#include "src/config/config.h"

namespace convoy {

struct TrainBench {
    std::string model;
    int64_t batch = 0;
    int size = 0, classes = 0, world = 1, threads = 1;
    std::vector<double> images_per_second;  // of all ranks together, one a timed step
    double gflops = 0, peak_gflops = 0;     // of this rank; 0: nothing was computed, or not known
    double net_wait = 0, net_busy = 0;      // parts of the time
    double bytes_a_step = 0;                // sent by this rank
    // From the start of the command to the begin and to the end of the first step.
    double start_seconds = 0, first_step_seconds = 0;
    std::chrono::steady_clock::time_point first_step_begin, first_step_end;
    size_t device_bytes = 0;   // taken of a GPU's memory
    std::string why_no_graph;  // "" where steps were replayed as a graph
    int signal = 0;            // that ended it early, else 0
};

// Blocks; every rank must call it. Random pixels, the same in every step. With config.compute > 0
// the layers sleep so many seconds a step in place of computing, in proportion to their operations,
// while gradients travel as ever: the network of many hosts on a machine of few cores. With
// config.forward the steps are forward passes, as of eval.
TrainBench bench_train(const Config& config, Communicator& communicator,
                       const std::function<int()>& stop);

// A table on stdout, or one JSON object.
void print_train_bench(const TrainBench& result, bool json);

}  // namespace convoy
