// Flatten — H×W×C becomes one row of H·W·C, another view of the same memory.
//
// The row is in (H,W,C) order, torchvision's in (C,H,W); weights.cpp permutes at the border.
#include "src/model/layers/layers.h"

namespace convoy {
namespace {

class Flatten final : public Layer {
 public:
    Shape output(Shape x) const override { return {x.N, 1, 1, int(x.row_elems())}; }
    void describe(Shape x, std::vector<LayerLine>& lines) const override {
        lines.push_back({"", "flatten", output({1, x.H, x.W, x.C})});
    }
    bool keeps_sign() const override { return true; }

    Value plan_forward(Value x, MemoryPlan&, bool) override {
        shape_ = x.shape;
        return MemoryPlan::reshaped(x, output(x.shape));
    }
    Value plan_backward(Value dy, MemoryPlan&, bool) override {
        return MemoryPlan::reshaped(dy, shape_);
    }
    void bind(const MemoryPlan&, Backend&) override {}

    Tensor forward(Tensor x, const Pass&) override { return x.as(output(x.shape())); }
    Tensor backward(Tensor dy, const Pass&, GradListener&) override {
        return dy.as({dy.N, shape_.H, shape_.W, shape_.C});
    }

 private:
    Shape shape_;
};

}  // namespace

std::unique_ptr<Layer> make_flatten() { return std::make_unique<Flatten>(); }

}  // namespace convoy
