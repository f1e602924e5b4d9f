// MaxPool — y = max over each window; a byte an output remembers where, for the backward pass.
#include "src/model/layers/layers.h"
#include "src/model/layers/text.h"

namespace convoy {
namespace {

class MaxPool final : public Layer {
 public:
    explicit MaxPool(Window window) : window_(window) {}

    Shape output(Shape x) const override {
        return {x.N, window_.out_h(x.H), window_.out_w(x.W), x.C};
    }
    void describe(Shape x, std::vector<LayerLine>& lines) const override {
        lines.push_back({"", cat("maxpool ", window_text(window_)), output({1, x.H, x.W, x.C})});
    }
    bool mask_dx() override { return mask_ = true; }

    Value plan_forward(Value x, MemoryPlan& plan, bool) override {
        plan.tick();
        plan.use(x);
        x_value_ = x;
        y_value_ = plan.make(output(x.shape));
        const size_t floats = (output({1, x.shape.H, x.shape.W, x.shape.C}).elems() + 3) / 4;
        argmax_value_ = plan.make({x.shape.N, 1, 1, int(floats)}, Type::kFloat32);
        return y_value_;
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override {
        if (!needs_dx) return {};
        plan.tick();
        plan.use(dy);
        plan.use(argmax_value_);
        if (mask_) plan.use(x_value_);
        return dx_value_ = plan.make(x_value_.shape);
    }
    void bind(const MemoryPlan& plan, Backend& backend) override {
        backend_ = &backend;
        y_room_ = plan.at(y_value_);
        dx_room_ = plan.at(dx_value_);
        argmax_ = static_cast<uint8_t*>(plan.at(argmax_value_).data);
    }

    Tensor forward(Tensor x, const Pass&) override {
        x_ = x;
        const Tensor y = y_room_.first(x.N);
        backend_->max_pool(x, window_, y, argmax_);
        return y;
    }
    Tensor backward(Tensor dy, const Pass&, GradListener&) override {
        const Tensor dx = dx_room_.first(dy.N);
        backend_->max_pool_grad(dy, argmax_, window_, mask_ ? x_ : Tensor{}, dx);
        return dx;
    }

 private:
    Window window_;
    bool mask_ = false;
    Value x_value_, y_value_, dx_value_, argmax_value_;
    Backend* backend_ = nullptr;
    Tensor y_room_, dx_room_;
    uint8_t* argmax_ = nullptr;
    Tensor x_;
};

}  // namespace

std::unique_ptr<Layer> make_max_pool(Window window) { return std::make_unique<MaxPool>(window); }

}  // namespace convoy
