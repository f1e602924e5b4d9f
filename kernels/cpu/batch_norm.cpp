// batch_norm.cpp — bound by memory: one pass over x forward, two backward. Statistics: moments.cpp.
#include <cmath>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/elements.h"
#include "kernels/shapes.h"

namespace convoy {

namespace {

template <bool Relu, bool Residual, class T>
void scale_rows(const T* y, float most, const T* dy, T* dx, T* dresidual, int64_t rows, int C,
                const float* scale) {
    for (int64_t i = 0; i < rows; ++i, dy += C, dx += C) {
#pragma GCC ivdep
        for (int c = 0; c < C; ++c) {
            const float grad = dy[c];  // an unconditional load, so that the loop is vectorised
            const float dz = Relu && (y[c] <= 0 || y[c] >= most) ? 0.0f : grad;
            dx[c] = scale[c] * dz;
            if (Residual) dresidual[c] = dz;
        }
        if (Relu) y += C;
        if (Residual) dresidual += C;
    }
}

}  // namespace

void CpuBackend::batch_norm(Tensor x, GroupBounds groups, const float* mean_rstd,
                            const float* gamma, const float* beta, Tensor residual, Clamp act,
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
    with_type(x.type, [&]<class T>(T) {
        const T *from = elements<T>(x), *other = elements<T>(residual);
        T* to = elements<T>(y);
        cpu_.pool.for_each(int(slabs.size()), [&](int s, int) {
            const Slab& slab = slabs[s];
            const ptrdiff_t at = slab.begin * C;
            cpu_.micro.passes(from).normalise(
                from + at, other ? other + at : nullptr, act.most, to + at, slab.end - slab.begin,
                C, mean_rstd + size_t(slab.group) * 2 * C, scale + size_t(slab.group) * C, beta);
        });
    });
}

void CpuBackend::batch_norm_grad(Tensor x, Tensor y, Tensor dy, GroupBounds groups,
                                 const float* gamma, Clamp act, const float* mean_rstd, Tensor dx,
                                 Tensor dresidual, float* dgamma, float* dbeta) {
    check_batch_norm_grad(x, y, dy, act, dx, dresidual);
    check_groups(x, groups);
    if (x.elems() == 0) return;
    const int C = x.C, G = int(groups.size()) - 1;
    const int64_t image_rows = int64_t(x.H) * x.W;
    const std::vector<Slab> slabs = cut_slabs(groups, image_rows);

    auto* parts = reinterpret_cast<double*>(cpu_.shared.get(kSlotSums, slabs.size() * 4 * C));
    with_type(x.type, [&]<class T>(T) {
        const T *in = elements<T>(x), *out = act ? elements<T>(y) : nullptr,
                *grad = elements<T>(dy);
        cpu_.pool.for_each(int(slabs.size()), [&](int s, int) {
            const Slab& slab = slabs[s];
            const ptrdiff_t at = slab.begin * C;
            const float* mean = mean_rstd + size_t(slab.group) * 2 * C;
            double* sum = parts + size_t(s) * 2 * C;
            cpu_.micro.passes(in).gradient_sums(in + at, act ? out + at : nullptr, act.most,
                                                grad + at, slab.end - slab.begin, C, mean, mean + C,
                                                sum, sum + C);
        });
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
        double* sum = parts + first * 2 * C;
        for (size_t i = first + 1; i < s; ++i)
            for (int c = 0; c < 2 * C; ++c) sum[c] += parts[i * 2 * C + c];
        for (int c = 0; c < C; ++c) {
            const double dz = sum[c], dzx = sum[C + c];
            scale[c] = gamma[c] * rstd[c];
            scale[C + c] = float(dz / M);
            scale[2 * C + c] = float(dzx / M * rstd[c]);
            if (dgamma) dgamma[c] += float(dzx);
            if (dbeta) dbeta[c] += float(dz);
        }
    }
    with_type(x.type, [&]<class T>(T) {
        const T *in = elements<T>(x), *out = act ? elements<T>(y) : nullptr,
                *grad = elements<T>(dy);
        T *to = elements<T>(dx), *other = elements<T>(dresidual);
        cpu_.pool.for_each(int(slabs.size()), [&](int task, int) {
            const Slab& slab = slabs[task];
            const ptrdiff_t at = slab.begin * C;
            const float* scale = factors + size_t(slab.group) * 3 * C;
            cpu_.micro.passes(in).gradient_rows(
                in + at, act ? out + at : nullptr, act.most, grad + at, to + at,
                other ? other + at : nullptr, slab.end - slab.begin, C,
                mean_rstd + size_t(slab.group) * 2 * C, scale, scale + C, scale + 2 * C);
        });
    });
}

void CpuBackend::batch_norm_eval(Tensor x, const float* gamma, const float* beta, const float* mean,
                                 const float* var, Tensor residual, Clamp act, float eps,
                                 Tensor y) {
    check_batch_norm(x, residual, y);
    const int C = x.C;
    float* scale = cpu_.shared.get(kSlotParts, C);
    for (int c = 0; c < C; ++c) scale[c] = float(gamma[c] / std::sqrt(double(var[c]) + eps));
    with_type(x.type, [&]<class T>(T) {
        const T *from = elements<T>(x), *other = elements<T>(residual);
        T* to = elements<T>(y);
        cpu_.pool.for_ranges(size_t(x.N) * x.H * x.W, 64, [&](size_t begin, size_t end) {
            cpu_.micro.passes(from).normalise(from + begin * C, other ? other + begin * C : nullptr,
                                              act.most, to + begin * C, int64_t(end - begin), C,
                                              mean, scale, beta);
        });
    });
}

void CpuBackend::batch_norm_eval_grad(Tensor y, Tensor dy, const float* gamma, const float* var,
                                      Clamp act, float eps, Tensor dx, Tensor dresidual) {
    check_batch_norm_eval_grad(y, dy, act, dx, dresidual);
    const int C = dy.C;
    float* scale = cpu_.shared.get(kSlotParts, C);
    for (int c = 0; c < C; ++c) scale[c] = float(gamma[c] / std::sqrt(double(var[c]) + eps));
    with_type(dy.type, [&]<class T>(T) {
        const auto f = act ? (dresidual ? scale_rows<true, true, T> : scale_rows<true, false, T>)
                           : (dresidual ? scale_rows<false, true, T> : scale_rows<false, false, T>);
        const T *out = act ? elements<T>(y) : nullptr, *grad = elements<T>(dy);
        T *to = elements<T>(dx), *other = elements<T>(dresidual);
        cpu_.pool.for_ranges(size_t(dy.N) * dy.H * dy.W, 64, [&](size_t begin, size_t end) {
            f(act ? out + begin * C : nullptr, act.most, grad + begin * C, to + begin * C,
              other ? other + begin * C : nullptr, int64_t(end - begin), C, scale);
        });
    });
}

}  // namespace convoy
