// job_cost.cpp — see job_cost.h.
#include "src/run/job_cost.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/backend.h"
#include "net/coordinator.h"
#include "src/base/check.h"
#include "src/base/text.h"
#include "src/job/exchange.h"

namespace convoy {

namespace {

struct Machine : RankCost {
    std::map<std::string, double> gpus;  // UUID → joules
};

void take_larger(double& a, double b) { a = std::max(a, b); }

// Joules, and where the number is from; "": not known.
std::pair<double, std::string> energy_of(const Machine& machine) {
    const bool cpu = machine.cpu_joules >= 0;
    double joules = cpu ? machine.cpu_joules : 0;
    size_t gpus = 0;
    for (const auto& [uuid, of_gpu] : machine.gpus)
        if (of_gpu >= 0) ++gpus, joules += of_gpu;
    if (machine.watts > 0 && (!cpu || gpus < machine.gpus.size()))
        return {machine.watts * machine.seconds,
                fmt::format("estimate: {:g} W a machine", machine.watts)};
    if (!cpu) return {joules, gpus ? "measured: GPUs" : ""};
    return {joules, gpus ? "measured: CPU packages and GPUs" : "measured: CPU packages"};
}

std::string number_text(double x) {
    return x < 1 ? fmt::format("{:.3g}", x) : fmt::format("{:.2f}", x);
}

}  // namespace

JobCost job_cost(std::span<const RankCost> ranks, double grams_per_kwh) {
    std::map<std::string, Machine> hosts;  // containers may be paid for one by one
    std::map<std::string, Machine> machines;
    for (const RankCost& rank : ranks) {
        Machine& host = hosts[rank.host];
        take_larger(host.price_per_hour, rank.price_per_hour);
        take_larger(host.seconds, rank.seconds);
        Machine& machine = machines[rank.machine];
        take_larger(machine.watts, rank.watts);
        take_larger(machine.seconds, rank.seconds);
        take_larger(machine.cpu_joules, rank.cpu_joules);
        if (!rank.gpu.empty())
            take_larger(machine.gpus.emplace(rank.gpu, -1).first->second, rank.gpu_joules);
    }
    double price = 0, cost = 0, joules = 0;
    size_t known = 0;
    std::set<std::string> sources;
    for (const auto& [id, host] : hosts)
        price += host.price_per_hour, cost += host.price_per_hour * host.seconds / 3600;
    for (const auto& [id, machine] : machines) {
        const auto [of_machine, source] = energy_of(machine);
        joules += of_machine;
        if (!source.empty()) ++known, sources.insert(source);
    }
    JobCost job;
    if (price > 0) job.cost = cost;
    job.price_per_hour = price / double(hosts.size());
    if (known == 0) return job;
    job.kwh = joules / 3.6e6;
    if (grams_per_kwh > 0) job.grams_co2e = grams_per_kwh * job.kwh;
    job.power_source = join_text(sources, "; ");
    if (known < machines.size())
        job.power_source +=
            cat("; not known of ", machines.size() - known, " of ", machines.size(), " machines");
    return job;
}

Amounts cost_of_gone(std::span<const RankCost> before, std::span<const RankCost> now,
                     double grams_per_kwh) {
    std::vector<RankCost> stay;
    for (const RankCost& rank : before)
        if (std::ranges::find(now, rank.id, &RankCost::id) != now.end()) stay.push_back(rank);
    Amounts gone = job_cost(before, grams_per_kwh).sums();
    for (const auto& [name, value] : job_cost(stay, grams_per_kwh).sums()) gone[name] -= value;
    std::erase_if(gone, [](const auto& amount) { return amount.second <= 0; });
    return gone;
}

Amounts JobCost::sums() const {
    Amounts all = before.value_or(Amounts());
    for (const auto& [name, value] :
         {std::pair("cost", cost), {"kwh", kwh}, {"grams_co2e", grams_co2e}})
        if (value >= 0) all[name] += value;
    return all;
}

std::string JobCost::text() const {
    std::vector<std::string> parts;
    if (cost >= 0)
        parts.push_back(cat("cost ", number_text(cost), " (", number_text(price_per_hour),
                            " an hour a machine)"));
    if (kwh >= 0) parts.push_back(cat(number_text(kwh), " kWh (", power_source, ")"));
    if (grams_co2e >= 0) parts.push_back(number_text(grams_co2e) + " g CO2e");
    const Amounts all = sums();
    const auto text_of = [](std::string what, const Amounts& amounts) {
        for (const auto& [name, value] : amounts) what += cat(" ", name, " ", number_text(value));
        return what;
    };
    if (before && !all.empty())
        parts.push_back(text_of("of processes that ended", *before) +
                        (before->size() < all.size() ? " (not known: 0)" : "") +
                        text_of(", in all", all));
    return join_text(parts);
}

CostMeter::CostMeter(JobSession& job, std::optional<Amounts> before)
    : job_(job), cpu_([] { return cpu_packages(); }) {
    last_.before = std::move(before);
    const Config& config = job.config;
    mine_ = {.id = cat(fresh_id()),
             .machine = machine_id(),
             .price_per_hour = config.price_per_hour,
             .watts = config.watts};
    if (!job.peers().empty()) mine_.host = job.peers()[size_t(job.rank())].host;
    if (const std::string device = device_identity(config.device); device.starts_with("GPU-")) {
        mine_.gpu = device;
        gpu_ = EnergySource([&] { return gpu_counter(device); });
    }
    if (config.watts > 0 || config.grams_per_kwh > 0)
        tell_failures();
    else
        cpu_.take_failure(), gpu_.take_failure();  // nobody has asked for energy
}

void CostMeter::read() { cpu_.read(), gpu_.read(); }

void CostMeter::tell_failures() {
    const std::string instead =
        mine_.watts > 0 ? cat("counting --watts ", mine_.watts) : "--watts would give an estimate";
    for (EnergySource* source : {&cpu_, &gpu_})
        if (const std::string why = source->take_failure(); !why.empty())
            job_.log.info("energy of the ", source == &cpu_ ? "CPU packages" : "GPU",
                          " not known: ", why, "; ", instead);
}

JobCost CostMeter::of_job() {
    read();
    tell_failures();
    mine_.cpu_joules = cpu_.joules(), mine_.gpu_joules = gpu_.joules();
    mine_.seconds = seconds_since(begin_);
    const nlohmann::json mine = {
        mine_.id,         mine_.host,
        mine_.machine,    mine_.price_per_hour,
        mine_.watts,      mine_.gpu,
        mine_.cpu_joules, mine_.gpu_joules,
        mine_.seconds,    last_.before ? nlohmann::json(*last_.before) : nlohmann::json()};
    std::vector<RankCost> ranks;
    std::optional<Amounts> before;
    for (const auto& rank : gather_json(job_.communicator(), mine)) {
        ranks.push_back(
            {rank[0], rank[1], rank[2], rank[3], rank[4], rank[5], rank[6], rank[7], rank[8]});
        if (!before && !rank[9].is_null()) before = rank[9].get<Amounts>();
    }
    // Newcomers know of no ranks before, and take this from the others the next time.
    const double grams = job_.config.grams_per_kwh;
    for (const auto& [name, value] : cost_of_gone(ranks_, ranks, grams)) {
        if (!before) before.emplace();
        (*before)[name] += value;
    }
    ranks_ = ranks;
    last_ = job_cost(ranks, grams);
    last_.before = before;
    return last_;
}

}  // namespace convoy
