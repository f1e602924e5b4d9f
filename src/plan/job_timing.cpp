#include "src/plan/job_timing.h"

#include <algorithm>
#include <fstream>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <ranges>
#include <tuple>
#include <utility>

#include <unistd.h>

#include "data/order.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/median.h"

namespace convoy {

using nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepTiming, images, forward, backward, update)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankTiming, machine, threads, rounds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PlanParam, floats, ready, inputs, outputs, bias, with_bias,
                                   fixed_seconds, image_seconds)

namespace {

// Ranks with the same kernel share processors, whatever containers they are in.
std::string machine_key() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    return boot.empty() ? cat("unknown-", getpid()) : boot;
}

class JobTimer {
 public:
    JobTimer(Communicator& communicator, StepProbe& probe, const TimingOptions& options)
        : communicator_(communicator), probe_(probe), options_(options) {
        mine_.machine = machine_key();
        mine_.threads = options.threads;
    }

    JobTiming run() {
        communicator_.set_progress(0, Phase::kMeasure);
        const bool alone = communicator_.world() == 1;
        choose_rounds();
        if (!alone) time_edges();
        if (!alone) time_sum();
        check_stop();
        const std::vector<int> images = choose_images();
        check_stop();
        if (!alone) probe_.time_linear_layers();
        time_compute(images);
        check_stop();
        if (!alone) time_overlap();
        exchange();
        return std::move(result_);
    }

 private:
    // Every rank's number, by rank.
    std::vector<double> gather_numbers(double mine) {
        std::vector<double> all;
        for (const std::string& text : allgather_text(communicator_, fmt::format("{}", mine)))
            all.push_back(std::stod(text));
        return all;
    }
    double largest(double mine) { return std::ranges::max(gather_numbers(mine)); }

    void check_stop() {
        const int signal = int(largest(options_.stop ? options_.stop() : 0));
        if (signal != 0) fail("stopped by signal ", signal, " before the job began");
    }

    void choose_rounds() {
        std::map<std::string, int> ranks;
        int rank = 0, most = 1;
        for (const std::string& machine : allgather_text(communicator_, mine_.machine)) {
            if (rank++ == communicator_.rank()) place_ = ranks[machine];
            most = std::max(most, ++ranks[machine]);
        }
        // One to four ranks of a machine, then each half as many again: 1 2 3 4 6 9 13 …
        for (int count = 1; !options_.brief && count < most; count += std::max(1, count / 2))
            result_.rounds.push_back(count);
        result_.rounds.push_back(most);
    }

    void time_edges() {
        result_.edges = communicator_.measure_edges();
        PlanLink& link = result_.link;
        link.bytes_per_second = 1e300;
        for (const EdgeTiming& edge : result_.edges) {
            link.bytes_per_second = std::min(link.bytes_per_second, edge.bytes_per_second);
            link.latency_seconds = std::max(link.latency_seconds, edge.latency_seconds);
        }
        result_.bucket_bytes = options_.bucket_bytes > 0
                                   ? options_.bucket_bytes
                                   : bucket_bytes_for(link.latency_seconds, link.bytes_per_second,
                                                      communicator_.world());
    }

    void time_sum() {
        PlanLink& link = result_.link;
        // More than an exact sum, which takes another path, and not for minutes.
        const size_t bytes =
            std::clamp(result_.bucket_bytes, 4 * Communicator::kExactBytes, size_t(25 << 20));
        data_.assign(bytes / sizeof(float), 0);
        const int world = communicator_.world();
        const double expected = sum_seconds(data_.size(), world, link, options_.bf16);
        const int sums = int(std::clamp((options_.brief ? 0.1 : 0.4) / expected, 2.0, 200.0));
        communicator_.allreduce_sum(data_).get();  // warms memory and connections
        communicator_.barrier();
        const auto begin = Clock::now();
        for (int i = 0; i < sums; ++i) communicator_.allreduce_sum(data_).get();
        sum_seconds_ = largest(seconds_since(begin) / sums);
        const double latency = 2 * (world - 1) * link.latency_seconds;
        link.ring_factor = std::clamp((sum_seconds_ - latency) / (expected - latency), 0.5, 100.0);
    }

