// usage.h — what each rank uses of its machine (processor, memory, network), and what the job costs
// (money, energy, CO2). Read from the kernel by the thread that trains.
//
//   cost       = Σ over machines  --price · hours
//   kwh        = Σ over machines  --watts · hours / 1000; without --watts the RAPL counters
//   grams_co2e = --grams-per-kwh of rank 0 · kwh
//
// A machine counts once, however many ranks it has: the largest value of its ranks is used. RAPL
// was tested with fake counters only.
#pragma once

#include <array>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/base/clock.h"
#include "src/session/job_session.h"

namespace convoy {

// Seconds since the start of a run: waiting for images, waiting for the network, network busy, and
// steps without these waits.
struct Clocks {
    double data_wait = 0, net_wait = 0, net_busy = 0, compute = 0;
};

// The known values of "cost", "kwh", "grams_co2e".
using Amounts = std::map<std::string, double>;
// "cost 1.23, 0.12 kWh, 48.00 g CO2e"; "" if nothing is known.
std::string cost_text(const Amounts& amounts);

// Memory of this process, now (VmRSS) or at most (VmHWM); -1: not known. getrusage() would also
// count memory from before exec(), which is that of a large parent.
double memory_bytes(const std::string& key = "VmRSS");

// What a user can do if this rank alone would be faster than the job; else "". The job trained
// `images`, this rank `part` of them: in `own` seconds, besides `waited` seconds for the network.
std::string advice_of_network(double own, double waited, double images, double part);

// The energy of all CPU packages of this machine (RAPL, by Linux's powercap, often readable by root
// only). Throws Error if a package is not readable, because a part would look like the total.
class Rapl {
 public:
    explicit Rapl(const std::string& powercap = "/sys/class/powercap");
    // Joules since the construction. The counters wrap after some 260 kJ, which is 15 minutes at
    // 290 W, so it must be called more often than that.
    double joules();

 private:
    struct Package {
        std::string file;
        uint64_t largest, last;  // microjoules; after `largest` comes 0
    };
    std::vector<Package> packages_;
    double joules_ = 0;
};

// What a rank spent since its last report.
struct Spending {
    std::string machine;           // machine_id()
    double cost = 0, joules = -1;  // 0: no price; -1: not known
    Amounts before = {};           // of the whole job at the last report
};
Amounts total_cost(const std::vector<Spending>& ranks, double grams_per_kwh);

// Counts on one rank from its construction on.
class Usage {
 public:
    Usage(JobSession& job, const Clocks& clocks);
    void read();  // must be called regularly: see Rapl::joules()
    // Collective, after step `step` on all ranks. Sets `spent` to the cost of the job until now.
    // Returns what each rank has used since the last report (fields: log.md); null if this step was
    // reported already. If a rank is lost during the call, its interval may count twice.
    nlohmann::json tell(int64_t step, const Clocks& clocks, Amounts& spent);
    // The step of the next tell() for --page, the same on all ranks, about a second later.
    int64_t next_step() const { return next_step_; }
    void forget() { last_step_ = -1, next_step_ = 0; }  // newcomers know neither step
    // "used per rank: …" of all ranks together, for the summary; "" if there was no report.
    std::string text() const;

 private:
    enum { kSeconds, kDataWait, kNetWait, kNetBusy, kCompute, kCpu, kMemory, kSent, kFigures };
    static const char* const kNames[kFigures];
    using Figures = std::array<double, kFigures>;
    Figures now(const Clocks& clocks) const;

    JobSession& job_;
    std::optional<Rapl> rapl_;
    Clock::time_point told_ = Clock::now();
    double joules_ = 0, told_joules_ = 0;
    Figures last_;  // counters, as they were
    int64_t last_step_ = -1, next_step_ = 0;
    double cpu_ = 0, seconds_ = 0, most_memory_ = 0, sent_ = 0;  // of all ranks so far
};

}  // namespace convoy
