// tune.h — the setups that a machine, or a job of several machines, can train with, and the race
// between them. Each is measured by a real run (measured_run.h).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "src/plan/measured_run.h"

namespace convoy {

// Options by name.
struct Setup {
    std::string name;
    int ranks = 1;  // on this machine; of a join: one on each
    std::map<std::string, std::string> options = {};
    bool is_exact = true;  // what one rank trains, up to the rounding of sums
};

// On one machine: first one core, which the speed-up is relative to; then one rank on all cores,
// which most others must beat.
std::vector<Setup> local_setups(int cores, int gpus);
// Of `world` machines, one rank on each.
std::vector<Setup> join_setups(int world);

// Whether a rank with so many images of a batch can cut them into the micro-batches or replicas of
// the setup: groups of batch norm (0: none) stay whole.
bool is_cut_as_asked(const Setup& setup, int64_t share, int bn_group);

// The options that a setup decides: they are not for the user to give.
bool is_tuned(const std::string& option);

struct Tried {
    Setup setup;
    Speed speed = {};
};
// Sets the speed: measured for so many seconds, or less where it is clearly below `to_beat`.
using MeasureSetup = std::function<void(Tried&, double seconds, double to_beat)>;

// The fastest setup that is exact; null if none could be measured. Each is measured for a second.
// The best three of those within 10 % of the fastest are measured again, for three seconds.
const Tried* race(std::vector<Tried>& tried, const MeasureSetup& measure);

}  // namespace convoy
