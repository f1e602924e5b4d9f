// command_plan.cpp — plan: before a job is started, how fast will it be, and with which options?
#include <algorithm>
#include <chrono>

#include "data/order.h"
#include "src/base/check.h"
#include "src/base/text.h"
#include "src/cli/commands.h"
#include "src/job/device_choice.h"
#include "src/job/job_setup.h"
#include "src/plan/plan_report.h"
#include "src/train/random_batch.h"

namespace convoy {

namespace {

using Clock = std::chrono::steady_clock;

// Twice the largest part of the batch when all share it: a prediction for fewer ranks needs to
// know how a step grows.
int images_to_plan_for(const Config& config, const std::vector<double>& shares) {
    return int(std::min(2 * largest_share(config.batch, shares), config.batch));
}

// Not where a rank's share is more than was planned for, nor with averages, of which it takes many.
bool can_rehearse(const Config& config, const PlanReport& report, const Model& model) {
    return report.shares.size() > 1 && config.sync_every == 1 &&
           largest_share(config.batch, report.shares) <= model.max_batch();
}

// A few real steps, after one to warm up: what the prediction is worth.
Rehearsal rehearse(const Config& config, Backend& backend, Communicator& communicator, Model& model,
                   Optimizer& optimizer, const PlanReport& report, int classes) {
    Config real = config;
    real.bucket = double(report.timing.bucket_bytes) / (1 << 20);
    Trainer trainer(real, backend, communicator, model, optimizer, report.shares, [] { return 0; });
    const Range part = share_of(config.batch, report.shares, communicator.rank());
    const size_t images = size_t(std::max<int64_t>(part.size(), 1));
    float* slot = backend.alloc_host(Shape{int(images), model.size(), model.size(), 3}.elems());
    const Batch batch =
        random_batch(part, config.batch, model.size(), classes, uint64_t(config.seed), slot);

    Rehearsal rehearsal;
    rehearsal.setting = setting_of(config);
    if (!any_factors(report.timing.params, config.batch, communicator.world(),
                     rehearsal.setting.factors))
        rehearsal.setting.factors = FactorMode::kOff;
    const Prediction prediction =
        predict(plan_job(report.timing, config.batch, report.shares), rehearsal.setting);
    rehearsal.predicted = prediction.images_per_second;
    rehearsal.steps = std::stoi(
        broadcast_text(communicator, cat(std::clamp(int(2 / prediction.step_seconds), 3, 50))));
    const auto train = [&](int64_t step) {
        const bool summed = trainer.step(batch, {0, 0, step}, /*lr=*/0).has_value();
        if (!summed && step % config.sync_every == 0) trainer.average({0, 0, step});
    };
    rehearsal.steps =
        int((rehearsal.steps + config.sync_every - 1) / config.sync_every) * config.sync_every;
    train(0);
    communicator.barrier();
    const auto begin = Clock::now();
    for (int step = 1; step <= rehearsal.steps; ++step) train(step);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    rehearsal.images_per_second = double(config.batch) * rehearsal.steps / seconds;
    return rehearsal;
}

}  // namespace

int command_plan(const CommandLine& line, Log& log, const Stop& stop) {
    if (!line.files.empty()) fail("plan takes no word '", line.files[0], "'");
    log.set_quiet(line.config.json);
    Job job = join_job(line, log, stop);
    Communicator& communicator = *job.communicator;
    const int world = communicator.world();
    try {
        Config config = line.config;
        apply_settings(config, job.settings);
        const std::string text =
            broadcast_text(communicator, communicator.rank() == 0 ? model_text(config.model) : "");
        const Shares agreed = gather_shares(communicator, config.share, log);
        if (config.batch < world)
            fail("--batch ", config.batch, " cannot be shared by ", world, " ranks");
        const int classes = class_count(config);

        choose_device(config, line, job, log);
        const auto backend = make_backend(config);
        Model model(text,
                    {config.model, classes, config.size, uint64_t(config.seed), config.freeze},
                    *backend);
        model.plan(images_to_plan_for(config, agreed.weights), /*training=*/true);
        Optimizer optimizer(config, model.params(), *backend);
        TimingOptions options;
        options.stop = stop;
        options.batch = config.batch;
        options.shares = agreed.weights;
        options.bucket_mb = config.bucket;
        options.bf16 = config.wire == "bf16";
        options.brief = false;
        JobTiming timing;
        {
            StepProbe probe(param_by_param(config), *backend, model, optimizer, classes);
            timing = time_job(communicator, probe, options, backend->threads());
        }
        PlanReport report{timing, job.peers, config.batch, agreed.weights, agreed.fair, {}, {}};
        if (agreed.fair)
            report.shares = parse_shares(
                broadcast_text(communicator,
                               shares_text(fair_shares(timings_of(timing, world), config.batch))),
                world);
        report.choices =
            plan_choices(timing, config.batch, agreed.fair ? std::vector<double>{} : agreed.weights,
                         config.sync_every, setting_of(config).factors);
        if (can_rehearse(config, report, model))
            report.rehearsal =
                rehearse(config, *backend, communicator, model, optimizer, report, classes);
        communicator.barrier();
        communicator.leave();
        if (communicator.rank() == 0)
            config.json ? print_plan_json(report, stdout) : print_plan(report, stdout);
        return 0;
    } catch (const std::exception& error) {
        communicator.abort(error.what());
        throw;
    }
}

}  // namespace convoy
