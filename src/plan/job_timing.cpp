#include "src/plan/job_timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <future>
#include <map>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include "data/order.h"
#include "src/base/check.h"
#include "src/base/median.h"

namespace convoy {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int kManyEdges = 16;  // from here on a short look leaves them out

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Ranks whose kernels are one share processors, in whatever containers they are.
std::string machine_key() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    return boot.empty() ? cat("unknown-", getpid()) : boot;
}

json to_json(const StepTiming& t) { return {t.images, t.forward, t.backward, t.update}; }
StepTiming from_json(const json& j) { return {j.at(0), j.at(1), j.at(2), j.at(3)}; }

double largest_of(Communicator& communicator, double mine) {
    double most = mine;
    for (const std::string& text : allgather_text(communicator, fmt::format("{}", mine)))
        most = std::max(most, std::stod(text));
    return most;
}
double median_of(Communicator& communicator, double mine) {
    std::vector<double> all;
    for (const std::string& text : allgather_text(communicator, fmt::format("{}", mine)))
        all.push_back(std::stod(text));
    return median(all);
}

class Timing {
 public:
    Timing(Communicator& communicator, StepProbe& probe, const TimingOptions& options, int threads)
        : communicator_(communicator), probe_(probe), options_(options) {
        mine_.machine = machine_key();
        mine_.threads = threads;
    }
    JobTiming run();

 private:
    void check_stop();
    void find_neighbours();
    void time_edges();
    void time_sums();
    void choose_images();
    void time_compute();
    void time_both();
    void collect();

    int world() const { return communicator_.world(); }

    Communicator& communicator_;
    StepProbe& probe_;
    const TimingOptions& options_;
    JobTiming result_;
    RankTiming mine_;
    int place_ = 0;            // of this rank among those of its machine
    std::vector<int> images_;  // to time with
    double phase_seconds_ = 0, sum_seconds_ = 0;
    std::vector<float> data_;  // to sum: zeros, which stay zeros
};

JobTiming Timing::run() {
    const auto begin = Clock::now();
    communicator_.set_progress(0, "measuring");
    find_neighbours();
    if (world() > 1) {
        time_edges();
        time_sums();
    }
    check_stop();
    choose_images();
    check_stop();
    time_compute();
    check_stop();
    if (world() > 1) time_both();
    collect();
    result_.seconds = seconds_since(begin);
    return std::move(result_);
}

void Timing::check_stop() {
    const double mine = options_.stop ? options_.stop() : 0;
    const int signal = int(largest_of(communicator_, mine));
    if (signal != 0) fail("stopped by signal ", signal, " before the job began");
}

// Who shares a machine, and so how many phases there are.
void Timing::find_neighbours() {
    std::map<std::string, int> ranks;
    int rank = 0;
    for (const std::string& machine : allgather_text(communicator_, mine_.machine)) {
        if (rank++ == communicator_.rank()) place_ = ranks[machine];
        ++ranks[machine];
    }
    int most = 1;
    for (const auto& [machine, count] : ranks) most = std::max(most, count);
    // One to four, then each half as many again: 1 2 3 4 6 9 13 …
    for (int count = 1; !options_.brief && count < most; count += std::max(1, count / 2))
        result_.phases.push_back(count);
    result_.phases.push_back(most);
}

void Timing::time_edges() {
    if (!options_.brief || world() <= kManyEdges) result_.edges = communicator_.measure_edges();
    PlanLink& link = result_.link;
    link.bytes_per_second = 1e300;
    for (const EdgeTiming& edge : result_.edges) {
        link.bytes_per_second = std::min(link.bytes_per_second, edge.bytes_per_second);
        link.latency_seconds = std::max(link.latency_seconds, edge.latency_seconds);
    }
    if (!result_.edges.empty()) return;
    // Nothing but the ring as a whole: a long sum and a short one.
    data_.assign((1 << 20) / sizeof(float), 0);
    communicator_.allreduce_sum(data_).get();
    auto begin = Clock::now();
    communicator_.allreduce_sum(data_).get();
    const double seconds = largest_of(communicator_, seconds_since(begin));
    link.bytes_per_second = 2.0 * (world() - 1) / world() * (1 << 20) / seconds;
    begin = Clock::now();
    for (int i = 0; i < 10; ++i) communicator_.barrier();
    const int steps = std::max(1, int(std::ceil(std::log2(world()))));
    link.latency_seconds = largest_of(communicator_, seconds_since(begin) / 10 / steps);
}

