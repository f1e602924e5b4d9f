// batch_norm.cpp — bound by memory: one pass over x forward, two backward. The gradient of the
// activation is computed again from x, so that y need not be read. Statistics: moments.cpp.
#include <array>
#include <cmath>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/elements.h"
#include "kernels/shapes.h"

namespace convoy {

// With fixed statistics: the scale gamma/√(var + eps) of each channel, mean_dz and slope 0 (Norm).
static float* fixed_factors(Cpu& cpu, const float* gamma, const float* var, float eps, int C) {
    float* scale = cpu.shared.get(kSlotParts, size_t(3) * C);
    for (int c = 0; c < C; ++c) scale[c] = float(gamma[c] / std::sqrt(double(var[c]) + eps));
    std::fill_n(scale + C, 2 * C, 0.0f);
    return scale;
}

// For each group the scale gamma·rstd of each channel, and room for its mean_dz and slope (Norm).
static float* make_factors(Cpu& cpu, const float* gamma, const float* mean_rstd, int G, int C) {
    float* factors = cpu.shared.get(kSlotParts, size_t(G) * 3 * C);
    for (int g = 0; g < G; ++g)
        for (int c = 0; c < C; ++c)
            factors[size_t(g) * 3 * C + c] = gamma[c] * mean_rstd[(size_t(g) * 2 + 1) * C + c];
    return factors;
}
// The Norm of a group, from the Norm of the first group.
static Norm norm_of(size_t group, const Norm& first, size_t C) {
    return {first.mean + group * 2 * C, first.scale + group * 3 * C, first.beta, first.act};
}

// y = act(z + residual), z as in Norm.
static void normalise_rows(Cpu& cpu, Tensor x, GroupBounds groups, const Norm& first,
                           Tensor residual, Tensor y) {
    for_slabs(cpu, x, groups, [&]<class T>(T, const Slab& slab, int, ptrdiff_t at) {
        const T* from = elements<T>(x) + at;
        cpu.micro.passes(from).normalise(from, numbers_from<T>(residual, at),
                                         norm_of(slab.group, first, x.C), elements<T>(y) + at,
                                         slab.end - slab.begin, x.C);
    });
}

// dx from dy, as in Passes::gradient_rows.
static void gradient_rows(Cpu& cpu, Tensor x, Tensor dy, GroupBounds groups, const Norm& first,
                          Tensor dx) {
    for_slabs(cpu, x, groups, [&]<class T>(T, const Slab& slab, int, ptrdiff_t at) {
        const T* from = elements<T>(x) + at;
        cpu.micro.passes(from).gradient_rows(from, elements<T>(dy) + at,
                                             norm_of(slab.group, first, x.C), slab.end - slab.begin,
                                             x.C, elements<T>(dx) + at);
    });
}

void CpuBackend::batch_norm(Tensor x, GroupBounds groups, const float* mean_rstd,
                            const float* gamma, const float* beta, Tensor residual, Activation act,
                            Tensor y) {
    check_batch_norm(x, residual, act, y);
    check_groups(x, groups);
    float* scale = make_factors(cpu_, gamma, mean_rstd, int(groups.size()) - 1, x.C);
    normalise_rows(cpu_, x, groups, {mean_rstd, scale, beta, act}, residual, y);
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

    float* factors = make_factors(cpu_, gamma, mean_rstd, G, C);
    auto* parts = reinterpret_cast<double*>(cpu_.shared.get(kSlotSums, slabs.size() * 4 * C));
    Norm norm{mean_rstd, factors, beta, act};
    for_slabs(cpu_, x, groups, [&]<class T>(T, const Slab& slab, int s, ptrdiff_t at) {
        const T* in = elements<T>(x) + at;
        double* sum = parts + size_t(s) * 2 * C;
        cpu_.micro.passes(in).gradient_sums(in, dresidual && act ? elements<T>(y) + at : nullptr,
                                            elements<T>(dy) + at, norm_of(slab.group, norm, C),
                                            slab.end - slab.begin, C,
                                            numbers_from<T>(dresidual, at), sum, sum + C);
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
    if (dresidual) dy = dresidual, norm.act.kind = Activation::kNone;
    gradient_rows(cpu_, x, dy, groups, norm, dx);
}

void CpuBackend::batch_norm_eval(Tensor x, const float* gamma, const float* beta, const float* mean,
                                 const float* var, Tensor residual, Activation act, float eps,
                                 Tensor y) {
    check_batch_norm(x, residual, act, y);
    float* scale = fixed_factors(cpu_, gamma, var, eps, x.C);
    normalise_rows(cpu_, x, std::array{0, x.N}, {mean, scale, beta, act}, residual, y);
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
    float* scale = fixed_factors(cpu_, gamma, var, eps, x.C);
    gradient_rows(cpu_, x, dy, std::array{0, x.N}, {mean, scale, beta, act}, dx);
}

}  // namespace convoy
