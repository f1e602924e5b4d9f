// AvgPool — adaptive average: each of P×Q outputs is the mean of its part of the image. Does
// nothing to an image of P×Q pixels. WindowedAvgPool is a depthwise convolution by 1/(R·S).
#include "src/model/layers/layers.h"

namespace convoy {

class AvgPool final : public Layer {
 public:
    AvgPool(const LayerText& text, Builder& builder)
        : Layer(builder.backend), P_(text.rows), Q_(text.columns) {
        builder.check_image(text);
        builder.add_line(cat("avgpool ", P_, "x", Q_), {1, P_, Q_, builder.shape.C});
    }

    Value plan_forward(Value x, MemoryPlan& plan, bool) override {
        if (x.shape.H == P_ && x.shape.W == Q_) return x;
        plan.op({x});
        x_shape_ = x.shape;
        return y_value_ = plan.make({x.shape.N, P_, Q_, x.shape.C});
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override {
        if (!y_value_ || !needs_dx) return dy;
        plan.op({dy, dx_value_});
        return dx_value_ ? dx_value_ : dx_value_ = plan.make(x_shape_);
    }
    bool add_dx_to(Value sum) override {
        if (!y_value_) return false;
        dx_value_ = sum;
        return adds_ = true;
    }

    Tensor forward(Tensor x, const Pass&) override {
        if (!y_value_) return x;
        const Tensor y = y_value_.first(x.N);
        backend_.avg_pool(x, y);
        return y;
    }
    Tensor backward(Tensor dy, const Pass&, GradListener&) override {
        if (!dx_value_) return dy;
        const Tensor dx = dx_value_.first(dy.N);
        backend_.avg_pool_grad(dy, dx, adds_);
        return dx;
    }

 private:
    const int P_, Q_;
    bool adds_ = false;  // to dx
    Shape x_shape_;
    Value y_value_, dx_value_;
};

class WindowedAvgPool final : public Layer {
 public:
    WindowedAvgPool(const LayerText& text, Builder& builder)
        : Layer(builder.backend), window_(builder.add_pool(text)) {}

    Value plan_forward(Value x, MemoryPlan& plan, bool) override {
        const int C = x.shape.C, taps = window_.size_h * window_.size_w;
        const Shape shape{C, window_.size_h, window_.size_w, 1};
        const Tensor shares = backend_.alloc(shape, Type::kFloat32);
        backend_.fill(shares.floats(), shape.elems(), 1.0f / float(taps));
        weights_ = shares;
        if (plan.type() != Type::kFloat32)
            backend_.copy(weights_ = backend_.alloc(shape, plan.type()), shares);
        plan.op({x});
        x_shape_ = x.shape;
        return y_value_ =
                   plan.make({x.shape.N, window_.out_h(x.shape.H), window_.out_w(x.shape.W), C});
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override {
        if (!needs_dx) return {};
        plan.op({dy});
        return dx_value_ = plan.make(x_shape_);
    }

    Tensor forward(Tensor x, const Pass&) override {
        const Tensor y = y_value_.first(x.N);
        backend_.conv2d(x, weights_, nullptr, window_, false, y);
        return y;
    }
    Tensor backward(Tensor dy, const Pass&, GradListener&) override {
        const Tensor dx = dx_value_.first(dy.N);
        backend_.conv2d_grad_x(dy, weights_, window_, nullptr, dx);
        return dx;
    }

 private:
    const Window window_;
    Shape x_shape_;
    Tensor weights_;
    Value y_value_, dx_value_;
};

static std::unique_ptr<Layer> make(const LayerText& text, const Fusion&, Builder& builder) {
    if (text.rows) return std::make_unique<AvgPool>(text, builder);
    return std::make_unique<WindowedAvgPool>(text, builder);
}

const LayerKind kAvgPool{.name = "avgpool",
                         .argument = "[W]",
                         .needs = "size",
                         .may = "stride pad",
                         .make = make,
                         .stride_is_size = true};

}  // namespace convoy
