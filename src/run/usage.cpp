#include "src/run/usage.h"
#include "net/control/ids.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/text.h"
#include "src/session/rank_json.h"

namespace convoy {

std::string cost_text(const Amounts& amounts) {
    std::vector<std::string> parts;
    for (const auto& [name, value] : amounts) {
        const std::string number =
            value < 1 ? fmt::format("{:.3g}", value) : fmt::format("{:.2f}", value);
        parts.push_back(name == "cost"  ? "cost " + number
                        : name == "kwh" ? number + " kWh"
                                        : number + " g CO2e");
    }
    return join_text(parts);
}

static uint64_t read_counter(const std::string& path) {
    errno = 0;
    std::string line;
    if (!std::getline(std::ifstream(path), line))
        fail("cannot read ", path, ": ", errno ? std::strerror(errno) : "it is empty");
    const auto number = to_number<uint64_t>(line);
    if (!number) fail(path, " holds '", line, "' instead of a whole number");
    return *number;
}

// One zone per package: intel-rapl:0. Its parts (intel-rapl:0:0, "core" or "dram"), the platform
// zone ("psys") and the second path to the same counters (intel-rapl-mmio:0) are ignored.
Rapl::Rapl(const std::string& powercap) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(powercap, error)) {
        const std::string zone = entry.path(), file = zone + "/energy_uj";
        std::string name;
        std::getline(std::ifstream(zone + "/name"), name);
        if (entry.path().filename().string().starts_with("intel-rapl:") &&
            name.starts_with("package-"))
            packages_.push_back(
                {file, read_counter(zone + "/max_energy_range_uj"), read_counter(file)});
    }
    if (packages_.empty())
        fail("no CPU package is listed in ", powercap,
             error ? cat(" (", error.message(), ")") : "");
}

double Rapl::joules() {
    for (auto& [file, largest, last] : packages_) {
        const uint64_t now = read_counter(file);
        if (now < last && largest < last)
            fail(file, " went back from ", last, " to ", now, "; its largest is ", largest);
        joules_ += 1e-6 * double(now < last ? largest - last + now : now - last);
        last = now;
    }
    return joules_;
}

Amounts total_cost(const std::vector<Spending>& ranks, double grams_per_kwh) {
    Amounts all;
    std::map<std::string, Spending> machines;
    for (const Spending& rank : ranks) {
        for (const auto& [name, value] : rank.before) all[name] = std::max(all[name], value);
        Spending& machine = machines[rank.machine];
        machine.cost = std::max(machine.cost, rank.cost);
        machine.joules = std::max(machine.joules, rank.joules);
    }
    for (const auto& [id, machine] : machines) {
        if (machine.cost > 0) all["cost"] += machine.cost;
        if (machine.joules < 0) continue;
        all["kwh"] += machine.joules / 3.6e6;
        if (grams_per_kwh > 0) all["grams_co2e"] += grams_per_kwh * machine.joules / 3.6e6;
    }
    return all;
}

std::string advice_of_network(double own, double waited, double images, double part) {
    const double here = images * part / own, together = images / (own + waited);
    if (part <= 0 || !(here > 1.1 * together)) return "";
    return fmt::format(
        "this machine alone would train about {:.0f} img/s, the job trains {:.0f}: the network "
        "takes {:.0f} % of the time. Try --sync diloco:20, a larger --batch, or one machine",
        here, together, 100 * waited / (own + waited));
}

const char* const Usage::kNames[] = {"seconds", "data_wait", "net_wait", "net_busy",
                                     "compute", "cpu",       "memory",   "sent"};

Usage::Usage(JobSession& job, const Clocks& clocks) : job_(job), last_(now(clocks)) {
    if (job_.config.watts > 0) return;
    try {
        rapl_.emplace();
    } catch (const Error& error) {
        if (job_.config.grams_per_kwh > 0)
            job_.log.info("energy of this machine not known: ", error.what(),
                          "; --watts gives an estimate");
    }
}

void Usage::read() try {
    if (rapl_) joules_ = rapl_->joules();
} catch (const Error& error) {
    rapl_.reset();
    job_.log.info("energy of this machine not known any more: ", error.what());
}

double memory_bytes(const std::string& key) {
    std::ifstream status("/proc/self/status");  // lines such as "VmRSS:     1234 kB"
    for (std::string line; std::getline(status, line);)
        if (line.starts_with(key)) return 1024 * std::stod(line.substr(key.size() + 1));
    return -1;
}

// The current counters; -1: not known.
Usage::Figures Usage::now(const Clocks& clocks) const {
    return {seconds_between({}, Clock::now()),
            clocks.data_wait,
            clocks.net_wait,
            clocks.net_busy,
            clocks.compute,
            double(std::clock()) / CLOCKS_PER_SEC,
            memory_bytes(),
            double(job_.communicator().bytes_sent())};
}

nlohmann::json Usage::tell(int64_t step, const Clocks& clocks, Amounts& spent) {
    read();
    const Config& config = job_.config;
    const auto time = Clock::now();
    const double seconds = seconds_between(told_, time);
    const double joules = config.watts > 0 ? config.watts * seconds
                          : rapl_          ? joules_ - told_joules_
                                           : -1;
    const Figures all = now(clocks);
    Figures used = all;
    for (int i = 0; i < kFigures; ++i)
        if (i != kMemory && all[i] >= 0) used[i] = std::max(all[i] - last_[i], 0.0);
    std::vector<Spending> spending;
    nlohmann::json ranks;
    for (const auto& told :
         gather_json(job_.communicator(),
                     {machine_id(), config.price_per_hour * seconds / 3600, joules, spent, used})) {
        spending.push_back({told[0], told[1], told[2], told[3].get<Amounts>()});
        ranks.push_back(told[4]);
    }
    spent = total_cost(spending, config.grams_per_kwh);
    told_ = time, told_joules_ = joules_;  // not before, because the exchange may fail
    if (step == last_step_) return {};
    last_ = all;
    for (nlohmann::json& rank : ranks) {
        const Figures one = rank;
        const double passed = std::max(one[kSeconds], 1e-6);
        rank = nlohmann::json::object();
        for (int i = 0; i < kFigures; ++i)
            if (one[i] >= 0)  // waits and cores: parts of the time
                rank[kNames[i]] = i >= kDataWait && i <= kCpu ? one[i] / passed : one[i];
        seconds_ += passed, cpu_ += one[kCpu], sent_ += one[kSent];
        most_memory_ = std::max(most_memory_, one[kMemory]);
    }
    // By rank 0's clock, so that all take the same step.
    const double steps =
        double(step - last_step_) / std::max(ranks[0]["seconds"].get<double>(), 1e-3);
    next_step_ = step + (last_step_ < 0 ? 1 : std::max<int64_t>(1, std::llround(steps)));
    last_step_ = step;
    return ranks;
}

std::string Usage::text() const {
    if (seconds_ <= 0) return "";
    return fmt::format(
        "used per rank: {:.0f} % of a core, at most {} of memory; all ranks together: {} sent",
        100 * cpu_ / seconds_, bytes_text(most_memory_), bytes_text(sent_));
}

}  // namespace convoy
