// pool.cpp — max pooling and adaptive average pooling, NHWC. Bound by memory. Backward passes
// gather: the task of a row of dx sums all contributions to it. So threads never write the same
// row, and the order of the sums is fixed. passes_body.h has the loop over a window.
#include <algorithm>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/windows.h"
#include "kernels/shapes.h"

namespace convoy {
namespace {

// Adaptive pooling: output p covers the input rows [area_begin(p), area_end(p)).
int area_begin(int p, int outputs, int inputs) { return int(int64_t(p) * inputs / outputs); }
int area_end(int p, int outputs, int inputs) {
    return int((int64_t(p + 1) * inputs + outputs - 1) / outputs);
}

}  // namespace

void CpuBackend::max_pool(Tensor x, Window window, Tensor y, uint8_t* argmax) {
    check_max_pool(x.shape(), window, y.shape());
    with_type(x.type, [&]<class T>(T) {
        const T* from = elements<T>(x);
        T* to = elements<T>(y);
        const auto pool = cpu_.micro.passes(from).max_pool;
        cpu_.pool.for_each(y.N * y.H, [&](int task, int) {
            for (int q = 0; q < y.W; ++q) {
                const Corner corner(task % y.H, q, window, x);
                const ptrdiff_t at = (ptrdiff_t(task) * y.W + q) * y.C;
                pool(from + corner.start(task / y.H, x), corner.inside, x.C, to + at, argmax + at);
            }
        });
    });
}

void CpuBackend::max_pool_grad(Tensor dy, const uint8_t* argmax, Window window, Tensor mask,
                               Tensor dx) {
    check_max_pool(dx.shape(), window, dy.shape());
    check_mask(mask, dx);
    with_type(dx.type, [&]<class T>(T) {
        const T *signs = elements<T>(mask), *from = elements<T>(dy);
        T* all = elements<T>(dx);
        const auto pool = cpu_.micro.passes(from).max_pool_grad;
        cpu_.pool.for_each(dx.N * dx.H, [&](int task, int) {
            const ptrdiff_t image = ptrdiff_t(task / dx.H) * dy.H * dy.W * dy.C;
            for (int w = 0; w < dx.W; ++w) {
                const ptrdiff_t at = (ptrdiff_t(task) * dx.W + w) * dx.C;
                pool(from + image, argmax + image, covering(task % dx.H, w, window, dy), dx.C,
                     signs ? signs + at : nullptr, all + at);
            }
        });
    });
}

void CpuBackend::avg_pool(Tensor x, Tensor y) {
    check_avg_pool(x, y);
    with_type(x.type, [&]<class T>(T) {
        const T* from = elements<T>(x);
        T* all = elements<T>(y);
        cpu_.pool.for_each(y.N * y.H, [&](int task, int) {
            const int n = task / y.H, p = task % y.H;
            const int h0 = area_begin(p, y.H, x.H), h1 = area_end(p, y.H, x.H);
            for (int q = 0; q < y.W; ++q) {
                const int w0 = area_begin(q, y.W, x.W), w1 = area_end(q, y.W, x.W);
                const float share = 1.0f / float((h1 - h0) * (w1 - w0));
                T* to = all + (ptrdiff_t(task) * y.W + q) * y.C;
                over_channels(x.C, [&](int c, auto lanes) {
                    float sum[kLanes] = {};
                    for (int h = h0; h < h1; ++h)
                        for (int w = w0; w < w1; ++w) {
                            const T* v = from + ((ptrdiff_t(n) * x.H + h) * x.W + w) * x.C + c;
                            for (int l = 0; l < lanes; ++l) sum[l] += v[l];
                        }
                    for (int l = 0; l < lanes; ++l) to[c + l] = sum[l] * share;
                });
            }
        });
    });
}

void CpuBackend::avg_pool_grad(Tensor dy, Tensor dx, bool add) {
    check_avg_pool(dx, dy);
    const int P = dy.H, Q = dy.W;
    float* const* scratch = cpu_.for_threads(size_t(dx.C));
    with_type(dx.type, [&]<class T>(T) {
        const T* all = elements<T>(dy);
        T* rows = elements<T>(dx);
        cpu_.pool.for_each(dx.N * dx.H, [&](int task, int thread) {
            const int n = task / dx.H, h = task % dx.H;
            // Outputs whose area contains h: p·H/P ≤ h < (p+1)·H/P, both ends rounded outwards.
            const int p0 = area_begin(h, dx.H, P), p1 = area_end(h, dx.H, P);
            for (int w = 0; w < dx.W; ++w) {
                const int q0 = area_begin(w, dx.W, Q), q1 = area_end(w, dx.W, Q);
                T* row = rows + (ptrdiff_t(task) * dx.W + w) * dx.C;
                float* to = scratch[thread];
                if constexpr (std::is_same_v<T, float>) to = row;  // bf16 is rounded once
                if (!add)
                    std::fill_n(to, dx.C, 0.0f);
                else if (static_cast<void*>(to) != row)
                    std::copy_n(row, dx.C, to);
                for (int p = p0; p < p1; ++p)
                    for (int q = q0; q < q1; ++q) {
                        const int rows = area_end(p, P, dx.H) - area_begin(p, P, dx.H);
                        const int cols = area_end(q, Q, dx.W) - area_begin(q, Q, dx.W);
                        const float share = 1.0f / float(rows * cols);
                        const T* from = all + ((ptrdiff_t(n) * P + p) * Q + q) * dy.C;
                        for (int c = 0; c < dx.C; ++c) to[c] += from[c] * share;
                    }
                if (static_cast<void*>(to) != row) std::copy_n(to, dx.C, row);
            }
        });
    });
}

}  // namespace convoy
