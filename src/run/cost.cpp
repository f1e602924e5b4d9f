// cost.cpp — see cost.h.
#include "src/run/cost.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "net/communicator.h"
#include "src/base/check.h"
#include "src/base/number.h"
#include "src/base/text.h"
#include "src/job/exchange.h"

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

// One zone a package: intel-rapl:0. Its parts (intel-rapl:0:0, "core" or "dram"), the platform
// ("psys") and the second way to the same counters (intel-rapl-mmio:0) are left out.
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

CostMeter::CostMeter(JobSession& job, Amounts before) : job_(job), last_(std::move(before)) {
    if (job_.config.watts > 0) return;
    try {
        rapl_.emplace();
    } catch (const Error& error) {
        if (job_.config.grams_per_kwh > 0)
            job_.log.info("energy of this machine not known: ", error.what(),
                          "; --watts gives an estimate");
    }
}

void CostMeter::read() try {
    if (rapl_) joules_ = rapl_->joules();
} catch (const Error& error) {
    rapl_.reset();
    job_.log.info("energy of this machine not known any more: ", error.what());
}

Amounts CostMeter::of_job() {
    read();
    const Config& config = job_.config;
    const auto now = Clock::now();
    const double seconds = seconds_between(told_, now);
    const double joules = config.watts > 0 ? config.watts * seconds
                          : rapl_          ? joules_ - told_joules_
                                           : -1;
    std::vector<Spending> ranks;
    for (const auto& rank : gather_json(
             job_.communicator(),
             {machine_id(), config.price_per_hour * seconds / 3600, joules, nlohmann::json(last_)}))
        ranks.push_back({rank[0], rank[1], rank[2], rank[3].get<Amounts>()});
    told_ = now, told_joules_ = joules_;
    return last_ = total_cost(ranks, config.grams_per_kwh);
}

}  // namespace convoy
