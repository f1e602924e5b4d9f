// Residual — y = act(main(x) + shortcut(x)), act a relu or nothing; He, Zhang, Ren, Sun, "Deep
// Residual Learning" (2015).
//
//        ┌──── main ──── norm ─┐
//   x ───┤                     + ── relu ── y       If main ends with a batch norm, its call also
//        └──── shortcut ───────┘                    adds the shortcut and computes the relu.
//
// Backward: dz (dy, or 0 where a relu gave 0) goes through the shortcut, then main. dx is the sum.
// If x is the output of the relu of the block before, dx is 0 where x <= 0: that block's dz.
#include "src/model/layers/batch_norm.h"

namespace convoy {

class Residual final : public Layer {
 public:
    Residual(const LayerText& text, const Fusion& fusion, Builder& builder)
        : Layer(builder.backend),
          relu_{{text.relu ? Activation::kRelu : Activation::kNone}, fusion.dy_is_masked},
          mask_dx_(fusion.mask_dx) {
        builder.check_image(text);
        const std::string outside = builder.prefix;
        builder.prefix += text.name + ".";
        const Shape x = builder.shape;
        std::span<const LayerText> main = text.branches[0];
        const bool has_shortcut = text.branches.size() > 1;
        const bool norm_adds = builder.fuses && main.back().kind == kBatchNorm.name;
        main_ = builder.build(main.first(main.size() - norm_adds));
        if (norm_adds) {
            Layer* before = main_.empty() ? nullptr : main_.back().get();
            const Fusion of_norm{.act = relu_.f,
                                 .dy_is_masked = fusion.dy_is_masked,
                                 .addend = true,
                                 .before = before};
            norm_ = std::make_unique<BatchNorm>(main.back(), of_norm, builder);
        }
        const Shape y = std::exchange(builder.shape, x);
        if (builder.flat.empty() && has_shortcut) shortcut_ = builder.build(text.branches[1]);
        if (!builder.flat.empty()) builder.error(text, "'flatten' is not allowed in a residual");
        if (builder.shape != y)
            builder.error(text, "the layers of residual '", outside, text.name, "' end with ",
                          image_text(y), ", its ",
                          has_shortcut ? "shortcut ends with " : "input (there is no shortcut) is ",
                          image_text(builder.shape), "; expected the same shape");
        if (!norm_adds) builder.add_line(text.relu ? "add + relu" : "add", y);
        builder.prefix = outside;
    }

    bool trained() const override {
        return main_.trained() || (norm_ && norm_->trained()) || shortcut_.trained();
    }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        const Value shared = x_value_ = plan.kept(x, Keep::kValues);  // both branches read it
        const Value main = main_.plan_forward(shared, plan, training);
        const Value addend = shortcut_.plan_forward(shared, plan, training);
        if (norm_) {
            norm_->addend_value = addend;
            return norm_->plan_forward(main, plan, training);
        }
        plan.op({main, addend});
        y_value_ = main.keep == Keep::kNothing ? main : plan.make(main.shape);
        return plan.kept(y_value_, relu_.keep(training));
    }

    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override {
        needs_dx_ = needs_dx;
        Value into_main, into_shortcut;
        if (norm_) {
            into_main = norm_->plan_backward(dy, plan, true);
            into_shortcut = norm_->addend_grad_value;
        } else {
            plan.op({dy});
            into_main = into_shortcut = relu_.plan_grad(dy, y_value_, plan);
            into_shortcut.keep = Keep::kValues;  // main reads it after the shortcut
        }
        const Value from_shortcut = shortcut_.plan_backward(into_shortcut, plan, needs_dx);
        // If the shortcut returned the same buffer, main must not change it before the sum.
        if (needs_dx && from_shortcut.buffer == into_main.buffer) into_main.keep = Keep::kValues;
        const bool own = from_shortcut.buffer != into_main.buffer;
        Value dx =
            main_.plan_backward(into_main, plan, needs_dx, own ? from_shortcut : Value{}, mask_dx_);
        if (!needs_dx) return {};
        plan.op({dx, from_shortcut, mask_dx_ ? x_value_ : Value{}});
        if (dx.keep != Keep::kNothing && !main_.adds) dx = sum_ = plan.make(dx.shape);
        return plan.kept(dx, Keep::kNothing);
    }

    Tensor forward(Tensor x, const Pass& pass) override {
        x_ = x;
        const Tensor main = main_.forward(x, pass), addend = shortcut_.forward(x, pass);
        if (norm_) {
            norm_->addend = addend;
            return norm_->forward(main, pass);
        }
        y_ = y_value_.first(x.N);
        if (y_.data != main.data) backend_.copy(y_, main);
        backend_.add(y_, addend);
        if (relu_.f) backend_.activate(y_);
        return y_;
    }

    Tensor backward(Tensor dy, const Pass& pass, GradListener& listener) override {
        dy = norm_ ? norm_->grad(dy, pass) : relu_.grad(dy, y_, backend_);
        const Tensor from_shortcut =
            shortcut_.backward(norm_ ? norm_->addend_grad : dy, pass, listener);
        if (norm_) norm_->call_ready(listener);
        const Tensor dx = main_.backward(dy, pass, listener);
        if (!needs_dx_) return {};
        const Tensor sum = sum_.copy_of(dx, backend_);
        if (main_.adds) return sum;
        backend_.add(sum, from_shortcut);
        if (mask_dx_) backend_.activate_grad(x_, sum);
        return sum;
    }

 private:
    Layers main_, shortcut_;
    std::unique_ptr<BatchNorm> norm_;  // or null
    FusedRelu relu_;                   // if norm_ is null
    const bool mask_dx_;
    bool needs_dx_ = false;
    Value x_value_, y_value_, sum_;  // sum: of the branches' dx, if main's dx is still read later
    Tensor x_, y_;                   // of the pass
};

const LayerKind kResidual{.name = "residual",
                          .argument = "NAME",
                          .may = "relu",
                          .make = make_layer<Residual>,
                          .mark = "shortcut",
                          .masks_dx = true};

}  // namespace convoy
