// elementwise.cu — one number in, one out.   Twin: kernels/cpu/elementwise.cpp
//
// clang-format off
//                                              bytes per number   of bf16
//   activate        x = max(0, x), or as Activate     8              4
//   activate_grad   dy = y > 0 ? dy : 0              12              6
//   scale_channels  y = x·s of the image              8              4
//   …_grad          dx = dy·s, ds = Σ dy·x           12              6
//   add             x += y                           12              6
//   copy_channels   y = x, or y += x              8, 12           4, 6     of the narrower tensor
//   copy            y = x, rounded                                   6     between float and bf16
//   normalise       x = pixel·scale + bias            5              3     from bytes
//   dropout         x = keep ? x/(1−p) : 0            8              4     and a Philox block per 4
// clang-format on
//
//   grid    blocks of 256 threads, as many as run at once. A thread takes 16 bytes, four floats or
//           eight bf16, and then those that are a whole grid further: a warp reads 512 neighbouring
//           bytes at a time. Dropout goes number by number.
//   bound   by memory, all of them.
//   order   ds: the pixels of a thread, then the threads of a channel (moments.cuh).
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/moments.cuh"
#include "kernels/cuda/pixel.cuh"
#include "kernels/shapes.h"
#include "src/base/random.h"

namespace convoy::CONVOY_DEVICE {

namespace {

struct Add {
    __device__ float operator()(float x, float y) const { return x + y; }
};

// x = f(x, y), n numbers. y may be x.
template <class T, class F>
__global__ void map_kernel(T* x, const T* y, size_t n, F f) {
    constexpr int kCount = 16 / sizeof(T);
    using P = Pack<T, kCount>;
    const size_t packs = fits<P>(x) && fits<P>(y) ? n / kCount : 0;
    for (size_t i = first_index(); i < packs; i += grid_width()) {
        P a = reinterpret_cast<const P*>(x)[i];
        const P b = reinterpret_cast<const P*>(y)[i];
#pragma unroll
        for (int e = 0; e < kCount; ++e) store(&a.at[e], f(load(&a.at[e]), load(&b.at[e])));
        reinterpret_cast<P*>(x)[i] = a;
    }
    for (size_t i = packs * kCount + first_index(); i < n; i += grid_width())
        store(x + i, f(load(x + i), load(y + i)));
}

// Row by row to = from or to += from, packs of the first channels of each.
template <class T, int kWide>
__global__ void copy_channels_kernel(T* to, int to_C, const T* from, int from_C, Pixels packs,
                                     bool add) {
    for (size_t i = first_index(); i < packs.count; i += grid_width()) {
        const Pixel at = packs[i];
        const size_t row = size_t(at.n), c = size_t(at.c);
        float v[kWide], sum[kWide] = {};
        load_pack(v, from + row * from_C + c);
        if (add) load_pack(sum, to + row * to_C + c);
#pragma unroll
        for (int e = 0; e < kWide; ++e) v[e] = add ? sum[e] + v[e] : v[e];
        store_pack(to + row * to_C + c, v);
    }
}

// Image blockIdx.y: y = x·s. If kGrad, x and y are gradients, and ds = Σ x·of.
template <class T, int kWide, bool kGrad>
__global__ void scale_channels_kernel(const T* x, const T* s, int pixels, int C, T* y,
                                      [[maybe_unused]] const T* of, [[maybe_unused]] T* ds) {
    const int c = first_channel<kWide>();
    if (!kGrad && c >= C) return;  // of a gradient all threads add
    const size_t image = size_t(blockIdx.y) * C + c;
    float scales[kWide], v[kWide];
    [[maybe_unused]] float sums[kWide] = {}, factors[kWide];
    if (c < C) load_pack(scales, s + image);
    for (int pixel = threadIdx.y; pixel < pixels && c < C; pixel += blockDim.y) {
        const size_t at = (size_t(blockIdx.y) * pixels + pixel) * C + c;
        load_pack(v, x + at);
        if constexpr (kGrad) load_pack(factors, of + at);
#pragma unroll
        for (int e = 0; e < kWide; ++e) {
            if constexpr (kGrad) sums[e] += v[e] * factors[e];
            v[e] *= scales[e];
        }
        store_pack(y + at, v);
    }
    if constexpr (kGrad) {
        add_columns(sums);
        if (threadIdx.y == 0 && c < C) store_pack(ds + image, sums);
    }
}

struct Same {
    __device__ Same from(size_t) const { return {}; }
    __device__ float operator()(float v, int) const { return v; }
};
// The factors of three channels; those of a single channel are given three times.
struct Normalise {
    float scale[3], bias[3];
    __device__ Normalise from(size_t i) const {  // channel of number i first
        const int c = int(uint32_t(i) % 3), d = c == 2 ? 0 : c + 1, e = 3 - c - d;
        return {{scale[c], scale[d], scale[e]}, {bias[c], bias[d], bias[e]}};
    }
    __device__ float operator()(float v, int e) const { return v * scale[e % 3] + bias[e % 3]; }
};

// to[i] = f.from(i)(from[i], 0), n numbers.
template <class To, class From, class F>
__global__ void convert_kernel(To* __restrict__ to, const From* __restrict__ from, size_t n, F f) {
    constexpr int kCount = sizeof(From) == 1 ? 16 : 8;  // 16 bytes of the narrower type
    const bool fit = fits<Pack<To, kCount>>(to) && fits<Pack<From, kCount>>(from);
    const size_t packs = fit ? n / kCount : 0;
    for (size_t i = first_index(); i < packs; i += grid_width()) {
        const F of_pack = f.from(i * kCount);
        float v[kCount];
        load_pack(v, from + i * kCount);
#pragma unroll
        for (int e = 0; e < kCount; ++e) v[e] = of_pack(v[e], e);
        store_pack(to + i * kCount, v);
    }
    for (size_t i = packs * kCount + first_index(); i < n; i += grid_width())
        store(to + i, f.from(i)(load(from + i), 0));
}

// A thread draws one Philox block and applies its four words: elements 4·block … 4·block + 3 of
// image n, with the counter of Random (src/base/random.h).
template <class T>
__global__ void dropout_kernel(T* x, int images, size_t row, Divisor blocks, float p,
                               const Draws* draws, const uint64_t* ids, uint16_t purpose) {
    const float scale = 1 / (1 - p);
    const uint64_t seed = draws->seed;
    const uint32_t epoch = draws->epoch;
    for (size_t task = first_index(); task < size_t(images) * blocks.by; task += grid_width()) {
        const int n = int(task) / blocks, block = int(task) - n * blocks.by;
        const uint64_t id = ids[n];
        uint32_t words[4][1] = {{uint32_t(block)},
                                {uint32_t(id)},
                                {epoch},
                                {uint32_t(purpose) | uint32_t(id >> 32) << 16}};
        philox4x32(words, seed);
        const size_t first = size_t(block) * 4;
        for (size_t j = 0; j < 4 && first + j < row; ++j) {
            T* v = x + n * row + first + j;
            store(v, float(words[j][0] >> 8) * 0x1p-24f >= p ? load(v) * scale : 0.0f);
        }
    }
}

}  // namespace

template <class F>
void CudaBackend::map(Tensor x, Tensor y, F f) {
    with_type(x.type, [&]<class T>(T) {
        const size_t threads = x.bytes() / 16 + 16;  // and for what is left
        map_kernel<T, F><<<blocks_for(threads), kThreads, 0, stream_>>>(
            elements<T>(x), elements<T>(y), x.elems(), f);
        CUDA_LAUNCHED();
    });
}

void CudaBackend::activate(Tensor x, Activation f) {
    with_any_kind(f, [&](auto kind) { map(x, x, Activate<kind()>{f.slope}); });
}

void CudaBackend::activate_grad(Tensor of, Tensor dy, Activation f) {
    check_same("y", of, "dy", dy);
    with_any_kind(f, [&](auto kind) { map(dy, of, ActivateGrad<kind()>{f.slope}); });
}

void CudaBackend::scale_channels(Tensor x, Tensor s, Tensor y) {
    check_scales(x, s, "y", y);
    if (x.elems() == 0) return;
    with_columns({x, s, y}, unsigned(x.N), [&]<class T>(T, auto wide, dim3 grid, dim3 block) {
        scale_channels_kernel<T, wide(), false><<<grid, block, 0, stream_>>>(
            elements<T>(x), elements<T>(s), x.H * x.W, x.C, elements<T>(y), nullptr, nullptr);
        CUDA_LAUNCHED();
    });
}

void CudaBackend::scale_channels_grad(Tensor x, Tensor s, Tensor dy, Tensor dx, Tensor ds) {
    check_scales(x, s, "dy", dy);
    check_scales(x, ds, "dx", dx);
    if (x.elems() == 0) return;
    const std::initializer_list<Tensor> all = {x, s, dy, dx, ds};
    with_columns(all, unsigned(x.N), [&]<class T>(T, auto wide, dim3 grid, dim3 block) {
        scale_channels_kernel<T, wide(), true>
            <<<grid, block, 0, stream_>>>(elements<T>(dy), elements<T>(s), x.H * x.W, x.C,
                                          elements<T>(dx), elements<T>(x), elements<T>(ds));
        CUDA_LAUNCHED();
    });
}

void CudaBackend::copy_channels(Tensor to, Tensor from, int first, bool add) {
    check_channels(to, from, first);
    if (std::min(to.elems(), from.elems()) == 0) return;
    const int channels = std::min(to.C, from.C);
    const size_t size = bytes_of(to.type) * size_t(first);
    Tensor out = to, in = from;  // from their first channel on
    if (to.C > channels) out.data = static_cast<char*>(to.data) + size;
    if (from.C > channels) in.data = static_cast<char*>(from.data) + size;
    with_pack({out, in}, [&]<class T>(T, auto wide) {
        const Pixels packs({int(to.elems() / size_t(to.C)), 1, 1, channels}, wide());
        copy_channels_kernel<T, wide()><<<blocks_for(packs.count), kThreads, 0, stream_>>>(
            elements<T>(out), to.C, elements<T>(in), from.C, packs, add);
        CUDA_LAUNCHED();
    });
}

void CudaBackend::add(Tensor x, Tensor y) {
    check_same("x", x, "y", y);
    map(x, y, Add{});
}

void CudaBackend::copy(Tensor to, Tensor from) {
    check_copy(to, from);
    if (to.type == from.type) {
        CUDA_CHECK(
            cudaMemcpyAsync(to.data, from.data, to.bytes(), cudaMemcpyDeviceToDevice, stream_));
        return;
    }
    const dim3 blocks = blocks_for(from.elems() / 8 + 8);
    if (to.type == Type::kBfloat16)
        convert_kernel<bf16, float, Same><<<blocks, kThreads, 0, stream_>>>(
            elements<bf16>(to), from.floats(), from.elems(), Same{});
    else
        convert_kernel<float, bf16, Same><<<blocks, kThreads, 0, stream_>>>(
            to.floats(), elements<bf16>(from), from.elems(), Same{});
    CUDA_LAUNCHED();
}

void CudaBackend::normalise(const uint8_t* pixels, const InputStatistics& statistics, Tensor x) {
    Normalise f;
    for (int c = 0; c < 3; ++c)
        f.scale[c] = statistics.scale(c % x.C), f.bias[c] = statistics.bias(c % x.C);
    with_type(x.type, [&]<class T>(T) {
        convert_kernel<T, uint8_t, Normalise>
            <<<blocks_for(x.elems() / 8 + 8), kThreads, 0, stream_>>>(elements<T>(x), pixels,
                                                                      x.elems(), f);
        CUDA_LAUNCHED();
    });
}

void CudaBackend::dropout(Tensor x, float p, const Draws& draws,
                          std::span<const uint64_t> sample_ids, uint16_t purpose) {
    check_dropout(x, p, sample_ids);
    const uint64_t* ids = memory_.pass(sample_ids);
    const Draws* which = memory_.pass(std::span(&draws, 1));
    const size_t row = x.shape().row_elems(), blocks = (row + 3) / 4;
    ENSURE(x.N * blocks <= INT32_MAX, "dropout of a tensor ", x.shape().text());
    with_type(x.type, [&]<class T>(T) {
        dropout_kernel<T><<<blocks_for(x.N * blocks), kThreads, 0, stream_>>>(
            elements<T>(x), x.N, row, Divisor(int(blocks)), p, which, ids, purpose);
        CUDA_LAUNCHED();
    });
}

}  // namespace convoy::CONVOY_DEVICE
