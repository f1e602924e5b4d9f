// linear.cpp — fully connected layers: few rows (the batch), large weights. Forward and grad_x read
// the weights from memory once; grad_w reads and writes dw once. Measured forward, 9216 to 4096 on
// one core, x·wᵀ against w·xᵀ (see linear()): 128 and 151 GFLOP/s for 64 images, 126 and 166 for
// 128. With 48 images, half a panel is empty: 116 and 111.
#include "kernels/cpu/cpu_backend.h"
#include "kernels/shapes.h"

namespace convoy {

// Whether to compute yᵀ = w·xᵀ instead of y = x·wᵀ. The weights are then A, which is read in the
// order of memory, and the smaller x and y are transposed. It pays if the images fill whole panels.
static bool images_fill_columns(const Micro& micro, int images) {
    const int spare = (micro.nr - images % micro.nr) % micro.nr;
    return images >= micro.nr && spare * 5 <= images;
}

// y[n][k] = act(transposed[k][n] + b[k]), y N×K, in squares that fit in L1.
template <class Y>
static void transpose_back(Cpu& cpu, const float* transposed, const float* b, bool relu, int N,
                           int K, Y* to) {
    constexpr int kSquare = 16;
    cpu.pool.for_each((K + kSquare - 1) / kSquare, [&](int square, int) {
        const int begin = square * kSquare, end = std::min(K, begin + kSquare);
        for (int n = 0; n < N; ++n)
            for (int k = begin; k < end; ++k) {
                const float v = transposed[size_t(k) * N + n] + (b ? b[k] : 0.0f);
                to[size_t(n) * K + k] = relu && v < 0 ? 0.0f : v;
            }
    });
}

void CpuBackend::linear(Tensor x, Tensor w, const float* b, bool relu, Tensor y) {
    check_linear(x, w, y);
    with_product_types(x, y, [&]<class X, class Y>(X, Y) {
        const RightSideOf<X> images{elements<X>(x), 1, w.C}, weights{elements<X>(w), 1, w.C};
        if (!images_fill_columns(cpu_.micro, x.N))
            return multiply_skinny(cpu_, images.b, x.N, w.C, weights, w.N, elements<Y>(y),
                                   EpilogueOf<Y>{b, relu});
        float* transposed = cpu_.shared.get(kSlotParts, size_t(w.N) * x.N);
        const ptrdiff_t all = ptrdiff_t(w.N) * x.N;
        multiply_patches(cpu_, PatchesOf<X>::matrix(weights.b, w.N, w.C), images, x.N,
                         RowMapOf<float>{transposed, all, all, x.N}, EpilogueOf<float>{});
        transpose_back(cpu_, transposed, b, relu, y.N, y.C, elements<Y>(y));
    });
}

void CpuBackend::linear_grad_x(Tensor dy, Tensor w, Tensor mask, Tensor dx) {
    check_linear(dx, w, dy);
    check_mask(mask, dx);
    with_product_types(dy, dx, [&]<class Y, class X>(Y, X) {
        multiply_skinny(cpu_, elements<Y>(dy), dy.N, w.N, RightSideOf<Y>{elements<Y>(w), w.C, 1},
                        w.C, elements<X>(dx), EpilogueOf<X>{nullptr, false, elements<X>(mask)});
    });
}

void CpuBackend::linear_grad_w(Tensor x, Tensor dy, Tensor dw, float* db) {
    check_linear(x, dw, dy);
    with_product_types(x, x, [&]<class X>(X, auto) {
        multiply_rows(cpu_, elements<X>(dy), dy.C, PatchesOf<X>::matrix(elements<X>(x), x.N, dw.C),
                      dw.floats());
        if (db) add_column_sums(cpu_, elements<X>(dy), dy.N, dy.C, db);
    });
}

}  // namespace convoy
