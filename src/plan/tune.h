// tune.h — which ways to train a machine, or a job of several, can be set to; each is measured by a
// real run (measured_run.h).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "src/config/config.h"
#include "src/plan/measured_run.h"

namespace convoy {

// One way to train: options by name.
struct Setup {
    std::string name;
    int ranks = 1;  // on this machine; of a join: one on each
    std::map<std::string, std::string> options = {};
    bool is_exact = true;  // what one rank trains, up to the rounding of sums
};

// On one machine: the first is one core, which the others are compared with.
std::vector<Setup> local_setups(int cores, int gpus);
// Of `world` machines, one rank on each.
std::vector<Setup> join_setups(int world);

// Whether a rank with so many images of a batch can cut them into the pieces of the setup: groups
// of batch norm (0: none) stay whole.
bool is_cut_as_asked(const Setup& setup, int64_t share, int bn_group);

// The options that a setup decides: they are not for the user to give.
bool is_tuned(const std::string& option);

struct Tried {
    Setup setup;
    Speed speed = {};
    bool is_from_file = false;  // measured by an earlier tune
};
// The fastest of those that are exact; null if none could be measured. All are measured for a
// second, the fastest third of the exact ones for three, and so on to the last two or three
// (successive halving: Jamieson and Talwalkar 2016), so that the time goes to those that are hard
// to tell apart. `measure` sets the speed.
const Tried* race(std::vector<Tried>& tried,
                  const std::function<void(Tried&, double seconds)>& measure);

// The runs measured so far, in a file of JSON lines, so that a tune that was interrupted goes on.
// A key names everything on which a speed depends.
class TuneRecords {
 public:
    explicit TuneRecords(std::string path);
    const Speed* find(const std::string& key) const;
    // Throws Error where the file cannot be written.
    void add(const std::string& key, const Speed& speed);

 private:
    const std::string path_;
    std::map<std::string, Speed> speeds_;
};

}  // namespace convoy
