// moments.cu — mean and variance of each channel over groups of images, NHWC.
// Twin: kernels/cpu/moments.cpp
//
//   mean = Σ x / M    var = Σ (x − mean)² / M    rstd = 1/√(var + eps)    each group, M values
//
//   Sums of strips of rows come first (moments.cuh): from a convolution, whose tiles are strips, or
//   from strips_kernel, about 512 strips in all. From there on it is the same way for both.
//
//   strips    a block of 256 threads (moments.cuh) for a strip and up to 32 packs of columns. x is
//             read once, 4·rows·C bytes (2·rows·C of bf16); memory-bound. The center of a piece is
//             its first row.
//   condense  the many strips of a convolution into about 512: the same grid, for the new strips.
//             Bytes: 12·C a piece; of strips of 128 rows that is a 43rd of x.
//   final     ⌈C/32⌉ blocks of 32×32 threads: the 32 threads of a column are divided among the
//             groups, about 512 pieces in all.
//   order     within a piece: rows of a thread, then threads. Pieces of a thread, then threads,
//             then groups, in double. All by shapes alone, without atomics: the same bits each run.
#include "kernels/cuda/moments.cuh"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/shapes.h"

namespace convoy::CONVOY_DEVICE {

namespace {

constexpr int kLanes = 32, kTeam = 32;  // in finish_moments_kernel: columns, and threads of each

template <class T, int kWide>
__global__ void strips_kernel(const T* __restrict__ x, Strips strips) {
    const int C = strips.C, c = first_channel<kWide>(), strip = blockIdx.y;
    strips.for_each_piece(strip, [&](int g, int64_t begin, int64_t end) {
        float center[kWide] = {}, sums[2 * kWide] = {};  // rest, then squares
        if (c < C) {
            load_pack(center, x + begin * C + c);
#pragma unroll 4
            for (int64_t row = begin + threadIdx.y; row < end; row += blockDim.y) {
                float v[kWide];
                load_pack(v, x + row * C + c);
#pragma unroll
                for (int e = 0; e < kWide; ++e) {
                    const float off = v[e] - center[e];
                    sums[e] += off, sums[kWide + e] += off * off;
                }
            }
        }
        add_columns(sums);
        if (threadIdx.y == 0 && c < C) {
            float* to = strips.piece(strip, g) + c;
            for (int e = 0; e < kWide; ++e)
                to[e] = center[e], to[C + e] = sums[e], to[2 * C + e] = sums[kWide + e];
        }
    });
}

// Σ (x − pivot) and Σ (x − pivot)² of column c, over rows [begin, end) of group g. The pivot is the
// center of the first piece there.
struct Sums {
    double pivot = 0, sum = 0, squares = 0;

