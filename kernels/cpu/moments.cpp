// moments.cpp — mean and variance of each channel over groups of images, in one pass over memory.
// Twin: kernels/cuda/moments.cu
//
// The statistics of a slab are found in blocks of kBlockRows × kLanes numbers that stay in the L1
// cache: first the block's mean, then the sum of squares around it; both are merged into the slab's
// in double. So a large mean beside a tiny variance costs no digits. Merging: Chan, Golub, LeVeque,
// "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979).
#include <cmath>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/shapes.h"

namespace convoy {

namespace {

constexpr int kBlockRows = 128;  // 128·32 floats are 16 KB

// Mean and sum of squares around it of rows × C numbers; `mean` and `square` hold C doubles each.
void slab_statistics(const float* x, int64_t rows, int C, double* mean, double* square) {
    std::fill_n(mean, C, 0.0);
    std::fill_n(square, C, 0.0);
    for (int64_t row = 0; row < rows; row += kBlockRows) {
        const int count = int(std::min<int64_t>(kBlockRows, rows - row));
        const double share = double(count) / double(row + count);
        over_channels(C, [&](int c, auto lanes) {
            const float* block = x + row * C + c;
            float sum[kLanes] = {}, center[kLanes] = {}, squares[kLanes] = {}, rest[kLanes] = {};
            for (int i = 0; i < count; ++i)
                for (int l = 0; l < lanes; ++l) sum[l] += block[ptrdiff_t(i) * C + l];
            for (int l = 0; l < lanes; ++l) center[l] = sum[l] / float(count);
            for (int i = 0; i < count; ++i)
                for (int l = 0; l < lanes; ++l) {
                    const float d = block[ptrdiff_t(i) * C + l] - center[l];
                    rest[l] += d;  // what rounding left in `center`
                    squares[l] += d * d;
                }
            for (int l = 0; l < lanes; ++l) {
                const double off = double(rest[l]) / count;
                const double block_mean = double(center[l]) + off;
                const double block_square = double(squares[l]) - off * off * count;
                const double delta = block_mean - mean[c + l];
                mean[c + l] += delta * share;
                square[c + l] += block_square + delta * delta * share * double(row);
            }
        });
    }
}

// For each group in turn: the statistics of its slabs merged, in the order of the slabs.
void merge_statistics(const std::vector<Slab>& slabs, const double* parts, int64_t image_rows,
                      int C, const Moments& to) {
    size_t slab = 0;
    for (int g = 0; g + 1 < int(to.groups.size()); ++g) {
        const size_t first = slab;
        while (slab < slabs.size() && slabs[slab].group == g) ++slab;
        float* mean_out = to.mean_rstd + size_t(g) * 2 * C;
        const double images = to.groups[g + 1] - to.groups[g], M = images * double(image_rows);
        for (int c = 0; c < C; ++c) {
            double mean = 0, square = 0, count = 0;
            for (size_t s = first; s < slab; ++s) {
                const double n = double(slabs[s].end - slabs[s].begin);
                const double delta = parts[s * 2 * C + c] - mean;
                mean += delta * n / (count + n);
                square += parts[s * 2 * C + C + c] + delta * delta * n * count / (count + n);
                count += n;
            }
            const double var = count > 0 ? square / count : 0;
            mean_out[c] = float(mean);
            mean_out[C + c] = float(1 / std::sqrt(var + double(to.eps)));
            to.sums[c] += float(images * mean);
            to.sums[C + c] += float(images * (M > 1 ? square / (M - 1) : var));
        }
    }
}

}  // namespace

void CpuBackend::moments(Tensor x, const Moments& to) {
    check_groups(x, to.groups);
    if (x.elems() == 0) return;
    const int C = x.C;
    const int64_t image_rows = int64_t(x.H) * x.W;
    const std::vector<Slab> slabs = cut_slabs(to.groups, image_rows);

    // Two doubles a channel and slab; scratch counts in floats.
    auto* parts = reinterpret_cast<double*>(cpu_.shared.get(kSlotSums, slabs.size() * 4 * C));
    cpu_.pool.for_each(int(slabs.size()), [&](int s, int) {
        double* mean = parts + size_t(s) * 2 * C;
        slab_statistics(x.floats() + slabs[s].begin * C, slabs[s].end - slabs[s].begin, C, mean,
                        mean + C);
    });
    merge_statistics(slabs, parts, image_rows, C, to);
}

}  // namespace convoy
