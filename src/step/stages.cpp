#include "src/step/stages.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "src/base/clock.h"
#include "src/base/text.h"
#include "src/step/micro_batch.h"

namespace convoy {

std::vector<double> time_layers(const std::string& text, ModelOptions options,
                                const NewBackend& new_backend, int images) {
    options.stage = {0, 1};
    const std::vector<TopLayer> outline = Model(text, options, *new_backend()).outline();
    std::vector<double> seconds(outline.size(), 0);
    const std::vector<uint64_t> samples(size_t(images), 0);
    const std::vector<int> groups = {0, images};
    const Pass pass{true, {}, samples, groups};
    GradListener nobody;
    for (size_t begin = 0, end = 1; begin < outline.size(); begin = end++) {
        while (end < outline.size() && !outline[end].may_begin) ++end;
        options.stage = {begin, end};
        const auto backend = new_backend();  // its destructor frees the layer's memory
        Model layers(text, options, *backend);
        layers.plan(images, true);
        Shape shape = outline[begin].input;
        shape.N = images;
        const Tensor floats(backend->alloc(shape.elems()), shape);
        const Tensor x = backend->alloc(shape, backend->activations());
        backend->fill(floats.floats(), shape.elems(), 0.5f);
        backend->copy(x, floats);
        double best = std::numeric_limits<double>::infinity();
        for (int run = 0; run < 3; ++run) {
            const auto start = Clock::now();
            layers.forward(x, pass);
            layers.backward(layers.dlogits(images), pass, nobody);
            backend->synchronize();
            best = std::min(best, seconds_since(start));
        }
        seconds[begin] = best;
    }
    return seconds;
}

std::vector<size_t> balanced_cuts(const std::vector<TopLayer>& outline,
                                  const std::vector<double>& seconds, int stages) {
    const size_t n = outline.size();
    const auto places = std::ranges::count_if(outline, &TopLayer::may_begin);
    if (places < stages)
        fail("--sync pipeline:", stages, ": the model has ", places,
             " layers that can begin a stage");
    // best[s][i]: the longest stage of layers [0, i) cut into s + 1 stages; the last begins at
    // from[s][i].
    std::vector<double> sums(n + 1, 0);
    for (size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + seconds[i];
    std::vector best(size_t(stages), sums);
    std::vector from(size_t(stages), std::vector<size_t>(n + 1, 0));
    for (size_t s = 1; s < best.size(); ++s)
        for (size_t i = 0; i <= n; ++i) {
            best[s][i] = std::numeric_limits<double>::infinity();
            for (size_t cut = s; cut < i; ++cut) {
                const double longest = std::max(best[s - 1][cut], sums[i] - sums[cut]);
                if (outline[cut].may_begin && longest < best[s][i])
                    best[s][i] = longest, from[s][i] = cut;
            }
        }
    std::vector<size_t> cuts(size_t(stages), 0);
    for (size_t s = cuts.size(), end = n; s-- > 1; end = cuts[s]) cuts[s] = from[s][end];
    return cuts;
}

std::vector<size_t> named_cuts(const std::string& split, const std::vector<TopLayer>& outline,
                               int stages) {
    std::vector<std::string> names;
    for (const TopLayer& layer : outline)
        if (!layer.name.empty()) names.push_back(layer.name);
    std::vector<size_t> cuts = {0};
    for (const std::string& name : convoy::split(split, ',')) {
        if (name.empty())
            fail("CONVOY_SPLIT=", split, ": a name is missing before or after a comma");
        auto last = outline.end();
        for (auto layer = outline.begin(); layer != outline.end(); ++layer)
            if (layer->name == name || layer->name.starts_with(name + ".")) last = layer;
        int left = name.starts_with("conv") ? to_number<int>(name.substr(4)).value_or(0) : 0;
        if (last == outline.end() && left > 0)
            last = std::ranges::find_if(
                outline, [&](const TopLayer& layer) { return layer.kind == "conv2d" && !--left; });
        if (last == outline.end())
            fail("CONVOY_SPLIT=", name, ": the model has no such layer; there are ",
                 join_text(names));
        const auto next =
            std::find_if(last + 1, outline.end(), [](auto& l) { return l.may_begin; });
        if (next == outline.end())
            fail("CONVOY_SPLIT=", name, " leaves no layer for the next stage");
        cuts.push_back(size_t(next - outline.begin()));
        if (cuts.back() <= cuts[cuts.size() - 2])
            fail("CONVOY_SPLIT=", split, ": name the layers in the order of the model, each once");
    }
    if (std::ssize(cuts) != stages)
        fail("CONVOY_SPLIT=", split, " makes ", cuts.size(), " stages, --sync pipeline:", stages);
    return cuts;
}

int stage_images(const Config& config, int pipelines, bool batch_norm) {
    return micro_batch_images((config.batch + pipelines - 1) / pipelines, config.micro,
                              batch_norm ? config.bn_group : 0);
}

StagePlan plan_stages(const std::string& text, ModelOptions options, const NewBackend& new_backend,
                      const Config& config, int pipelines) {
    options.stage = {0, 1};
    const auto backend = new_backend();
    const Model model(text, options, *backend);
    if (model.has_batch_norm() && config.bn_group == 0)
        fail(
            "--bn-group 0 takes statistics over all images that a rank has of a batch, but a "
            "pipeline cuts the batch into micro-batches: give --bn-group N, such as 32");
    const int images = stage_images(config, pipelines, model.has_batch_norm());
    const auto& outline = model.outline();
    const bool timed = config.split.empty();
    std::vector<double> costs;
    if (timed)
        costs = time_layers(text, options, new_backend, images);
    else
        for (const TopLayer& layer : outline) costs.push_back(layer.flops);
    StagePlan plan{timed ? balanced_cuts(outline, costs, config.pipeline)
                         : named_cuts(config.split, outline, config.pipeline),
                   "stages "};
    const double all = std::accumulate(costs.begin(), costs.end(), 0.0);
    double longest = 0;
    for (int s = 0; s < config.pipeline; ++s) {
        const LayerRange stage = stage_of(plan.cuts, s);
        double part = 0;
        std::string name = outline[stage.first].kind;
        for (size_t i = stage.first; i < std::min(stage.end, costs.size()); ++i) {
            part += costs[i] / all;
            if (!outline[i].name.empty()) name = outline[i].name;
        }
        longest = std::max(longest, part);
        plan.text += fmt::format("{}{} to {} ({:.0f} %)", s ? ", " : "", s, name, 100 * part);
    }
    const int64_t share = (config.batch + pipelines - 1) / pipelines;
    const int64_t parts = (share + images - 1) / images;
    // The fraction of the time in which a rank computes, on average.
    const double efficiency =
        double(parts) / double(parts + config.pipeline - 1) / (longest * double(config.pipeline));
    plan.text += cat(timed ? " of the time; " : " of the operations; ", parts,
                     parts == 1 ? " micro-batch of " : " micro-batches of ",
                     std::min<int64_t>(images, share), " images",
                     fmt::format(": at best {:.0f} % of {} times one rank's speed",
                                 100 * efficiency, config.pipeline));
    return plan;
}

LayerRange stage_of(const std::vector<size_t>& cuts, int s) {
    const size_t next = size_t(s) + 1;
    return {cuts[size_t(s)], next < cuts.size() ? cuts[next] : SIZE_MAX};
}

}  // namespace convoy
