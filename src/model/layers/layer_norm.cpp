// LayerNorm — y = gamma·(x − mean)·rstd + beta over the channels of each pixel. Ba, Kiros, Hinton,
// "Layer Normalization" (2016). The layer `scale` computes only y = gamma·x. A depthwise
// convolution of 1x1 applies gamma and beta; its ops also compute their gradients.
#include "src/model/layers/layers.h"

namespace convoy {

class LayerNorm final : public Layer {
 public:
    LayerNorm(const LayerText& text, const Fusion&, Builder& builder)
        : Layer(builder.backend),
          normalises_(text.kind == kLayerNorm.name),
          eps_(text.eps),
          gamma_(normalises_ ? add(text, "weight", 1, 1, builder)
                             : add(text, "", text.number, 3, builder)),
          beta_(normalises_ ? &add(text, "bias", 0, 1, builder) : nullptr) {
        builder.check_image(text);
        builder.add_line(text.kind, builder.shape);
    }

    bool trained() const override { return !gamma_.frozen; }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        plan.op({x});
        of_gamma_value_ = x;
        if (normalises_) {
            const Shape pixels{x.shape.N, x.shape.H, x.shape.W, 1};
            if (training) rstd_value_ = plan.make(pixels, Type::kFloat32);
            if (x.keep != Keep::kNothing) of_gamma_value_ = plan.make(x.shape);
            plan.op({of_gamma_value_});
        }
        y_value_ = plan.make(x.shape);
        return y_value_;
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override {
        plan.op({dy, of_gamma_value_});
        if (!needs_dx) return {};
        dx_value_ = plan.make(dy.shape);
        if (normalises_) plan.op({dx_value_, of_gamma_value_, rstd_value_});
        return dx_value_;
    }

    Tensor forward(Tensor x, const Pass&) override {
        const Tensor y = y_value_.first(x.N);
        of_gamma_ = x;
        if (normalises_) {
            if (of_gamma_value_.buffer) of_gamma_ = of_gamma_value_.first(x.N);
            backend_.layer_norm(x, eps_, of_gamma_, rstd_value_.first(x.N).floats());
        }
        backend_.conv2d(of_gamma_, gamma_.operand, beta_ ? beta_->value.floats() : nullptr,
                        Window(), false, y);
        return y;
    }
    Tensor backward(Tensor dy, const Pass&, GradListener& listener) override {
        if (trained()) {
            backend_.conv2d_grad_w(of_gamma_, dy, Window(), gamma_.grad,
                                   beta_ ? beta_->grad.floats() : nullptr);
            if (beta_) listener.ready(*beta_);
            listener.ready(gamma_);
        }
        const Tensor dx = dx_value_.first(dy.N);
        if (!dx) return dx;
        backend_.conv2d_grad_x(dy, gamma_.operand, Window(), {}, dx);
        if (normalises_)
            backend_.layer_norm_grad(of_gamma_, rstd_value_.first(dy.N).floats(), dx, dx);
        return dx;
    }

 private:
    static Param& add(const LayerText& text, const char* part, float start, int dims,
                      Builder& builder) {
        return builder.add(
            text, part,
            {.shape = {builder.shape.C, 1, 1, 1}, .init = {Init::kConstant, start}, .dims = dims});
    }

    const bool normalises_;
    const float eps_;
    Param& gamma_;
    Param* const beta_;  // or null
    Value of_gamma_value_, rstd_value_, y_value_, dx_value_;
    Tensor of_gamma_;  // of the pass: what gamma multiplies
};

const LayerKind kLayerNorm{
    .name = "layernorm", .argument = "NAME", .may = "eps", .make = make_layer<LayerNorm>};
const LayerKind kScale{
    .name = "scale", .argument = "NAME", .needs = "start", .make = make_layer<LayerNorm>};

}  // namespace convoy