// A bucket's sum, with nobody computing.
void Timing::time_sums() {
    PlanLink& link = result_.link;
    result_.bucket_bytes =
        options_.bucket_mb > 0
            ? size_t(options_.bucket_mb * (1 << 20))
            : bucket_bytes_for(link.latency_seconds, link.bytes_per_second, world());
    // Beyond the exact sums, which take another path, and not for minutes.
    const size_t bytes =
        std::clamp(result_.bucket_bytes, 4 * Communicator::kExactBytes, size_t(25 << 20));
    data_.assign(bytes / sizeof(float), 0);
    const double expected = sum_seconds(data_.size(), world(), link, options_.bf16);
    const int sums = int(std::clamp((options_.brief ? 0.1 : 0.4) / expected, 2.0, 200.0));
    communicator_.allreduce_sum(data_).get();  // memory and connections warm
    communicator_.barrier();
    const auto begin = Clock::now();
    for (int i = 0; i < sums; ++i) communicator_.allreduce_sum(data_).get();
    sum_seconds_ = largest_of(communicator_, seconds_since(begin) / sums);
    const double latency = 2 * (world() - 1) * link.latency_seconds;
    link.ring_factor = std::clamp((sum_seconds_ - latency) / (expected - latency), 0.5, 100.0);
}

// As many images as this rank's part of the batch has, fewer where that takes too long; and for
// the line through two points twice or half as many. All ranks try 1, 2, 4 … images, which also
// touches the memory for the first time, as long as the slowest one has time for twice the growth;
// what a step costs whatever its images (reading and writing all weights) is no reason to stop.
void Timing::choose_images() {
    const int largest_part = int(largest_share(options_.batch, options_.shares));
    const int part =
        std::max(1, int(share_of(options_.batch, options_.shares, communicator_.rank()).size()));
    const double limit = options_.brief ? 0.2 : 1.0;  // seconds for more images
    const int wanted =
        std::min(options_.brief ? largest_part : 2 * largest_part, probe_.max_images());
    probe_.step(1);
    double before = 0, now = largest_of(communicator_, probe_.step(1).seconds());
    int most = 1;
    while (most < wanted && (most == 1 || 2 * (now - before) < limit)) {
        check_stop();
        most = std::min(2 * most, wanted);
        before = now;
        now = largest_of(communicator_, probe_.step(most).seconds());
    }
    const int own = std::min(part, most);
    images_ = {own, 2 * own <= most ? 2 * own : (own + 1) / 2};
    if (own == 1 && most > 1) images_[1] = 2;
    if (images_[1] == own) images_.pop_back();
    phase_seconds_ = options_.brief ? 0.2 : 0.7;
}

void Timing::time_compute() {
    if (world() > 1) {
        communicator_.barrier();
        probe_.time_linear_layers();
    }
    for (const int at_once : result_.phases) {
        mine_.phases.emplace_back();
        for (const int images : images_) {
            communicator_.barrier();
            if (place_ < at_once)
                mine_.phases.back().push_back(probe_.steps(images, phase_seconds_, 2));
        }
        communicator_.barrier();
    }
}

// Sums follow one another while all compute. E seconds of compute for what takes C alone, the
// network busy for w of them: in w compute went on by C - (E - w), so its slowdown is
// w / (C - (E - w)).
void Timing::time_both() {
    const StepTiming alone = mine_.phases.back().front();
    const double window = largest_of(communicator_, std::max(phase_seconds_, 2 * alone.seconds()));
    const int sums = int(std::clamp(window / sum_seconds_, 2.0, 2000.0));
    communicator_.barrier();
    std::vector<std::future<void>> futures;
    const auto begin = Clock::now();
    for (int i = 0; i < sums; ++i) futures.push_back(communicator_.allreduce_sum(data_));
    // Destroyed first, it waits: the sums write into data_ until then.
    std::future<double> busy_seconds = std::async(std::launch::async, [&] {
        futures.back().wait();
        return seconds_since(begin);
    });
    int steps = 0;
    do {
        probe_.step(int(alone.images));
        ++steps;
    } while (futures.back().wait_for(std::chrono::seconds(0)) != std::future_status::ready);
    const double elapsed = seconds_since(begin), busy = busy_seconds.get();
    for (std::future<void>& sum : futures) sum.get();  // throws what went wrong
    const double computed = steps * alone.seconds() - std::max(0.0, elapsed - busy);
    const double slowdown = busy / std::max(computed, busy / 10);
    PlanLink& link = result_.link;
    link.compute_slowdown = std::max(1.0, median_of(communicator_, slowdown));
    link.network_slowdown = std::max(1.0, median_of(communicator_, busy / (sums * sum_seconds_)));
}

// Everything of every rank to all; params are rank 0's.
void Timing::collect() {
    json phases = json::array();
    for (const auto& phase : mine_.phases) {
        json timings = json::array();
        for (const StepTiming& timing : phase) timings.push_back(to_json(timing));
        phases.push_back(timings);
    }
    json mine = {{"machine", mine_.machine}, {"threads", mine_.threads}, {"phases", phases}};
    if (communicator_.rank() == 0) {
        json params = json::array();
        for (const PlanParam& param : probe_.params())
            params.push_back({param.floats, param.ready, param.inputs, param.outputs, param.bias,
                              param.with_bias, param.fixed_seconds, param.image_seconds});
        mine["params"] = params;
        mine["exact"] = probe_.exact_floats();
        mine["average"] = probe_.average_floats();
        mine["bucket"] = result_.bucket_bytes;
    }
    for (const std::string& text : allgather_text(communicator_, mine.dump())) {
        const json one = json::parse(text);
        RankTiming rank{one.at("machine"), one.at("threads"), {}};
        for (const json& phase : one.at("phases")) {
            rank.phases.emplace_back();
            for (const json& timing : phase) rank.phases.back().push_back(from_json(timing));
        }
        result_.ranks.push_back(std::move(rank));
        if (!one.contains("params")) continue;
        for (const json& param : one.at("params"))
            result_.params.push_back({param.at(0), param.at(1), param.at(2), param.at(3),
                                      param.at(4), param.at(5), param.at(6), param.at(7)});
        result_.exact_floats = one.at("exact");
        result_.average_floats = one.at("average");
        result_.bucket_bytes = one.at("bucket");
    }
}

}  // namespace

