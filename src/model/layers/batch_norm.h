// batch_norm.h — batch norm as a layer, and as the last layer of a residual block.
#pragma once

#include "src/model/layers/layers.h"

namespace convoy {

// The statistics of a batch norm's input x, and the sums for its running statistics. The layer
// before may compute them while it stores x (take_statistics).
class BatchStatistics {
 public:
    BatchStatistics(const Param& running_mean, float eps)
        : running_mean_(running_mean), eps_(eps) {}

    // To be called in the tick that computes the statistics.
    void plan(Shape x, MemoryPlan& plan, bool training);
    // The argument of Backend::moments; null if the running statistics are used.
    const Moments* moments(Tensor x, const Pass& pass);

    Value mean_rstd;  // of each group; not planned if the running statistics are used

 private:
    const Param& running_mean_;
    const float eps_;
    Moments moments_;
};

class BatchNorm final : public Layer {
 public:
    BatchNorm(const LayerText& text, const Fusion& fusion, Builder& builder);

    bool trained() const override { return !gamma_.frozen; }
    Value plan_forward(Value x, MemoryPlan& plan, bool training) override;
    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override;
    Tensor forward(Tensor x, const Pass& pass) override;
    Tensor backward(Tensor dy, const Pass& pass, GradListener& listener) override {
        const Tensor dx = grad(dy, pass);
        call_ready(listener);
        return dx;
    }
    // backward() in two calls. In between, a residual block runs the backward pass of its shortcut.
    Tensor grad(Tensor dy, const Pass& pass);
    void call_ready(GradListener& listener) const;

    // With Fusion::addend: set before plan_forward, forward; plan_backward and grad() set *_grad.
    Value addend_value, addend_grad_value;
    Tensor addend, addend_grad;

 private:
    Param &gamma_, &beta_, &mean_, &var_;
    const Activation act_, grad_act_;  // grad_act: none if the reader of y masks dy
    const bool has_addend_;
    const float eps_;
    BatchStatistics statistics_;
    const bool statistics_come_;  // from the layer before
    Value x_value_, y_value_, dx_value_;
    Tensor x_, y_;  // of the pass
};

}  // namespace convoy
