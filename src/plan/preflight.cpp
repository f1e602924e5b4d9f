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

// What to expect of the job as configured, and what would be faster.
std::vector<std::string> expectations(const JobTiming& timing, const JobSetup& setup) {
    std::vector<std::string> lines;
    const Config& config = setup.config;
    const EdgeTiming slowest =
        *std::ranges::min_element(timing.edges, {}, &EdgeTiming::bytes_per_second);
    lines.push_back(fmt::format("slowest link: rank {} to rank {}, {:.0f} Mbit/s, {:.2f} ms",
                                slowest.from, slowest.to, mbit_per_second(slowest),
                                1e3 * slowest.latency_seconds));
    // What follows is about sums that are waited for.
    if (config.sync != SyncKind::kRing || config.fragments > 1) return lines;
    if (config.sync_every == 1)
        lines.back() +=
            fmt::format("; buckets of {:.1f} MB", double(timing.bucket_bytes) / (1 << 20));
    const PlanSetting own = setting_of(config, timing);
    const Prediction expected =
        predict(timing, own, config.batch, setup.shares.weights, config.sync_every);
    lines.push_back(fmt::format(
        "expected: {:.1f} img/s, {:.0f} % of what the ranks compute without network, if images are "
        "decoded as fast",
        expected.images_per_second, 100 * expected.efficiency()));
    const auto choices =
        plan_choices(timing, config.batch, setup.shares.weights, config.sync_every, config.factors);
    const PlanChoice& best = best_choice(choices);
    const double speed = best.prediction.images_per_second;
    if (best.ranks() == 1)
        lines.push_back(fmt::format("rank 0 alone would reach about {:.1f} img/s", speed));
    else if (best.ranks() == setup.world() && best.setting != own &&
             speed > 1.05 * expected.images_per_second)
        lines.push_back(
            fmt::format("faster: {}, about {:.1f} img/s", options_text(best, false), speed));
    return lines;
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
        fail("--share auto measures the ranks before training; it cannot go with --preflight off");
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
    return {timing.bucket_bytes, expectations(timing, setup)};
}

}  // namespace convoy
