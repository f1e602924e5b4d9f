// group_norm.cpp — an image stays in the L2 cache, or a pixel of a layer norm in the L1 cache. Each
// channel is summed by itself, then the channels of a group.   Twin: kernels/cuda/group_norm.cu
#include <cmath>
#include <numeric>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/elements.h"
#include "kernels/shapes.h"

namespace convoy {
namespace {

// The groups of one image. A statistic has a value per channel, so that loops over channels do not
// compute the group. If there is one group, it has one value: then C and size are the constant 1.
template <class Int>
struct NormImage {
    static constexpr bool kOne = !std::is_same_v<Int, int>;
    Int C, size;  // size: channels of a group
    size_t numbers;
    float count;  // numbers of a group

    // Calls f(number, index in a statistic). Within a row, no call reads what another call writes.
    template <class F>
    void for_each(F&& f) const {
        const size_t width = kOne ? numbers : C;
        for (size_t row = 0; row < numbers; row += width)
#pragma GCC ivdep
            for (size_t c = 0; c < width; ++c) f(row + c, kOne ? 0 : c);
    }
    // mean = the mean of f(number, index) over each group
    template <class F>
    void average(float* mean, F&& f) const {
        float sums[16] = {};  // of kOne, interleaved
        size_t i = 0;
        for (; kOne && i + 16 <= numbers; i += 16)
            for (int e = 0; e < 16; ++e) sums[e] += f(i + e, 0);
        for (; kOne && i < numbers; ++i) sums[0] += f(i, 0);
        if (!kOne) std::fill_n(mean, int(C), 0.0f);
        if (!kOne) for_each([&](size_t at, size_t c) { mean[c] += f(at, c); });
        for (int c = 0; c < C; c += size) {
            const float* parts = kOne ? sums : mean + c;
            std::fill_n(mean + c, int(size),
                        std::reduce(parts, parts + (kOne ? 16 : size)) / count);
        }
    }
};

// Calls f(T(), NormImage, its number n, memory for three statistics) for all images.
template <class F>
void over_images(Cpu& cpu, Tensor x, int groups, F&& f) {
    ENSURE(groups > 0 && x.C % groups == 0, x.C, " channels in ", groups, " groups");
    const size_t numbers = x.shape().row_elems();
    const auto run = [&]<class Int>(Int C, Int size) {
        const NormImage<Int> image{C, size, numbers, float(numbers / groups)};
        float* const stats = cpu.shared.get(kSlotSums, image.kOne ? 0 : 3 * size_t(x.N) * C);
        with_type(x.type, [&](auto type) {
            cpu.pool.for_ranges(x.N, kGrain / (numbers + 1) + 1, [&](size_t begin, size_t end) {
                float few[3];
                for (size_t n = begin; n < end; ++n)
                    f(type, image, n, image.kOne ? few : stats + 3 * n * C);
            });
        });
    };
    constexpr std::integral_constant<int, 1> k1;
    groups == 1 ? run(k1, k1) : run(x.C, x.C / groups);
}

}  // namespace

void CpuBackend::group_norm(Tensor x, int groups, float eps, Tensor y, float* rstd) {
    check_same("x", x, "y", y);
    over_images(cpu_, x, groups, [&]<class T>(T, auto image, size_t n, float* mean) {
        const T* from = elements<T>(x) + n * image.numbers;
        T* to = elements<T>(y) + n * image.numbers;
        float* scale = mean + image.C;
        const auto off = [&](size_t i, size_t c) { return float(from[i]) - mean[c]; };
        image.average(mean, [&](size_t i, size_t) { return float(from[i]); });
        image.average(scale, [&](size_t i, size_t c) { return off(i, c) * off(i, c); });
        for (int c = 0; c < image.C; ++c) scale[c] = 1 / std::sqrt(scale[c] + eps);
        image.for_each([&](size_t i, size_t c) { to[i] = off(i, c) * scale[c]; });
        for (int c = 0; rstd && c < image.C; c += image.size)
            rstd[n * groups + c / image.size] = scale[c];
    });
}

void CpuBackend::group_norm_grad(Tensor y, int groups, const float* rstd, Tensor dy, Tensor dx) {
    check_same("y", y, "dy", dy);
    check_same("y", y, "dx", dx);
    over_images(cpu_, y, groups, [&]<class T>(T, auto image, size_t n, float* mean) {
        const T *out = elements<T>(y) + n * image.numbers,
                *grad = elements<T>(dy) + n * image.numbers;
        T* to = elements<T>(dx) + n * image.numbers;
        float *slope = mean + image.C, *scale = slope + image.C;
        image.average(mean, [&](size_t i, size_t) { return float(grad[i]); });
        image.average(slope, [&](size_t i, size_t) { return float(grad[i]) * float(out[i]); });
        for (int c = 0; c < image.C; ++c) scale[c] = rstd[n * groups + c / image.size];
        image.for_each([&](size_t i, size_t c) {
            to[i] = scale[c] * (float(grad[i]) - mean[c] - float(out[i]) * slope[c]);
        });
    });
}

}  // namespace convoy
