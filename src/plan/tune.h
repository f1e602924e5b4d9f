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
    std::string name;
    int ranks = 1;                                    // on this machine
    std::map<std::string, std::string> options = {};  // by name
    bool is_exact = true;  // trains what one rank trains, up to the rounding of sums
};

// On one machine. The first setup is one core (the base of the speed-up), the second is one rank on
// all cores.
std::vector<Setup> local_setups(int cores, int gpus);
// On `world` machines, with one rank on each.
std::vector<Setup> join_setups(int world);

// Whether a setup decides this option, so that a user cannot give it.
bool is_tuned(const std::string& option);

struct Tried {
    Setup setup;
    Speed speed = {};
};
// Measures for this many seconds, or less if the speed is clearly below `to_beat`. Sets the
// speed.
using MeasureSetup = std::function<void(Tried&, double seconds, double to_beat)>;

// Returns the fastest setup that is exact; null if none could be measured. Measures each setup for
// a second, then again for three seconds the best three that are within 10 % of the fastest.
const Tried* race(std::vector<Tried>& tried, const MeasureSetup& measure);

}  // namespace convoy
