// group_norm.cu — over the pixels and channels of each group.   Twin: kernels/cpu/group_norm.cpp
//
//   y  = (x − mean)·rstd          dx = rstd·(dy − mean(dy) − y·mean(dy·y))
//
//   grid    one warp a group of an image, 8 warps a block: neighbouring groups share cache lines.
//           Lane l takes the numbers l, l+32, … of the group; its channel is fastest.
//   bytes   forward x read, y written; backward y and dy read, dx written. Memory-bound: a number
//           is read again from the cache.
//   order   lanes first, then a tree over the warp (shuffles)
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/pixel.cuh"
#include "kernels/shapes.h"

namespace convoy::CONVOY_DEVICE {

namespace {

constexpr int kGroupWarps = 8;

struct NormGroups {
    Divisor groups, size;     // of an image; channels of a group
    int numbers, gap, count;  // of a group; between its pixels; groups of all images

    // Calls f(index) for the numbers of group g that this lane takes.
    template <class F>
    __device__ __forceinline__ void for_each(int g, F&& f) const {
        const int before = g / groups * groups.by;  // groups of earlier images
        const size_t first = size_t(before) * numbers + (g - before) * size.by;
        for (int i = threadIdx.x; i < numbers; i += 32)
            f(first + i + (gap ? size_t(i / size) * gap : 0));
    }
};

// y may be x: a lane reads only the numbers that it writes.
template <class T>
__global__ void group_norm_kernel(const T* x, NormGroups all, float eps, T* y, float* rstd) {
    const int g = blockIdx.x * kGroupWarps + threadIdx.y;
    if (g >= all.count) return;  // a whole warp
    float sum = 0, squares = 0;
    all.for_each(g, [&](size_t i) { sum += load(x + i); });
    const float mean = warp_sum(sum) / float(all.numbers);
    all.for_each(g, [&](size_t i) {
        const float off = load(x + i) - mean;
        squares += off * off;
    });
    const float scale = 1 / sqrtf(warp_sum(squares) / float(all.numbers) + eps);
    all.for_each(g, [&](size_t i) { store(y + i, (load(x + i) - mean) * scale); });
    if (rstd && threadIdx.x == 0) rstd[g] = scale;
}

// dx may be dy.
template <class T>
__global__ void group_norm_grad_kernel(const T* y, NormGroups all, const float* rstd, const T* dy,
                                       T* dx) {
    const int g = blockIdx.x * kGroupWarps + threadIdx.y;
    if (g >= all.count) return;  // a whole warp
    float sum = 0, products = 0;
    all.for_each(g, [&](size_t i) {
        const float grad = load(dy + i);
        sum += grad, products += grad * load(y + i);
    });
    const float mean = warp_sum(sum) / float(all.numbers),
                slope = warp_sum(products) / float(all.numbers);
    const float scale = rstd[g];
    all.for_each(
        g, [&](size_t i) { store(dx + i, scale * (load(dy + i) - mean - load(y + i) * slope)); });
}

// Calls launch(T(), NormGroups, blocks).
template <class F>
void over_groups(Tensor x, int groups, F&& launch) {
    ENSURE(groups > 0 && x.C % groups == 0, x.C, " channels in ", groups, " groups");
    if (x.elems() == 0) return;
    const int size = x.C / groups, count = x.N * groups;
    const NormGroups all{groups, size, x.H * x.W * size, x.C - size, count};
    with_type(x.type, [&](auto type) { launch(type, all, ceil_div(count, kGroupWarps)); });
    CUDA_LAUNCHED();
}

}  // namespace

void CudaBackend::group_norm(Tensor x, int groups, float eps, Tensor y, float* rstd) {
    check_same("x", x, "y", y);
    over_groups(x, groups, [&]<class T>(T, NormGroups all, int blocks) {
        group_norm_kernel<T><<<blocks, dim3(32, kGroupWarps), 0, stream_>>>(
            elements<T>(x), all, eps, elements<T>(y), rstd);
    });
}

void CudaBackend::group_norm_grad(Tensor y, int groups, const float* rstd, Tensor dy, Tensor dx) {
    check_same("y", y, "dy", dy);
    check_same("y", y, "dx", dx);
    over_groups(y, groups, [&]<class T>(T, NormGroups all, int blocks) {
        group_norm_grad_kernel<T><<<blocks, dim3(32, kGroupWarps), 0, stream_>>>(
            elements<T>(y), all, rstd, elements<T>(dy), elements<T>(dx));
    });
}

}  // namespace convoy::CONVOY_DEVICE
