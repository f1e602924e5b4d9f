// Dropout — y[n,i] = keep(n,i) ? x[n,i]/(1−p) : 0 in training, x in evaluation.
//
// keep is a function of (seed, epoch, sample, this layer, i), so the backward pass draws the same
// mask again and none is stored, and a sample meets the same mask on whatever rank it is trained.
#include "src/model/layers/layers.h"

namespace convoy {
namespace {

class Dropout final : public Layer {
 public:
    Dropout(float p, uint16_t purpose) : p_(p), purpose_(purpose) {}

    Shape output(Shape x) const override { return x; }
    void describe(Shape x, std::vector<LayerLine>& lines) const override {
        lines.push_back({"", cat("dropout ", p_), {1, x.H, x.W, x.C}});
    }
    bool keeps_sign() const override { return true; }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        if (!training || p_ == 0) return x;
        plan.tick();
        plan.use(x);
        if (x.keep != Keep::kValues) return x;
        return y_value_ = plan.make(x.shape);
    }
    Value plan_backward(Value dy, MemoryPlan& plan, bool) override {
        if (p_ == 0) return dy;
        plan.tick();
        plan.use(dy);
        if (dy.keep != Keep::kValues) return dy;
        return dx_value_ = plan.make(dy.shape);
    }
    void bind(const MemoryPlan& plan, Backend& backend) override {
        backend_ = &backend;
        y_room_ = plan.at(y_value_);
        dx_room_ = plan.at(dx_value_);
    }

    Tensor forward(Tensor x, const Pass& pass) override { return apply(x, y_room_, pass); }
    Tensor backward(Tensor dy, const Pass& pass, GradListener&) override {
        return apply(dy, dx_room_, pass);
    }

 private:
    // In place, or into `copy` if there is one: then in evaluation too, since layers behind may
    // work in place on what others still read in front.
    Tensor apply(Tensor x, Tensor copy, const Pass& pass) {
        if (copy) {
            backend_->copy(copy.first(x.N), x);
            x = copy.first(x.N);
        }
        if (!pass.training || p_ == 0) return x;
        ENSURE(pass.samples.size() == size_t(x.N), pass.samples.size(), " sample numbers for ", x.N,
               " images");
        backend_->dropout(x, p_, pass.draws, pass.samples, purpose_);
        return x;
    }

    float p_;
    uint16_t purpose_;
    Value y_value_, dx_value_;
    Backend* backend_ = nullptr;
    Tensor y_room_, dx_room_;
};

}  // namespace

std::unique_ptr<Layer> make_dropout(float p, uint16_t purpose) {
    return std::make_unique<Dropout>(p, purpose);
}

}  // namespace convoy
