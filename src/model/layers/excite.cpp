// Excite — y[n,h,w,c] = x[n,h,w,c]·s[n,c], where the layers of the block compute s from x: a
// squeeze-and-excitation block. Hu, Shen, Sun, "Squeeze-and-Excitation Networks" (2018).
//
//   x ───┬──────────────── · ── y       layers: a global average, two convolutions of one pixel,
//        └─── layers ─── s ┘            and a sigmoid
//
// Backward: ds = Σ dy·x over the pixels goes through the layers; dx = dy·s + what they return.
#include "src/model/layers/layers.h"

namespace convoy {

class Excite final : public Layer {
 public:
    Excite(const LayerText& text, const Fusion&, Builder& builder) : Layer(builder.backend) {
        builder.check_image(text);
        const Shape x = builder.shape, want{1, 1, 1, x.C};
        layers_ = builder.build(text.branches[0]);
        if (builder.shape != want || !builder.flat.empty())
            builder.error(text, "the layers of 'excite' end with ", image_text(builder.shape),
                          builder.flat.empty() ? "" : ", flattened", "; expected ",
                          image_text(want), ": a factor for each channel");
        builder.add_line("excite", x);
    }

    bool trained() const override { return layers_.trained(); }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        x_value_ = plan.kept(x, Keep::kValues);
        s_value_ = layers_.plan_forward(x_value_, plan, training);
        plan.op({x_value_, s_value_});
        return y_value_ = plan.make(x.shape);
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override {
        plan.op({dy, x_value_, s_value_});
        needs_dx_ = needs_dx;
        ds_value_ = plan.make(s_value_.shape);
        if (dy.keep != Keep::kNothing) copy_ = plan.make(dy.shape);
        const Value dx = copy_ ? copy_ : dy;
        const Value from_layers =
            layers_.plan_backward(ds_value_, plan, needs_dx, plan.kept(dx, Keep::kNothing));
        if (needs_dx) plan.op({dx, from_layers});
        return needs_dx ? plan.kept(dx, Keep::kNothing) : Value();
    }

    Tensor forward(Tensor x, const Pass& pass) override {
        x_ = x, s_ = layers_.forward(x, pass);
        const Tensor y = y_value_.first(x.N);
        backend_.scale_channels(x, s_, y);
        return y;
    }
    Tensor backward(Tensor dy, const Pass& pass, GradListener& listener) override {
        const Tensor ds = ds_value_.first(dy.N), dx = copy_ ? copy_.first(dy.N) : dy;
        backend_.scale_channels_grad(x_, s_, dy, dx, ds);
        const Tensor from_layers = layers_.backward(ds, pass, listener);
        if (!needs_dx_) return {};
        if (!layers_.adds) backend_.add(dx, from_layers);
        return dx;
    }

 private:
    Layers layers_;
    bool needs_dx_ = false;
    Value x_value_, s_value_, y_value_, ds_value_, copy_;  // copy: dx, if dy is still read later
    Tensor x_, s_;                                         // of the pass
};

const LayerKind kExcite{.name = "excite", .make = make_layer<Excite>, .mark = ""};

}  // namespace convoy