JobTiming time_job(Communicator& communicator, StepProbe& probe, const TimingOptions& options,
                   int threads) {
    return Timing(communicator, probe, options, threads).run();
}

std::vector<std::vector<StepTiming>> timings_of(const JobTiming& timing, int ranks) {
    std::map<std::string, int> at_once;
    for (int rank = 0; rank < ranks; ++rank) ++at_once[timing.ranks[size_t(rank)].machine];
    std::vector<std::vector<StepTiming>> timings;
    for (int rank = 0; rank < ranks; ++rank) {
        const RankTiming& one = timing.ranks[size_t(rank)];
        size_t phase = 0;
        while (timing.phases[phase] < at_once[one.machine]) ++phase;
        timings.push_back(one.phases[phase]);
    }
    return timings;
}

std::vector<double> compute_speeds(const JobTiming& timing, int64_t batch,
                                   const std::vector<double>& shares) {
    std::vector<double> speeds;
    const int world = int(timing.ranks.size());
    const auto timings = timings_of(timing, world);
    for (int rank = 0; rank < world; ++rank) {
        const double images = double(std::max<int64_t>(1, share_of(batch, shares, rank).size()));
        speeds.push_back(images / timing_at(timings[size_t(rank)], images).seconds());
    }
    return speeds;
}

// See plan_job.
static std::vector<std::vector<StepTiming>> evened(const JobTiming& timing, int ranks) {
    const auto each = timings_of(timing, ranks);
    auto result = each;
    const auto alike = [&](size_t a, size_t b) {
        const auto images = [](const StepTiming& x, const StepTiming& y) {
            return x.images == y.images;
        };
        return timing.ranks[a].machine == timing.ranks[b].machine &&
               timing.ranks[a].threads == timing.ranks[b].threads &&
               std::equal(each[a].begin(), each[a].end(), each[b].begin(), each[b].end(), images);
    };
    for (size_t rank = 0; rank < each.size(); ++rank)
        for (size_t i = 0; i < each[rank].size(); ++i) {
            StepTiming sum{each[rank][i].images, 0, 0, 0};
            int count = 0;
            for (size_t other = 0; other < each.size(); ++other) {
                if (!alike(rank, other)) continue;
                sum.forward += each[other][i].forward;
                sum.backward += each[other][i].backward;
                sum.update += each[other][i].update;
                ++count;
            }
            sum.forward /= count, sum.backward /= count, sum.update /= count;
            result[rank][i] = sum;
        }
    return result;
}

PlanJob plan_job(const JobTiming& timing, int64_t batch, std::vector<double> shares,
                 int64_t sync_every) {
    const int ranks = int(shares.size());
    PlanJob job;
    job.batch = batch;
    job.bucket_bytes = timing.bucket_bytes;
    job.exact_floats = timing.exact_floats;
    job.average_floats = timing.average_floats;
    job.sync_every = sync_every;
    job.params = timing.params;
    job.param_timings = evened(timing, int(timing.ranks.size())).front();
    job.timings = evened(timing, ranks);
    job.shares = std::move(shares);
    job.link = timing.link;
    if (ranks == int(timing.ranks.size())) return job;

    // Fewer ranks: the edges among them, where there are any.
    double slowest = 1e300, latency = 0;
    for (const EdgeTiming& edge : timing.edges)
        if (edge.from < ranks && edge.to < ranks)
            slowest = std::min(slowest, edge.bytes_per_second),
            latency = std::max(latency, edge.latency_seconds);
    if (latency > 0) job.link.bytes_per_second = slowest, job.link.latency_seconds = latency;
    // And fewer who share processors: the part of a processor that the network takes from compute
    // goes with their number.
    std::map<std::string, int> all, some;
    int most_all = 1, most_some = 1;
    for (int rank = 0; rank < int(timing.ranks.size()); ++rank) {
        const std::string& machine = timing.ranks[size_t(rank)].machine;
        most_all = std::max(most_all, ++all[machine]);
        if (rank < ranks) most_some = std::max(most_some, ++some[machine]);
    }
    const auto scaled = [&](double slowdown) {
        return 1 / (1 - (1 - 1 / slowdown) * most_some / most_all);
    };
    job.link.compute_slowdown = scaled(job.link.compute_slowdown);
    job.link.network_slowdown = scaled(job.link.network_slowdown);
    return job;
}

}  // namespace convoy
