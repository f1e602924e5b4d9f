// tune.h — the setups with which a machine, or a job of several machines, can train, and a race
// between them. Each setup is measured by a real run (measured_run.h).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "src/plan/measured_run.h"

namespace convoy {

struct Setup {
    std::map<std::string, std::string> options = {};  // by name
    int ranks = 1;                                    // on each machine
    bool is_exact = true;  // trains what one rank trains, up to the rounding of sums
    Speed speed = {};      // measured

    std::string text() const;  // "2 ranks: --sync pipeline:2 --threads 1"
};

// On one machine. The first setup is one core, the base of the speed-up.
std::vector<Setup> local_setups(int cores, int gpus);
// On `world` machines, each with one rank and the options of `local`.
std::vector<Setup> join_setups(int world, const Setup& local);

// Measures for this many seconds, or less if the speed is clearly below `to_beat`. Sets its speed.
using MeasureSetup = std::function<void(Setup&, double seconds, double to_beat)>;

// Returns the number of the fastest setup that is exact; -1 if none could be measured. Measures
// each setup for a second, then again for three seconds the best three that are within 10 % of the
// fastest.
int race(std::vector<Setup>& setups, const MeasureSetup& measure);

}  // namespace convoy
