// command_predict.cpp — predict: the most likely classes of images.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "data/loader.h"
#include "src/base/bytes.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/cli/commands.h"
#include "src/report/explain.h"
#include "src/report/html_parts.h"
#include "src/run/trained_model.h"
#include "src/session/job_setup.h"
#include "src/step/input.h"

namespace convoy {
using nlohmann::json;

static void print_prediction(const std::string& name, std::span<const float> probabilities,
                             const std::vector<std::string>& classes, bool as_json) {
    if (std::ranges::any_of(probabilities, [](float p) { return !std::isfinite(p); }))
        fail(name,
             ": the network's output is NaN or infinite: its weights are damaged, or training "
             "diverged; take an earlier checkpoint");
    std::vector<size_t> order(classes.size());
    std::iota(order.begin(), order.end(), size_t(0));
    std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return probabilities[i]; });
    order.resize(std::min<size_t>(5, order.size()));
    json best = json::array();
    std::string text;
    for (const size_t i : order) {
        best.push_back({{"class", classes[i]}, {"probability", probabilities[i]}});
        text += fmt::format("  {} {:.1f} %", classes[i], 100 * probabilities[i]);
    }
    const std::string file = is_utf8(name) ? name : printable(name);
    const json line = {{"event", "predict"}, {"file", file}, {"top5", best}};
    if (as_json) text = line.dump(-1, ' ', false, json::error_handler_t::replace);
    fmt::print("{}{}\n", as_json ? "" : printable(name), text);
}

// Writes FOLDER/<name>.heat.jpg. The name holds the end of the image's path, and a number if this
// run has already written a file of that name.
static void write_heat(const std::string& folder, const std::string& title, const Image& picture,
                       std::set<std::string>& written) {
    std::string name = printable(title);
    std::ranges::replace(name, '/', '_');
    if (name.size() > 200) name.erase(0, name.size() - 200);
    name.erase(0, name.find_first_not_of("._"));  // hidden, and ".."
    if (!written.insert(name).second) name += cat(".", written.size()), written.insert(name);
    write_in(folder, name + ".heat.jpg", as_text(encoded(picture)));
}

// Prints a line per image. Returns false if an image could not be read, or a signal came.
static bool predict_all(const Config& config, SourcePtr source, TrainedModel& trained,
                        const LoaderOptions& options, const Stop& stop,
                        std::set<std::string>& written, Log& log) {
    Backend& backend = *trained.backend;
    Model& model = *trained.model;
    const size_t classes = trained.card.classes.size();
    Loader loader(source, trained.card.preprocess(), options, lend_slots(backend, model, 2));
    std::vector<float> probabilities(size_t(options.batch) * classes);
    Input input(backend, model);
    std::unique_ptr<Explainer> explainer;
    if (!config.explain.empty())
        explainer = std::make_unique<Explainer>(trained, int(options.batch));
    std::optional<ProgressBar> bar;  // on a terminal the printed lines show the progress
    if (terminal_width(stdout) == 0) bar.emplace(log, "predicting", source->size());
    bool refresh = true;  // with --precision bf16 the weights are copied once
    loader.start(0, 0);
    while (Batch* batch = loader.next()) {
        if (bar) bar->add(uint64_t(batch->n));
        if (stop()) return false;
        const Tensor images = input.take(*batch);
        const Tensor logits = model.forward(images, {false, {}, batch->samples, {}, refresh});
        refresh = false;
        backend.softmax(logits, logits);
        backend.download(probabilities.data(), logits.data, logits.elems() * sizeof(float));
        std::vector<int> best;
        for (size_t n = 0; n < size_t(batch->n); ++n) {
            const auto of_image = std::span(probabilities).subspan(n * classes, classes);
            best.push_back(int(std::ranges::max_element(of_image) - of_image.begin()));
            print_prediction(source->title(batch->samples[n]), of_image, trained.card.classes,
                             config.json);
        }
        if (explainer && !best.empty()) {
            const std::vector<float> rows = explainer->floats_of(images);
            const std::vector<float> maps = explainer->run(images, best);
            const size_t map = maps.size() / best.size(), row = rows.size() / best.size();
            for (size_t n = 0; n < best.size(); ++n)
                write_heat(config.explain, source->title(batch->samples[n]),
                           heat_picture(&rows[n * row], trained.card.preprocess(),
                                        std::span(maps).subspan(n * map, map), explainer->H(),
                                        explainer->W()),
                           written);
        }
        loader.release(batch);
    }
    const std::vector<std::string> bad = loader.take_bad_reasons();
    for (const std::string& reason : bad) fmt::print(stderr, "error: {}\n", reason);
    return bad.empty();
}

int command_predict(const CommandLine& line, Log& log, const Stop& stop) {
    const Config& config = line.config;
    if (line.files.empty()) fail("predict needs images: trainer predict --from RUN FILE|DIR...");
    std::vector<std::string> faults;
    const auto sources = open_images(line.files, data_options(config), log, faults);
    LoaderOptions options = loader_options(config, {1.0}, 0);
    options.batch = 1;
    for (const auto& source : sources)
        options.batch = std::clamp<int64_t>(int64_t(source->size()), options.batch, 16);
    options.training = false;
    Communicator alone;
    TrainedModel trained = load_trained_model(config, alone, int(options.batch), log);
    options.bytes = !trained.backend->host_visible();
    bool is_good = faults.empty();
    std::set<std::string> written;  // heat maps
    for (const auto& source : sources) {
        is_good = predict_all(config, source, trained, options, stop, written, log) && is_good;
        if (stop()) return 128 + stop();
    }
    for (const std::string& fault : faults) fmt::print(stderr, "error: {}\n", fault);
    if (!written.empty())
        log.info("wrote ", config.explain, "/: ", counted(int64_t(written.size()), "heat map"));
    return is_good ? 0 : 1;
}

}  // namespace convoy
