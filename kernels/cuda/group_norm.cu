// group_norm.cu — over the pixels and channels of each group.   Twin: kernels/cpu/group_norm.cpp
//
//   y  = (x − mean)·rstd          dx = rstd·(dy − mean(dy) − y·mean(dy·y))
//
//   grid    one warp a group of an image, 8 warps a block: neighbouring groups share cache lines.
//           Lane l takes the packs l, l+32, … of the group; its channels are fastest. A pack has 16
//           bytes if the channels of a group are whole packs, else one number.
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
    Divisor groups, size;   // of an image; packs of channels of a group
    int packs, gap, count;  // of a group; between its pixels, in packs; groups of all images
    float numbers;          // of a group

    // Calls f(pack, index of its first number) for the packs of x in group g that this lane takes.
    template <int kWide, class T, class F>
    __device__ __forceinline__ void for_each(const T* x, int g, F&& f) const {
        const int before = g / groups * groups.by;  // groups of earlier images
        const size_t first = size_t(before) * packs + (g - before) * size.by;
        for (int i = threadIdx.x; i < packs; i += 32) {
            const size_t at = (first + i + (gap ? size_t(i / size) * gap : 0)) * kWide;
            float pack[kWide];
            load_pack(pack, x + at);
            f(pack, at);
        }
    }
};

// y may be x: a lane reads only the numbers that it writes.
template <class T, int kWide>
__global__ void group_norm_kernel(const T* x, NormGroups all, float eps, T* y, float* rstd) {
    const int g = blockIdx.x * kGroupWarps + threadIdx.y;
    if (g >= all.count) return;  // a whole warp
    float sum = 0, squares = 0;
    all.for_each<kWide>(x, g, [&](auto& pack, size_t) {
        for (const float v : pack) sum += v;
    });
    const float mean = warp_sum(sum) / all.numbers;
    all.for_each<kWide>(x, g, [&](auto& pack, size_t) {
        for (const float v : pack) squares += (v - mean) * (v - mean);
    });
    const float scale = 1 / sqrtf(warp_sum(squares) / all.numbers + eps);
    all.for_each<kWide>(x, g, [&](auto& pack, size_t at) {
        for (float& v : pack) v = (v - mean) * scale;
        store_pack(y + at, pack);
    });
    if (rstd && threadIdx.x == 0) rstd[g] = scale;
}

// dx may be dy.
template <class T, int kWide>
__global__ void group_norm_grad_kernel(const T* y, NormGroups all, const float* rstd, const T* dy,
                                       T* dx) {
    const int g = blockIdx.x * kGroupWarps + threadIdx.y;
    if (g >= all.count) return;  // a whole warp
    float sum = 0, products = 0, v[kWide];
    all.for_each<kWide>(dy, g, [&](auto& grad, size_t at) {
        load_pack(v, y + at);
        for (int e = 0; e < kWide; ++e) sum += grad[e], products += grad[e] * v[e];
    });
    const float mean = warp_sum(sum) / all.numbers, slope = warp_sum(products) / all.numbers;
    all.for_each<kWide>(dy, g, [&](auto& grad, size_t at) {
        load_pack(v, y + at);
        for (int e = 0; e < kWide; ++e) grad[e] = rstd[g] * (grad[e] - mean - v[e] * slope);
        store_pack(dx + at, grad);
    });
}

// Calls launch(T(), numbers of a pack, NormGroups, blocks). y, z: the other tensors, like x.
template <class F>
void over_groups(Tensor x, Tensor y, Tensor z, int groups, F&& launch) {
    ENSURE(groups > 0 && x.C % groups == 0, x.C, " channels in ", groups, " groups");
    if (x.elems() == 0) return;
    const int size = x.C / groups, count = x.N * groups, pixels = x.H * x.W;
    Tensor group = x;
    group.C = size;
    with_pack({group, y, z}, [&](auto type, auto wide) {
        launch(type, wide,
               NormGroups{groups, size / wide(), pixels * size / wide(), (x.C - size) / wide(),
                          count, float(pixels * size)},
               ceil_div(count, kGroupWarps));
    });
    CUDA_LAUNCHED();
}

}  // namespace

void CudaBackend::group_norm(Tensor x, int groups, float eps, Tensor y, float* rstd) {
    check_same("x", x, "y", y);
    over_groups(x, y, {}, groups, [&]<class T>(T, auto wide, NormGroups all, int blocks) {
        group_norm_kernel<T, wide()><<<blocks, dim3(32, kGroupWarps), 0, stream_>>>(
            elements<T>(x), all, eps, elements<T>(y), rstd);
    });
}

void CudaBackend::group_norm_grad(Tensor y, int groups, const float* rstd, Tensor dy, Tensor dx) {
    check_same("y", y, "dy", dy);
    check_same("y", y, "dx", dx);
    over_groups(y, dy, dx, groups, [&]<class T>(T, auto wide, NormGroups all, int blocks) {
        group_norm_grad_kernel<T, wide()><<<blocks, dim3(32, kGroupWarps), 0, stream_>>>(
            elements<T>(y), all, rstd, elements<T>(dy), elements<T>(dx));
    });
}

}  // namespace convoy::CONVOY_DEVICE
