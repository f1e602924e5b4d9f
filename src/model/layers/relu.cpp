// Relu — y = max(0, x), as a layer of its own where no producer takes it into its call (behind a
// pool, say). In place where nobody else reads x.
#include "src/model/layers/fused_relu.h"
#include "src/model/layers/layers.h"

namespace convoy {
namespace {

class Relu final : public Layer {
 public:
    Relu() { relu_.on = true; }

    Shape output(Shape x) const override { return x; }
    void describe(Shape x, std::vector<LayerLine>& lines) const override {
        lines.push_back({"", "relu", {1, x.H, x.W, x.C}});
    }
    bool ends_in_relu() const override { return true; }
    void dy_is_masked() override { relu_.masked = true; }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        plan.tick();
        plan.use(x);
        y_value_ = x;
        if (x.keep == Keep::kValues) copy_value_ = y_value_ = plan.make(x.shape);
        // In place, a producer that reads signs still finds them.
        const Keep below = y_value_.keep;
        return plan.kept(y_value_, std::max(below, relu_.keep(training)));
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool) override {
        plan.tick();
        return relu_.plan_grad(dy, y_value_, plan);
    }
    void bind(const MemoryPlan& plan, Backend& backend) override {
        backend_ = &backend;
        copy_room_ = plan.at(copy_value_);
        relu_.bind(plan);
    }

    Tensor forward(Tensor x, const Pass&) override {
        y_ = x;
        if (copy_room_) {
            y_ = copy_room_.first(x.N);
            backend_->copy(y_, x);
        }
        backend_->relu(y_);
        return y_;
    }
    Tensor backward(Tensor dy, const Pass&, GradListener&) override {
        return relu_.grad(dy, y_, *backend_);
    }

 private:
    FusedRelu relu_;
    Value y_value_, copy_value_;
    Backend* backend_ = nullptr;
    Tensor copy_room_, y_;
};

}  // namespace

std::unique_ptr<Layer> make_relu() { return std::make_unique<Relu>(); }

}  // namespace convoy
