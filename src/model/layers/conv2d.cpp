// Conv2d — y[n,p,q,k] = act(b[k] + Σ_rsc x[n, p·stride+r−pad, q·stride+s−pad, c] · w[k,r,s,c])
// With groups, each group of output channels reads only one group of input channels. A depthwise
// convolution is one op. Other groups are copied out of x, convolved, and copied into y, in turn.
#include "src/model/layers/batch_norm.h"
#include "src/model/layers/weighted.h"

namespace convoy {

class Conv2d final : public Weighted {
 public:
    Conv2d(const LayerText& text, const Fusion& fusion, Builder& builder)
        : Weighted(fusion, builder.backend), window_(builder.window_of(text)) {
        const Shape x = builder.shape;
        const int K = builder.out_of(text), G = text.groups;
        if (x.C % G != 0 || K % G != 0)
            builder.error(text, "'groups ", G, "' of conv2d must divide its ", x.C,
                          " input channels and its ", K, " output channels");
        const bool depthwise = G == x.C && G == K;
        parts_ = depthwise ? 1 : G;
        can_add_ = G == 1 && !mask_dx_;
        floats_ &= G == 1;
        y_shape_ = {1, window_.out_h(x.H), window_.out_w(x.W), K};
        const int dims = text.kind == kPointwise.name ? 2 : 4;
        builder.add_weights(text, {K, window_.size_h, window_.size_w, x.C / G}, dims, w_, b_);
        const std::string groups = G == 1 ? "" : depthwise ? " depthwise" : cat(" groups ", G);
        builder.add_line(cat("conv2d ", K, " ", window_text(window_), groups, fusion.act_text()),
                         y_shape_, 2.0 * double(y_shape_.elems()) * double(w_->shape.row_elems()));
    }

    bool take_statistics(BatchStatistics& statistics) override {
        if (parts_ > 1) return false;
        statistics_ = &statistics;
        return true;
    }

    bool add_dx_to(Value sum, bool masks) override {
        if (can_add_) dx_value_ = sum, mask_dx_ = masks;
        return adds_ = can_add_;
    }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        const Value y = Weighted::plan_forward(x, plan, training);
        if (statistics_) statistics_->plan(y.shape, plan, training);
        if (parts_ > 1)
            part_x_ = plan.make(part_of(x.shape)), part_y_ = plan.make(part_of(y.shape));
        return y;
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override {
        if (parts_ == 1) return Weighted::plan_backward(dy, plan, needs_dx);
        // One tick: the groups are computed one after the other, in the same buffers.
        plan.op({dy, x_value_});
        dy = relu_.plan_grad(dy, y_value_, plan);
        grad_x_ = plan.make(part_of(x_value_.shape)), grad_y_ = plan.make(part_of(dy.shape));
        if (!needs_dx) return {};
        grad_dx_ = plan.make(part_of(x_value_.shape));
        return dx_value_ = plan.make(x_value_.shape);
    }

    Tensor forward(Tensor x, const Pass& pass) override {
        x_ = x;  // a view; the plan keeps it valid until backward has read it
        y_ = y_value_.first(x.N);
        const Moments* of_y = statistics_ ? statistics_->moments(y_, pass) : nullptr;
        const Tensor from = part_x_ ? part_x_.first(x.N) : x,
                     to = part_y_ ? part_y_.first(x.N) : y_;
        for (int part = 0; part < parts_; ++part) {
            if (parts_ > 1) backend_.copy_channels(from, x, part * from.C);
            backend_.conv2d(from, filters(w_->operand, part), b_ ? bias() + part * to.C : nullptr,
                            window_, bool(relu_.f), to, of_y);
            if (parts_ > 1) backend_.copy_channels(y_, to, part * to.C);
        }
        return y_;
    }

    Tensor backward(Tensor dy, const Pass&, GradListener& listener) override {
        dy = relu_.grad(dy, y_, backend_);
        const Tensor dx = dx_value_.first(dy.N), from = grad_y_ ? grad_y_.first(dy.N) : dy;
        const Tensor x = grad_x_ ? grad_x_.first(dy.N) : x_,
                     to = grad_dx_ ? grad_dx_.first(dy.N) : dx;
        for (int part = 0; part < parts_; ++part) {
            if (parts_ > 1) backend_.copy_channels(from, dy, part * from.C);
            if (parts_ > 1) backend_.copy_channels(x, x_, part * x.C);
            if (trained())
                backend_.conv2d_grad_w(x, from, window_, filters(w_->grad, part),
                                       b_ ? bias_grad() + part * from.C : nullptr);
            if (trained() && part + 1 == parts_) call_ready(listener);
            if (!dx) continue;
            backend_.conv2d_grad_x(from, filters(w_->operand, part), window_,
                                   mask_dx_ ? x : Tensor{}, to, adds_);
            if (parts_ > 1) backend_.copy_channels(dx, to, part * to.C);
        }
        return dx;
    }

 private:
    Shape part_of(Shape s) const { return {s.N, s.H, s.W, s.C / parts_}; }
    // The filters of one part.
    Tensor filters(Tensor w, int part) const {
        Tensor own = w.first(w.N / parts_);
        own.data = static_cast<char*>(w.data) + size_t(part) * own.bytes();
        return own;
    }

    const Window window_;
    int parts_ = 1;                          // groups computed one after the other
    bool can_add_ = false;                   // to dx
    BatchStatistics* statistics_ = nullptr;  // of y, or null
    Value part_x_, part_y_, grad_x_, grad_y_, grad_dx_;
};

const LayerKind kConv2d{.name = "conv2d",
                        .argument = "NAME",
                        .needs = "out size",
                        .may = "stride pad dilation groups bias init",
                        .make = make_layer<Conv2d>,
                        .takes_relu = true,
                        .masks_dx = true};
const LayerKind kPointwise{.name = "pointwise",
                           .argument = "NAME",
                           .needs = "out",
                           .may = "bias init",
                           .make = make_layer<Conv2d>,
                           .takes_relu = true,
                           .masks_dx = true};

}  // namespace convoy
