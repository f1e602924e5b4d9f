#include "src/plan/preflight.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/order.h"
#include "src/base/check.h"
#include "src/job/device_choice.h"
#include "src/plan/measure_job.h"

namespace convoy {

namespace {

// With a small copy of the model: a short step is the work of about ten images of resnet18 at 224.
JobTiming measure_copy(const JobSetup& setup, Communicator& communicator,
                       const std::vector<double>& shares) {
    constexpr double kFlops = 2e10;
    const Config& config = setup.config;
    const auto backend = make_backend(config);
    const int classes = int(setup.classes.size());
    Model model(setup.model_text, model_options(config, classes), *backend);
    const int64_t share = largest_share(config.batch, setup.shares.weights);
    model.plan(int(std::clamp(kFlops / std::max(model.forward_flops(), 1.0), 1.0,
                              double(std::clamp<int64_t>(share, 1, 256)))),
               /*training=*/true);
    Optimizer optimizer(config, model.params(), *backend);
    return measure_job(communicator, {config, *backend, model, optimizer, classes}, shares,
                       /*brief=*/true, setup.job.log, setup.job.stop);
}

// --share auto: this rank's weight, by its speed on a share of the batch as large as the mean.
void measure_newcomer(JobSetup& setup) {
    const auto alone = make_single_rank();
    const std::vector<double> all = {1};
    const double speed =
        compute_speeds(measure_copy(setup, *alone, all),
                       std::max<int64_t>(1, setup.config.batch / setup.world()), all)[0];
    setup.shares.newcomer = std::max(0.01, std::round(100 * speed / setup.shares.speed) / 100);
    setup.job.log.notice(
        fmt::format("{:.1f} img/s here, {:.1f} for a weight of 1 among the others: --share {:g}",
                    speed, setup.shares.speed, setup.shares.newcomer));
}

}  // namespace

Preflight run_preflight(JobSetup& setup) {
    const Config& config = setup.config;
    if (setup.job.is_newcomer()) {
        if (setup.shares.newcomer == 0 && setup.shares.speed > 0) measure_newcomer(setup);
        return {setup.job.offer().bucket, {}};
    }
    if (setup.world() > 1 && setup.shares.fair && config.preflight == Toggle::kOff)
        fail(
            "--share auto measures the ranks before training; it cannot go with "
            "CONVOY_PREFLIGHT=off");
    if (setup.world() == 1 || config.preflight == Toggle::kOff || config.pipeline > 1)
        return {TrainerOptions(config).bucket_bytes, {}};

    const JobTiming timing = measure_copy(setup, setup.communicator(), setup.shares.weights);
    if (Shares& shares = setup.shares; shares.fair) {
        shares.weights = agreed_shares(setup.communicator(), timing, config.batch);
        const auto speeds = compute_speeds(timing, config.batch, shares.weights);
        shares.speed = std::accumulate(speeds.begin(), speeds.end(), 0.0) /
                       std::accumulate(shares.weights.begin(), shares.weights.end(), 0.0);
    }
    if (setup.rank() != 0) return {timing.bucket_bytes, {}};
    for (const std::string& warning :
         plan_warnings(timing, setup.job.peers(), config.batch, setup.shares.weights))
        setup.job.log.notice(warning);
    const EdgeTiming slowest = slowest_edge(timing.edges, setup.world());
    return {timing.bucket_bytes,
            fmt::format("slowest link: rank {} to rank {}, {:.0f} Mbit/s, {:.2f} ms; buckets of "
                        "{:.1f} MB",
                        slowest.from, slowest.to, mbit_per_second(slowest),
                        1e3 * slowest.latency_seconds, double(timing.bucket_bytes) / (1 << 20))};
}

}  // namespace convoy
