// batch_norm.h — batch norm as a layer, and as the last layer of a residual block.
#pragma once

#include "src/model/layers/fused_relu.h"

namespace convoy {

class BatchNorm final : public Layer {
 public:
    BatchNorm(Param& gamma, Param& beta, Param& mean, Param& var)
        : gamma_(gamma), beta_(beta), mean_(mean), var_(var) {}

    Shape output(Shape x) const override { return x; }
    void describe(Shape x, std::vector<LayerLine>& lines) const override;

    bool fuse_relu() override { return relu_.on = true; }
    bool ends_in_relu() const override { return relu_.on; }
    void dy_is_masked() override { relu_.masked = true; }
    bool trained() const override { return !gamma_.frozen; }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        return plan_add(x, {}, plan, training);
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool) override { return plan_grad(dy, plan); }
    void bind(const MemoryPlan& plan, Backend& backend) override;
    Tensor forward(Tensor x, const Pass& pass) override { return forward_add(x, {}, pass); }
    Tensor backward(Tensor dy, const Pass& pass, GradListener& listener) override {
        const Tensor dx = grad(dy, pass);
        call_ready(listener);
        return dx;
    }

    // Where the layer before takes the statistics (Layer::fuse_moments): it plans them together
    // with its output x, and asks at each pass where they go. Null: nobody will read them.
    void moments_come() { moments_come_ = true; }
    void plan_moments(Shape x, MemoryPlan& plan, bool training);
    const Moments* moments(Tensor x, const Pass& pass);

    // The same with an addend, from a residual block: y = act(norm(x) + addend). After plan_grad
    // and grad the addend's gradient is in addend_grad_value and addend_grad.
    Value plan_add(Value x, Value addend, MemoryPlan& plan, bool training);
    Value plan_grad(Value dy, MemoryPlan& plan);
    Tensor forward_add(Tensor x, Tensor addend, const Pass& pass);
    Tensor grad(Tensor dy, const Pass& pass);
    void call_ready(GradListener& listener) const;

    bool has_addend = false;
    Value addend_grad_value;
    Tensor addend_grad;

 private:
    Param &gamma_, &beta_, &mean_, &var_;
    FusedRelu relu_;
    bool moments_come_ = false;
    bool learns_ = false;  // planned with statistics of the batch, and so with x kept for backward
    Value x_value_, y_value_, dx_value_, stats_value_;
    Backend* backend_ = nullptr;
    Tensor y_room_, dx_room_, addend_grad_room_;  // for the largest batch
    float* stats_ = nullptr;                      // mean and rstd of each group
    Moments moments_;
    Tensor x_, y_;
};

}  // namespace convoy
