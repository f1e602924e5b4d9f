// Conv2d — y[n,p,q,k] = act(b[k] + Σ_rsc x[n, p·stride+r−pad, q·stride+s−pad, c] · w[k,r,s,c])
#include "src/model/layers/batch_norm.h"
#include "src/model/layers/weighted.h"

namespace convoy {

class Conv2d final : public Weighted {
 public:
    Conv2d(const LayerText& text, const Fusion& fusion, Builder& builder)
        : Weighted(fusion, builder.backend), window_(text.window) {
        builder.check_image(text);
        builder.check_window(text);
        const Shape x = builder.shape;
        const int K = builder.out_of(text);
        y_shape_ = {1, window_.out_h(x.H), window_.out_w(x.W), K};
        builder.add_weights(text, {K, window_.size_h, window_.size_w, x.C}, 4, w_, b_);
        builder.add_line(cat("conv2d ", K, " ", window_text(window_), fusion.relu_text()), y_shape_,
                         2.0 * double(y_shape_.elems()) * double(w_->shape.row_elems()));
    }

    bool take_statistics(BatchStatistics& statistics) override {
        statistics_ = &statistics;
        return true;
    }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        const Value y = Weighted::plan_forward(x, plan, training);
        if (statistics_) statistics_->plan(y.shape, plan, training);
        return y;
    }

    Tensor forward(Tensor x, const Pass& pass) override {
        x_ = x;  // a view; the plan keeps it alive as long as backward reads it
        y_ = y_value_.first(x.N);
        const Moments* of_y = statistics_ ? statistics_->moments(y_, pass) : nullptr;
        backend_.conv2d(x, w_->operand, bias(), window_, relu_.on, y_, of_y);
        return y_;
    }

    Tensor backward(Tensor dy, const Pass&, GradListener& listener) override {
        if (relu_.needs_grad()) dy = relu_.grad(dy, y_, backend_);
        if (trained()) {
            backend_.conv2d_grad_w(x_, dy, window_, w_->grad, bias_grad());
            call_ready(listener);
        }
        if (!dx_value_) return {};
        const Tensor dx = dx_value_.first(dy.N);
        backend_.conv2d_grad_x(dy, w_->operand, window_, mask_dx_ ? x_ : Tensor{}, dx);
        return dx;
    }

 private:
    const Window window_;
    BatchStatistics* statistics_ = nullptr;  // of y, or null
};

const LayerKind kConv2d{.name = "conv2d",
                        .argument = "NAME",
                        .needs = "out size",
                        .may = "stride pad bias init",
                        .make = make_layer<Conv2d>,
                        .takes_relu = true,
                        .masks_dx = true};

}  // namespace convoy
