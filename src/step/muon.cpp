// muon.cpp — Muon: the update of each weight matrix is made orthogonal.
//
//   v = momentum·v + g, u = g + momentum·v made orthogonal, as a K×C matrix (K outputs);
//   w −= lr·d·w + lr·√max(1, K/C)·u          g: the gradient, clipped; d: weight decay
//   Jordan et al., "Muon" (2024); step sizes as in torch.optim.Muon
//
// Tensors without weight decay (biases, norms) are updated by SGD. CPU only, because the host
// computes norms. Moves two to three times the memory of SGD, little compared with a backward pass.
#include <algorithm>
#include <cmath>

#include "src/base/check.h"
#include "src/step/optimizer.h"

namespace convoy {

static double norm(Backend& backend, const float* x, size_t n) {
    float squares = 0;
    backend.sum_squares(x, n, &squares);
    return std::sqrt(double(squares));
}

// X = roughly the nearest matrix with orthogonal rows or columns (singular values between 0.7 and
// 1.2). Five steps X ← a·X + (b·A + c·A²)·X, A = X·Xᵀ, by the ops of linear layers; for a tall
// matrix A = Xᵀ·X on the right. scratch: as large as X plus twice the square of its smaller side.
static void orthogonalise(Backend& backend, Tensor X, float* scratch) {
    constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
    const bool tall = X.N > X.C;
    const int side = std::min(X.N, X.C);
    const Tensor A(scratch, side, 1, 1, side), A2(scratch + A.elems(), A.shape());
    const Tensor next(A2.floats() + A.elems(), X.shape());
    const double length = std::max(norm(backend, X.floats(), X.elems()), 1e-7);
    backend.axpby(float(1 / length), X.floats(), 0, X.floats(), X.elems());
    for (int step = 0; step < 5; ++step) {
        if (tall) {
            backend.fill(A.floats(), A.elems(), 0);
            backend.linear_grad_w(X, X, A, nullptr);
        } else {
            backend.linear(X, X, nullptr, false, A);
        }
        backend.linear(A, A, nullptr, false, A2);  // symmetric: its transpose is itself
        backend.axpby(b, A.floats(), c, A2.floats(), A.elems());
        if (tall)
            backend.linear(X, A2, nullptr, false, next);
        else
            backend.linear_grad_x(A2, X, {}, next);
        backend.axpby(1, next.floats(), a, X.floats(), X.elems());
    }
}

void Optimizer::alloc_scratch() {
    const char* const what = "--optimizer muon needs ";
    if (!backend_.host_visible())
        fail(what, "a CPU; use --device cpu, or --optimizer sgd or adamw");
    if (backend_.activations() != Type::kFloat32) fail(what, "fp32; remove --precision bf16");
    size_t most = 1;
    for (const Param* param : params_.all()) {
        const size_t side = std::min(size_t(param->shape.N), param->shape.row_elems());
        if (param->decay) most = std::max(most, 2 * param->shape.elems() + 2 * side * side);
    }
    scratch_ = backend_.alloc(most);
}

void Optimizer::update_tensors(const StepState* state) {
    if (state->scale == 0) return;
    const float decay = float(config_.weight_decay), momentum = float(config_.momentum);
    for (Param* param : params_.all()) {
        if (!param->decay || param->frozen || !param->own) continue;
        const size_t n = param->shape.elems();
        float *w = param->value.floats(), *g = param->grad.floats();
        float* v = state_[0] + param->offset;
        const float lr = state->lr * rate_of(*param);
        StepState unit = *state;
        unit.lr = -1;
        const int K = param->shape.N, C = int(param->shape.row_elems());
        const Tensor u(scratch_, K, 1, 1, C);
        backend_.fill(scratch_, n, 0);
        const Segment whole{0, n};
        backend_.sgd(scratch_, g, v, n, {{&whole, 1}}, &unit, momentum, /*nesterov=*/true);
        orthogonalise(backend_, u, scratch_ + n);
        const float size = std::sqrt(std::max(1.0f, float(K) / float(C)));
        backend_.axpby(-lr * size, scratch_, 1 - lr * decay, w, n);
    }
}

}  // namespace convoy
