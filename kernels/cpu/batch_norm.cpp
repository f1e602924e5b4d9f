// batch_norm.cpp — bound by memory: statistics are one pass over x, normalising is another.
//
// A slab is a range of rows (pixels) of one group. Its statistics are found in blocks of
// kBlockRows × kLanes numbers that stay in the L1 cache: first the block's mean, then the sum of
// squares around it, then both are merged into the slab's in double. So a large mean beside a tiny
// variance costs no digits, at one pass over memory. Merging: Chan, Golub, LeVeque, "Updating
// Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979).
//
// The slabs depend on shapes alone, so the bits do not depend on the number of threads.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/shapes.h"

namespace convoy {

namespace {

constexpr int kLanes = 32;       // channels handled together
constexpr int kBlockRows = 128;  // 128·32 floats are 16 KB

struct Slab {
    int group;
    int64_t begin, end;  // rows
};

// About 64 slabs in all, at least one a group, none of a group without images.
std::vector<Slab> cut_slabs(GroupBounds groups, int64_t image_rows) {
    std::vector<Slab> slabs;
    const int64_t all = groups.back() * image_rows;
    for (int g = 0; g + 1 < int(groups.size()); ++g) {
        const int64_t begin = groups[g] * image_rows, rows = groups[g + 1] * image_rows - begin;
        if (rows == 0) continue;
        const int64_t parts = std::clamp<int64_t>(64 * rows / all, 1, (rows + 127) / 128);
        for (int64_t i = 0; i < parts; ++i)
            slabs.push_back({g, begin + rows * i / parts, begin + rows * (i + 1) / parts});
    }
    return slabs;
}

// Mean and sum of squares around it of rows × C numbers; `mean` and `square` hold C doubles each.
void slab_statistics(const float* x, int64_t rows, int C, double* mean, double* square) {
    std::fill_n(mean, C, 0.0);
    std::fill_n(square, C, 0.0);
    for (int64_t row = 0; row < rows; row += kBlockRows) {
        const int count = int(std::min<int64_t>(kBlockRows, rows - row));
        const double share = double(count) / double(row + count);
        for (int c = 0; c < C; c += kLanes) {
            const int lanes = std::min(kLanes, C - c);
            const float* block = x + row * C + c;
            float sum[kLanes] = {}, center[kLanes] = {}, squares[kLanes] = {}, rest[kLanes] = {};
            const auto add_up = [&](int n) {
                for (int i = 0; i < count; ++i)
                    for (int l = 0; l < n; ++l) sum[l] += block[ptrdiff_t(i) * C + l];
                for (int l = 0; l < n; ++l) center[l] = sum[l] / float(count);
                for (int i = 0; i < count; ++i)
                    for (int l = 0; l < n; ++l) {
                        const float d = block[ptrdiff_t(i) * C + l] - center[l];
                        rest[l] += d;  // what rounding left in `center`
                        squares[l] += d * d;
                    }
            };
            if (lanes == kLanes)
                add_up(kLanes);  // constant: the sums stay in registers
            else
                add_up(lanes);
            for (int l = 0; l < lanes; ++l) {
                const double off = double(rest[l]) / count;
                const double block_mean = double(center[l]) + off;
                const double block_square = double(squares[l]) - off * off * count;
                const double delta = block_mean - mean[c + l];
                mean[c + l] += delta * share;
                square[c + l] += block_square + delta * delta * share * double(row);
            }
        }
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

// y = act((x − mean)·scale + beta + residual) over rows × C. The options are template arguments:
// the loop over channels then has no branch and vectorises.
template <bool Residual, bool Relu>
void normalise_rows(const float* x, const float* residual, float* y, int64_t rows, int C,
                    const float* mean, const float* scale, const float* beta) {
    for (int64_t i = 0; i < rows; ++i, x += C, y += C) {
#pragma GCC ivdep
        for (int c = 0; c < C; ++c) {
            float v = (x[c] - mean[c]) * scale[c] + beta[c];
            if (Residual) v += residual[c];
            y[c] = Relu && v < 0 ? 0.0f : v;
        }
        if (Residual) residual += C;
    }
}
void normalise(const float* x, const float* residual, bool relu, float* y, int64_t rows, int C,
               const float* mean, const float* scale, const float* beta) {
    const auto f = residual ? (relu ? normalise_rows<true, true> : normalise_rows<true, false>)
                            : (relu ? normalise_rows<false, true> : normalise_rows<false, false>);
    f(x, residual, y, rows, C, mean, scale, beta);
}

// Σ dz and Σ dz·x̂ of a slab, in floats over blocks of rows, the blocks added in double.
template <bool Relu>
void gradient_sums(const float* x, const float* y, const float* dy, int64_t rows, int C,
                   const float* mean, const float* rstd, double* sum_dz, double* sum_dzx) {
    std::fill_n(sum_dz, C, 0.0);
    std::fill_n(sum_dzx, C, 0.0);
    for (int64_t row = 0; row < rows; row += kBlockRows) {
        const int count = int(std::min<int64_t>(kBlockRows, rows - row));
        for (int c = 0; c < C; c += kLanes) {
            const int lanes = std::min(kLanes, C - c);
            const ptrdiff_t start = row * C + c;
            float dz_sum[kLanes] = {}, dzx_sum[kLanes] = {};
            const auto add_up = [&](int n) {
                for (int i = 0; i < count; ++i) {
                    const ptrdiff_t at = start + ptrdiff_t(i) * C;
                    for (int l = 0; l < n; ++l) {
                        const float dz = Relu && y[at + l] <= 0 ? 0.0f : dy[at + l];
                        dz_sum[l] += dz;
                        dzx_sum[l] += dz * (x[at + l] - mean[c + l]);
                    }
                }
            };
            if (lanes == kLanes)
                add_up(kLanes);
            else
                add_up(lanes);
            for (int l = 0; l < lanes; ++l) {
                sum_dz[c + l] += dz_sum[l];
                sum_dzx[c + l] += double(dzx_sum[l]) * rstd[c + l];
            }
        }
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