    __device__ Sums() {}
    // Over every `step`th piece alone, from number `first` on.
    __device__ Sums(const Strips& strips, int g, int64_t begin, int64_t end, int c, int first,
                    int step)
        : pivot(double(strips.piece(int(begin / strips.height), g)[c])) {
        const int last = int((end - 1) / strips.height);
        for (int strip = int(begin / strips.height) + first; strip <= last; strip += step) {
            const float* piece = strips.piece(strip, g);
            const double n =
                double(min(end, (strip + 1) * strips.height) - max(begin, strip * strips.height));
            const double off = double(piece[c]) - pivot, rest = double(piece[strips.C + c]);
            sum += n * off + rest;
            squares += double(piece[2 * strips.C + c]) + off * (2 * rest + n * off);
        }
    }
};

// The height of `to` must be a multiple of the height of `from`.
__global__ void condense_kernel(Strips from, Strips to) {
    const int C = to.C, c = first_channel<1>(), strip = blockIdx.y;
    to.for_each_piece(strip, [&](int g, int64_t begin, int64_t end) {
        Sums own;
        if (c < C) own = Sums(from, g, begin, end, c, threadIdx.y, blockDim.y);
        double sums[2] = {own.sum, own.squares};
        add_columns(sums);
        if (threadIdx.y == 0 && c < C) {
            // Moves the center to the mean. As a float, the mean is off by `shift`.
            const double n = double(end - begin), mean = own.pivot + sums[0] / n;
            const float center = float(mean);
            const double shift = mean - double(center);
            float* piece = to.piece(strip, g);
            piece[c] = center;
            piece[C + c] = float(n * shift);
            piece[2 * C + c] = float(sums[1] - sums[0] * sums[0] / n + n * shift * shift);
        }
    });
}

// Keeps mean and rstd of each group, adds to the sums. As many groups at a time as there are teams.
__global__ void __launch_bounds__(kLanes* kTeam)
    finish_moments_kernel(Strips strips, float eps, float* mean_rstd, float* sums) {
    __shared__ double parts[2][kTeam][kLanes];
    const int C = strips.C, c = blockIdx.x * kLanes + threadIdx.x, y = threadIdx.y;
    const int members = max(1, kTeam / strips.count), teams = kTeam / members;
    const int team = y / members, member = y % members;
    double all_means = 0, all_vars = 0;  // of the groups whose team this thread leads
    for (int first = 0; first < strips.count; first += teams) {
        const int g = first + team;
        int64_t begin = 0, end = 0;
        if (c < C && team < teams && g < strips.count)
            begin = strips.first_row(g), end = strips.first_row(g + 1);
        Sums own;
        if (begin < end) own = Sums(strips, g, begin, end, c, member, members);
        parts[0][y][threadIdx.x] = own.sum, parts[1][y][threadIdx.x] = own.squares;
        __syncthreads();  // the sums of all members are there
        if (member == 0 && begin < end) {
            double sum = own.sum, squares = own.squares;
            for (int m = 1; m < members; ++m)
                sum += parts[0][y + m][threadIdx.x], squares += parts[1][y + m][threadIdx.x];
            const double M = double(end - begin), images = strips.bounds[g + 1] - strips.bounds[g];
            const double mean = own.pivot + sum / M,
                         square = squares - sum * sum / M;  // Σ (x − mean)²
            const double var = square > 0 ? square / M : square != square ? square : 0;
            mean_rstd[size_t(g) * 2 * C + c] = float(mean);
            mean_rstd[(size_t(g) * 2 + 1) * C + c] = float(1 / sqrt(var + double(eps)));
            all_means += images * mean;
            all_vars += images * (M > 1 ? var * M / (M - 1) : var);
        }
        __syncthreads();  // all have read the sums; the next groups' sums may be written
    }
    parts[0][y][threadIdx.x] = all_means, parts[1][y][threadIdx.x] = all_vars;
    __syncthreads();  // the sums of all teams are there
    if (y > 0 || c >= C) return;
    for (int t = 1; t < kTeam; ++t)
        all_means += parts[0][t][threadIdx.x], all_vars += parts[1][t][threadIdx.x];
    sums[c] += float(all_means);
    sums[C + c] += float(all_vars);
}

// Merging some 512 strips takes microseconds.
constexpr int64_t kFewStrips = 512;

}  // namespace

Strips CudaBackend::make_strips(Tensor x, GroupBounds groups, int64_t height, Slot slot) {
    const int count = int(groups.size()) - 1;
    const int64_t image_rows = int64_t(x.H) * x.W,
                  places = ceil_div(x.N * image_rows, height) + count;
    float* pieces = memory_.scratch<float>(slot, size_t(places) * 3 * x.C);
    return {{bounds(groups), count, x.C, image_rows}, height, pieces};
}

void CudaBackend::finish_moments(Tensor x, Strips strips, const Moments& to) {
    const int64_t rows = x.N * strips.image_rows, count = ceil_div(rows, strips.height);
    if (count > 2 * kFewStrips) {
        const int64_t height = strips.height * ceil_div(count, kFewStrips);
        const Strips few = make_strips(x, to.groups, height, kSlotFactors);
        const dim3 block = column_block(x.C);
        const dim3 grid(ceil_div(x.C, block.x), ceil_div(rows, height));
        condense_kernel<<<grid, block, 0, stream_>>>(strips, few);
        CUDA_LAUNCHED();
        strips = few;
    }
    finish_moments_kernel<<<ceil_div(x.C, kLanes), dim3(kLanes, kTeam), 0, stream_>>>(
        strips, to.eps, to.mean_rstd, to.sums);
    CUDA_LAUNCHED();
}

void CudaBackend::moments(Tensor x, const Moments& to) {
    check_groups(x, to.groups);
    if (x.elems() == 0) return;
    const int64_t rows = x.N * (int64_t(x.H) * x.W);
    const int64_t height = std::max<int64_t>(64, ceil_div(rows, kFewStrips));
    const Strips strips = make_strips(x, to.groups, height, kSlotSums);
    const unsigned count = ceil_div(rows, height);
    with_columns({x}, count, [&]<class T>(T, auto wide, dim3 grid, dim3 block) {
        strips_kernel<T, wide()><<<grid, block, 0, stream_>>>(elements<T>(x), strips);
        CUDA_LAUNCHED();
    });
    finish_moments(x, strips, to);
}

}  // namespace convoy::CONVOY_DEVICE