    // The images to time steps with: this rank's part of the batch, and twice or half as many. Less
    // where that takes too long: the ranks try 1, 2, 4 … images until another doubling would add
    // more than `limit` seconds on the slowest. (What a step costs whatever its images does not
    // count.)
    std::vector<int> choose_images() {
        const int largest_part = int(largest_share(options_.batch, options_.shares));
        const int wanted =
            std::min(options_.brief ? largest_part : 2 * largest_part, probe_.max_images());
        const double limit = options_.brief ? 0.2 : 1.0;
        const auto slowest = [&](int images) { return largest(probe_.step(images).seconds()); };
        probe_.step(1);  // touches the memory
        int most = 1;
        double before = 0, now = slowest(1);
        while (most < wanted && (most == 1 || 2 * (now - before) < limit)) {
            check_stop();
            most = std::min(2 * most, wanted);
            before = std::exchange(now, slowest(most));
        }
        const Range part = share_of(options_.batch, options_.shares, communicator_.rank());
        const int own = std::clamp(int(part.size()), 1, most);
        const int other = 2 * own <= most ? 2 * own : (own + 1) / 2;
        return other == own ? std::vector{own} : std::vector{own, other};
    }

    void time_compute(const std::vector<int>& images) {
        for (const int at_once : result_.rounds) {
            mine_.rounds.emplace_back();
            for (const int count : images) {
                communicator_.barrier();
                if (place_ < at_once)
                    mine_.rounds.back().push_back(probe_.steps(count, round_seconds(), 2));
            }
            communicator_.barrier();
        }
    }

    // Sums follow one another while all ranks compute. Say steps that take C seconds alone now take
    // E, and the network is busy for w of these. In w the ranks did C - (E - w) seconds' worth of
    // compute, so compute is slowed down by w / (C - (E - w)).
    void time_overlap() {
        const StepTiming alone = mine_.rounds.back().front();
        const double window = largest(std::max(round_seconds(), 2 * alone.seconds()));
        const int sums = int(std::clamp(window / sum_seconds_, 2.0, 2000.0));
        communicator_.barrier();
        std::vector<std::future<void>> futures;
        const auto begin = Clock::now();
        for (int i = 0; i < sums; ++i) futures.push_back(communicator_.allreduce_sum(data_));
        // Destroyed first, and waits then: sums write into data_.
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
        link.compute_slowdown = std::max(1.0, median(gather_numbers(slowdown)));
        link.network_slowdown = std::max(1.0, median(gather_numbers(busy / (sums * sum_seconds_))));
    }

    // Every rank's timings to all ranks; parameters and bucket as on rank 0.
    void exchange() {
        for (const std::string& text : allgather_text(communicator_, json(mine_).dump()))
            result_.ranks.push_back(json::parse(text).get<RankTiming>());
        const json mine = {{"params", probe_.params()}, {"bucket", result_.bucket_bytes}};
        const json first = json::parse(broadcast_text(communicator_, mine.dump()));
        first.at("params").get_to(result_.params);
        first.at("bucket").get_to(result_.bucket_bytes);
        result_.exact_floats = probe_.exact_floats();
        result_.average_floats = probe_.average_floats();
    }

    double round_seconds() const { return options_.brief ? 0.2 : 0.7; }

    Communicator& communicator_;
    StepProbe& probe_;
    const TimingOptions& options_;
    JobTiming result_;
    RankTiming mine_;
    int place_ = 0;            // of this rank among those of its machine
    std::vector<float> data_;  // a bucket of zeros, which stay zeros
    double sum_seconds_ = 0;   // of it
};

}  // namespace

JobTiming time_job(Communicator& communicator, StepProbe& probe, const TimingOptions& options) {
    return JobTimer(communicator, probe, options).run();
}

// ---- from timings to a plan -------------------------------------------------------------------

