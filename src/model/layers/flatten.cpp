// Flatten — H×W×C becomes one row of H·W·C, another view of the same memory. The row is in (H,W,C)
// order, torchvision's in (C,H,W). src/checkpoint/weights.cpp permutes the weights of the next
// linear layer when it reads or writes files.
#include "src/model/layers/layers.h"

namespace convoy {

class Flatten final : public Layer {
 public:
    Flatten(const LayerText& text, const Fusion&, Builder& builder) : Layer(builder.backend) {
        const Shape x = builder.shape;
        if (x.H * x.W > 1) builder.flat = {x}, builder.flat_line = text.line;
        builder.add_line("flatten", {1, 1, 1, int(x.row_elems())});
    }

    Value plan_forward(Value x, MemoryPlan&, bool) override {
        shape_ = x.shape;
        return x.as({x.shape.N, 1, 1, int(x.shape.row_elems())});
    }
    Value plan_backward(Value dy, MemoryPlan&, bool) override { return dy.as(shape_); }

    Tensor forward(Tensor x, const Pass&) override {
        return x.as({x.N, 1, 1, int(x.shape().row_elems())});
    }
    Tensor backward(Tensor dy, const Pass&, GradListener&) override {
        return dy.as({dy.N, shape_.H, shape_.W, shape_.C});
    }

 private:
    Shape shape_;
};

const LayerKind kFlatten{.name = "flatten", .make = make_layer<Flatten>, .keeps_sign = true};

}  // namespace convoy
