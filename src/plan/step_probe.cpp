#include "src/plan/step_probe.h"

#include <algorithm>
#include <map>
#include <thread>

#include "net/null_communicator.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/train/random_batch.h"

namespace convoy {

// Notes when a step comes to each phase and when each sum is handed over.
class StepProbe::Recorder final : public NullCommunicator {
 public:
    Recorder() : NullCommunicator(0, 2) {}  // in a world of one nothing is handed over

    std::future<void> allreduce_sum(std::span<float>) override {
        sums.push_back(Clock::now());
        return done();
    }
    void set_progress(int64_t, Phase phase) override { begin_of[phase] = Clock::now(); }

    std::vector<Clock::time_point> sums;
    std::map<Phase, Clock::time_point> begin_of;
};

StepProbe::StepProbe(const Config& config, Backend& backend, Model& model, Optimizer& optimizer,
                     int classes, double image_seconds)
    : backend_(backend),
      optimizer_(optimizer),
      model_(model),
      recorder_(std::make_unique<Recorder>()),
      image_seconds_(image_seconds) {
    // With these settings each gradient is handed over by itself as soon as it is ready.
    TrainerOptions options(config);
    options.reducer = {.bucket_bytes = 1};
    options.sync = SyncKind::kRing, options.sync_every = 1;
    trainer_ =
        std::make_unique<Trainer>(options, backend, *recorder_, model, optimizer, [] { return 0; });
    const double shares[] = {1, 0};
    batch_ = random_batch(backend, model.max_batch(), shares, 0, model.input(), classes,
                          uint64_t(config.seed));

    const auto linear = choose_factors(model.params(), 1, 2, FactorMode::kOff);
    size_t end = model.params().trained_size;
    double flops = 0;  // of the backward pass so far
    for (const Param* param : model.params().backward_order()) {
        flops += model.forward_flops(*param) / model.forward_flops();
        PlanParam one{.floats = end - param->offset, .ready = std::min(flops, 1.0)};
        end = param->offset;
        if (const FactorChoice* layer = choice_of(linear, param)) {
            one.inputs = layer->w->shape.C, one.outputs = layer->w->shape.N;
            one.bias = param == layer->b, one.with_bias = layer->b != nullptr;
            constexpr size_t kSmall = 1 << 16;  // weights whose gradient takes no time
            if (!one.bias && param->shape.elems() >= kSmall)
                linear_.push_back({layer->w, layer->b, params_.size()});
        }
        params_.push_back(one);
    }
}

StepProbe::~StepProbe() = default;

StepTiming StepProbe::step(int images) {
    ENSURE(images >= 1 && images <= model_.max_batch(), images, " of ", model_.max_batch());
    if (image_seconds_ > 0) {
        const double seconds = image_seconds_ * images;
        std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
        return {double(images), seconds / 3, seconds * 2 / 3, 0};
    }
    Batch batch = batch_;
    batch.n = batch.wanted = images;
    batch.global_wanted = images;
    batch.labels.resize(size_t(images));
    batch.samples.resize(size_t(images));
    batch.positions.resize(size_t(images));
    recorder_->sums.clear();
    const auto begin = Clock::now();
    trainer_->step(batch, {}, /*lr=*/0);  // at this rate the weights stay as they are
    const auto end = Clock::now();
    const auto backward = recorder_->begin_of.at(Phase::kBackward);
    const auto reduce = recorder_->begin_of.at(Phase::kReduce);
    const StepTiming timing{double(images), seconds_between(begin, backward),
                            seconds_between(backward, reduce), seconds_between(reduce, end)};
    // The last sums of a step are the gradients, one each.
    ENSURE(recorder_->sums.size() > params_.size(), recorder_->sums.size(), " sums");
    auto sum = recorder_->sums.end() - ptrdiff_t(params_.size());
    for (PlanParam& param : params_)
        param.ready = std::clamp(seconds_between(backward, *sum++) / timing.backward, 0.0, 1.0);
    return timing;
}

StepTiming StepProbe::steps(int images, double seconds) {
    std::vector<StepTiming> all;
    const auto begin = Clock::now();
    while (all.size() < 2 || seconds_since(begin) < seconds) all.push_back(step(images));
    return mean_of(all);
}

void StepProbe::time_linear_layers() {
    if (image_seconds_ > 0) {  // of what the layer sleeps in a step, a third
        for (const Linear& layer : linear_)
            params_[layer.place].image_seconds =
                model_.forward_flops(*layer.w) / model_.forward_flops() * image_seconds_ / 3;
        return;
    }
    constexpr int kFew = 8, kMany = 64;
    int widest = 1;
    for (const Linear& layer : linear_)
        widest = std::max({widest, layer.w->shape.C, layer.w->shape.N});
    // Zeros: gradients stay as they are.
    const Tensor zeros = backend_.alloc(Shape{kMany, 1, 1, widest}, backend_.activations());
    for (const Linear& layer : linear_) {
        // The better of two: the first touches the memory.
        const auto time = [&](int images) {
            const Shape w = layer.w->shape;
            double best = 1e300;
            for (int i = 0; i < 2; ++i) {
                const auto begin = Clock::now();
                backend_.linear_grad_w(zeros.as({images, 1, 1, w.C}), zeros.as({images, 1, 1, w.N}),
                                       layer.w->grad, layer.b ? layer.b->grad.floats() : nullptr);
                backend_.synchronize();
                best = std::min(best, seconds_since(begin));
            }
            return best;
        };
        const double few = time(kFew), many = std::max(few, time(kMany));
        PlanParam& weights = params_[layer.place];
        weights.image_seconds = (many - few) / (kMany - kFew);
        weights.fixed_seconds = std::max(0.0, few - kFew * weights.image_seconds);
    }
}

size_t StepProbe::exact_floats() const {
    return model_.params().grads_size - model_.params().trained_size;
}

size_t StepProbe::average_floats() const {
    const Params& params = model_.params();
    return params.updated_size + optimizer_.inner().size() * params.state_size;
}

}  // namespace convoy