static std::map<std::string, int> ranks_by_machine(const JobTiming& timing, int ranks) {
    std::map<std::string, int> count;
    for (int rank = 0; rank < ranks; ++rank) ++count[timing.ranks[size_t(rank)].machine];
    return count;
}

std::vector<std::vector<StepTiming>> timings_of(const JobTiming& timing, int ranks) {
    auto at_once = ranks_by_machine(timing, ranks);
    std::vector<std::vector<StepTiming>> timings;
    for (int rank = 0; rank < ranks; ++rank) {
        const RankTiming& one = timing.ranks[size_t(rank)];
        const auto round = std::ranges::lower_bound(timing.rounds, at_once[one.machine]);
        timings.push_back(one.rounds[size_t(round - timing.rounds.begin())]);
    }
    return timings;
}

std::vector<double> compute_speeds(const JobTiming& timing, int64_t batch,
                                   const std::vector<double>& shares) {
    std::vector<double> speeds;
    for (const auto& timings : timings_of(timing, int(timing.ranks.size()))) {
        const int rank = int(speeds.size());
        const double images = double(std::max<int64_t>(1, share_of(batch, shares, rank).size()));
        speeds.push_back(images / timing_at(timings, images).seconds());
    }
    return speeds;
}

std::vector<double> fair_shares(Communicator& communicator, const JobTiming& timing,
                                int64_t batch) {
    const auto mine = fair_shares(timings_of(timing, communicator.world()), batch);
    return parse_shares(broadcast_text(communicator, shares_text(mine)), communicator.world());
}

// See plan_job.
static std::vector<std::vector<StepTiming>> evened(const JobTiming& timing, int ranks) {
    const auto each = timings_of(timing, ranks);
    const auto kind = [&](size_t rank) {
        const RankTiming& one = timing.ranks[rank];
        return std::tuple(one.machine, one.threads, each[rank].front().images,
                          each[rank].back().images);
    };
    auto result = each;
    for (size_t rank = 0; rank < each.size(); ++rank)
        for (size_t i = 0; i < each[rank].size(); ++i) {
            std::vector<StepTiming> alike;
            for (size_t other = 0; other < each.size(); ++other)
                if (kind(other) == kind(rank)) alike.push_back(each[other][i]);
            result[rank][i] = mean_of(alike);
        }
    return result;
}

PlanJob plan_job(const JobTiming& timing, int64_t batch, std::vector<double> shares,
                 int64_t sync_every) {
    const int ranks = int(shares.size()), world = int(timing.ranks.size());
    PlanJob job{.batch = batch,
                .bucket_bytes = timing.bucket_bytes,
                .exact_floats = timing.exact_floats,
                .params = timing.params,
                .timings = evened(timing, ranks),
                .shares = std::move(shares),
                .link = timing.link,
                .param_timings = evened(timing, world).front(),
                .sync_every = sync_every,
                .average_floats = timing.average_floats};
    // Fewer ranks: the edges among them, where there are any.
    double slowest = 1e300, latency = 0;
    for (const EdgeTiming& edge : timing.edges) {
        if (edge.from >= ranks || edge.to >= ranks) continue;
        slowest = std::min(slowest, edge.bytes_per_second);
        latency = std::max(latency, edge.latency_seconds);
    }
    if (latency > 0) job.link.bytes_per_second = slowest, job.link.latency_seconds = latency;
    // And fewer that share processors: the network takes so much less from compute.
    const auto crowd = [&](int count) {
        int most = 0;
        for (const auto& [machine, ranks] : ranks_by_machine(timing, count))
            most = std::max(most, ranks);
        return most;
    };
    const auto scaled = [&](double slowdown) {
        return 1 / (1 - (1 - 1 / slowdown) * crowd(ranks) / crowd(world));
    };
    job.link.compute_slowdown = scaled(job.link.compute_slowdown);
    job.link.network_slowdown = scaled(job.link.network_slowdown);
    return job;
}

}  // namespace convoy
