#include "src/plan/step_probe.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "net/null_communicator.h"
#include "src/base/check.h"
#include "src/train/random_batch.h"

namespace convoy {

using Clock = std::chrono::steady_clock;

// A neighbour that is always there and adds nothing.
class StepProbe::Recorder final : public NullCommunicator {
 public:
    Recorder() : NullCommunicator(0, 2) {}  // so that there is something to hand over

    struct Handover {
        Clock::time_point when;
        const float* data;
        size_t floats;
    };
    struct Mark {
        Clock::time_point when;
        const char* phase;
    };

    std::future<void> allreduce_sum(std::span<float> data) override {
        handed.push_back({Clock::now(), data.data(), data.size()});
        return done();
    }
    std::future<void> gather(std::vector<std::span<float>> blocks) override {
        size_t floats = 0;
        for (const auto& block : blocks) floats += block.size();
        handed.push_back({Clock::now(), nullptr, floats});
        return done();
    }
    void set_progress(int64_t, const char* phase) override {
        marks.push_back({Clock::now(), phase});
    }

    // When the step came to this phase.
    Clock::time_point at(const char* phase) const {
        for (const Mark& mark : marks)
            if (std::strcmp(mark.phase, phase) == 0) return mark.when;
        fail("a step without the phase ", phase);
    }

    std::vector<Handover> handed;
    std::vector<Mark> marks;
};

static double between(Clock::time_point begin, Clock::time_point end) {
    return std::chrono::duration<double>(end - begin).count();
}

Config param_by_param(Config config) {
    config.bucket = 1e-6;  // a byte
    config.factors = "off";
    config.sync_every = 1;
    return config;
}

StepProbe::StepProbe(const Config& config, Backend& backend, Model& model, Optimizer& optimizer,
                     int classes)
    : backend_(backend),
      optimizer_(optimizer),
      model_(model),
      recorder_(std::make_unique<Recorder>()) {
    trainer_ = std::make_unique<Trainer>(config, backend, *recorder_, model, optimizer,
                                         std::vector<double>{1, 0}, [] { return 0; });
    const Range all{0, model.max_batch()};
    float* slot =
        backend.alloc_host(Shape{model.max_batch(), model.size(), model.size(), 3}.elems());
    batch_ = random_batch(all, all.end, model.size(), classes, uint64_t(config.seed), slot);
}

StepProbe::~StepProbe() = default;

StepTiming StepProbe::step(int images) {
    ENSURE(images >= 1 && images <= model_.max_batch(), images, " of ", model_.max_batch());
    Batch batch = batch_;
    batch.n = batch.wanted = images;
    batch.global_wanted = images;
    batch.labels.resize(size_t(images));
    batch.samples.resize(size_t(images));
    batch.positions.resize(size_t(images));

    recorder_->handed.clear();
    recorder_->marks.clear();
    const auto begin = Clock::now();
    trainer_->step(batch, {}, /*lr=*/0);  // at this rate the weights stay as they are
    const auto end = Clock::now();
    const auto backward = recorder_->at("backward"), reduce = recorder_->at("reduce");
    note_params(between(backward, reduce));
    return {double(images), between(begin, backward), between(backward, reduce),
            between(reduce, end)};
}

void StepProbe::note_params(double backward_seconds) {
    Params& params = model_.params();
    const auto backward = recorder_->at("backward");
    const std::vector<Param*> all = params.all();
    params_.clear();
    if (recorder_->handed.empty()) return;  // local steps
    // Where the gradients are handed over from, which may be a copy: the counters, their end, is
    // first.
    const Recorder::Handover& counters = recorder_->handed.front();
    const float* grads = counters.data + counters.floats - params.grads_size;
    for (const auto& [when, data, floats] : recorder_->handed) {
        if (data >= grads + params.trained_size) continue;  // statistics, counters
        PlanParam param;
        param.floats = floats;
        param.ready = std::clamp(between(backward, when) / backward_seconds, 0.0, 1.0);
        for (const FactorChoice& layer : choose_factors(params, 1, 2, FactorMode::kOff)) {
            const bool is_weight = grads + layer.w->offset == data;
            param.bias = layer.b && grads + layer.b->offset == data;
            if (!is_weight && !param.bias) continue;
            param.inputs = layer.w->shape.C, param.outputs = layer.w->shape.N;
            param.with_bias = layer.b != nullptr;
            const auto timed = linear_.find(layer.w);
            if (is_weight && timed != linear_.end())
                param.fixed_seconds = timed->second.first,
                param.image_seconds = timed->second.second;
            break;
        }
        params_.push_back(param);
    }
}

// The better of two: the first touches the memory.
double StepProbe::time_linear(const Param& w, Param* b, int images, Tensor x, Tensor dy) {
    double best = 1e300;
    for (int i = 0; i < 2; ++i) {
        const auto begin = Clock::now();
        backend_.linear_grad_w(x.as({images, 1, 1, w.shape.C}), dy.as({images, 1, 1, w.shape.N}),
                               w.grad, b ? b->grad.floats() : nullptr);
        backend_.synchronize();
        best = std::min(best, between(begin, Clock::now()));
    }
    return best;
}

void StepProbe::time_linear_layers() {
    constexpr int kFew = 8, kMany = 64;
    constexpr size_t kSmall = 1 << 16;  // weights whose gradient takes no time
    int widest_in = 0, widest_out = 0;
    std::vector<FactorChoice> layers = choose_factors(model_.params(), 1, 2, FactorMode::kOff);
    std::erase_if(layers, [](const FactorChoice& l) { return l.w->shape.elems() < kSmall; });
    for (const FactorChoice& layer : layers) {
        widest_in = std::max(widest_in, layer.w->shape.C);
        widest_out = std::max(widest_out, layer.w->shape.N);
    }
    if (layers.empty()) return;
    const Type type = backend_.activations();
    // Zeros: gradients stay as they are.
    const Tensor x = backend_.alloc(Shape{kMany, 1, 1, widest_in}, type);
    const Tensor dy = backend_.alloc(Shape{kMany, 1, 1, widest_out}, type);
    for (const FactorChoice& layer : layers) {
        const double few = time_linear(*layer.w, layer.b, kFew, x, dy);
        const double many = std::max(few, time_linear(*layer.w, layer.b, kMany, x, dy));
        const double an_image = (many - few) / (kMany - kFew);
        linear_[layer.w] = {std::max(0.0, few - kFew * an_image), an_image};
    }
}

size_t StepProbe::average_floats() const {
    const Params& params = model_.params();
    return params.updated_size + optimizer_.state().size() * params.trained_size;
}

size_t StepProbe::exact_floats() const {
    return model_.params().grads_size - model_.params().trained_size;
}

StepTiming StepProbe::steps(int images, double seconds, int least) {
    StepTiming sum;
    int count = 0;
    const auto begin = Clock::now();
    for (; count < least || between(begin, Clock::now()) < seconds; ++count) {
        const StepTiming one = step(images);
        sum.forward += one.forward;
        sum.backward += one.backward;
        sum.update += one.update;
    }
    return {double(images), sum.forward / count, sum.backward / count, sum.update / count};
}

}  // namespace convoy
