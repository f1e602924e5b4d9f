// Activation — relu, and others that the layer before cannot fuse. In place if x is not read later.
#include "src/model/layers/layers.h"

namespace convoy {

class ActivationLayer final : public Layer {
 public:
    ActivationLayer(const LayerText& text, const Fusion& fusion, Builder& builder)
        : Layer(builder.backend),
          relu_{{find_kind(text.kind)->activation, text.number}, fusion.dy_is_masked} {
        const bool bends = *find_kind(text.kind)->argument;
        builder.add_line(bends ? cat(text.kind, " ", text.number) : text.kind, builder.shape);
    }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        plan.op({x});
        Value y = of_value_ = x;
        const bool keeps_x = training && relu_.f.needs_x();
        // If the sign of x is read later, a sigmoid must not overwrite x: it is always positive.
        const bool in_place = x.keep == Keep::kNothing ||
                              (x.keep == Keep::kSign && relu_.f.kind < Activation::kSigmoid);
        if (!in_place || keeps_x) copy_ = y = plan.make(x.shape);
        if (!keeps_x) of_value_ = y;
        return plan.kept(y, std::max(y.keep, relu_.keep(training)));
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool) override {
        plan.op({dy});
        return relu_.plan_grad(dy, of_value_, plan);
    }

    Tensor forward(Tensor x, const Pass&) override {
        const Tensor y = copy_.copy_of(x, backend_);
        of_ = relu_.f.needs_x() ? x : y;
        backend_.activate(y, relu_.f);
        return y;
    }
    Tensor backward(Tensor dy, const Pass&, GradListener&) override {
        return relu_.grad(dy, of_, backend_);
    }

 private:
    FusedRelu relu_;
    Value of_value_, copy_;  // of: what the gradient is computed from, y or x
    Tensor of_;              // of the pass
};

static constexpr LayerKind kind_of(const char* name, Activation::Kind activation,
                                   const char* argument = "") {
    return {.name = name,
            .argument = argument,
            .make = make_layer<ActivationLayer>,
            .activation = activation};
}

const LayerKind kRelu = kind_of("relu", Activation::kRelu);
const LayerKind kRelu6 = kind_of("relu6", Activation::kRelu6);
const LayerKind kLeakyRelu = kind_of("leaky_relu", Activation::kLeakyRelu, "A");
const LayerKind kElu = kind_of("elu", Activation::kElu, "A");
const LayerKind kSigmoid = kind_of("sigmoid", Activation::kSigmoid);
const LayerKind kHardSigmoid = kind_of("hardsigmoid", Activation::kHardSigmoid);
const LayerKind kSilu = kind_of("silu", Activation::kSilu);
const LayerKind kHardSwish = kind_of("hardswish", Activation::kHardSwish);
const LayerKind kGelu = kind_of("gelu", Activation::kGelu);

}  // namespace convoy
