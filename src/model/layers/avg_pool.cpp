// AvgPool — adaptive average: each of P×Q outputs is the mean of its part of the image.
//
// Where the image has P×Q pixels already (alexnet and vgg16 at their own size) it does nothing.
#include "src/model/layers/layers.h"

namespace convoy {

class AvgPool final : public Layer {
 public:
    AvgPool(const LayerText& text, const Fusion&, Builder& builder)
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
        plan.op({dy});
        return dx_value_ = plan.make(x_shape_);
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
        backend_.avg_pool_grad(dy, dx);
        return dx;
    }

 private:
    const int P_, Q_;
    Shape x_shape_;
    Value y_value_, dx_value_;
};

const LayerKind kAvgPool{.name = "avgpool", .argument = "W", .make = make_layer<AvgPool>};

}  // namespace convoy
