// command_plan.cpp — tune --plan: before a job is started, how fast will it be, and with which
// options?
#include <algorithm>

#include "data/order.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/cli/commands.h"
#include "src/job/device_choice.h"
#include "src/job/job_setup.h"
#include "src/plan/plan_report.h"
#include "src/train/random_batch.h"
#include "src/train/stages.h"

namespace convoy {

namespace {

// Trains a few real steps, after one to warm up, to check the prediction. Not where a rank's share
// has more images than the model is planned for, nor with averages, which would take many steps,
// nor with --compute.
void rehearse(const Config& config, Backend& backend, Communicator& communicator, Model& model,
              Optimizer& optimizer, PlanReport& report) {
    if (communicator.world() == 1 || config.sync_every > 1 || config.compute > 0 ||
        largest_share(config.batch, report.shares) > model.max_batch())
        return;
    TrainerOptions options(config);
    options.reducer.bucket_bytes = report.timing.bucket_bytes;
    Trainer trainer(options, backend, communicator, model, optimizer, [] { return 0; });
    const Batch batch = random_batch(backend, config.batch, report.shares, communicator.rank(),
                                     model.input(), class_count(config), uint64_t(config.seed));

    report.real_setting = setting_of(config, report.timing);
    const Prediction prediction =
        predict(report.timing, report.real_setting, config.batch, report.shares);
    report.predicted = prediction.images_per_second;
    report.real_steps = std::stoi(
        broadcast_text(communicator, cat(std::clamp(int(2 / prediction.step_seconds), 3, 50))));
    trainer.step(batch, {}, /*lr=*/0);
    communicator.barrier();
    const auto begin = Clock::now();
    for (int step = 1; step <= report.real_steps; ++step) trainer.step(batch, {0, 0, step}, 0);
    report.real_images_per_second = double(config.batch) * report.real_steps / seconds_since(begin);
}

// On rank 0, which times each layer: the model in as many stages as divide the ranks.
std::vector<PlanPipeline> plan_pipelines(const Config& config, const std::string& text,
                                         const JobTiming& timing) {
    std::vector<PlanPipeline> all;
    const int world = int(timing.ranks.size());
    if (config.bn_group == 0 || config.compute > 0) return all;
    for (int stages = 2; stages <= world; ++stages) {
        if (world % stages != 0) continue;
        const ModelOptions options = model_options(config, class_count(config));
        PipelineOptions pipeline(config);
        pipeline.stages = stages;
        try {
            const int replicas = world / stages;
            const StagePlan plan = plan_stages(
                text, options, [&] { return make_backend(config); }, "", pipeline, replicas);
            size_t floats = 0;
            for (const PlanParam& param : timing.params) floats += param.floats;
            const double round = std::max(plan.round_seconds,
                                          double(plan.round_bytes) / timing.link.bytes_per_second);
            const double seconds =
                double(plan.rounds) * (round + timing.link.latency_seconds) +
                (replicas > 1 ? sum_seconds(floats / size_t(stages), replicas, timing.link, false)
                              : 0);
            all.push_back({stages, plan.text, double(config.batch) / seconds});
        } catch (const Error&) {
            break;  // fewer layers than stages
        }
    }
    return all;
}

int plan_in_job(JobSession& job) {
    job.take_settings_of_rank0();
    Communicator& communicator = job.communicator();
    const Config& config = job.config;
    const std::string text =
        broadcast_text(communicator, job.rank() == 0 ? model_text(config.model) : "");
    const Shares agreed = gather_shares(communicator, config.share, job.log);
    if (config.batch < job.world())
        fail("--batch ", config.batch, " cannot be divided among ", job.world(),
             " ranks: give more");
    const int classes = class_count(config);

    choose_device(job);
    const auto backend = make_backend(config);
    Model model(text, model_options(config, classes), *backend);
    // Twice the largest part of the batch when all ranks share it: predictions for fewer ranks need
    // to know how the time of a step grows with its images.
    const int64_t largest = largest_share(config.batch, agreed.weights);
    model.plan(int(std::min(2 * largest, config.batch)), /*training=*/true);
    Optimizer optimizer(config, model.params(), *backend);
    const JobTiming timing = [&] {
        StepProbe probe(config, *backend, model, optimizer, classes,
                        config.compute / double(largest));
        return time_job(communicator, probe, config, agreed.weights, /*brief=*/false, job.log,
                        job.stop);
    }();
    PlanReport report{timing, job.peers(), config.batch, agreed.weights, agreed.fair};
    if (agreed.fair) report.shares = fair_shares(communicator, timing, config.batch);
    report.choices =
        plan_choices(timing, config.batch, agreed.fair ? std::vector<double>{} : agreed.weights,
                     config.sync_every, config.factors);
    rehearse(config, *backend, communicator, model, optimizer, report);
    job.finish();
    if (job.rank() == 0) report.pipelines = plan_pipelines(config, text, timing);
    if (job.rank() == 0) print_plan(report, config.json);
    return 0;
}

int command_plan(const CommandLine& line, Log& log, const Stop& stop) {
    return run_in_job(line, log, stop, plan_in_job);
}

}  // namespace

const CommandRow kPlanRow = {
    "tune --plan", kPlan, "[options]",
    "measure links and ranks, and predict how fast a job will train with which options",
    command_plan};

}  // namespace convoy
