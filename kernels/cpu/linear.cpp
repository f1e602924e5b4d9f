// linear.cpp — fully connected layers: few rows (the batch), large weights. Forward and grad_x read
// the weights from memory once; grad_w reads and writes dw once. Measured forward, 9216 to 4096 on
// one core, x·wᵀ against w·xᵀ (see linear()): 128 and 151 GFLOP/s for 64 images, 126 and 166 for
// 128. With 48 images, half a panel is empty: 116 and 111.
#include "kernels/cpu/cpu_backend.h"
#include "kernels/shapes.h"

namespace convoy {

namespace {

// Whether to compute yᵀ = w·xᵀ instead of y = x·wᵀ. The weights are then A, which is read in the
// order of memory, and the smaller x and y are transposed. It pays if the images fill whole panels.
bool images_fill_columns(const Micro& micro, int images) {
    const int spare = (micro.nr - images % micro.nr) % micro.nr;
    return images >= micro.nr && spare * 5 <= images;
}

// y[n][k] = act(transposed[k][n] + b[k]), in squares that fit in L1.
void transpose_back(Cpu& cpu, const float* transposed, const float* b, bool relu, Tensor y) {
    constexpr int kSquare = 16;
    const int K = y.C, N = y.N;
    float* to = y.floats();
    cpu.pool.for_each((K + kSquare - 1) / kSquare, [&](int square, int) {
        const int begin = square * kSquare, end = std::min(K, begin + kSquare);
        for (int n = 0; n < N; ++n)
            for (int k = begin; k < end; ++k) {
                const float v = transposed[size_t(k) * N + n] + (b ? b[k] : 0.0f);
                to[size_t(n) * K + k] = relu && v < 0 ? 0.0f : v;
            }
    });
}

}  // namespace

void CpuBackend::linear(Tensor x, Tensor w, const float* b, bool relu, Tensor y) {
    check_linear(x, w, y);
    check_product(x);
    if (type_ == Type::kBfloat16)
        return with_type(y.type, [&]<class Y>(Y) {
            multiply_patches(cpu_, PatchesOf<Bf16>::matrix(numbers<Bf16>(w), w.N, w.C),
                             RightSideOf<Bf16>{numbers<Bf16>(x), 1, w.C}, x.N,
                             RowMapOf<Y>{numbers<Y>(y), y.C, 0, 0}, EpilogueOf<Y>{b, relu},
                             /*transposed=*/true);
        });
    if (images_fill_columns(cpu_.micro, x.N)) {
        float* transposed = cpu_.shared.get(kSlotParts, size_t(w.N) * x.N);
        const ptrdiff_t all = ptrdiff_t(w.N) * x.N;
        multiply_patches(cpu_, Patches::matrix(w.floats(), w.N, w.C), {x.floats(), 1, w.C}, x.N,
                         {transposed, all, all, x.N}, {});
        return transpose_back(cpu_, transposed, b, relu, y);
    }
    multiply_skinny(cpu_, x.floats(), x.N, w.C, {w.floats(), 1, w.C}, w.N, y.floats(),
                    {b, relu, nullptr});
}

void CpuBackend::linear_grad_x(Tensor dy, Tensor w, Tensor mask, Tensor dx) {
    check_linear(dx, w, dy);
    check_mask(mask, dx);
    if (type_ == Type::kBfloat16)
        return conv2d_grad_x(dy, w, Window::square(1), mask, dx.as({dx.N, 1, 1, w.C}));
    multiply_skinny(cpu_, dy.floats(), dy.N, w.N, {w.floats(), w.C, 1}, w.C, dx.floats(),
                    {nullptr, false, mask.floats()});
}

void CpuBackend::linear_grad_w(Tensor x, Tensor dy, Tensor dw, float* db) {
    check_linear(x, dw, dy);
    with_product_types(x, x, [&]<class X>(X, auto) {
        // In order: ranks with different numbers of threads compute the same bits (factors.h).
        multiply_rows(cpu_, numbers<X>(dy), dy.C, PatchesOf<X>::matrix(numbers<X>(x), x.N, dw.C),
                      dw.floats(), /*rows_in_order=*/true);
        if (db) add_column_sums(cpu_, numbers<X>(dy), dy.N, dy.C, db);
    });
}

}  // namespace convoy
