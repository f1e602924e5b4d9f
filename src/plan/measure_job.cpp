// measure_job.cpp — see measure_job.h.
#include "src/plan/measure_job.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/order.h"
#include "net/null_communicator.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/terminal.h"
#include "src/job/exchange.h"
#include "src/train/factors.h"
#include "src/train/input.h"

namespace convoy {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepTime, images, seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankTiming, machine, threads, alone, together)

namespace {

TrainerOptions ring_options(const Config& config, size_t bucket_bytes) {
    TrainerOptions options(config);
    options.config.sync = SyncKind::kRing, options.config.sync_every = 1;
    options.bucket_bytes = bucket_bytes;
    return options;
}

double largest_of(Communicator& communicator, double mine) {
    double most = mine;
    for (const auto& other : gather_json(communicator, mine)) most = std::max<double>(most, other);
    return most;
}

// Steps of this rank, whose sums go nowhere.
class Steps {
 public:
    explicit Steps(const Probe& probe)
        : trainer_(ring_options(probe.config, kDefaultBucketBytes), probe.backend, nowhere_,
                   probe.model, probe.optimizer, [] { return 0; }),
          batch_(random_batch(probe.backend, probe.model.max_batch(), std::vector<double>{1}, 0,
                              probe.model.input(), probe.classes, uint64_t(probe.config.seed))) {}

    double step(int images) {
        Batch batch = batch_;
        batch.n = batch.wanted = images, batch.global_wanted = images;
        batch.wanted_by = {images};
        batch.labels.resize(size_t(images));
        batch.samples.resize(size_t(images));
        batch.positions.resize(size_t(images));
        const auto begin = Clock::now();
        trainer_.step(batch, {}, /*lr=*/0);  // at this rate the weights stay as they are
        return seconds_since(begin);
    }
    // The mean, because where ranks share a core a quick step of one is a slow step of another.
    StepTime steps(int images, double seconds) {
        int count = 0;
        const auto begin = Clock::now();
        for (; count < 2 || seconds_since(begin) < seconds; ++count) step(images);
        return {double(images), seconds_since(begin) / count};
    }

 private:
    NullCommunicator nowhere_{0, 1};
    Trainer trainer_;
    Batch batch_;
};

void measure_links(Communicator& communicator, const Config& config, bool brief,
                   JobTiming& timing) {
    const int world = communicator.world();
    timing.edges = communicator.measure_edges();
    timing.bucket_bytes =
        config.bucket.bytes > 0 ? config.bucket.bytes : bucket_bytes_for(timing.edges, world);
    timing.bucket_bytes = std::stoull(broadcast_text(communicator, cat(timing.bucket_bytes)));
    std::vector<float> data(timing.bucket_bytes / sizeof(float));
    communicator.allreduce_sum(data).get();  // warms memory and connections
    const auto one = Clock::now();
    communicator.allreduce_sum(data).get();
    const double expected = largest_of(communicator, seconds_since(one));
    const int sums = int(std::clamp((brief ? 0.1 : 0.4) / expected, 2.0, 200.0));
    communicator.barrier();
    const auto begin = Clock::now();
    for (int i = 0; i < sums; ++i) communicator.allreduce_sum(data).get();
    const double seconds = largest_of(communicator, seconds_since(begin) / sums);
    timing.bytes_per_second = 2.0 * (world - 1) / world * double(timing.bucket_bytes) / seconds *
                              (config.wire == WireType::kBf16 ? 0.5 : 1);
}

}  // namespace

