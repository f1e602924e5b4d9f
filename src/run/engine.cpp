#include "src/run/engine.h"

#include "src/base/check.h"
#include "src/session/device_choice.h"
#include "src/step/input.h"
#include "src/step/stages.h"

namespace convoy {

Engine::Engine(JobSetup& setup, std::function<int()> request)
    : setup_(setup), request_(std::move(request)) {
    const Config& config = setup_.config;
    backend = make_backend(config);
    ModelOptions options = model_options(config, int(setup_.model.classes.size()));
    if (const auto& cuts = setup_.cuts; !cuts.empty())
        options.stage = stage_of(cuts, setup_.rank() % int(cuts.size()));
    options.draw_all = setup_.rank() == 0 && !setup_.model.fresh;  // the others take rank 0's
    model = std::make_unique<Model>(setup_.model.text, options, *backend);
    optimizer = std::make_unique<Optimizer>(config, model->params(), *backend);
    state_blocks_ = backend->blocks();
    build();
}

void Engine::build() {
    const Config& config = setup_.config;
    if (config.replicas > 1 && !backend->host_visible())
        fail(
            "--threads RxT shares the weights in this machine's memory, so it needs --device cpu; "
            "on GPUs start one rank per GPU");
    if (config.replicas > 1 && config.replicas > backend->threads())
        fail("--threads ", get_option(config, "threads"), ": each of the ", config.replicas,
             " replicas needs a thread, and there are ", backend->threads());
    for (int r = 0; config.replicas > 1 && r < config.replicas; ++r) {
        Config own = config;
        own.threads = backend->threads() / config.replicas;
        replica_backends_.push_back(make_backend(own));
    }
    sharing = loader_options(config, setup_.shares.weights, setup_.rank());
    sharing.parts = setup_.train_parts, sharing.bytes = !backend->host_visible();
    LoaderOptions validating = sharing;
    validating.parts = setup_.val_parts, validating.training = false;
    const int max_batch =
        int(std::max({Loader::max_share(sharing), Loader::max_share(validating), int64_t(1)}));
    model->expect(max_batch);
    const int bn_group = model->has_batch_norm() ? config.bn_group : 0;
    const int parts = config.accumulate * config.replicas;
    if (parts > 1 && model->has_batch_norm() && bn_group == 0)
        fail("--", config.accumulate > 1 ? "accumulate" : "threads RxT",
             " needs --bn-group above 0: batch norm takes its statistics over groups, which are "
             "not cut");
    activation_bytes_ = 0;
    if (model->params().is_whole)  // a pipeline plans its stage
        activation_bytes_ =
            model->plan(std::min(micro_batch_images(max_batch, parts, bn_group), max_batch),
                        config.replicas == 1);
    open_tracks();
    if (!images.train) open_images();
    if (config.early_stop > 0 && !images.val)
        fail("--early-stop needs validation images: give --val or --val-split");
    loader = make_loader(images.train, sharing, 3);  // the batch in training, and two ahead
    if (images.val) val_loader = make_loader(images.val, validating, 2);

    TrainerOptions options(config);
    options.bucket_bytes = setup_.bucket_bytes;
    options.cuts = setup_.cuts;
    options.class_images = setup_.class_images;
    options.replicas = replica_backends_;
    options.tracer = &setup_.job.tracer;
    options.track = track, options.device = device_track_;
    options.first_traced = traced_.first, options.last_traced = traced_.last;
    trainer = std::make_unique<Trainer>(options, *backend, setup_.communicator(), *model,
                                        *optimizer, request_);
    evaluator = std::make_unique<Evaluator>(*model, *backend, setup_.communicator(), request_,
                                            &trainer->sync());
    activation_bytes_ += trainer->activation_bytes();
    holds_all = sync().holds_all(), may_drift = sync().may_drift();
}

void Engine::drop() {
    if (!trainer) return;
    clocks_before_ = clocks();
    trainer.reset(), evaluator.reset();
    loader.reset(), val_loader.reset();
    model = model->twin();  // not planned yet
    replica_backends_.clear();
    backend->release_after(state_blocks_);
}

Clocks Engine::clocks() const {
    Clocks now = clocks_before_;
    now.net_busy = setup_.communicator().seconds_busy(), now.compute = compute_seconds;
    if (!trainer) return now;
    now.data_wait += loader->waited_seconds();
    now.net_wait += trainer->seconds_waited_for_network();
    return now;
}

std::string Engine::memory_text() const {
    const Params& params = model->params();
    const size_t floats =
        params.weights_size + params.grads_size + optimizer->state().size() * params.state_size;
    return fmt::format("{:.0f} MB activations, {:.0f} MB weights, gradients and optimizer",
                       1e-6 * double(activation_bytes_),
                       1e-6 * (sizeof(float) * double(floats) + double(params.copies_bytes()))) +
           trainer->sync().memory();
}

void Engine::open_images() {
    const Config& config = setup_.config;
    images.room = std::make_shared<std::atomic<int64_t>>(int64_t(config.cache_decoded.bytes));
    const auto keep = [&](SourcePtr source) {
        if (!source || *images.room <= 0) return source;
        images.decoded_bytes += decoded_bytes(*source, model->input().C);
        return keep_decoded(std::move(source), model->input().C, images.room);
    };
    images.train = keep(setup_.data.train);
    images.val = keep(setup_.data.val);
}

std::unique_ptr<Loader> Engine::make_loader(SourcePtr source, const LoaderOptions& options,
                                            int slots) {
    return std::make_unique<Loader>(
        std::move(source), training_preprocess(setup_.config, model->input(), model->statistics()),
        options,
        options.pixels ? lend_slots(*backend, *model, slots)
                       : std::vector<float*>(size_t(slots), nullptr));
}

// Tracks with room for the steps that are always kept, or that --trace asks for.
void Engine::open_tracks() {
    const Config& config = setup_.config;
    const int64_t steps = 1 + std::max<int64_t>(3, traced_.last - traced_.first + 1);
    const auto track_of = [&](const std::string& name, int place, size_t per_step) {
        const size_t entries = std::clamp<size_t>(per_step * size_t(steps), 256, 65536);
        return setup_.job.tracer.track(name, place, entries);
    };
    const size_t parts = size_t(model->params().is_whole ? config.accumulate : config.micro);
    const size_t buckets = 8 + model->params().grads_size * sizeof(float) / setup_.bucket_bytes;
    const size_t messages = buckets * size_t(2 * setup_.world() + 1);
    const size_t slices = (4 * model->lines().size() + 8) * parts + 16;
    track = track_of("trainer", 1, slices + 2 * buckets);
    if (!backend->host_visible())
        device_track_ = backend->trace(track_of("device: operations", 2, slices),
                                       track_of("device: uploads", 5, 4),
                                       track_of("device: downloads", 6, buckets));
    if (setup_.world() > 1 || setup_.communicator().min_world() > 0)  // others may come
        setup_.communicator().record(track_of("network: collectives, sends", 3, messages),
                                     track_of("network: receives", 4, messages));
    for (int i = 0; i < sharing.threads; ++i)
        sharing.tracks.push_back(track_of(
            cat("decoder ", i), 10 + i, size_t(2 * Loader::max_share(sharing) / sharing.threads)));
}

}  // namespace convoy
