// command_eval.cpp — eval: loss and accuracy of a trained model on a data set.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/loader.h"
#include "data/sources/storage.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/text.h"
#include "src/checkpoint/checkpoint.h"
#include "src/cli/commands.h"
#include "src/report/eval_report.h"
#include "src/run/run_log.h"
#include "src/run/trained_model.h"
#include "src/session/device_choice.h"
#include "src/session/job_setup.h"
#include "src/step/evaluate.h"
#include "src/step/input.h"

namespace convoy {
using nlohmann::json;

// Options not given come from the training run: another seed would choose other validation images.
static void take_data_options(const CommandLine& line, Config& config, Log& log) {
    config.from = find_model_file(config.from, log);
    const std::map<std::string, std::string> trained = settings_beside(config.from);
    const auto data = trained.find("data");
    if (data == trained.end() ||
        (line.given.contains("data") && public_name(config.data) != data->second))
        return;
    for (const char* name : {"data", "val", "val-split", "label-offset", "generated", "seed"})
        if (!line.given.contains(name) && trained.contains(name))
            set_option(config, name, trained.at(name));
    if (line.given.contains("val")) config.val_split = 0;
}

// The name of the images to evaluate, without the passwords in a URL.
static std::string data_name(const Config& config) {
    if (!config.val.empty()) return public_name(config.val);
    return config.data.empty() ? "the generated set" : public_name(config.data);
}

// The images to evaluate; the same on every rank.
static SourcePtr open_images(JobSession& job, const std::vector<std::string>& classes) {
    const Config& config = job.config;
    SourcePtr source;
    // Only a separate set may lack classes of the model, not a split or the generated set.
    if (!(config.data + config.val).empty() && config.val_split == 0) {
        DataOptions options = data_options(config);
        if (!config.val.empty()) options.train = config.val;
        source = open_for_classes(options, classes, job.log);
    } else {
        const DataSet data = open_data(data_options(config, classes), job.log);
        source = data.val ? data.val : data.train;
    }
    compare_data(job, {source, nullptr, cat(source->size(), " images of ", data_name(config))});
    return source;
}

static void print_result(const Sums& sums, double seconds,
                         const std::vector<ClassQuality>& by_class,
                         const std::vector<std::string>& classes, bool as_json) {
    const double speed = double(sums.count) / seconds;
    if (as_json) {
        json fields = {{"event", "eval"},          {"loss", sums.mean_loss()},
                       {"top1", sums.top1_part()}, {"top5", sums.top5_part()},
                       {"correct", sums.correct},  {"images", sums.count},
                       {"skipped", sums.skipped},  {"images_per_second", speed}};
        fields.update(class_fields(by_class));
        fmt::print("{}\n", fields.dump());
    } else {
        fmt::print("{}  ({} of {} images right, {} left out)  {:.1f} img/s\n",
                   quality_text(sums, int(classes.size())), sums.correct, sums.count, sums.skipped,
                   speed);
        const std::string text = class_text(by_class, classes);
        if (!text.empty()) fmt::print("{}\n", text);
    }
}

int eval_in_job(JobSession& job) {
    Config& config = job.config;
    if (job.rank() == 0) take_data_options(job.line, config, job.log);
    job.take_settings_of_rank0();
    choose_device(job);

    LoaderOptions options =
        loader_options(config, std::vector<double>(size_t(job.world()), 1.0), job.rank());
    options.training = false;
    const int max_batch = int(std::max<int64_t>(Loader::max_share(options), 1));
    TrainedModel trained = load_trained_model(config, job.communicator(), max_batch, job.log);
    options.bytes = !trained.backend->host_visible();
    const SourcePtr source = open_images(job, trained.card.classes);
    job.log.info("model ", trained.file, ", ", trained.backend->description());
    job.log.info("data  ", source->size(), " images of ", data_name(config));

    Loader loader(source, trained.card.preprocess(), options,
                  lend_slots(*trained.backend, *trained.model, 2));
    Evaluator evaluator(*trained.model, *trained.backend, job.communicator(), job.stop);
    const bool reports = !config.report.empty() || config.min_recall > 0;
    Quality quality(int(trained.card.classes.size()));
    if (reports && quality.pairs.empty())
        fail("--report and --min-recall work with up to ", Quality::kMostClasses,
             " classes, and the model has ", trained.card.classes.size(), ": leave them out");
    if (job.rank() == 0 && std::filesystem::is_regular_file(config.report))
        fail("--report ", config.report, " is a file: give a folder");
    const auto watch = [&](const Batch& batch, Tensor logits) {
        quality.add(batch, logits, *trained.backend);
    };
    const auto begin = Clock::now();
    const Sums sums = evaluator.run(loader, 0, watch, &job.log, config.tta);
    const double seconds = seconds_since(begin);
    job.log.detail(fmt::format("evaluated in {:.2f} s, waiting for images {:.2f} s of them",
                               seconds, loader.waited_seconds()));
    std::vector<ClassQuality> by_class;
    if (!evaluator.stopped()) by_class = quality.classes_of_all(job.communicator());
    if (reports && !evaluator.stopped()) quality.gather(job.communicator(), *source);
    for (const std::string& reason : loader.take_bad_reasons())
        job.log.notice("left out: ", reason);
    job.finish();
    if (evaluator.stopped()) return 128 + evaluator.stopped();
    if (job.rank() != 0) return 0;
    print_result(sums, seconds, by_class, trained.card.classes, config.json);
    const Evaluated result{trained.file, data_name(config), trained.card, sums, quality};
    if (!config.report.empty()) {
        write_eval_report(config.report, result);
        job.log.info("wrote ", config.report, "/report.html and report.json");
    }
    const uint64_t bad = uint64_t(sums.skipped) + source->damaged();
    const std::string why = too_many_bad(bad, source->size(), config.max_bad, "images");
    if (!why.empty()) fail(why);
    const std::string missed = missed_demands(result, config.min_top1, config.min_recall);
    if (!missed.empty()) job.log.notice(missed);
    return missed.empty() ? 0 : 3;
}

}  // namespace convoy
