// weighted.h — the base of conv2d and linear: weights, and the memory of a product.
#pragma once

#include "src/model/layers/layers.h"

namespace convoy {

class Weighted : public Layer {
 public:
    Weighted(const Fusion& fusion, Backend& backend)
        : Layer(backend),
          relu_{fusion.act, fusion.dy_is_masked},
          mask_dx_(fusion.mask_dx),
          floats_(fusion.floats) {}

    bool trained() const override { return !w_->frozen; }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        plan.op({x});
        x_value_ = x;
        const Shape y{x.shape.N, y_shape_.H, y_shape_.W, y_shape_.C};
        y_value_ = plan.make(y, floats_ ? Type::kFloat32 : plan.type());
        return plan.kept(y_value_, relu_.keep(training));
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override {
        plan.op({dy, trained() ? x_value_ : Value{}});
        dy = relu_.plan_grad(dy, y_value_, plan);
        if (!needs_dx) return {};
        plan.op({dy, mask_dx_ ? x_value_ : Value{}, dx_value_});
        return dx_value_ ? dx_value_ : dx_value_ = plan.make(x_value_.shape);
    }

 protected:
    const float* bias() const { return b_ ? b_->value.floats() : nullptr; }
    float* bias_grad() const { return b_ ? b_->grad.floats() : nullptr; }
    void call_ready(GradListener& listener) const {
        if (b_) listener.ready(*b_);
        listener.ready(*w_);
    }

    Param* w_ = nullptr;
    Param* b_ = nullptr;  // or null
    Shape y_shape_;       // of one image
    FusedRelu relu_;
    bool mask_dx_;
    bool floats_;        // y is floats
    bool adds_ = false;  // to dx
    Value x_value_, y_value_, dx_value_;
    Tensor x_, y_;  // of the pass
};

}  // namespace convoy
