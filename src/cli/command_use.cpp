// command_use.cpp — eval and predict: what a trained model is good for.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data/loader.h"
#include "src/base/check.h"
#include "src/base/text.h"
#include "src/cli/commands.h"
#include "src/job/device_choice.h"
#include "src/job/job_setup.h"
#include "src/run/run_log.h"
#include "src/run/trained_model.h"
#include "src/train/evaluate.h"
#include "src/train/input.h"

namespace convoy {

using nlohmann::json;

static void take_data_options(const CommandLine& line, Config& config) {
    const std::map<std::string, std::string> trained =
        settings_beside(find_model_file(config.from));
    const auto data = trained.find("data");
    if (data == trained.end() || (line.given.contains("data") && config.data != data->second))
        return;
    for (const char* name : {"data", "val", "val-split", "generated", "seed"})
        if (!line.given.contains(name) && trained.contains(name))
            set_option(config, *find_option(name), trained.at(name));
}

static int eval_in_job(const CommandLine& line, Config config, const Job& job, Log& log,
                       const Stop& stop) {
    Communicator& communicator = *job.communicator;
    // Rank 0's choices of data; the others need only --coord and --rank. What its user did not type
    // is as in training: another seed would hold back other images.
    if (communicator.rank() == 0) take_data_options(line, config);
    json shared = {{"data", config.data}, {"val", config.val}, {"settings", job_settings(config)}};
    shared = json::parse(broadcast_text(communicator, shared.dump()));
    apply_settings(config, shared.at("settings").get<std::map<std::string, std::string>>());
    if (!line.given.contains("data"))
        config.data = shared.at("data"), config.val = shared.at("val");

    LoaderOptions options;
    options.batch = config.batch;
    options.shares.assign(size_t(communicator.world()), 1.0);
    options.rank = communicator.rank();
    options.threads = decode_threads(config);
    options.training = false;
    options.packed = augments_on_device(config);
    const int max_batch = int(std::max<int64_t>(Loader::max_share(options), 1));
    choose_device(config, line, job, log);
    TrainedModel trained = load_trained_model(config, communicator, max_batch);

    // A folder for this model may lack some of its classes; a split or the generated set may not.
    std::shared_ptr<const Source> source;
    if (!config.data.empty() && config.val.empty() && config.val_split == 0) {
        source = open_for_classes(config.data, trained.card.classes);
    } else {
        const DataSet data = open_data(data_options(config, trained.card.classes), log);
        source = data.val ? data.val : data.train;
    }
    const std::string print = fmt::format("{:016x}", source->fingerprint());
    if (broadcast_text(communicator, print) != print)
        fail("rank ", communicator.rank(), " sees other images than rank 0 in ", config.data,
             "; names, sizes and classes must be the same on all ranks");
    log.info("model ", trained.file, ", ", trained.backend->description());
    log.info("data  ", source->size(), " images of ",
             config.data.empty() ? "the generated set" : config.data);

    Loader loader(source, preprocess_of(trained.card), options,
                  lend_slots(*trained.backend, *trained.model, 2, options.packed));
    Evaluator evaluator(*trained.model, *trained.backend, communicator, stop, options.packed);
    const auto begin = std::chrono::steady_clock::now();
    const Sums sums = evaluator.run(loader, int64_t(source->size()), 0);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    for (const std::string& reason : loader.take_bad_reasons()) log.notice("left out: ", reason);
    communicator.barrier();
    communicator.leave();
    if (evaluator.stopped()) return 128 + evaluator.stopped();
    if (communicator.rank() != 0) return 0;
    const double speed = double(sums.count) / seconds;
    if (config.json)
        fmt::print("{}\n", json{{"event", "eval"},
                                {"loss", sums.mean_loss()},
                                {"top1", sums.top1_part()},
                                {"top5", sums.top5_part()},
                                {"correct", sums.correct},
                                {"images", sums.count},
                                {"skipped", sums.skipped},
                                {"images_per_second", speed}}
                               .dump());
    else
        fmt::print("{}  ({} of {} images right, {} left out)  {:.1f} img/s\n",
                   quality_text(sums, int(trained.card.classes.size())), sums.correct, sums.count,
                   sums.skipped, speed);
    if (double(sums.skipped) > config.max_bad * double(source->size()))
        fail(sums.skipped, " images did not decode, more than --max-bad ", config.max_bad,
             " allows");
    return 0;
}

int command_eval(const CommandLine& line, Log& log, const Stop& stop) {
    log.set_quiet(line.config.quiet || line.config.json);
    Job job = join_job(line, log, stop);
    if (job.communicator->world() > 1)
        log.set_prefix(cat("[rank ", job.communicator->rank(), "] "));
    try {
        return eval_in_job(line, line.config, job, log, stop);
    } catch (const std::exception& error) {
        job.communicator->abort(error.what());
        throw;
    }
}

// ---- predict ---------------------------------------------------------------------------------

static void print_prediction(const std::string& name, std::span<const float> probabilities,
                             const std::vector<std::string>& classes, bool as_json) {
    std::vector<size_t> order(classes.size());
    std::iota(order.begin(), order.end(), size_t(0));
    const size_t top = std::min<size_t>(5, order.size());
    std::partial_sort(
        order.begin(), order.begin() + long(top), order.end(), [&](size_t a, size_t b) {
            return probabilities[a] != probabilities[b] ? probabilities[a] > probabilities[b]
                                                        : a < b;
        });
    if (as_json) {
        json best = json::array();
        for (size_t i = 0; i < top; ++i)
            best.push_back(
                {{"class", classes[order[i]]}, {"probability", probabilities[order[i]]}});
        fmt::print("{}\n", json{{"event", "predict"}, {"file", name}, {"top5", best}}.dump(
                               -1, ' ', false, json::error_handler_t::replace));
        return;
    }
    std::string text;
    for (size_t i = 0; i < top; ++i)
        text += fmt::format("  {} {:.1f} %", classes[order[i]], 100 * probabilities[order[i]]);
    fmt::print("{}{}\n", name, text);
}

int command_predict(const CommandLine& line, Log& log, const Stop& stop) {
    const Config& config = line.config;
    log.set_quiet(config.quiet || config.json);
    if (line.files.empty()) fail("predict needs images: trainer predict --from RUN FILE|DIR...");
    const std::shared_ptr<const Source> source = open_files(line.files);
    LoaderOptions options;
    options.batch = std::min<int64_t>(16, std::max<int64_t>(1, int64_t(source->size())));
    options.shares = {1.0};
    options.threads = decode_threads(config);
    options.training = false;
    options.packed = augments_on_device(config);
    const std::unique_ptr<Communicator> alone = make_single_rank();
    TrainedModel trained = load_trained_model(config, *alone, int(options.batch));
    Backend& backend = *trained.backend;
    Model& model = *trained.model;
    Loader loader(source, preprocess_of(trained.card), options,
                  lend_slots(backend, model, 2, options.packed));

    const size_t classes = trained.card.classes.size();
    std::vector<float> probabilities(size_t(options.batch) * classes);
    Input input(backend, model, options.packed);
    loader.start(0, 0);
    while (Batch* batch = loader.next()) {
        if (stop()) return 128 + stop();
        const Tensor logits = model.forward(input.take(*batch), {false, {}, batch->samples, {}});
        backend.softmax(logits, logits);
        backend.download(probabilities.data(), logits.data, logits.elems() * sizeof(float));
        for (size_t n = 0; n < size_t(batch->n); ++n)
            print_prediction(source->name(batch->samples[n]),
                             std::span(probabilities).subspan(n * classes, classes),
                             trained.card.classes, config.json);
        loader.release(batch);
    }
    const std::vector<std::string> bad = loader.take_bad_reasons();
    for (const std::string& reason : bad) fmt::print(stderr, "error: {}\n", reason);
    return bad.empty() ? 0 : 1;
}

}  // namespace convoy
