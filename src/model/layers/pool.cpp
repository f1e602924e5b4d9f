// Pools: the maximum or the mean of each window.
#include "src/model/layers/layers.h"

namespace convoy {

// MaxPool — y = max over each window. A byte per output stores its position for backward.
class MaxPool final : public Layer {
 public:
    MaxPool(const LayerText& text, const Fusion& fusion, Builder& builder)
        : Layer(builder.backend), window_(builder.add_pool(text)), mask_dx_(fusion.mask_dx) {}

    Value plan_forward(Value x, MemoryPlan& plan, bool) override {
        plan.op({x});
        x_value_ = x;
        y_value_ =
            plan.make({x.shape.N, window_.out_h(x.shape.H), window_.out_w(x.shape.W), x.shape.C});
        const int floats = int((y_value_.shape.row_elems() + 3) / 4);
        argmax_ = plan.make({x.shape.N, 1, 1, floats}, Type::kFloat32);
        return y_value_;
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override {
        if (!needs_dx) return {};
        plan.op({dy, argmax_, mask_dx_ ? x_value_ : Value{}});
        return dx_value_ = plan.make(x_value_.shape);
    }

    Tensor forward(Tensor x, const Pass&) override {
        x_ = x;
        const Tensor y = y_value_.first(x.N);
        backend_.max_pool(x, window_, y, static_cast<uint8_t*>(argmax_.first(x.N).data));
        return y;
    }
    Tensor backward(Tensor dy, const Pass&, GradListener&) override {
        const Tensor dx = dx_value_.first(dy.N), mask = mask_dx_ ? x_ : Tensor{};
        backend_.max_pool_grad(dy, static_cast<uint8_t*>(argmax_.first(dy.N).data), window_, mask,
                               dx);
        return dx;
    }

 private:
    const Window window_;
    const bool mask_dx_;
    Value x_value_, y_value_, dx_value_, argmax_;
    Tensor x_;  // of the pass
};

const LayerKind kMaxPool{.name = "maxpool",
                         .needs = "size",
                         .may = "stride pad ceil",
                         .make = make_layer<MaxPool>,
                         .stride_is_size = true,
                         .masks_dx = true};

// AvgPool — adaptive average: each of P×Q outputs is the mean of its part of the image. Does
// nothing to an image of P×Q pixels. With a window it is a depthwise convolution by 1/(R·S).
class AvgPool final : public Layer {
 public:
    AvgPool(const LayerText& text, const Fusion&, Builder& builder)
        : Layer(builder.backend), adaptive_(text.rows > 0) {
        builder.check_image(text);
        if (adaptive_)
            builder.add_line(cat("avgpool ", text.rows, "x", text.columns),
                             {1, text.rows, text.columns, builder.shape.C});
        else
            window_ = builder.add_pool(text);
        y_shape_ = builder.shape;
    }

    Value plan_forward(Value x, MemoryPlan& plan, bool) override {
        const auto [_, P, Q, C] = y_shape_;
        if (adaptive_ && x.shape.H == P && x.shape.W == Q) return x;
        if (!adaptive_) alloc_weights({C, window_.size_h, window_.size_w, 1}, plan.type());
        plan.op({x});
        x_shape_ = x.shape;
        return y_value_ = plan.make({x.shape.N, P, Q, C});
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override {
        if (!y_value_ || !needs_dx) return dy;
        plan.op({dy, dx_value_});
        return dx_value_ ? dx_value_ : dx_value_ = plan.make(x_shape_);
    }
    bool add_dx_to(Value sum, bool masks) override {
        if (!y_value_ || !adaptive_ || masks) return false;
        dx_value_ = sum;
        return adds_ = true;
    }

    Tensor forward(Tensor x, const Pass&) override {
        if (!y_value_) return x;
        const Tensor y = y_value_.first(x.N);
        if (adaptive_)
            backend_.avg_pool(x, y);
        else
            backend_.conv2d(x, weights_, nullptr, window_, false, y);
        return y;
    }
    Tensor backward(Tensor dy, const Pass&, GradListener&) override {
        if (!dx_value_) return dy;
        const Tensor dx = dx_value_.first(dy.N);
        if (adaptive_)
            backend_.avg_pool_grad(dy, dx, adds_);
        else
            backend_.conv2d_grad_x(dy, weights_, window_, nullptr, dx);
        return dx;
    }

 private:
    void alloc_weights(Shape shape, Type type) {
        const Tensor floats = backend_.alloc(shape, Type::kFloat32);
        backend_.fill(floats.floats(), shape.elems(), 1 / float(shape.H * shape.W));
        weights_ = floats;
        if (type != Type::kFloat32) backend_.copy(weights_ = backend_.alloc(shape, type), floats);
    }

    const bool adaptive_;
    bool adds_ = false;  // to dx
    Window window_;      // unless adaptive, like the weights
    Tensor weights_;
    Shape x_shape_, y_shape_;
    Value y_value_, dx_value_;
};

const LayerKind kAvgPool{.name = "avgpool",
                         .argument = "[W]",
                         .needs = "size",
                         .may = "stride pad",
                         .make = make_layer<AvgPool>,
                         .stride_is_size = true};

}  // namespace convoy
