// cost.h — what a run has cost: money, energy and CO2 of all its machines together.
//
//   cost       = Σ over machines  --price · hours
//   kwh        = Σ over machines  --watts · hours / 1000; without --watts what RAPL has measured
//   grams_co2e = --grams-per-kwh of rank 0 · kwh
//
// A machine counts once, however many ranks it has, with the largest value that one of them has.
// Tried with fake counters, not on a machine with RAPL.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/base/clock.h"
#include "src/job/job_session.h"

namespace convoy {

// What is known of "cost", "kwh", "grams_co2e".
using Amounts = std::map<std::string, double>;
// "cost 1.23, 0.12 kWh, 48.00 g CO2e"; "" if nothing is known.
std::string cost_text(const Amounts& amounts);

// The energy of all CPU packages of this machine (RAPL, by Linux's powercap; most systems let only
// root read it). Throws Error if one package cannot be read: a part would pass for all of it.
class Rapl {
 public:
    explicit Rapl(const std::string& powercap = "/sys/class/powercap");
    // Since the construction. The counters start again after some 260 kJ, 15 minutes at 290 W:
    // calls must not be further apart.
    double joules();

 private:
    struct Package {
        std::string file;
        uint64_t largest, last;  // microjoules; 0 follows the largest
    };
    std::vector<Package> packages_;
    double joules_ = 0;
};

// What a rank tells of the time since it told it last.
struct Spending {
    std::string machine;           // machine_id()
    double cost = 0, joules = -1;  // 0: no price; -1: not known
    Amounts before = {};           // of the whole job until then
};
Amounts total_cost(const std::vector<Spending>& ranks, double grams_per_kwh);

// Counts on one rank from its construction on.
class CostMeter {
 public:
    // before: what the job has cost so far; one rank's is enough.
    explicit CostMeter(JobSession& job, Amounts before = {});
    void read();  // to be called now and then: see Rapl::joules()
    // Collective: the cost of the job until now, with ranks that are gone, as of the last call that
    // they were there for. If a rank is lost during the call, that interval may count twice.
    Amounts of_job();
    const Amounts& last() const { return last_; }  // as of the last call

 private:
    JobSession& job_;
    std::optional<Rapl> rapl_;
    Clock::time_point told_ = Clock::now();
    double joules_ = 0, told_joules_ = 0;
    Amounts last_;
};

}  // namespace convoy
