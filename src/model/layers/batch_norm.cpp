// BatchNorm — y = act(gamma·(x − mean)/√(var + eps) + beta [+ addend])
// In training it uses the statistics of each group of images (--bn-group), and adds their sums to
// the gradient arena; the optimizer updates the running statistics from the sums over all ranks.
// In evaluation, and always if frozen, it uses the running statistics.
#include "src/model/layers/batch_norm.h"

namespace convoy {

void BatchStatistics::plan(Shape x, MemoryPlan& plan, bool training) {
    if (training && !running_mean_.frozen)
        // At most one group per image.
        mean_rstd = plan.make({x.N, 1, 1, 2 * x.C}, Type::kFloat32);
}

const Moments* BatchStatistics::moments(Tensor x, const Pass& pass) {
    if (!pass.training || !mean_rstd) return nullptr;
    ENSURE(pass.groups.size() >= 1 && pass.groups.back() == x.N, layer_name(running_mean_), " got ",
           x.N, " images in ", pass.groups.size(), " bounds of groups");
    // Both sums are contiguous: the running variance is joined to the mean.
    moments_ = {pass.groups, eps_, mean_rstd.first(x.N).floats(), running_mean_.grad.floats()};
    return &moments_;
}

static Param& add(const LayerText& text, const char* part, float start, bool running,
                  Builder& builder) {
    return builder.add(text, part,
                       {.shape = {1, 1, 1, builder.shape.C},
                        .init = {Init::kConstant, start},
                        .running = running,
                        .flat = builder.flat});
}

BatchNorm::BatchNorm(const LayerText& text, const Fusion& fusion, Builder& builder)
    : Layer(builder.backend),
      gamma_(add(text, "weight", 1, false, builder)),
      beta_(add(text, "bias", 0, false, builder)),
      mean_(add(text, "running_mean", 0, true, builder)),
      var_(add(text, "running_var", 1, true, builder)),
      act_(fusion.act),
      grad_act_(fusion.dy_is_masked ? Activation{Activation::kNone} : act_),
      has_addend_(fusion.addend),
      eps_(text.eps),
      statistics_(mean_, eps_),
      statistics_come_(fusion.before && fusion.before->take_statistics(statistics_)) {
    var_.joined = true;
    builder.add_line(cat("batchnorm", has_addend_ ? " + shortcut" : "", fusion.act_text()),
                     builder.shape);
}

Value BatchNorm::plan_forward(Value x, MemoryPlan& plan, bool training) {
    plan.op({x, addend_value});
    if (!statistics_come_) statistics_.plan(x.shape, plan, training);
    plan.use(statistics_.mean_rstd);
    x_value_ = x;
    if (!training && x.keep == Keep::kNothing) {
        y_value_ = x;
    } else if (has_addend_ && addend_value.keep == Keep::kNothing) {
        y_value_ = addend_value;
    } else {
        y_value_ = plan.make(x.shape);
    }
    const bool reads_y = training && has_addend_ && grad_act_;
    return plan.kept(y_value_, reads_y ? Keep::kSign : Keep::kNothing);
}

Value BatchNorm::plan_backward(Value dy, MemoryPlan& plan, bool) {
    plan.op({dy, x_value_, statistics_.mean_rstd});
    if (has_addend_ && grad_act_) plan.use(y_value_);
    const bool in_place = dy.keep == Keep::kNothing;
    if (has_addend_) addend_grad_value = in_place ? dy : plan.make(dy.shape);
    dx_value_ = in_place && !has_addend_ ? dy : plan.make(dy.shape);
    return dx_value_;
}

Tensor BatchNorm::forward(Tensor x, const Pass& pass) {
    x_ = x;
    y_ = y_value_.first(x.N);
    const float *gamma = gamma_.value.floats(), *beta = beta_.value.floats();
    if (const Moments* moments = statistics_.moments(x, pass)) {
        if (!statistics_come_) backend_.moments(x, *moments);
        backend_.batch_norm(x, pass.groups, moments->mean_rstd, gamma, beta, addend, act_, y_);
    } else {
        backend_.batch_norm_eval(x, gamma, beta, mean_.value.floats(), var_.value.floats(), addend,
                                 act_, eps_, y_);
    }
    return y_;
}

Tensor BatchNorm::grad(Tensor dy, const Pass& pass) {
    const Tensor dx = dx_value_.first(dy.N);
    addend_grad = addend_grad_value.first(dy.N);
    // If dy is dz already, nothing needs to be written for the addend.
    const Tensor dz = !grad_act_ && addend_grad.data == dy.data ? Tensor{} : addend_grad;
    const float *gamma = gamma_.value.floats(), *beta = beta_.value.floats();
    if (statistics_.mean_rstd) {
        backend_.batch_norm_grad(x_, y_, dy, pass.groups, gamma, beta, grad_act_,
                                 statistics_.mean_rstd.first(dy.N).floats(), dx, dz,
                                 gamma_.grad.floats(), beta_.grad.floats());
    } else {
        backend_.batch_norm_eval_grad(x_, y_, dy, gamma, beta, mean_.value.floats(),
                                      var_.value.floats(), grad_act_, eps_, dx, dz);
    }
    return dx;
}

void BatchNorm::call_ready(GradListener& listener) const {
    if (!trained()) return;
    listener.ready(beta_);
    listener.ready(gamma_);
}

const LayerKind kBatchNorm{
    .name = "batchnorm", .argument = "NAME", .may = "eps", .make = make_layer<BatchNorm>};

}  // namespace convoy
