// job_cost.h — what a run has cost: money, energy and greenhouse gas of all its machines together.
//
// The formulae are in src/run/README.md. A machine counts once, however many ranks it has.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/base/clock.h"
#include "src/job/job_session.h"
#include "src/run/energy.h"

namespace convoy {

// What is known of "cost", "kwh", "grams_co2e".
using Amounts = std::map<std::string, double>;

struct JobCost {
    double cost = -1, kwh = -1, grams_co2e = -1;  // -1: not known
    double price_per_hour = 0;                    // of a machine, on average
    std::string power_source;                     // "measured: CPU packages"
    // What processes that have ended spent, as far as it was known: before --resume, and ranks that
    // were lost or left.
    std::optional<Amounts> before = {};

    // "cost 1.23 (0.41 an hour a machine), 0.12 kWh (measured: CPU packages), 48.00 g CO2e", and
    // what was spent before, and in all; "" if nothing is known.
    std::string text() const;
    Amounts sums() const;  // of the whole job
};

// What one rank knows of its machine.
struct RankCost {
    std::string id = {};                      // of its process
    std::string host = {}, machine = {};      // host id; machine_id(), the same in all containers
    double price_per_hour = 0, watts = 0;     // 0: not given
    std::string gpu = {};                     // the UUID of what it computes on; "": no GPU
    double cpu_joules = -1, gpu_joules = -1;  // -1: not known
    double seconds = 0;                       // that it has run for
};
// grams_per_kwh 0: not given.
JobCost job_cost(std::span<const RankCost> ranks, double grams_per_kwh);
// What those of `before` that are not there `now` have spent beyond what the others count.
Amounts cost_of_gone(std::span<const RankCost> before, std::span<const RankCost> now,
                     double grams_per_kwh);

// Counts on one rank from its construction on.
class CostMeter {
 public:
    // before: of one rank is enough, the others learn of it from of_job().
    explicit CostMeter(JobSession& job, std::optional<Amounts> before = {});
    void read();  // to be called now and then: see cpu_packages()
    // Collective: the cost of all ranks until now.
    JobCost of_job();
    const JobCost& last() const { return last_; }  // as of the last time

 private:
    void tell_failures();
    JobSession& job_;
    RankCost mine_;
    std::vector<RankCost> ranks_;  // as of the last time
    const Clock::time_point begin_ = Clock::now();
    JobCost last_;
    EnergySource cpu_, gpu_;
};

}  // namespace convoy
