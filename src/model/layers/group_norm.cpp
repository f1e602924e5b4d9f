// GroupNorm — y = gamma·(x − mean)·rstd + beta over the pixels and channels of each group. Wu, He,
// "Group Normalization" (2018). `layernorm` takes each pixel as an image of one group. Ba, Kiros,
// Hinton, "Layer Normalization" (2016). `scale` computes only y = gamma·x. A depthwise convolution
// of 1x1 applies gamma and beta; its ops also compute their gradients.
#include "src/model/layers/weighted.h"

namespace convoy {

class GroupNorm final : public Weighted {
 public:
    GroupNorm(const LayerText& text, const Fusion& fusion, Builder& builder)
        : Weighted(fusion, builder.backend),
          by_pixel_(text.kind == kLayerNorm.name),
          groups_(text.groups),
          eps_(text.eps) {
        const Shape x = builder.shape;
        const auto add = [&](const char* part, float start) {
            const Init init{Init::kConstant, start};
            const int dims = *part ? 1 : 3;
            return &builder.add(text, part, {.shape = {x.C, 1, 1, 1}, .init = init, .dims = dims});
        };
        const bool scales = text.kind == kScale.name;
        w_ = scales ? add("", text.number) : add("weight", 1);
        b_ = scales ? nullptr : add("bias", 0);
        builder.check_image(text);
        if (x.C % groups_ != 0)
            builder.error(text, "'groups ", groups_, "' must divide the ", x.C, " channels");
        builder.add_line(cat(text.kind, groups_ > 1 ? cat(" groups ", groups_) : ""), x);
    }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        plan.op({x});
        x_value_ = x;
        if (b_) {  // not a scale
            const auto [N, H, W, C] = by_pixel_ ? x.shape : Shape{x.shape.N};
            if (training) rstd_value_ = plan.make({N, H, W, groups_}, Type::kFloat32);
            if (x.keep != Keep::kNothing) x_value_ = plan.make(x.shape);
            plan.op({x_value_});
        }
        return y_value_ = plan.make(x.shape);
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override {
        const Value dx = Weighted::plan_backward(dy, plan, needs_dx);
        if (dx && b_) plan.op({dx, x_value_, rstd_value_});
        return dx;
    }

    Tensor forward(Tensor x, const Pass&) override {
        const Tensor y = y_value_.first(x.N);
        x_ = x;
        if (b_) {
            if (x_value_.buffer) x_ = x_value_.first(x.N);
            float* const rstd = rstd_value_.first(x.N).floats();
            backend_.group_norm(images(x), groups_, eps_, images(x_), rstd);
        }
        backend_.conv2d(x_, w_->operand, bias(), Window(), false, y);
        return y;
    }
    Tensor backward(Tensor dy, const Pass&, GradListener& listener) override {
        if (trained()) {
            backend_.conv2d_grad_w(x_, dy, Window(), w_->grad, bias_grad());
            call_ready(listener);
        }
        const Tensor dx = dx_value_.first(dy.N);
        if (!dx) return dx;
        backend_.conv2d_grad_x(dy, w_->operand, Window(), {}, dx);
        const float* const rstd = rstd_value_.first(dy.N).floats();
        if (b_) backend_.group_norm_grad(images(x_), groups_, rstd, images(dx), images(dx));
        return dx;
    }

 private:
    Tensor images(Tensor x) const { return by_pixel_ ? x.as({x.N * x.H * x.W, 1, 1, x.C}) : x; }

    const bool by_pixel_;
    const int groups_;
    const float eps_;
    Value rstd_value_;
};

const LayerKind kGroupNorm{.name = "groupnorm",
                           .argument = "NAME",
                           .needs = "groups",
                           .may = "eps",
                           .make = make_layer<GroupNorm>};
const LayerKind kLayerNorm{
    .name = "layernorm", .argument = "NAME", .may = "eps", .make = make_layer<GroupNorm>};
const LayerKind kScale{
    .name = "scale", .argument = "NAME", .needs = "start", .make = make_layer<GroupNorm>};

}  // namespace convoy
