#include "src/plan/job_timing.h"

#include <algorithm>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "data/order.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/terminal.h"
#include "src/job/exchange.h"

namespace convoy {

using nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepTiming, images, forward, backward, update)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankTiming, machine, threads, rounds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PlanParam, floats, ready, inputs, outputs, bias, with_bias,
                                   fixed_seconds, image_seconds)

namespace {

constexpr double kMemorySpeed = 1e9;  // bytes per second; a guess, until it is measured

class JobTimer {
 public:
    JobTimer(Communicator& communicator, StepProbe& probe, const Config& config,
             const std::vector<double>& shares, bool brief, Log& log,
             const std::function<int()>& stop)
        : communicator_(communicator),
          probe_(probe),
          config_(config),
          shares_(shares),
          brief_(brief),
          log_(log),
          stop_(stop),
          mine_{machine_id(), probe.threads(), {}} {}

    JobTiming run() {
        communicator_.set_progress(0, Phase::kMeasure);
        const bool alone = communicator_.world() == 1;
        choose_rounds();
        bar_.emplace(log_, "measuring links and ranks", 4 + result_.rounds.size());
        if (!alone) time_edges();
        bar_->add(1);
        if (!alone) time_sum();
        bar_->add(1);
        check_stop();
        const std::vector<int> images = choose_images();
        check_stop();
        if (!alone) probe_.time_linear_layers();
        bar_->add(1);
        time_compute(images);
        check_stop();
        if (!alone) time_overlap();
        bar_.reset();
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
        const int signal = int(largest(stop_()));
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
        for (int count = 1; !brief_ && count < most; count += std::max(1, count / 2))
            result_.rounds.push_back(count);
        result_.rounds.push_back(most);
    }

    void time_edges() {
        const int world = communicator_.world();
        result_.edges = communicator_.measure_edges();
        result_.link = slowest_link(result_.edges, world);
        result_.link.around = communicator_.around();
        result_.link.memory_bytes_per_second = kMemorySpeed;
        const PlanLink& link = result_.link;
        result_.bucket_bytes =
            config_.bucket.bytes > 0
                ? config_.bucket.bytes
                : bucket_bytes_for(link.latency_seconds, link.bytes_per_second, world);
    }

    void time_sum() {
        PlanLink& link = result_.link;
        // Larger than sums that take the path for small ones; small enough not to take minutes.
        const size_t bytes =
            std::clamp(result_.bucket_bytes, 4 * Communicator::kExactBytes, size_t(25 << 20));
        data_.assign(bytes / sizeof(float), 0);
        const int world = communicator_.world();
        const double expected =
            sum_seconds(data_.size(), world, link, config_.wire == WireType::kBf16);
        const int sums = int(std::clamp((brief_ ? 0.1 : 0.4) / expected, 2.0, 200.0));
        communicator_.allreduce_sum(data_).get();  // warms memory and connections
        communicator_.barrier();
        const auto begin = Clock::now();
        for (int i = 0; i < sums; ++i) communicator_.allreduce_sum(data_).get();
        sum_seconds_ = largest(seconds_since(begin) / sums);
        const double latency = 2 * (link.around - 1) * link.latency_seconds;
        if (link.around == 1)
            link.memory_bytes_per_second = double(bytes) / sum_seconds_;
        else
            link.ring_factor =
                std::clamp((sum_seconds_ - latency) / (expected - latency), 0.5, 100.0);
    }

    // The images to time steps with: this rank's part of the batch, and twice or half as many;
    // fewer where that takes too long. The ranks try 1, 2, 4 … images until another doubling would
    // add more than `limit` seconds on the slowest.
    std::vector<int> choose_images() {
        const int largest_part = int(largest_share(config_.batch, shares_));
        const int wanted = std::min(brief_ ? largest_part : 2 * largest_part, probe_.max_images());
        const double limit = brief_ ? 0.2 : 1.0;
        const auto slowest = [&](int images) { return largest(probe_.step(images).seconds()); };
        probe_.step(1);  // touches the memory
        int most = 1;
        double before = 0, now = slowest(1);
        while (most < wanted && (most == 1 || 2 * (now - before) < limit)) {
            check_stop();
            most = std::min(2 * most, wanted);
            before = std::exchange(now, slowest(most));
        }
        const Range part = share_of(config_.batch, shares_, communicator_.rank());
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
                    mine_.rounds.back().push_back(probe_.steps(count, round_seconds()));
            }
            communicator_.barrier();
            bar_->add(1);
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
        for (const json& rank : gather_json(communicator_, mine_))
            result_.ranks.push_back(rank.get<RankTiming>());
        const json first = broadcast_json(
            communicator_, {{"params", probe_.params()}, {"bucket", result_.bucket_bytes}});
        first.at("params").get_to(result_.params);
        first.at("bucket").get_to(result_.bucket_bytes);
        result_.exact_floats = probe_.exact_floats();
        result_.average_floats = probe_.average_floats();
    }

    double round_seconds() const { return brief_ ? 0.2 : 0.7; }

    Communicator& communicator_;
    StepProbe& probe_;
    const Config& config_;
    const std::vector<double>& shares_;
    const bool brief_;
    Log& log_;
    const std::function<int()>& stop_;
    std::optional<ProgressBar> bar_;
    JobTiming result_;
    RankTiming mine_;
    int place_ = 0;            // of this rank among those of its machine
    std::vector<float> data_;  // a bucket of zeros, which stay zeros
    double sum_seconds_ = 0;   // of it
};

}  // namespace

JobTiming time_job(Communicator& communicator, StepProbe& probe, const Config& config,
                   const std::vector<double>& shares, bool brief, Log& log,
                   const std::function<int()>& stop) {
    return JobTimer(communicator, probe, config, shares, brief, log, stop).run();
}

std::vector<double> fair_shares(Communicator& communicator, const JobTiming& timing,
                                int64_t batch) {
    const auto mine = fair_shares(timings_of(timing, communicator.world()), batch);
    return parse_shares(broadcast_text(communicator, shares_text(mine)), communicator.world());
}

}  // namespace convoy
