// batch_norm.cpp — bound by memory: normalising is one pass over x, its gradient two. Statistics
// come from moments.cpp.
#include <cmath>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/shapes.h"

namespace convoy {

namespace {

constexpr int kBlockRows = 128;  // 128·32 floats are 16 KB

// y = act((x − mean)·scale + beta + residual) over rows × C. The compiler makes a loop for each
// choice of residual and relu.
void normalise(const float* x, const float* residual, bool relu, float* y, int64_t rows, int C,
               const float* mean, const float* scale, const float* beta) {
    for (int64_t i = 0; i < rows; ++i, x += C, y += C) {
#pragma GCC ivdep
        for (int c = 0; c < C; ++c) {
            float v = (x[c] - mean[c]) * scale[c] + beta[c];
            if (residual) v += residual[c];
            y[c] = relu && v < 0 ? 0.0f : v;
        }
        if (residual) residual += C;
    }
}

// Σ dz and Σ dz·x̂ of a slab, in floats over blocks of rows, the blocks added in double.
template <bool Relu>
void gradient_sums(const float* x, const float* y, const float* dy, int64_t rows, int C,
                   const float* mean, const float* rstd, double* sum_dz, double* sum_dzx) {
    std::fill_n(sum_dz, C, 0.0);
    std::fill_n(sum_dzx, C, 0.0);
    for (int64_t row = 0; row < rows; row += kBlockRows) {
        const int count = int(std::min<int64_t>(kBlockRows, rows - row));
        over_channels(C, [&](int c, auto lanes) {
            float dz_sum[kLanes] = {}, dzx_sum[kLanes] = {};
            for (int i = 0; i < count; ++i) {
                const ptrdiff_t at = (row + i) * C + c;
                for (int l = 0; l < lanes; ++l) {
                    const float dz = Relu && y[at + l] <= 0 ? 0.0f : dy[at + l];
                    dz_sum[l] += dz;
                    dzx_sum[l] += dz * (x[at + l] - mean[c + l]);
                }
            }
            for (int l = 0; l < lanes; ++l) {
                sum_dz[c + l] += dz_sum[l];
                sum_dzx[c + l] += double(dzx_sum[l]) * rstd[c + l];
            }
        });
    }
}

// dx = scale·(dz − mean_dz − (x − mean)·slope), dresidual = dz
template <bool Relu, bool Residual>
void gradient_rows(const float* x, const float* y, const float* dy, float* dx, float* dresidual,
                   int64_t rows, int C, const float* mean, const float* scale, const float* mean_dz,
                   const float* slope) {
    for (int64_t i = 0; i < rows; ++i, x += C, dy += C, dx += C) {
#pragma GCC ivdep
        for (int c = 0; c < C; ++c) {
            const float dz = Relu && y[c] <= 0 ? 0.0f : dy[c];
            dx[c] = scale[c] * (dz - mean_dz[c] - (x[c] - mean[c]) * slope[c]);
            if (Residual) dresidual[c] = dz;
        }
        if (Relu) y += C;
        if (Residual) dresidual += C;
    }
}

template <bool Relu, bool Residual>
void scale_rows(const float* y, const float* dy, float* dx, float* dresidual, int64_t rows, int C,
                const float* scale) {
    for (int64_t i = 0; i < rows; ++i, dy += C, dx += C) {
#pragma GCC ivdep
        for (int c = 0; c < C; ++c) {
            const float dz = Relu && y[c] <= 0 ? 0.0f : dy[c];
            dx[c] = scale[c] * dz;
            if (Residual) dresidual[c] = dz;
        }
        if (Relu) y += C;
        if (Residual) dresidual += C;
    }
}

}  // namespace

void CpuBackend::batch_norm(Tensor x, GroupBounds groups, const float* mean_rstd,
                            const float* gamma, const float* beta, Tensor residual, bool relu,
                            Tensor y) {
    check_batch_norm(x, residual, y);
    check_groups(x, groups);
    if (x.elems() == 0) return;
    const int C = x.C, G = int(groups.size()) - 1;
    const std::vector<Slab> slabs = cut_slabs(groups, int64_t(x.H) * x.W);
    float* scale = cpu_.shared.get(kSlotParts, size_t(G) * C);
    for (int g = 0; g < G; ++g)
        for (int c = 0; c < C; ++c)
            scale[size_t(g) * C + c] = gamma[c] * mean_rstd[(size_t(g) * 2 + 1) * C + c];
    cpu_.pool.for_each(int(slabs.size()), [&](int s, int) {
        const Slab& slab = slabs[s];
        const ptrdiff_t at = slab.begin * C;
        normalise(x.floats() + at, residual ? residual.floats() + at : nullptr, relu,
                  y.floats() + at, slab.end - slab.begin, C, mean_rstd + size_t(slab.group) * 2 * C,
                  scale + size_t(slab.group) * C, beta);
    });
}

void CpuBackend::batch_norm_grad(Tensor x, Tensor y, Tensor dy, GroupBounds groups,
                                 const float* gamma, bool relu, const float* mean_rstd, Tensor dx,
                                 Tensor dresidual, float* dgamma, float* dbeta) {
    check_batch_norm_grad(x, y, dy, relu, dx, dresidual);
    check_groups(x, groups);
    if (x.elems() == 0) return;
    const int C = x.C, G = int(groups.size()) - 1;
    const int64_t image_rows = int64_t(x.H) * x.W;
    const std::vector<Slab> slabs = cut_slabs(groups, image_rows);

    auto* parts = reinterpret_cast<double*>(cpu_.shared.get(kSlotSums, slabs.size() * 4 * C));
    cpu_.pool.for_each(int(slabs.size()), [&](int s, int) {
        const Slab& slab = slabs[s];
        const ptrdiff_t at = slab.begin * C;
        const float* mean = mean_rstd + size_t(slab.group) * 2 * C;
        double* sum = parts + size_t(s) * 2 * C;
        const auto f = relu ? gradient_sums<true> : gradient_sums<false>;
        f(x.floats() + at, relu ? y.floats() + at : nullptr, dy.floats() + at,
          slab.end - slab.begin, C, mean, mean + C, sum, sum + C);
    });

    // For each group: scale = gamma·rstd, mean of dz, slope = rstd·mean(dz·x̂)
    float* factors = cpu_.shared.get(kSlotParts, size_t(G) * 3 * C);
    size_t s = 0;
    for (int g = 0; g < G; ++g) {
        float* scale = factors + size_t(g) * 3 * C;
        const float* rstd = mean_rstd + (size_t(g) * 2 + 1) * C;
        const size_t first = s;
        while (s < slabs.size() && slabs[s].group == g) ++s;
        const double M = double(groups[g + 1] - groups[g]) * double(image_rows);
        if (M == 0) continue;
        for (int c = 0; c < C; ++c) {
            double dz = 0, dzx = 0;
            for (size_t i = first; i < s; ++i)
                dz += parts[i * 2 * C + c], dzx += parts[i * 2 * C + C + c];
            scale[c] = gamma[c] * rstd[c];
            scale[C + c] = float(dz / M);
            scale[2 * C + c] = float(dzx / M * rstd[c]);
            if (dgamma) dgamma[c] += float(dzx);
            if (dbeta) dbeta[c] += float(dz);
        }
    }
    cpu_.pool.for_each(int(slabs.size()), [&](int task, int) {
        const Slab& slab = slabs[task];
        const ptrdiff_t at = slab.begin * C;
        const float* scale = factors + size_t(slab.group) * 3 * C;
        const auto f = relu
                           ? (dresidual ? gradient_rows<true, true> : gradient_rows<true, false>)
                           : (dresidual ? gradient_rows<false, true> : gradient_rows<false, false>);
        f(x.floats() + at, relu ? y.floats() + at : nullptr, dy.floats() + at, dx.floats() + at,
          dresidual ? dresidual.floats() + at : nullptr, slab.end - slab.begin, C,
          mean_rstd + size_t(slab.group) * 2 * C, scale, scale + C, scale + 2 * C);
    });
}

void CpuBackend::batch_norm_eval(Tensor x, const float* gamma, const float* beta, const float* mean,
                                 const float* var, Tensor residual, bool relu, float eps,
                                 Tensor y) {
    check_batch_norm(x, residual, y);
    const int C = x.C;
    float* scale = cpu_.shared.get(kSlotParts, C);
    for (int c = 0; c < C; ++c) scale[c] = float(gamma[c] / std::sqrt(double(var[c]) + eps));
    cpu_.pool.for_ranges(size_t(x.N) * x.H * x.W, 64, [&](size_t begin, size_t end) {
        normalise(x.floats() + begin * C, residual ? residual.floats() + begin * C : nullptr, relu,
                  y.floats() + begin * C, int64_t(end - begin), C, mean, scale, beta);
    });
}

void CpuBackend::batch_norm_eval_grad(Tensor y, Tensor dy, const float* gamma, const float* var,
                                      bool relu, float eps, Tensor dx, Tensor dresidual) {
    check_batch_norm_eval_grad(y, dy, relu, dx, dresidual);
    const int C = dy.C;
    float* scale = cpu_.shared.get(kSlotParts, C);
    for (int c = 0; c < C; ++c) scale[c] = float(gamma[c] / std::sqrt(double(var[c]) + eps));
    cpu_.pool.for_ranges(size_t(dy.N) * dy.H * dy.W, 64, [&](size_t begin, size_t end) {
        const auto f = relu ? (dresidual ? scale_rows<true, true> : scale_rows<true, false>)
                            : (dresidual ? scale_rows<false, true> : scale_rows<false, false>);
        f(relu ? y.floats() + begin * C : nullptr, dy.floats() + begin * C, dx.floats() + begin * C,
          dresidual ? dresidual.floats() + begin * C : nullptr, int64_t(end - begin), C, scale);
    });
}

}  // namespace convoy
