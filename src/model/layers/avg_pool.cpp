// AvgPool — adaptive average: each of P×Q outputs is the mean of its part of the image.
//
// Where the image has P×Q pixels already (alexnet and vgg16 at their own size) it does nothing.
#include "src/model/layers/layers.h"
#include "src/model/layers/text.h"

namespace convoy {
namespace {

class AvgPool final : public Layer {
 public:
    AvgPool(int P, int Q) : P_(P), Q_(Q) {}

    Shape output(Shape x) const override { return {x.N, P_, Q_, x.C}; }
    void describe(Shape x, std::vector<LayerLine>& lines) const override {
        lines.push_back({"", cat("avgpool ", P_, "x", Q_), output({1, x.H, x.W, x.C})});
    }

    Value plan_forward(Value x, MemoryPlan& plan, bool) override {
        if (output(x.shape) == x.shape) return x;
        plan.tick();
        plan.use(x);
        x_shape_ = x.shape;
        return y_value_ = plan.make(output(x.shape));
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override {
        if (y_value_.buffer < 0 || !needs_dx) return dy;
        plan.tick();
        plan.use(dy);
        return dx_value_ = plan.make(x_shape_);
    }
    void bind(const MemoryPlan& plan, Backend& backend) override {
        backend_ = &backend;
        y_room_ = plan.at(y_value_);
        dx_room_ = plan.at(dx_value_);
    }

    Tensor forward(Tensor x, const Pass&) override {
        if (!y_room_) return x;
        const Tensor y = y_room_.first(x.N);
        backend_->avg_pool(x, y);
        return y;
    }
    Tensor backward(Tensor dy, const Pass&, GradListener&) override {
        if (!dx_room_) return dy;
        const Tensor dx = dx_room_.first(dy.N);
        backend_->avg_pool_grad(dy, dx);
        return dx;
    }

 private:
    int P_, Q_;
    Shape x_shape_;
    Value y_value_, dx_value_;
    Backend* backend_ = nullptr;
    Tensor y_room_, dx_room_;
};

}  // namespace

std::unique_ptr<Layer> make_avg_pool(int P, int Q) { return std::make_unique<AvgPool>(P, Q); }

}  // namespace convoy
