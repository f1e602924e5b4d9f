// train_run_build.cpp — the state of a run, which outlasts rings; and the loaders, the memory of
// passes and the trainer, which are made anew for other shares.
#include "src/base/check.h"
#include "src/checkpoint/weights.h"
#include "src/job/device_choice.h"
#include "src/run/train_run.h"
#include "src/train/input.h"

namespace convoy {

// Fresh weights and optimizer state, in place of those that there are.
void TrainRun::make_state(bool head_only) {
    optimizer_.reset(), model_.reset(), backend_.reset();
    head_only_ = head_only;
    backend_ = make_backend(config_);
    ModelOptions of_model = model_options(config_, int(setup_.classes.size()));
    of_model.head_only = head_only;
    if (const int stages = config_.pipeline; stages > 1) {
        of_model.stage = stage_of(setup_.cuts, setup_.rank() % stages);
        of_model.draw_all = setup_.rank() == 0 && !setup_.fresh;  // the others take rank 0's
    }
    model_ = std::make_unique<Model>(setup_.model_text, of_model, *backend_);
    optimizer_ = std::make_unique<Optimizer>(config_, model_->params(), *backend_);
    state_blocks_ = backend_->blocks();
}

// What depends on this rank's share of a batch.
void TrainRun::build() {
    if (config_.replicas > 1 && !backend_->host_visible())
        fail(
            "--threads RxT shares the weights in this machine's memory: it needs --device cpu; on "
            "GPUs start a rank for each");
    if (config_.replicas > 1 && config_.replicas > backend_->threads())
        fail("--threads ", get_option(config_, "threads"), ": each of the ", config_.replicas,
             " replicas needs a thread, and there are ", backend_->threads());
    for (int r = 0; config_.replicas > 1 && r < config_.replicas; ++r) {
        Config own = config_;
        own.threads = backend_->threads() / config_.replicas;
        replica_backends_.push_back(make_backend(own));
    }
    sharing_ = loader_options(config_, setup_.shares.weights, setup_.rank());
    sharing_.parts = setup_.train_parts;
    const int stages = config_.pipeline;
    if (stages > 1) {  // its first stage reads the images
        sharing_.shares.assign(size_t(setup_.world() / stages), 1);
        sharing_.rank = setup_.rank() / stages;
        sharing_.pixels = setup_.rank() % stages == 0;
    }
    LoaderOptions validating = sharing_;
    validating.parts = setup_.val_parts;
    const int max_batch =
        int(std::max({Loader::max_share(sharing_), Loader::max_share(validating), int64_t(1)}));
    model_->expect(max_batch);
    const int bn_group = model_->has_batch_norm() ? config_.bn_group : 0;
    const int pieces = config_.accumulate * config_.replicas;
    if (pieces > 1 && model_->has_batch_norm() && bn_group == 0)
        fail("--", config_.accumulate > 1 ? "accumulate" : "threads RxT",
             " needs --bn-group above 0: batch norm takes its statistics over groups, which are "
             "not cut");
    const int piece = piece_images(max_batch, pieces, bn_group);
    if (stages == 1)
        activation_bytes_ = model_->plan(std::min(piece, max_batch), config_.replicas == 1);
    open_tracks();
    if (!train_source_) open_sources();
    loader_ = make_loader(train_source_, true, kSlots);
    if (val_source_) val_loader_ = make_loader(val_source_, false, 2);
    TrainerOptions options(config_);
    options.reducer.bucket_bytes = bucket_bytes_;
    options.pipeline.cuts = setup_.cuts;
    options.replicas = replica_backends_;
    options.tracer = &setup_.job.tracer;
    options.track = options.reducer.track = track_;
    options.device = device_track_;
    options.first_traced = trace_steps_.first, options.last_traced = trace_steps_.last;
    trainer_ = std::make_unique<Trainer>(options, *backend_, communicator_, *model_, *optimizer_,
                                         [this] { return wish(); });
    evaluator_ = std::make_unique<Evaluator>(
        *model_, *backend_, communicator_, [this] { return wish(); }, trainer_->pipeline());
    activation_bytes_ += trainer_->replicas_bytes();
    if (stages > 1) activation_bytes_ = trainer_->pipeline()->activation_bytes();
}

void TrainRun::drop() {
    if (!trainer_) return;
    const Clocks now = clocks();
    clocks_before_ = {now.data_wait, now.net_wait};
    trainer_.reset(), evaluator_.reset();
    loader_.reset(), val_loader_.reset();
    model_ = model_->twin();  // not planned yet
    replica_backends_.clear();
    backend_->release_after(state_blocks_);
}

// The same weights in a model that trains all layers, with a fresh optimizer.
void TrainRun::thaw() {
    const SafeTensors weights = export_weights(*model_, *backend_);
    drop();
    make_state(/*head_only=*/false);
    import_weights(weights, *model_, *backend_, /*partial=*/false);
    build();  // where it throws, the state is complete, and saved
    if (setup_.rank() == 0)
        log_.info("all layers train from epoch ", at_.epoch + 1, " on: ", memory_text());
    run_log_->event("thaw", {{"step", at_.step}});
}

void TrainRun::open_sources() {
    room_ = std::make_shared<std::atomic<int64_t>>(int64_t(config_.cache_decoded.bytes));
    const auto keep = [&](std::shared_ptr<const Source> source) {
        if (!source || *room_ <= 0) return source;
        if (source->is_stream()) {
            log_.notice(
                "--cache-decoded keeps nothing of a pipe, which brings other images each time");
            return source;
        }
        decoded_bytes_ += decoded_bytes(*source, model_->input().C);
        return keep_decoded(std::move(source), model_->input().C, room_);
    };
    train_source_ = keep(setup_.data.train);
    val_source_ = keep(setup_.data.val);
}

std::unique_ptr<Loader> TrainRun::make_loader(std::shared_ptr<const Source> source, bool training,
                                              int slots) {
    LoaderOptions options = sharing_;
    options.training = training;
    if (!training) options.parts = setup_.val_parts;
    if (!training) options.tracks.clear();
    return std::make_unique<Loader>(std::move(source),
                                    training_preprocess(config_, model_->input()), options,
                                    options.pixels ? lend_slots(*backend_, *model_, slots)
                                                   : std::vector<float*>(size_t(slots), nullptr));
}

}  // namespace convoy
