// MaxPool — y = max over each window. A byte per output stores its position for backward.
#include "src/model/layers/layers.h"

namespace convoy {

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

}  // namespace convoy
