// Relu and other rectifiers that the layer before cannot fuse. In place if x is not read later.
#include "src/model/layers/fused_relu.h"
#include "src/model/layers/layers.h"

namespace convoy {

class Relu final : public Layer {
 public:
    Relu(const LayerText& text, const Fusion& fusion, Builder& builder, Rectifier::Kind kind)
        : Layer(builder.backend), relu_{true, fusion.dy_is_masked, {kind, text.number}} {
        const bool bends = kind == Rectifier::kLeakyRelu || kind == Rectifier::kElu;
        builder.add_line(bends ? cat(text.kind, " ", text.number) : text.kind, builder.shape);
    }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        plan.op({x});
        y_value_ = x;
        if (x.keep == Keep::kValues) copy_ = y_value_ = plan.make(x.shape);
        // In place: an earlier layer may still need the sign of x, which y has too.
        const Keep before = y_value_.keep;
        return plan.kept(y_value_, std::max(before, relu_.keep(training)));
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool) override {
        plan.op({dy});
        return relu_.plan_grad(dy, y_value_, plan);
    }

    Tensor forward(Tensor x, const Pass&) override {
        y_ = x;
        if (copy_) backend_.copy(y_ = copy_.first(x.N), x);
        backend_.relu(y_, relu_.f);
        return y_;
    }
    Tensor backward(Tensor dy, const Pass&, GradListener&) override {
        return relu_.needs_grad() ? relu_.grad(dy, y_, backend_) : dy;
    }

 private:
    FusedRelu relu_;
    Value y_value_, copy_;
    Tensor y_;  // of the pass
};

template <Rectifier::Kind kKind>
static std::unique_ptr<Layer> make(const LayerText& text, const Fusion& fusion, Builder& builder) {
    return std::make_unique<Relu>(text, fusion, builder, kKind);
}

const LayerKind kRelu{.name = "relu", .make = make<Rectifier::kRelu>, .ends_in_relu = true};
const LayerKind kRelu6{.name = "relu6", .make = make<Rectifier::kRelu6>};
const LayerKind kLeakyRelu{
    .name = "leaky_relu", .argument = "A", .make = make<Rectifier::kLeakyRelu>};
const LayerKind kElu{.name = "elu", .argument = "A", .make = make<Rectifier::kElu>};

}  // namespace convoy
