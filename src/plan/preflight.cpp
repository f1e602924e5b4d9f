#include "src/plan/preflight.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/order.h"
#include "src/base/check.h"
#include "src/job/device_choice.h"
#include "src/plan/plan_report.h"

namespace convoy {

using nlohmann::json;

namespace {

// Images of a short step: the work of about ten images of resnet18 at 224.
int images_for(const Model& model, int64_t part) {
    constexpr double kFlops = 2e10;
    const double images = kFlops / std::max(model.forward_flops(), 1.0);
    return int(std::clamp(images, 1.0, std::max(1.0, std::min(double(part), 256.0))));
}

JobTiming time_small_copy(JobSetup& setup, const Stop& stop) {
    const Config& config = setup.config;
    const auto backend = make_backend(config);
    const int classes = int(setup.classes.size());
    Model model(setup.model_text,
                {config.model, classes, config.size, uint64_t(config.seed), config.freeze},
                *backend);
    model.plan(images_for(model, largest_share(config.batch, setup.shares.weights)),
               /*training=*/true);
    Optimizer optimizer(config, model.params(), *backend);
    StepProbe probe(param_by_param(config), *backend, model, optimizer, classes);
    TimingOptions options;
    options.stop = stop;
    options.batch = config.batch;
    options.shares = setup.shares.weights;
    options.bucket_mb = config.bucket;
    options.bf16 = config.wire == "bf16";
    return time_job(setup.communicator(), probe, options, backend->threads());
}

// What to expect of the job as configured, and what would be better.
std::vector<std::string> expectations(const JobTiming& timing, const JobSetup& setup) {
    std::vector<std::string> lines;
    const Config& config = setup.config;
    const auto slowest = std::min_element(timing.edges.begin(), timing.edges.end(),
                                          [](const EdgeTiming& a, const EdgeTiming& b) {
                                              return a.bytes_per_second < b.bytes_per_second;
                                          });
    if (slowest != timing.edges.end())
        lines.push_back(fmt::format(
            "slowest edge: rank {} to {}, {:.0f} Mbit/s, {:.2f} ms{}", slowest->from, slowest->to,
            slowest->bytes_per_second * 8 / 1e6, 1e3 * slowest->latency_seconds,
            config.sync_every > 1
                ? std::string()
                : fmt::format("; buckets of {:.1f} MB", double(timing.bucket_bytes) / (1 << 20))));

    PlanSetting own = setting_of(config);
    if (!any_factors(timing.params, config.batch, setup.world(), own.factors))
        own.factors = FactorMode::kOff;
    const PlanJob job = plan_job(timing, config.batch, setup.shares.weights, config.sync_every);
    const Prediction expected = predict(job, own);
    lines.push_back(fmt::format(
        "expected: {:.1f} img/s, {:.0f} % of what the ranks compute without network, if images are "
        "decoded as fast",
        expected.images_per_second, 100 * expected.efficiency()));
    for (const PlanChoice& choice : plan_choices(timing, config.batch, setup.shares.weights,
                                                 config.sync_every, setting_of(config).factors)) {
        const double speed = choice.prediction.images_per_second;
        if (choice.best && choice.ranks() == setup.world() && choice.setting != own &&
            speed > 1.05 * expected.images_per_second)
            lines.push_back(
                fmt::format("better: {}, about {:.1f} img/s", options_text(choice, false), speed));
        if (choice.best && choice.ranks() == 1)
            lines.push_back(fmt::format("rank 0 alone would reach about {:.1f} img/s", speed));
    }
    return lines;
}

}  // namespace

Preflight run_preflight(JobSetup& setup, Log& log, const Stop& stop) {
    const Config& config = setup.config;
    Preflight result;
    result.bucket_bytes =
        config.bucket > 0 ? size_t(config.bucket * (1 << 20)) : kDefaultBucketBytes;
    if (setup.world() > 1 && setup.shares.fair && config.preflight == "off")
        fail("--share auto measures the ranks before training; it cannot go with --preflight off");
    if (setup.world() == 1 || config.preflight == "off") return result;

    const JobTiming timing = time_small_copy(setup, stop);
    json decided;
    if (setup.rank() == 0) {
        decided["bucket"] = timing.bucket_bytes;
        if (setup.shares.fair)
            setup.shares.weights = fair_shares(timings_of(timing, setup.world()), config.batch);
        decided["shares"] = setup.shares.weights;
    }
    decided = json::parse(broadcast_text(setup.communicator(), decided.dump()));
    result.bucket_bytes = decided.at("bucket");
    setup.shares.weights = decided.at("shares").get<std::vector<double>>();
    if (setup.rank() != 0) return result;
    for (const std::string& warning :
         plan_warnings(timing, setup.job.peers, config.batch, setup.shares.weights))
        log.notice(warning);
    result.report = expectations(timing, setup);
    return result;
}

}  // namespace convoy
