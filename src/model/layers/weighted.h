// weighted.h — what conv2d and linear have in common: y = act(b + the product of x and w), whose
// memory and order of gradients do not depend on which product it is.
#pragma once

#include "src/model/layers/fused_relu.h"
#include "src/model/layers/layers.h"
#include "src/model/layers/text.h"

namespace convoy {

class Weighted : public Layer {
 public:
    Weighted(Param& w, Param* b) : w_(w), b_(b) {}

    bool fuse_relu() override { return relu_.on = true; }
    bool ends_in_relu() const override { return relu_.on; }
    bool mask_dx() override { return mask_ = true; }
    void dy_is_masked() override { relu_.masked = true; }
    bool give_floats() override { return floats_ = !relu_.on; }  // a relu's mask is an activation
    bool trained() const override { return !w_.frozen; }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        plan.tick();
        plan.use(x);
        x_value_ = x;
        y_value_ = plan.make(output(x.shape), floats_ ? Type::kFloat32 : plan.type());
        return plan.kept(y_value_, relu_.keep(training));
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override {
        plan.tick();
        dy = relu_.plan_grad(dy, y_value_, plan);
        if (trained()) plan.use(x_value_);
        if (!needs_dx) return {};
        plan.tick();  // from here on x is read as the mask only
        plan.use(dy);
        if (mask_) plan.use(x_value_);
        return dx_value_ = plan.make(x_value_.shape);
    }
    void bind(const MemoryPlan& plan, Backend& backend) override {
        backend_ = &backend;
        y_room_ = plan.at(y_value_);
        dx_room_ = plan.at(dx_value_);
        relu_.bind(plan);
    }

    Tensor forward(Tensor x, const Pass& pass) override {
        x_ = x;  // a view; the plan keeps it alive as long as backward reads it
        y_ = y_room_.first(x.N);
        multiply(x, b_ ? b_->value.floats() : nullptr, relu_.on, y_, pass);
        return y_;
    }
    Tensor backward(Tensor dy, const Pass&, GradListener& listener) override {
        dy = relu_.grad(dy, y_, *backend_);
        if (trained() && !leaves_as_factors(x_, dy, listener)) {
            grad_w(x_, dy, b_ ? b_->grad.floats() : nullptr);
            if (b_) listener.ready(*b_);
            listener.ready(w_);
        }
        if (!dx_room_) return {};
        const Tensor dx = dx_room_.first(x_.N);
        grad_x(dy, mask_ ? x_ : Tensor{}, dx);
        return dx;
    }

 protected:
    // The op of this name in kernels/backend.h, and its gradients; db += … unless it is null.
    virtual void multiply(Tensor x, const float* b, bool relu, Tensor y, const Pass& pass) = 0;
    virtual void grad_w(Tensor x, Tensor dy, float* db) = 0;
    virtual void grad_x(Tensor dy, Tensor mask, Tensor dx) = 0;
    // Whether x and dy were taken in place of the gradient.
    virtual bool leaves_as_factors(Tensor, Tensor, GradListener&) { return false; }

    size_t params() const { return w_.shape.elems() + (b_ ? b_->shape.elems() : 0); }

    Param& w_;
    Param* b_;  // or null
    FusedRelu relu_;
    Backend* backend_ = nullptr;

 private:
    bool mask_ = false, floats_ = false;
    Value x_value_, y_value_, dx_value_;
    Tensor y_room_, dx_room_;  // for the largest batch
    Tensor x_, y_;
};

}  // namespace convoy
