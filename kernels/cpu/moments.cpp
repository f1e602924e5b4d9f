// moments.cpp — mean and variance of each channel over groups of images, in one pass over memory.
// The statistics of slabs (passes_body.h) are merged in double, in order: Chan, Golub, LeVeque,
// "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979).
// Twin: kernels/cuda/moments.cu
#include <cmath>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/elements.h"
#include "kernels/shapes.h"

namespace convoy {

void CpuBackend::moments(Tensor x, const Moments& to) {
    check_groups(x, to.groups);
    if (x.elems() == 0) return;
    const int C = x.C;
    const int64_t image_rows = int64_t(x.H) * x.W;
    const std::vector<Slab> slabs = cut_slabs(to.groups, image_rows);

    // Two doubles per channel and slab; scratch is allocated in floats.
    auto* parts = reinterpret_cast<double*>(cpu_.shared.get(kSlotSums, slabs.size() * 4 * C));
    for_slabs(cpu_, x, to.groups, [&]<class T>(T, const Slab& slab, int s, ptrdiff_t at) {
        const T* from = elements<T>(x) + at;
        double* mean = parts + size_t(s) * 2 * C;
        cpu_.micro.passes(from).statistics(from, slab.end - slab.begin, C, mean, mean + C);
    });

    // For each group: merges the statistics of its slabs into those of its first slab, in order.
    size_t slab = 0;
    for (int g = 0; g + 1 < int(to.groups.size()); ++g) {
        const double images = to.groups[g + 1] - to.groups[g], M = images * double(image_rows);
        if (M == 0) continue;
        double *mean = parts + slab * 2 * C, *square = mean + C;
        double count = double(slabs[slab].end - slabs[slab].begin);
        while (++slab < slabs.size() && slabs[slab].group == g) {
            const double n = double(slabs[slab].end - slabs[slab].begin), share = n / (count + n);
            const double *other = parts + slab * 2 * C, *other_square = other + C;
#pragma GCC ivdep
            for (int c = 0; c < C; ++c) {
                const double delta = other[c] - mean[c];
                mean[c] += delta * share;
                square[c] += other_square[c] + delta * delta * share * count;
            }
            count += n;
        }
        float* mean_out = to.mean_rstd + size_t(g) * 2 * C;
        for (int c = 0; c < C; ++c) {
            const double var = square[c] / count;
            mean_out[c] = float(mean[c]);
            mean_out[C + c] = float(1 / std::sqrt(var + double(to.eps)));
            to.sums[c] += float(images * mean[c]);
            to.sums[C + c] += float(images * (M > 1 ? square[c] / (M - 1) : var));
        }
    }
}

}  // namespace convoy
