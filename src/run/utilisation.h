// utilisation.h — what each rank uses of its machine: processor, memory, network.
//
// Read from the kernel by the thread that trains; no thread of its own. Each rank tells all others
// by one gather of a few floats, in order with the sums of the next step, so nobody waits for it.
#pragma once

#include <array>
#include <future>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "net/communicator.h"
#include "src/base/clock.h"

namespace convoy {

// Seconds since the start of a run: waiting for images, waiting for the network, network busy, and
// steps without these waits.
struct Clocks {
    double data_wait = 0, net_wait = 0, net_busy = 0, compute = 0;
};

// What a user can do if this rank alone would be faster than the job, which trained `images`,
// `part` of them here in `own` seconds beside those that it waited for the network; "" if it would
// not.
std::string advice_of_network(double own, double waited, double images, double part);

class Utilisation {
 public:
    // Counts from now on.
    Utilisation(Communicator& communicator, const Clocks& clocks);
    ~Utilisation() { forget(); }

    // Of step `step`, on all ranks: starts to tell what this rank has used since the last time.
    void tell(int64_t step, Communicator& communicator, const Clocks& clocks);
    int64_t step() const { return step_; }  // of the last tell()
    // Whether tell() has not been taken yet.
    bool told() const { return done_.valid(); }
    // A list of what the ranks have told, by rank (src/run/log.md has the fields). Blocks until
    // all have. Throws as the communicator does.
    nlohmann::json take();
    // The step of the next tell(), about a second after the last one; the same on all ranks.
    int64_t next_step() const { return next_step_; }
    // The ring is another one: what was under way is dropped, and the next step tells.
    void forget();

    // "used: …" for the summary, of all ranks together; "" if nothing was told.
    std::string text() const;

 private:
    // The floats that travel, in this order; -1: not known.
    enum Figure {
        kSeconds,  // since the last time
        kDataWait,
        kNetWait,
        kNetBusy,
        kCompute,
        kCpu,  // seconds of all cores
        kMemory,
        kSent,
        kFigures
    };
    static const char* const kNames[kFigures];
    using Figures = std::array<double, kFigures>;
    Figures now(Communicator& communicator, const Clocks& clocks);

    Figures last_;  // counters, as they were
    std::vector<float> floats_;
    std::future<void> done_;
    int64_t step_ = -1, last_step_ = -1, next_step_ = 0;         // -1: newcomers know neither
    double cpu_ = 0, seconds_ = 0, most_memory_ = 0, sent_ = 0;  // of all ranks so far
};

}  // namespace convoy
