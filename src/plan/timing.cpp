#include "src/plan/timing.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data/order.h"
#include "net/control/ids.h"
#include "src/base/terminal.h"
#include "src/session/device_choice.h"
#include "src/session/rank_json.h"
#include "src/step/input.h"
#include "src/step/linear_factors.h"
#include "src/step/trainer.h"

namespace convoy {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankTiming, machine, threads, together, alone)

static double largest_of(Communicator& communicator, double mine) {
    double most = mine;
    for (const auto& other : gather_json(communicator, mine)) most = std::max<double>(most, other);
    return most;
}

std::vector<double> time_sums(Communicator& communicator, size_t bytes, double seconds,
                              const Stop& stop) {
    std::vector<float> data(bytes / sizeof(float), 0.0f);
    const auto one_sum = [&] {
        const auto begin = Clock::now();
        communicator.allreduce_sum(data).get();
        return seconds_since(begin);
    };
    one_sum();  // warms memory and connections
    const double wanted = seconds / median({one_sum(), one_sum(), one_sum()});
    const int sums = broadcast_json(communicator, std::clamp(wanted, 5.0, 5000.0)).get<int>();
    std::vector<double> times;
    communicator.barrier();
    for (int i = 0; i < sums; ++i) {
        if (const int signal = stop()) fail("stopped by signal ", signal);
        times.push_back(one_sum());
    }
    return times;
}

JobTiming time_job(const JobSetup& setup, Communicator& communicator, bool brief) {
    const Config& config = setup.config;
    const int world = communicator.world(), classes = int(setup.model.classes.size());
    const std::vector<double> shares = world > 1 ? setup.shares.weights : std::vector<double>{1};
    communicator.set_progress(0, Phase::kMeasure);
    const ProgressBar bar(setup.job.log, "measuring links and ranks", 0);

    const auto backend = make_backend(config);
    Model model(setup.model.text, model_options(config, classes), *backend);
    const auto largest = std::max<int64_t>(1, largest_share(config.batch, shares));
    // A brief step is the work of about ten images of resnet18 at 224.
    const double most_images = brief ? 2e10 / std::max(model.forward_flops(), 1.0) : 1e9;
    model.plan(int(std::clamp(most_images, 1.0, double(std::min<int64_t>(largest, 4096)))),
               /*training=*/true);
    Optimizer optimizer(config, model.params(), *backend);

    JobTiming timing;
    timing.gradient_bytes = double(model.params().grads_size) * sizeof(float);
    const bool shares_memory = communicator.around() < world;
    for (int ranks = 0; ranks <= world; ++ranks) {
        const int W = std::max(ranks, 1);
        const auto choices = choose_factors(model.params(), config.batch, {W},
                                            shares_memory ? FactorMode::kOff : config.factors);
        timing.sent_bytes.push_back(sent_bytes(model.params(), choices, {W}));
    }
    if (world > 1) {
        timing.links = communicator.measure_links();
        timing.bucket_bytes = bucket_bytes_for(timing.links, world);
        // Of a small network all gradients are less than a bucket.
        const size_t bytes = std::min(timing.bucket_bytes, size_t(timing.gradient_bytes));
        const double sum = median(time_sums(communicator, bytes, brief ? 0.1 : 0.4));
        timing.bytes_per_second = 2.0 * (world - 1) / world * double(bytes) / sum *
                                  (config.wire == WireType::kBf16 ? 0.5 : 1);
    }

    // Steps that send no sums. The learning rate is 0, so the weights do not change.
    Communicator nowhere;
    TrainerOptions options(config);
    options.config.sync = SyncKind::kRing, options.config.sync_every = 1;
    Trainer trainer(options, *backend, nowhere, model, optimizer, [] { return 0; });
    const auto seconds_of_step = [&](const Batch& batch) {
        const auto begin = Clock::now();
        trainer.step(batch, {}, /*lr=*/0);
        return seconds_since(begin);
    };
    const auto batch_of = [&](int images) {
        return random_batch(*backend, images, std::vector<double>{1}, 0, model.input(), classes,
                            uint64_t(config.seed));
    };
    // 1, 2, 4 … images, up to this rank's share or until the slowest rank would take too long.
    int most = 1;
    seconds_of_step(batch_of(1));  // touches the memory
    for (double before = 0, now = largest_of(communicator, seconds_of_step(batch_of(1)));
         most < model.max_batch() && (most == 1 || 2 * (now - before) < (brief ? 0.2 : 1.0));) {
        most = std::min(2 * most, model.max_batch());
        before = now, now = largest_of(communicator, seconds_of_step(batch_of(most)));
    }
    const auto share = share_of(config.batch, shares, communicator.rank()).size();
    const Batch own = batch_of(int(std::clamp<int64_t>(share, 1, most)));
    // The mean: if ranks share a core, a fast step of one rank is a slow step of another.
    const auto images_per_second = [&] {
        int count = 0;
        const auto begin = Clock::now();
        for (; count < 2 || seconds_since(begin) < (brief ? 0.3 : 1.0); ++count)
            seconds_of_step(own);
        return double(own.n) * count / seconds_since(begin);
    };
    RankTiming mine{machine_id(), backend->threads()};
    communicator.barrier();
    if (!brief && communicator.rank() == 0) mine.alone = images_per_second();
    communicator.barrier();
    mine.together = images_per_second();
    for (const auto& rank : gather_json(communicator, mine))
        timing.ranks.push_back(rank.get<RankTiming>());
    if (const int signal = int(largest_of(communicator, setup.job.stop())))
        fail("stopped by signal ", signal, " before the job began");
    return timing;
}

void run_preflight(JobSetup& setup) {
    const Config& config = setup.config;
    Shares& shares = setup.shares;
    if (setup.job.is_newcomer()) {
        if (shares.newcomer == 0 && shares.speed > 0) {
            Communicator alone;
            const double speed = time_job(setup, alone, /*brief=*/true).ranks[0].together;
            shares.newcomer = std::max(0.01, std::round(100 * speed / shares.speed) / 100);
            setup.job.log.notice(fmt::format(
                "this rank trains {:.1f} img/s, a rank with weight 1 {:.1f}: --share {:g}", speed,
                shares.speed, shares.newcomer));
        }
        setup.bucket_bytes = setup.job.offer().bucket;
        return;
    }
    if (setup.world() == 1 || config.preflight == Toggle::kOff || config.pipeline > 1) return;

    const JobTiming timing = time_job(setup, setup.communicator(), /*brief=*/true);
    setup.bucket_bytes = timing.bucket_bytes;
    if (shares.fair) {
        shares.weights = fair_shares(timing, setup.world());
        double speeds = 0;
        for (const RankTiming& rank : timing.ranks) speeds += rank.together;
        shares.speed = speeds / std::accumulate(shares.weights.begin(), shares.weights.end(), 0.0);
    }
    if (setup.rank() != 0) return;
    for (const std::string& warning :
         plan_warnings(timing, setup.job.peers(), config.batch, shares.weights))
        setup.job.log.notice(warning);
    const LinkTiming slowest = slowest_link(timing.links);
    setup.link_text = fmt::format(
        "slowest link: rank {} to rank {}, {:.0f} Mbit/s, {:.2f} ms; buckets of {:.1f} MB",
        slowest.from, slowest.to, mbit_per_second(slowest), 1e3 * slowest.latency_seconds,
        double(timing.bucket_bytes) / (1 << 20));
}

}  // namespace convoy
