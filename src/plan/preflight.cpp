#include "src/plan/preflight.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data/order.h"
#include "src/base/check.h"
#include "src/job/device_choice.h"
#include "src/plan/plan_report.h"

namespace convoy {

namespace {

// Images of a short step: the work of about ten images of resnet18 at 224.
int images_for(const Model& model, int64_t part) {
    constexpr double kFlops = 2e10;
    const double most = double(std::clamp<int64_t>(part, 1, 256));
    return int(std::clamp(kFlops / std::max(model.forward_flops(), 1.0), 1.0, most));
}

// With a small copy of the model, which is gone afterwards.
JobTiming time_copy(const JobSetup& setup, Communicator& communicator,
                    const std::vector<double>& shares) {
    const Config& config = setup.config;
    const auto backend = make_backend(config);
    const int classes = int(setup.classes.size());
    Model model(setup.model_text, model_options(config, classes), *backend);
    model.plan(images_for(model, largest_share(config.batch, setup.shares.weights)),
               /*training=*/true);
    Optimizer optimizer(config, model.params(), *backend);
    StepProbe probe(config, *backend, model, optimizer, classes);
    return time_job(communicator, probe, config, shares, /*brief=*/true, setup.job.log,
                    setup.job.stop);
}

// The link that limits the job. How fast it is, is told by its first steps.
std::string slowest_link(const JobTiming& timing, const Config& config) {
    const EdgeTiming slowest =
        *std::ranges::min_element(timing.edges, {}, &EdgeTiming::bytes_per_second);
    std::string text =
        fmt::format("slowest link: rank {} to rank {}, {:.0f} Mbit/s, {:.2f} ms", slowest.from,
                    slowest.to, mbit_per_second(slowest), 1e3 * slowest.latency_seconds);
    if (config.sync == SyncKind::kRing && config.sync_every == 1)
        text += fmt::format("; buckets of {:.1f} MB", double(timing.bucket_bytes) / (1 << 20));
    return text;
}

// --share auto: this rank's weight, by its speed on a part of the batch as large as the mean.
void measure_newcomer(JobSetup& setup) {
    const auto alone = make_single_rank();
    const JobTiming timing = time_copy(setup, *alone, {1});
    const double speed =
        compute_speeds(timing, std::max<int64_t>(1, setup.config.batch / setup.world()), {1})[0];
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
        return {TrainerOptions(config).reducer.bucket_bytes, {}};

    const JobTiming timing = time_copy(setup, setup.communicator(), setup.shares.weights);
    if (Shares& shares = setup.shares; shares.fair) {
        shares.weights = fair_shares(setup.communicator(), timing, config.batch);
        const auto speeds = compute_speeds(timing, config.batch, shares.weights);
        shares.speed = std::accumulate(speeds.begin(), speeds.end(), 0.0) /
                       std::accumulate(shares.weights.begin(), shares.weights.end(), 0.0);
    }
    if (setup.rank() != 0) return {timing.bucket_bytes, {}};
    for (const std::string& warning :
         plan_warnings(timing, setup.job.peers(), config.batch, setup.shares.weights))
        setup.job.log.notice(warning);
    return {timing.bucket_bytes, slowest_link(timing, config)};
}

}  // namespace convoy
