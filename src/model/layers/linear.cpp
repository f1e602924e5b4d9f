// Linear — y[n,k] = act(b[k] + Σ_c x[n,c] · w[k,c])
#include "src/model/layers/weighted.h"

namespace convoy {

class Linear final : public Weighted {
 public:
    Linear(const LayerText& text, const Fusion& fusion, Builder& builder)
        : Weighted(fusion, builder.backend) {
        const Shape x = builder.shape;
        if (x.H * x.W > 1)
            builder.error(text, "'linear' needs 1x1 pixels, but its input is ", image_text(x),
                          "; put 'flatten' or 'avgpool 1' before it");
        const int K = builder.out_of(text);
        y_shape_ = {1, 1, 1, K};
        builder.add_weights(text, {K, 1, 1, x.C}, 2, w_, b_);
        w_->flat = std::exchange(builder.flat, {});
        w_->is_linear = true;
        builder.add_line(cat("linear ", K, fusion.act_text()), y_shape_, 2.0 * K * x.C);
    }

    Tensor forward(Tensor x, const Pass&) override {
        x_ = x;  // a view; the plan keeps it valid until backward has read it
        y_ = y_value_.first(x.N);
        backend_.linear(x, w_->operand, bias(), bool(relu_.f), y_);
        return y_;
    }

    Tensor backward(Tensor dy, const Pass&, GradListener& listener) override {
        dy = relu_.grad(dy, y_, backend_);
        computed_dw_ = trained() && !listener.take_factors(*w_, x_, dy);
        if (computed_dw_) {
            backend_.linear_grad_w(x_, dy, w_->grad, bias_grad());
            call_ready(listener);
        }
        if (!dx_value_) return {};
        const Tensor dx = dx_value_.first(dy.N);
        backend_.linear_grad_x(dy, w_->operand, mask_dx_ ? x_ : Tensor{}, dx);
        return dx;
    }
    bool computed_dw() const override { return computed_dw_; }

 private:
    bool computed_dw_ = false;  // false: from factors
};

const LayerKind kLinear{.name = "linear",
                        .argument = "NAME",
                        .needs = "out",
                        .may = "bias init",
                        .make = make_layer<Linear>,
                        .takes_relu = true,
                        .masks_dx = true};

}  // namespace convoy
