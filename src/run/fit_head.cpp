#include "src/run/fit_head.h"

#include "data/loader.h"
#include "src/base/terminal.h"
#include "src/checkpoint/weights.h"
#include "src/session/device_choice.h"
#include "src/step/input.h"
#include "src/step/learning_rate.h"
#include "src/step/optimizer.h"
#include "src/step/trainer.h"

namespace convoy {

SafeTensors fit_head(const SafeTensors& weights, JobSetup& setup) {
    const Config& config = setup.config;
    const std::unique_ptr<Backend> backend = make_backend(config);
    ModelOptions options = model_options(config, int(setup.model.classes.size()));
    options.head_only = true;
    Model whole(setup.model.text, options, *backend);
    import_weights(weights, whole, *backend, /*partial=*/true);
    size_t head = whole.outline().size() - 1;
    while (head > 0 && whole.outline()[head].name.empty()) --head;
    if (head == 0) return export_weights(whole, *backend);
    const auto lower = whole.part({0, head}), upper = whole.part({head});
    Params& params = whole.params();

    // The outputs of `lower`.
    Shape shape = whole.outline()[head].input;
    const size_t row = shape.elems();
    const auto most = int64_t(std::min<size_t>(5000, (256 << 20) / (row * sizeof(float))));
    LoaderOptions reading = loader_options(config, {1}, 0);
    reading.batch = shape.N = int(std::min<int64_t>(config.batch, 64));
    lower->plan(shape.N, /*training=*/false), upper->plan(shape.N, /*training=*/true);
    Loader loader(setup.data.train, training_preprocess(config, whole.input(), whole.statistics()),
                  reading, lend_slots(*backend, *lower, 3));
    const Tensor x = backend->alloc(shape, backend->activations()),
                 floats = backend->alloc(shape, Type::kFloat32);
    std::vector<float> features, batch(shape.elems());
    std::vector<int32_t> all_labels, labels;
    Input input(*backend, *lower);
    const int64_t images = std::min(most, loader.samples());
    {
        ProgressBar bar(setup.job.log, "reading the images for the last layer", uint64_t(images));
        loader.start(0, 0);
        while (int64_t(all_labels.size()) < images && !setup.job.stop()) {
            Batch* own = loader.next();
            if (!own) break;
            const Tensor y = lower->forward(input.take(*own), {false, {}, own->samples, {}});
            backend->copy(floats.first(own->n), y);
            backend->download(batch.data(), floats.data, size_t(own->n) * row * sizeof(float));
            features.insert(features.end(), batch.begin(),
                            batch.begin() + ptrdiff_t(size_t(own->n) * row));
            all_labels.insert(all_labels.end(), own->labels.begin(), own->labels.end());
            bar.add(uint64_t(own->n));
            loader.release(own);
        }
    }

    // `upper` learns from them.
    Optimizer optimizer(config, params, *backend);
    const ClassBias bias(setup.class_images, config.balance, shape.N, *backend);
    const double times = config.optimizer == OptimizerKind::kSgd ? 10 : 1;
    const double base = times * base_learning_rate(config, whole.has_batch_norm());
    const auto count = int64_t(all_labels.size()), n = std::min<int64_t>(shape.N, count);
    const int64_t steps =
        std::max<int64_t>(100, config.freeze_epochs * count / std::max<int64_t>(n, 1));
    Sums sums;
    GradListener nobody;
    for (int64_t step = 0; step < steps && n > 0 && !setup.job.stop(); ++step) {
        const Permutation order(uint64_t(count), uint64_t(config.seed + step * n / count));
        labels.clear();
        for (int64_t i = 0; i < n; ++i) {
            const size_t from = order(uint64_t((step * n + i) % count));
            std::copy_n(&features[from * row], row, &batch[size_t(i) * row]);
            labels.push_back(all_labels[from]);
        }
        backend->upload(floats.data, batch.data(), size_t(n) * row * sizeof(float));
        backend->copy(x.first(int(n)), floats.first(int(n)));
        StepBlock block{{}, optimizer.next(base * (1 - double(step) / double(steps)))};
        block.counters[StepCounters::kCount] = float(n);
        backend->upload(params.block(), &block, sizeof block);
        params.clear_grads(*backend);
        const Pass pass;
        const Tensor dy = upper->dlogits(int(n));
        const Tensor logits = upper->forward(x.first(int(n)), pass);
        backend->softmax_cross_entropy(bias.added(logits, 0, *backend), labels,
                                       float(config.label_smoothing), dy,
                                       params.counters() + StepCounters::kLoss);
        upper->backward(dy, pass, nobody);
        optimizer.update();
        ++optimizer.steps_done;
        backend->download(&block, params.block(), sizeof block);
        if (step >= steps - count / n) sums += sums_of(block.counters);
    }
    setup.job.log.info("the last layer trained alone for ", steps, " steps on ", count,
                       fmt::format(" images: loss {:.4f}  top1 {:.1f} %", sums.mean_loss(),
                                   100 * sums.top1_part()));
    return export_weights(whole, *backend);
}

}  // namespace convoy
