// Residual — y = relu(main(x) + shortcut(x)); He, Zhang, Ren, Sun, "Deep Residual Learning" (2015).
//
//        ┌──── main ──── norm ─┐
//   x ───┤                     + ── relu ── y       norm: the batch norm that ends main, if one
//        └──── shortcut ───────┘                    does: it then adds and clamps in its own call
//
// Backward: dz (dy where y > 0) goes into both branches, and dx is the sum of what comes out. The
// shortcut goes first, since its rows are the last in the arena.
#include <utility>

#include "src/model/layers/batch_norm.h"
#include "src/model/layers/layers.h"

namespace convoy {
namespace {

class Residual final : public Layer {
 public:
    Residual(Chain main, Chain shortcut, bool fuse)
        : main_(std::move(main)), shortcut_(std::move(shortcut)) {
        relu_.on = true;
        auto* norm = dynamic_cast<BatchNorm*>(main_.last());
        if (!fuse || !norm || norm->ends_in_relu()) return;
        last_ = main_.take_last();
        norm_ = norm;
        norm_->has_addend = true;
        norm_->fuse_relu();
    }

    Shape output(Shape x) const override { return main_.output(x); }
    void describe(Shape x, std::vector<LayerLine>& lines) const override {
        main_.describe(x, lines);
        if (norm_) norm_->describe(main_.output(x), lines);
        shortcut_.describe(x, lines);
        if (norm_) return;
        const Shape y = output({1, x.H, x.W, x.C});
        lines.push_back({"", "add + relu", y});
    }

    bool ends_in_relu() const override { return true; }
    void dy_is_masked() override { norm_ ? norm_->dy_is_masked() : void(relu_.masked = true); }
    bool trained() const override {
        return main_.trained() || (norm_ && norm_->trained()) || shortcut_.trained();
    }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override;
    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override;
    void bind(const MemoryPlan& plan, Backend& backend) override;
    Tensor forward(Tensor x, const Pass& pass) override;
    Tensor backward(Tensor dy, const Pass& pass, GradListener& listener) override;

 private:
    Chain main_, shortcut_;        // main without norm_
    std::unique_ptr<Layer> last_;  // owns norm_
    BatchNorm* norm_ = nullptr;    // or null
    FusedRelu relu_;               // where there is no norm_
    bool needs_dx_ = false, runs_shortcut_ = false, runs_main_ = false;
    Value y_value_;
    Backend* backend_ = nullptr;
    Tensor y_room_, y_;
};

Value Residual::plan_forward(Value x, MemoryPlan& plan, bool training) {
    const Value shared = plan.kept(x, Keep::kValues);  // both branches read it
    const Value main = main_.plan_forward(shared, plan, training);
    const Value addend = shortcut_.plan_forward(shared, plan, training);
    if (norm_) return norm_->plan_add(main, addend, plan, training);
    plan.tick();
    plan.use(main);
    plan.use(addend);
    y_value_ = main.keep == Keep::kNothing ? main : plan.make(main.shape);
    return plan.kept(y_value_, relu_.keep(training));
}

Value Residual::plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) {
    needs_dx_ = needs_dx;
    runs_shortcut_ = needs_dx || shortcut_.trained();
    runs_main_ = needs_dx || main_.trained();
    Value into_main, into_shortcut;
    if (norm_) {
        into_main = norm_->plan_grad(dy, plan);
        into_shortcut = norm_->addend_grad_value;
    } else {
        plan.tick();
        into_main = into_shortcut = relu_.plan_grad(dy, y_value_, plan);
        into_shortcut.keep = Keep::kValues;  // main reads it after the shortcut
    }
    Value from_shortcut = into_shortcut;
    if (runs_shortcut_) from_shortcut = shortcut_.plan_backward(into_shortcut, plan, needs_dx);
    // Where the shortcut passed on the very buffer, main must leave it alone for the sum.
    if (needs_dx && from_shortcut.buffer == into_main.buffer) into_main.keep = Keep::kValues;
    Value dx = into_main;
    if (runs_main_) dx = main_.plan_backward(into_main, plan, needs_dx);
    if (!needs_dx) return {};
    plan.tick();
    plan.use(dx);
    plan.use(from_shortcut);
    return plan.kept(dx, Keep::kNothing);
}

void Residual::bind(const MemoryPlan& plan, Backend& backend) {
    backend_ = &backend;
    main_.bind(plan, backend);
    shortcut_.bind(plan, backend);
    if (norm_) norm_->bind(plan, backend);
    y_room_ = plan.at(y_value_);
    relu_.bind(plan);
}

Tensor Residual::forward(Tensor x, const Pass& pass) {
    const Tensor main = main_.forward(x, pass);
    const Tensor addend = shortcut_.forward(x, pass);
    if (norm_) return norm_->forward_add(main, addend, pass);
    y_ = y_room_.first(main.N);
    if (y_.data != main.data) backend_->copy(y_, main);
    backend_->add(y_, addend);
    backend_->relu(y_);
    return y_;
}

Tensor Residual::backward(Tensor dy, const Pass& pass, GradListener& listener) {
    const Tensor into_main = norm_ ? norm_->grad(dy, pass) : relu_.grad(dy, y_, *backend_);
    const Tensor into_shortcut = norm_ ? norm_->addend_grad : into_main;
    Tensor from_shortcut = into_shortcut;
    if (runs_shortcut_) from_shortcut = shortcut_.backward(into_shortcut, pass, listener);
    if (norm_) norm_->call_ready(listener);
    Tensor dx = into_main;
    if (runs_main_) dx = main_.backward(into_main, pass, listener);
    if (!needs_dx_) return {};
    backend_->add(dx, from_shortcut);
    return dx;
}

}  // namespace

std::unique_ptr<Layer> make_residual(Chain main, Chain shortcut, bool fuse) {
    return std::make_unique<Residual>(std::move(main), std::move(shortcut), fuse);
}

}  // namespace convoy
