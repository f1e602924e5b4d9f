// batch_norm.cpp — bound by memory: one pass over x forward, two backward. The gradient of the
// activation is computed again from x, so that y need not be read. Statistics: moments.cpp.
#include <cmath>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/elements.h"
#include "kernels/shapes.h"

namespace convoy {

// gamma/√(var + eps) of each channel.
static void scale_of(const float* gamma, const float* var, float eps, int C, float* scale) {
    for (int c = 0; c < C; ++c) scale[c] = float(gamma[c] / std::sqrt(double(var[c]) + eps));
}

void CpuBackend::batch_norm(Tensor x, GroupBounds groups, const float* mean_rstd,
                            const float* gamma, const float* beta, Tensor residual, Activation act,
                            Tensor y) {
    check_batch_norm(x, residual, act, y);
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
            const Norm norm{mean_rstd + size_t(slab.group) * 2 * C, scale + size_t(slab.group) * C,
                            beta, act};
            cpu_.micro.passes(from).normalise(from + at, other ? other + at : nullptr, norm,
                                              to + at, slab.end - slab.begin, C);
        });
    });
}

void CpuBackend::batch_norm_grad(Tensor x, Tensor y, Tensor dy, GroupBounds groups,
                                 const float* gamma, const float* beta, Activation act,
                                 const float* mean_rstd, Tensor dx, Tensor dresidual, float* dgamma,
                                 float* dbeta) {
    check_batch_norm_grad(x, y, dy, act, dx, dresidual);
    check_groups(x, groups);
    if (x.elems() == 0) return;
    const int C = x.C, G = int(groups.size()) - 1;
    const int64_t image_rows = int64_t(x.H) * x.W;
    const std::vector<Slab> slabs = cut_slabs(groups, image_rows);

    // For each group: scale = gamma·rstd, mean of dz, slope = rstd·mean(dz·x̂)
    float* factors = cpu_.shared.get(kSlotParts, size_t(G) * 3 * C);
    for (int g = 0; g < G; ++g)
        for (int c = 0; c < C; ++c)
            factors[size_t(g) * 3 * C + c] = gamma[c] * mean_rstd[(size_t(g) * 2 + 1) * C + c];
    auto* parts = reinterpret_cast<double*>(cpu_.shared.get(kSlotSums, slabs.size() * 4 * C));
    const auto norm_of = [&](const Slab& slab, Activation applied) {
        return Norm{mean_rstd + size_t(slab.group) * 2 * C, factors + size_t(slab.group) * 3 * C,
                    beta, applied};
    };
    with_type(x.type, [&]<class T>(T) {
        const T *in = elements<T>(x), *out = elements<T>(y), *grad = elements<T>(dy);
        T* other = elements<T>(dresidual);
        cpu_.pool.for_each(int(slabs.size()), [&](int s, int) {
            const Slab& slab = slabs[s];
            const ptrdiff_t at = slab.begin * C;
            const Norm norm = norm_of(slab, act);
            double* sum = parts + size_t(s) * 2 * C;
            cpu_.micro.passes(in).gradient_sums(
                in + at, other && act ? out + at : nullptr, grad + at, norm, norm.mean + C,
                slab.end - slab.begin, C, other ? other + at : nullptr, sum, sum + C);
        });
    });

    size_t s = 0;
    for (int g = 0; g < G; ++g) {
        float* factor = factors + size_t(g) * 3 * C;
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
            factor[C + c] = float(dz / M);
            factor[2 * C + c] = float(dzx / M * rstd[c]);
            if (dgamma) dgamma[c] += float(dzx);
            if (dbeta) dbeta[c] += float(dz);
        }
    }
    with_type(x.type, [&]<class T>(T) {
        const T *in = elements<T>(x), *grad = elements<T>(dresidual ? dresidual : dy);
        T* to = elements<T>(dx);
        cpu_.pool.for_each(int(slabs.size()), [&](int task, int) {
            const Slab& slab = slabs[task];
            const ptrdiff_t at = slab.begin * C;
            const Norm norm = norm_of(slab, dresidual ? Activation{Activation::kNone} : act);
            cpu_.micro.passes(in).gradient_rows(in + at, grad + at, norm, norm.scale + C,
                                                norm.scale + 2 * C, slab.end - slab.begin, C,
                                                to + at);
        });
    });
}

void CpuBackend::batch_norm_eval(Tensor x, const float* gamma, const float* beta, const float* mean,
                                 const float* var, Tensor residual, Activation act, float eps,
                                 Tensor y) {
    check_batch_norm(x, residual, act, y);
    const int C = x.C;
    float* scale = cpu_.shared.get(kSlotParts, C);
    scale_of(gamma, var, eps, C, scale);
    const Norm norm{mean, scale, beta, act};
    with_type(x.type, [&]<class T>(T) {
        const T *from = elements<T>(x), *other = elements<T>(residual);
        T* to = elements<T>(y);
        cpu_.pool.for_ranges(size_t(x.N) * x.H * x.W, 64, [&](size_t begin, size_t end) {
            cpu_.micro.passes(from).normalise(from + begin * C, other ? other + begin * C : nullptr,
                                              norm, to + begin * C, int64_t(end - begin), C);
        });
    });
}

void CpuBackend::batch_norm_eval_grad(Tensor x, Tensor y, Tensor dy, const float* gamma,
                                      const float* beta, const float* mean, const float* var,
                                      Activation act, float eps, Tensor dx, Tensor dresidual) {
    check_batch_norm_grad(x, y, dy, act, dx, dresidual);
    if (dresidual) {
        if (dresidual.data != dy.data) copy(dresidual, dy);
        if (act) activate_grad(y, dresidual, act);
        dy = dresidual;
        act.kind = Activation::kNone;
    }
    const int C = dy.C;
    float* scale = cpu_.shared.get(kSlotParts, size_t(2) * C);
    scale_of(gamma, var, eps, C, scale);
    const float* zeros = std::fill_n(scale + C, C, 0.0f) - C;
    const Norm norm{mean, scale, beta, act};
    with_type(dy.type, [&]<class T>(T) {
        const T *in = elements<T>(x), *grad = elements<T>(dy);
        T* to = elements<T>(dx);
        cpu_.pool.for_ranges(size_t(dy.N) * dy.H * dy.W, 64, [&](size_t begin, size_t end) {
            cpu_.micro.passes(in).gradient_rows(in + begin * C, grad + begin * C, norm, zeros,
                                                zeros, int64_t(end - begin), C, to + begin * C);
        });
    });
}

}  // namespace convoy
