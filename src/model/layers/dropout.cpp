// Dropout — y[n,i] = keep(n,i) ? x[n,i]/(1−p) : 0 in training, x in evaluation.
// keep is a function of (seed, epoch, sample, this layer, i). So the backward pass draws the mask
// again instead of storing it, and a sample gets the same mask on every rank.
#include "src/base/random.h"
#include "src/model/layers/layers.h"

namespace convoy {

class Dropout final : public Layer {
 public:
    Dropout(const LayerText& text, const Fusion&, Builder& builder)
        : Layer(builder.backend), p_(text.number), purpose_(uint16_t(kLayer + builder.dropouts++)) {
        builder.add_line(cat("dropout ", p_), builder.shape);
    }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        return training ? plan_call(x, y_value_, plan) : x;
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool) override {
        return plan_call(dy, dx_value_, plan);
    }
    Tensor forward(Tensor x, const Pass& pass) override { return drop(x, y_value_, pass); }
    Tensor backward(Tensor dy, const Pass& pass, GradListener&) override {
        return drop(dy, dx_value_, pass);
    }

 private:
    // In place, or in `copy` if x is still read later.
    Value plan_call(Value x, Value& copy, MemoryPlan& plan) {
        if (p_ == 0) return x;
        plan.op({x});
        return x.keep == Keep::kValues ? copy = plan.make(x.shape) : x;
    }
    // A planned copy is made in evaluation too, because later layers may work in place on it.
    Tensor drop(Tensor x, const Value& copy, const Pass& pass) {
        x = copy.copy_of(x, backend_);
        if (!pass.training || p_ == 0) return x;
        ENSURE(pass.samples.size() == size_t(x.N), pass.samples.size(), " sample numbers for ", x.N,
               " images");
        backend_.dropout(x, p_, pass.draws, pass.samples, purpose_);
        return x;
    }

    const float p_;
    const uint16_t purpose_;
    Value y_value_, dx_value_;
};

const LayerKind kDropout{
    .name = "dropout", .argument = "P", .make = make_layer<Dropout>, .keeps_sign = true};

}  // namespace convoy