JobTiming measure_job(Communicator& communicator, const Probe& probe,
                      const std::vector<double>& shares, bool brief, Log& log, const Stop& stop) {
    const Config& config = probe.config;
    const int world = communicator.world();
    const auto check_stop = [&] {
        if (const int signal = int(largest_of(communicator, stop())))
            fail("stopped by signal ", signal, " before the job began");
    };
    communicator.set_progress(0, Phase::kMeasure);
    std::optional<ProgressBar> bar(std::in_place, log, "measuring links and ranks", 3);
    JobTiming timing;
    RankTiming mine{machine_id(), probe.backend.threads(), {}, {}};
    Params& params = probe.model.params();
    timing.gradient_bytes = double(params.grads_size) * sizeof(float);
    const bool shares_memory = communicator.around() < world;
    for (int ranks = 0; ranks <= world; ++ranks) {
        const int k = std::max(ranks, 1);
        timing.sent_bytes.push_back(2.0 * (k - 1) / k * timing.gradient_bytes);
        for (const FactorChoice& layer : choose_factors(params, config.batch, k, config.factors))
            if (layer.use && !shares_memory)
                timing.sent_bytes.back() += layer.traffic.factor_bytes - layer.traffic.dense_bytes;
    }
    if (world > 1) measure_links(communicator, config, brief, timing);
    bar->add(1);
    check_stop();

    // 1, 2, 4 … images until this rank's share, or until another doubling would take too long on
    // the slowest rank.
    Steps steps(probe);
    const int wanted = std::min(int(largest_share(config.batch, shares)) * (brief ? 1 : 2),
                                probe.model.max_batch());
    int most = 1;
    steps.step(1);  // touches the memory
    for (double before = 0, now = largest_of(communicator, steps.step(1));
         most < wanted && (most == 1 || 2 * (now - before) < (brief ? 0.2 : 1.0));) {
        check_stop();
        most = std::min(2 * most, wanted);
        before = now, now = largest_of(communicator, steps.step(most));
    }
    const auto part = share_of(config.batch, shares, communicator.rank()).size();
    const int own = std::clamp(int(part), 1, most);
    const int other = 2 * own <= most ? 2 * own : (own + 1) / 2;
    const auto time_both = [&] {
        std::vector<StepTime> times = {steps.steps(own, brief ? 0.2 : 0.7)};
        if (other != own) times.push_back(steps.steps(other, brief ? 0.2 : 0.7));
        return times;
    };
    communicator.barrier();
    if (!brief && communicator.rank() == 0) mine.alone = time_both();
    communicator.barrier();
    bar->add(1);
    mine.together = time_both();
    for (const auto& rank : gather_json(communicator, mine))
        timing.ranks.push_back(rank.get<RankTiming>());
    check_stop();
    return timing;
}

double measure_real_steps(Communicator& communicator, const Probe& probe,
                          const std::vector<double>& shares, JobTiming& timing) {
    const Config& config = probe.config;
    if (communicator.world() == 1 || largest_share(config.batch, shares) > probe.model.max_batch())
        return 0;
    Trainer trainer(ring_options(config, timing.bucket_bytes), probe.backend, communicator,
                    probe.model, probe.optimizer, [] { return 0; });
    const Batch batch = random_batch(probe.backend, config.batch, shares, communicator.rank(),
                                     probe.model.input(), probe.classes, uint64_t(config.seed));
    const Way& way = kWays[config.wire == WireType::kBf16];
    timing.contention = 1;
    const double expected = forecast(timing, way, config.batch, shares).step_seconds;
    const int steps =
        std::stoi(broadcast_text(communicator, cat(std::clamp(int(2 / expected), 3, 50))));
    trainer.step(batch, {}, /*lr=*/0);
    communicator.barrier();
    const auto begin = Clock::now();
    for (int step = 1; step <= steps; ++step) trainer.step(batch, {0, 0, step}, /*lr=*/0);
    const double seconds = largest_of(communicator, seconds_since(begin) / steps);
    timing.contention = seconds / expected;
    return double(config.batch) / seconds;
}

std::vector<double> agreed_shares(Communicator& communicator, const JobTiming& timing,
                                  int64_t batch) {
    const int world = communicator.world();
    return parse_shares(
        broadcast_text(communicator, shares_text(fair_shares(timing, world, batch))), world);
}

}  // namespace convoy
