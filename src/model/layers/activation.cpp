// Activation — relu, and others that the layer before cannot fuse. In place if x is not read later.
#include "src/model/layers/fused_relu.h"
#include "src/model/layers/layers.h"

namespace convoy {

class ActivationLayer final : public Layer {
 public:
    ActivationLayer(const LayerText& text, const Fusion& fusion, Builder& builder,
                    Activation::Kind kind)
        : Layer(builder.backend), relu_{true, fusion.dy_is_masked, {kind, text.number}} {
        const bool bends = kind == Activation::kLeakyRelu || kind == Activation::kElu;
        builder.add_line(bends ? cat(text.kind, " ", text.number) : text.kind, builder.shape);
    }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        plan.op({x});
        Value y = of_value_ = x;
        const bool keeps_x = training && relu_.f.needs_x();
        // The sign of x may still be needed, and the sign of a sigmoid is another one.
        const bool in_place = x.keep == Keep::kNothing ||
                              (x.keep == Keep::kSign && relu_.f.kind < Activation::kSigmoid);
        if (!in_place || keeps_x) copy_ = y = plan.make(x.shape);
        if (!keeps_x) of_value_ = y;
        const Keep before = y.keep;
        return plan.kept(y, std::max(before, relu_.keep(training)));
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool) override {
        plan.op({dy});
        return relu_.plan_grad(dy, of_value_, plan);
    }

    Tensor forward(Tensor x, const Pass&) override {
        Tensor y = of_ = x;
        if (copy_) backend_.copy(y = copy_.first(x.N), x);
        if (!relu_.f.needs_x()) of_ = y;
        backend_.activate(y, relu_.f);
        return y;
    }
    Tensor backward(Tensor dy, const Pass&, GradListener&) override {
        return relu_.needs_grad() ? relu_.grad(dy, of_, backend_) : dy;
    }

 private:
    FusedRelu relu_;
    Value of_value_, copy_;  // of: what the gradient is computed from, y or x
    Tensor of_;              // of the pass
};

template <Activation::Kind kKind>
static std::unique_ptr<Layer> make(const LayerText& text, const Fusion& fusion, Builder& builder) {
    return std::make_unique<ActivationLayer>(text, fusion, builder, kKind);
}

const LayerKind kRelu{.name = "relu", .make = make<Activation::kRelu>, .ends_in_relu = true};
const LayerKind kRelu6{.name = "relu6", .make = make<Activation::kRelu6>};
const LayerKind kLeakyRelu{
    .name = "leaky_relu", .argument = "A", .make = make<Activation::kLeakyRelu>};
const LayerKind kElu{.name = "elu", .argument = "A", .make = make<Activation::kElu>};
const LayerKind kSigmoid{.name = "sigmoid", .make = make<Activation::kSigmoid>};
const LayerKind kHardSigmoid{.name = "hardsigmoid", .make = make<Activation::kHardSigmoid>};
const LayerKind kSilu{.name = "silu", .make = make<Activation::kSilu>};
const LayerKind kHardSwish{.name = "hardswish", .make = make<Activation::kHardSwish>};

}  // namespace convoy
