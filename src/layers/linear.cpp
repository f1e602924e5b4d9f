// Linear — y[n,k] = act(b[k] + Σ_c x[n,c] · w[k,c])
#include "src/layers/fused_relu.h"
#include "src/layers/layers.h"
#include "src/layers/text.h"

namespace convoy {
namespace {

class Linear final : public Layer {
 public:
    Linear(Param& w, Param* b) : w_(w), b_(b) {}

    Shape output(Shape x) const override { return {x.N, 1, 1, w_.shape.N}; }
    void describe(Shape, std::vector<LayerLine>& lines) const override {
        lines.push_back({layer_name(w_), cat("linear ", w_.shape.N, relu_text(relu_.on)),
                         output({1, 1, 1, w_.shape.C}),
                         w_.shape.elems() + (b_ ? b_->shape.elems() : 0),
                         2.0 * double(w_.shape.elems()), w_.frozen});
    }

    bool fuse_relu() override { return relu_.on = true; }
    bool ends_in_relu() const override { return relu_.on; }
    bool mask_dx() override { return mask_ = true; }
    void dy_is_masked() override { relu_.masked = true; }
    bool trained() const override { return !w_.frozen; }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        plan.tick();
        plan.use(x);
        x_value_ = x;
        y_value_ = plan.make(output(x.shape));
        return plan.kept(y_value_, relu_.keep(training));
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override {
        plan.tick();
        dy = relu_.plan_grad(dy, y_value_, plan);
        if (trained()) plan.use(x_value_);
        if (!needs_dx) return {};
        plan.tick();  // from here on x is read as the mask only
        plan.use(dy);
        if (mask_) plan.use(x_value_);
        return dx_value_ = plan.make(x_value_.shape);
    }
    void bind(const MemoryPlan& plan, Backend& backend) override {
        backend_ = &backend;
        y_data_ = plan.at(y_value_);
        dx_data_ = plan.at(dx_value_);
        relu_.bind(plan);
    }

    Tensor forward(Tensor x, const Pass&) override {
        x_ = x;  // a view; the plan keeps it alive as long as backward reads it
        y_ = Tensor(y_data_, output(x.shape()));
        backend_->linear(x, w_.value, b_ ? b_->value.data : nullptr, relu_.on, y_);
        return y_;
    }
    Tensor backward(Tensor dy, const Pass&, const Ready& ready) override {
        dy = relu_.grad(dy, y_, *backend_);
        if (trained()) {
            if (!ready.takes_factors(w_, b_, x_, dy)) {
                backend_->linear_grad_w(x_, dy, w_.grad, b_ ? b_->grad.data : nullptr);
                if (b_) ready(*b_);
                ready(w_);
            }
        }
        if (!dx_data_) return {};
        const Tensor dx(dx_data_, x_.shape());
        backend_->linear_grad_x(dy, w_.value, mask_ ? x_.data : nullptr, dx);
        return dx;
    }

 private:
    Param& w_;
    Param* b_;  // or null
    FusedRelu relu_;
    bool mask_ = false;
    Value x_value_, y_value_, dx_value_;
    Backend* backend_ = nullptr;
    float *y_data_ = nullptr, *dx_data_ = nullptr;
    Tensor x_, y_;
};

}  // namespace

std::unique_ptr<Layer> make_linear(Param& w, Param* b) { return std::make_unique<Linear>(w, b); }

}  // namespace convoy
