// BatchNorm — y = act(gamma·(x − mean)/√(var + eps) + beta [+ addend])
//
// In training the statistics are those of each group of images (DESIGN 1.5), and their sums go
// where the gradients of the running rows would be; the optimizer step updates the running rows
// from the sums over all ranks. In evaluation, and always when frozen, the running rows are used.
//
// A convolution right before takes the statistics in its own call (Layer::fuse_moments).
#include "src/model/layers/batch_norm.h"

#include "src/model/layers/layers.h"
#include "src/model/layers/text.h"

namespace convoy {

static constexpr float kEps = 1e-5f;

void BatchNorm::describe(Shape x, std::vector<LayerLine>& lines) const {
    lines.push_back({layer_name(gamma_.name),
                     cat("batchnorm", has_addend ? " + shortcut" : "", relu_text(relu_.on)),
                     {1, x.H, x.W, x.C},
                     gamma_.shape.elems() + beta_.shape.elems(),
                     0,
                     gamma_.frozen});
}

void BatchNorm::plan_moments(Shape x, MemoryPlan& plan, bool training) {
    learns_ = training && trained();
    if (learns_)
        stats_value_ = plan.make({x.N, 1, 1, 2 * x.C}, Type::kFloat32);  // a group an image
}

const Moments* BatchNorm::moments(Tensor x, const Pass& pass) {
    if (!pass.training || !learns_) return nullptr;
    ENSURE(pass.groups.size() >= 1 && pass.groups.back() == x.N, layer_name(gamma_.name), " got ",
           x.N, " images in ", pass.groups.size(), " bounds of groups");
    moments_ = {pass.groups, kEps, stats_, mean_.grad.floats()};  // both sums: the rows are joined
    return &moments_;
}

Value BatchNorm::plan_add(Value x, Value addend, MemoryPlan& plan, bool training) {
    plan.tick();
    plan.use(x);
    plan.use(addend);
    if (!moments_come_) plan_moments(x.shape, plan, training);
    if (learns_) plan.use(stats_value_);
    x_value_ = x;
    if (!learns_ && x.keep == Keep::kNothing) {
        y_value_ = x;
    } else if (has_addend && addend.keep == Keep::kNothing) {
        y_value_ = addend;
    } else {
        y_value_ = plan.make(x.shape);
    }
    return plan.kept(y_value_, relu_.keep(training));
}

Value BatchNorm::plan_grad(Value dy, MemoryPlan& plan) {
    plan.tick();
    plan.use(dy);
    if (relu_.reads_y()) plan.use(y_value_);
    if (learns_) plan.use(x_value_), plan.use(stats_value_);
    const bool in_place = dy.keep == Keep::kNothing;
    if (has_addend) addend_grad_value = in_place ? dy : plan.make(dy.shape);
    dx_value_ = in_place && !has_addend ? dy : plan.make(dy.shape);
    return dx_value_;
}

void BatchNorm::bind(const MemoryPlan& plan, Backend& backend) {
    backend_ = &backend;
    y_room_ = plan.at(y_value_);
    dx_room_ = plan.at(dx_value_);
    addend_grad_room_ = plan.at(addend_grad_value);
    stats_ = plan.at(stats_value_).floats();
}

Tensor BatchNorm::forward_add(Tensor x, Tensor addend, const Pass& pass) {
    x_ = x;
    y_ = y_room_.first(x.N);
    const Moments* statistics = moments(x, pass);
    if (!statistics) {
        backend_->batch_norm_eval(x, gamma_.value.floats(), beta_.value.floats(),
                                  mean_.value.floats(), var_.value.floats(), addend, relu_.on, kEps,
                                  y_);
        return y_;
    }
    if (!moments_come_) backend_->moments(x, *statistics);
    backend_->batch_norm(x, pass.groups, stats_, gamma_.value.floats(), beta_.value.floats(),
                         addend, relu_.on, y_);
    return y_;
}

Tensor BatchNorm::grad(Tensor dy, const Pass& pass) {
    const Tensor dx = dx_room_.first(x_.N);
    if (has_addend) addend_grad = addend_grad_room_.first(x_.N);
    if (learns_) {
        backend_->batch_norm_grad(x_, y_, dy, pass.groups, gamma_.value.floats(), relu_.reads_y(),
                                  stats_, dx, addend_grad, gamma_.grad.floats(),
                                  beta_.grad.floats());
    } else {
        backend_->batch_norm_eval_grad(y_, dy, gamma_.value.floats(), var_.value.floats(),
                                       relu_.reads_y(), kEps, dx, addend_grad);
    }
    return dx;
}

void BatchNorm::call_ready(GradListener& listener) const {
    if (!trained()) return;
    listener.ready(beta_);
    listener.ready(gamma_);
}

std::unique_ptr<Layer> make_batch_norm(Param& gamma, Param& beta, Param& mean, Param& var) {
    return std::make_unique<BatchNorm>(gamma, beta, mean, var);
}

}  // namespace convoy
