// command_plan.cpp — plan: before a job is started, how fast will it be, and with which options?
#include <algorithm>

#include "data/order.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/text.h"
#include "src/cli/commands.h"
#include "src/job/device_choice.h"
#include "src/job/job_setup.h"
#include "src/plan/plan_report.h"
#include "src/train/random_batch.h"

namespace convoy {

namespace {

// Twice the largest part of the batch when all ranks share it: predictions for fewer ranks need to
// know how the time of a step grows with its images.
int images_to_plan_for(const Config& config, const std::vector<double>& shares) {
    return int(std::min(2 * largest_share(config.batch, shares), config.batch));
}

// Not where a rank's share has more images than were planned for, nor with averages, which would
// take many steps.
bool can_rehearse(const Config& config, const PlanReport& report, const Model& model) {
    return report.shares.size() > 1 && config.sync_every == 1 &&
           largest_share(config.batch, report.shares) <= model.max_batch();
}

// Trains a few real steps, after one to warm up, to check the prediction.
Rehearsal rehearse(const Config& config, Backend& backend, Communicator& communicator, Model& model,
                   Optimizer& optimizer, const PlanReport& report, int classes) {
    Config real = config;
    real.bucket = double(report.timing.bucket_bytes) / (1 << 20);
    Trainer trainer(real, backend, communicator, model, optimizer, report.shares, [] { return 0; });
    const Range part = share_of(config.batch, report.shares, communicator.rank());
    const int images = std::max(int(part.size()), 1);
    float* slot = backend.alloc_host(Shape{images, model.size(), model.size(), 3}.elems());
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
    trainer.step(batch, {}, /*lr=*/0);
    communicator.barrier();
    const auto begin = Clock::now();
    for (int step = 1; step <= rehearsal.steps; ++step) trainer.step(batch, {0, 0, step}, 0);
    rehearsal.images_per_second = double(config.batch) * rehearsal.steps / seconds_since(begin);
    return rehearsal;
}

}  // namespace

static int plan_in_job(JobSession& job) {
    job.take_settings_of_rank0();
    Communicator& communicator = job.communicator();
    const Config& config = job.config;
    const std::string text =
        broadcast_text(communicator, job.rank() == 0 ? model_text(config.model) : "");
    const Shares agreed = gather_shares(communicator, config.share, job.log);
    if (config.batch < job.world())
        fail("--batch ", config.batch, " cannot be divided among ", job.world(), " ranks");
    const int classes = class_count(config);

    choose_device(job);
    const auto backend = make_backend(config);
    Model model(text, {config.model, classes, config.size, uint64_t(config.seed), config.freeze},
                *backend);
    model.plan(images_to_plan_for(config, agreed.weights), /*training=*/true);
    Optimizer optimizer(config, model.params(), *backend);
    JobTiming timing;
    {
        StepProbe probe(config, *backend, model, optimizer, classes);
        timing = time_job(communicator, probe,
                          {.batch = config.batch,
                           .shares = agreed.weights,
                           .bucket_bytes = size_t(config.bucket * (1 << 20)),
                           .bf16 = config.wire == WireType::kBf16,
                           .threads = backend->threads(),
                           .brief = false,
                           .stop = job.stop});
    }
    PlanReport report{timing, job.peers(), config.batch, agreed.weights, agreed.fair, {}, {}};
    if (agreed.fair) report.shares = fair_shares(communicator, timing, config.batch);
    report.choices =
        plan_choices(timing, config.batch, agreed.fair ? std::vector<double>{} : agreed.weights,
                     config.sync_every, setting_of(config).factors);
    if (can_rehearse(config, report, model))
        report.rehearsal =
            rehearse(config, *backend, communicator, model, optimizer, report, classes);
    job.finish();
    if (job.rank() == 0) print_plan(report, config.json, stdout);
    return 0;
}

static int command_plan(const CommandLine& line, Log& log, const Stop& stop) {
    return run_in_job(line, log, stop, plan_in_job);
}

const CommandRow kPlanRow = {
    "plan", kPlan, "[options]",
    "measure links and ranks, and predict how fast a job will train with which options",
    command_plan};

}  // namespace convoy
