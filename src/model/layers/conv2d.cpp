// Conv2d — y[n,p,q,k] = act(b[k] + Σ_rsc x[n, p·stride+r−pad, q·stride+s−pad, c] · w[k,r,s,c])
#include "src/model/layers/batch_norm.h"
#include "src/model/layers/weighted.h"

namespace convoy {
namespace {

class Conv2d final : public Weighted {
 public:
    Conv2d(Window window, Param& w, Param* b) : Weighted(w, b), window_(window) {}

    Shape output(Shape x) const override {
        return {x.N, window_.out_h(x.H), window_.out_w(x.W), w_.shape.N};
    }
    void describe(Shape x, std::vector<LayerLine>& lines) const override {
        const Shape y = output({1, x.H, x.W, x.C});
        lines.push_back({layer_name(w_.name),
                         cat("conv2d ", w_.shape.N, " ", window_text(window_), relu_text(relu_.on)),
                         y, params(), 2.0 * double(y.elems()) * double(w_.shape.row_elems()),
                         w_.frozen});
    }
    bool fuse_moments(BatchNorm& norm) override {
        norm_ = &norm;
        return true;
    }
    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        const Value y = Weighted::plan_forward(x, plan, training);
        if (norm_) norm_->plan_moments(y.shape, plan, training);
        return y;
    }

 private:
    void multiply(Tensor x, const float* b, bool relu, Tensor y, const Pass& pass) override {
        backend_->conv2d(x, w_.operand, b, window_, relu, y,
                         norm_ ? norm_->moments(y, pass) : nullptr);
    }
    void grad_w(Tensor x, Tensor dy, float* db) override {
        backend_->conv2d_grad_w(x, dy, window_, w_.grad, db);
    }
    void grad_x(Tensor dy, Tensor mask, Tensor dx) override {
        backend_->conv2d_grad_x(dy, w_.operand, window_, mask, dx);
    }

    Window window_;
    BatchNorm* norm_ = nullptr;  // whose statistics it takes, or null
};

}  // namespace

std::unique_ptr<Layer> make_conv2d(Window window, Param& w, Param* b) {
    return std::make_unique<Conv2d>(window, w, b);
}

}  // namespace convoy
