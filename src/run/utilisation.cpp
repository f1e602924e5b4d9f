// utilisation.cpp — see utilisation.h.
#include "src/run/utilisation.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/check.h"
#include "src/base/text.h"

namespace convoy {

const char* const Utilisation::kNames[] = {"seconds", "data_wait", "net_wait", "net_busy",
                                           "compute", "cpu",       "memory",   "sent"};

std::string advice_of_network(double own, double waited, double images, double part) {
    const double here = images * part / own, together = images / (own + waited);
    if (part <= 0 || !(here > 1.1 * together)) return "";
    return fmt::format(
        "this machine alone would train about {:.0f} img/s, the job trains {:.0f}: it waits for "
        "the network {:.0f} % of the time. Try --sync diloco:20, a larger "
        "--batch, or one machine",
        here, together, 100 * waited / (own + waited));
}

// Bytes in memory now; -1 where there is no /proc.
static double resident_bytes() {
    double pages = -1;
    std::ifstream("/proc/self/statm") >> pages >> pages;  // the second number
    return pages < 0 ? -1 : pages * double(sysconf(_SC_PAGESIZE));
}

Utilisation::Utilisation(Communicator& communicator, const Clocks& clocks)
    : last_(now(communicator, clocks)) {}

// The counters as they are.
Utilisation::Figures Utilisation::now(Communicator& communicator, const Clocks& clocks) {
    timespec cpu{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    return {seconds_between({}, Clock::now()),
            clocks.data_wait,
            clocks.net_wait,
            clocks.net_busy,
            clocks.compute,
            double(cpu.tv_sec) + 1e-9 * double(cpu.tv_nsec),
            resident_bytes(),
            double(communicator.bytes_sent())};
}

void Utilisation::tell(int64_t step, Communicator& communicator, const Clocks& clocks) {
    ENSURE(!told(), "step ", step_);
    const Figures all = now(communicator, clocks);
    const size_t world = size_t(communicator.world());
    floats_.assign(world * kFigures, -1);
    std::vector<std::span<float>> blocks;
    for (size_t rank = 0; rank < world; ++rank)
        blocks.emplace_back(floats_.data() + rank * kFigures, size_t(kFigures));
    for (int i = 0; i < kFigures; ++i) {
        const bool level = i == kMemory || all[i] < 0;
        blocks[size_t(communicator.rank())][i] =
            float(level ? all[i] : std::max(all[i] - last_[i], 0.0));
    }
    last_ = all;
    step_ = step;
    done_ = communicator.gather(std::move(blocks));
}

nlohmann::json Utilisation::take() {
    done_.get();
    nlohmann::json ranks;
    for (const float* one = floats_.data(); one < floats_.data() + floats_.size();
         one += kFigures) {
        const double seconds = std::max(double(one[kSeconds]), 1e-6);
        nlohmann::json& rank = ranks.emplace_back();
        for (int i = 0; i < kFigures; ++i)
            if (one[i] >= 0)  // waits and cores: parts of the time
                rank[kNames[i]] = i >= kDataWait && i <= kCpu ? one[i] / seconds : one[i];
        seconds_ += seconds, cpu_ += one[kCpu];
        most_memory_ = std::max(most_memory_, double(one[kMemory]));
        sent_ += one[kSent];
    }
    // Of rank 0's clock, so that all take the same step.
    const double steps = double(step_ - last_step_) / std::max(double(floats_[kSeconds]), 1e-3);
    next_step_ = step_ + (last_step_ < 0 ? 1 : std::max<int64_t>(1, std::llround(steps)));
    last_step_ = step_;
    return ranks;
}

void Utilisation::forget() {
    if (told()) done_.wait();
    done_ = {};
    step_ = last_step_ = -1, next_step_ = 0;
}

std::string Utilisation::text() const {
    if (seconds_ <= 0) return "";
    return fmt::format(
        "used per rank: {:.0f} % of a core, at most {} of memory; all ranks together: {} sent",
        100 * cpu_ / seconds_, bytes_text(most_memory_), bytes_text(sent_));
}

}  // namespace convoy
