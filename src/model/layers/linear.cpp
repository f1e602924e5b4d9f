// Linear — y[n,k] = act(b[k] + Σ_c x[n,c] · w[k,c])
#include "src/model/layers/weighted.h"

namespace convoy {
namespace {

class Linear final : public Weighted {
 public:
    using Weighted::Weighted;

    Shape output(Shape x) const override { return {x.N, 1, 1, w_.shape.N}; }
    void describe(Shape, std::vector<LayerLine>& lines) const override {
        lines.push_back({layer_name(w_.name), cat("linear ", w_.shape.N, relu_text(relu_.on)),
                         output({1, 1, 1, w_.shape.C}), params(), 2.0 * double(w_.shape.elems()),
                         w_.frozen});
    }

 private:
    void multiply(Tensor x, const float* b, bool relu, Tensor y, const Pass&) override {
        backend_->linear(x, w_.operand, b, relu, y);
    }
    void grad_w(Tensor x, Tensor dy, float* db) override {
        backend_->linear_grad_w(x, dy, w_.grad, db);
    }
    void grad_x(Tensor dy, Tensor mask, Tensor dx) override {
        backend_->linear_grad_x(dy, w_.operand, mask, dx);
    }
    bool leaves_as_factors(Tensor x, Tensor dy, GradListener& listener) override {
        return listener.take_factors(w_, x, dy);
    }
};

}  // namespace

std::unique_ptr<Layer> make_linear(Param& w, Param* b) { return std::make_unique<Linear>(w, b); }

}  // namespace convoy
