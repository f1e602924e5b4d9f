// tune.h — the trials with which a machine, or a job of several machines, can train, and their
// speed in a training run.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/session/job_session.h"

namespace convoy {

struct Speed {
    double seconds = 0;                      // duration of the measured steps
    double images_per_second = 0;            // of all ranks
    double net_wait = 0, net_busy = 0;       // parts of the time, of rank 0
    double cores = 0, memory_megabytes = 0;  // in use by the ranks of this machine
    std::string fault;                       // why there is no speed; "": there is one
};

struct Trial {
    std::map<std::string, std::string> options = {};  // by name
    int ranks = 1;                                    // on each machine
    bool is_exact = true;  // trains what one rank trains, up to the rounding of sums
    Speed speed = {};      // measured

    std::string text() const;  // "2 ranks: --sync pipeline:2 --threads 1"
};

// On one machine. The first trial is one core, the base of the speed-up.
std::vector<Trial> local_trials(int cores, int gpus);
// On `world` machines, each with one rank and the options of `local`.
std::vector<Trial> join_trials(int world, const Trial& local);

// The speed of the steps in a log.jsonl except the first step, which warms up. Ignores lines that
// are not JSON or not a step.
Speed speed_of_log(const std::string& path);

// A port that is free at this moment, on loopback.
uint16_t free_port();

}  // namespace convoy
