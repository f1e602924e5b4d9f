// batch_norm.cu — normalising with the statistics of groups of images (moments.cu), and gradients,
// NHWC.   Twin: kernels/cpu/batch_norm.cpp
//
//   y    = act(gamma·(x − mean)·rstd + beta + residual)
//   dx   = gamma·rstd·(dz − mean(dz) − x̂·mean(dz·x̂))
//          with x̂ = (x − mean)·rstd, dz = dy·act'(gamma·x̂ + beta), or dy·act'(y) with a residual
//
//   rows    a row is a pixel: C numbers. Each group is cut into `parts` slabs of rows.
//   grid    (⌈C/columns of a block⌉, groups·parts) blocks of 256 threads (moments.cuh). A thread
//           takes 16 bytes of a row; threadIdx.y strides over the rows of the slab.
//   shared  16·256 floats, in the sums of bf16
//   bytes   forward x read, y written; backward 2·(x, dy) + dx, with a residual
//           also y read and dresidual written. A number has 4 bytes, in bf16 2.
//           Memory-bound. The statistics read x once more, unless a convolution has computed them.
//           Statistics, gamma and beta are floats.
//   order   rows of a thread, then threads of a column, then slabs in double: slabs of a thread,
//           then 32 threads. Each sum is in order.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/moments.cuh"
#include "kernels/shapes.h"

namespace convoy::CONVOY_DEVICE {

const int* CudaBackend::bounds(GroupBounds groups) {
    if (memory_.is_recording()) return memory_.pass(groups);
    int* const there = memory_.scratch<int>(kSlotBounds, groups.size());
    if (there != bounds_there_ || !std::ranges::equal(groups, bounds_)) {
        CUDA_CHECK(cudaMemcpyAsync(there, memory_.pass(groups), groups.size_bytes(),
                                   cudaMemcpyDeviceToDevice, stream_));
        bounds_.assign(groups.begin(), groups.end()), bounds_there_ = there;
    }
    return there;
}

namespace {

// Each group is cut into `parts` slabs of rows.
struct Slabs : Groups {
    int64_t parts;
};
// The slab of this block: rows [begin, end) of group g.
struct Slab {
    int g;
    int64_t begin, end;
    __device__ Slab(const Slabs& slabs, int slab) : g(slab / int(slabs.parts)) {
        const int64_t first = slabs.first_row(g), rows = slabs.rows(g),
                      part = slab % int(slabs.parts);
        begin = first + rows * part / slabs.parts;
        end = first + rows * (part + 1) / slabs.parts;
    }
};

// What a thread needs of its channels c … c + kWide − 1.
template <int kWide>
struct Channels {
    float at[kWide];
    __device__ Channels(const float* from, int c) {
        for (int e = 0; e < kWide; ++e) at[e] = from[c + e];
    }
    __device__ float operator[](int e) const { return at[e]; }
};
// dz = dy·act'(of), where of = y, or (x − center)·scale + shift if y is null.
template <int kWide, class T, class A, class B, class D>
__device__ __forceinline__ void to_dz(float (&dz)[kWide], const float (&x)[kWide], const T* y,
                                      const A& center, const B& scale, const D& shift,
                                      Activation act) {
    if (!act) return;
    float of[kWide];
    if (y)
        load_pack(of, y);
    else
        for (int e = 0; e < kWide; ++e) of[e] = (x[e] - center[e]) * scale[e] + shift[e];
#pragma unroll
    for (int e = 0; e < kWide; ++e) dz[e] = ActivateGrad{act}(dz[e], of[e]);
}

// y = act((x − center)·scale + shift + residual) in rows [begin, end). y may be x or the residual.
template <int kWide, class T, class A, class B, class D>
__device__ __forceinline__ void normalise(const T* x, const T* residual, T* y, int C, int c,
                                          int64_t begin, int64_t end, const A& center,
                                          const B& scale, const D& shift, Activation act) {
    for (int64_t row = begin + threadIdx.y; row < end; row += blockDim.y) {
        float v[kWide], addend[kWide] = {};
        load_pack(v, x + row * C + c);
        if (residual) load_pack(addend, residual + row * C + c);
#pragma unroll
        for (int e = 0; e < kWide; ++e) {
            v[e] = (v[e] - center[e]) * scale[e] + shift[e];
            if (residual) v[e] += addend[e];
            v[e] = Activate{act}(v[e], 0);
        }
        store_pack(y + row * C + c, v);
    }
}

template <class T, int kWide>
__global__ void normalise_kernel(const T* x, Slabs slabs, const float* __restrict__ gamma,
                                 const float* __restrict__ beta, const T* residual, Activation act,
                                 const float* __restrict__ mean_rstd, T* y) {
    const Slab slab(slabs, blockIdx.y);
    const int C = slabs.C, c = first_channel<kWide>();
    if (c >= C || slab.begin >= slab.end) return;
    const float* mean = mean_rstd + size_t(slab.g) * 2 * C;
    const Channels<kWide> center(mean, c), shift(beta, c), rstd(mean + C, c);
    Channels<kWide> scale(gamma, c);
    for (int e = 0; e < kWide; ++e) scale.at[e] *= rstd[e];
    normalise<kWide>(x, residual, y, C, c, slab.begin, slab.end, center, scale, shift, act);
}

// parts[slab][0][c] = Σ dz, parts[slab][1][c] = Σ dz·x̂; dresidual = dz, unless null. It may be dy:
// each number is read before it is written, by the same thread.
template <class T, int kWide>
__global__ void gradient_sums_kernel(const T* __restrict__ x, const T* __restrict__ y, const T* dy,
                                     Slabs slabs, const float* __restrict__ gamma,
                                     const float* __restrict__ beta, Activation act,
                                     const float* __restrict__ mean_rstd, T* dresidual,
                                     float* __restrict__ parts) {
    const Slab slab(slabs, blockIdx.y);
    const int C = slabs.C, c = first_channel<kWide>();
    float sums[2 * kWide] = {};  // Σ dz, then Σ dz·x̂
    if (c < C && slab.begin < slab.end) {
        const float* mean = mean_rstd + size_t(slab.g) * 2 * C;
        const Channels<kWide> center(mean, c), rstd(mean + C, c), shift(beta, c);
        Channels<kWide> scale(gamma, c);
        for (int e = 0; e < kWide; ++e) scale.at[e] *= rstd[e];
#pragma unroll 2
        for (int64_t row = slab.begin + threadIdx.y; row < slab.end; row += blockDim.y) {
            const int64_t at = row * C + c;
            float dz[kWide], v[kWide];
            load_pack(dz, dy + at);
            load_pack(v, x + at);
            to_dz(dz, v, dresidual ? y + at : nullptr, center, scale, shift, act);
            if (dresidual) store_pack(dresidual + at, dz);
#pragma unroll
            for (int e = 0; e < kWide; ++e) {
                sums[e] += dz[e];
                sums[kWide + e] += dz[e] * ((v[e] - center[e]) * rstd[e]);
            }
        }
    }
    add_columns(sums);
    if (threadIdx.y > 0 || c >= C) return;
    float* to = parts + size_t(blockIdx.y) * 2 * C + c;
    for (int e = 0; e < kWide; ++e) to[e] = sums[e], to[C + e] = sums[kWide + e];
}

// dgamma and dbeta, and for each group the means of dz and of dz·x̂, times rstd. The threads of a
// column share the slabs of a group.
__global__ void finish_gradient_kernel(Slabs slabs, const float* __restrict__ parts,
                                       const float* __restrict__ mean_rstd,
                                       float* __restrict__ factors, float* __restrict__ dgamma,
                                       float* __restrict__ dbeta) {
    const int C = slabs.C, c = first_channel<1>();
    double all = 0, all_dots = 0;
    for (int g = 0; g < slabs.count; ++g) {
        const double M = double(slabs.rows(g));
        if (M == 0) continue;  // in every thread
        double sums[2] = {};   // of dz, and of dz·x̂
        for (int64_t part = threadIdx.y; part < slabs.parts && c < C; part += blockDim.y) {
            const float* from = parts + size_t(g * slabs.parts + part) * 2 * C;
            sums[0] += from[c], sums[1] += from[C + c];
        }
        add_columns(sums);
        if (threadIdx.y == 0 && c < C) {
            factors[size_t(g) * 2 * C + c] = float(sums[0] / M);
            factors[(size_t(g) * 2 + 1) * C + c] =
                float(sums[1] / M * mean_rstd[(size_t(g) * 2 + 1) * C + c]);
            all += sums[0], all_dots += sums[1];
        }
    }
    if (threadIdx.y > 0 || c >= C) return;
    if (dgamma) dgamma[c] += float(all_dots);
    if (dbeta) dbeta[c] += float(all);
}

// dx may be dy.
template <class T, int kWide>
__global__ void gradient_kernel(const T* __restrict__ x, const T* dy, Slabs slabs,
                                const float* __restrict__ gamma, const float* __restrict__ beta,
                                Activation act, const float* __restrict__ mean_rstd,
                                const float* __restrict__ factors, T* dx) {
    const Slab slab(slabs, blockIdx.y);
    const int C = slabs.C, c = first_channel<kWide>();
    if (c >= C || slab.begin >= slab.end) return;
    const float* mean = mean_rstd + size_t(slab.g) * 2 * C;
    const float* factor = factors + size_t(slab.g) * 2 * C;
    const Channels<kWide> center(mean, c), rstd(mean + C, c), shift(beta, c);
    const Channels<kWide> mean_dz(factor, c), slope(factor + C, c);
    Channels<kWide> scale(gamma, c);
    for (int e = 0; e < kWide; ++e) scale.at[e] *= rstd[e];
    for (int64_t row = slab.begin + threadIdx.y; row < slab.end; row += blockDim.y) {
        const int64_t at = row * C + c;
        float dz[kWide], v[kWide];
        load_pack(dz, dy + at);
        load_pack(v, x + at);
        to_dz(dz, v, static_cast<const T*>(nullptr), center, scale, shift, act);
#pragma unroll
        for (int e = 0; e < kWide; ++e)
            v[e] = scale[e] * (dz[e] - mean_dz[e] - (v[e] - center[e]) * slope[e]);
        store_pack(dx + at, v);
    }
}

__device__ __forceinline__ float scale_of(const float* gamma, const float* var, float eps, int c) {
    return float(double(gamma[c]) / sqrt(double(var[c]) + double(eps)));
}

template <class T, int kWide>
__global__ void eval_kernel(const T* x, size_t rows, int C, const float* __restrict__ gamma,
                            const float* __restrict__ beta, const float* __restrict__ mean,
                            const float* __restrict__ var, const T* residual, Activation act,
                            float eps, T* y) {
    const int c = first_channel<kWide>();
    if (c >= C) return;
    const Channels<kWide> center(mean, c), shift(beta, c);
    float scale[kWide];
    for (int e = 0; e < kWide; ++e) scale[e] = scale_of(gamma, var, eps, c + e);
    const size_t begin = rows * blockIdx.y / gridDim.y, end = rows * (blockIdx.y + 1) / gridDim.y;
    normalise<kWide>(x, residual, y, C, c, begin, end, center, scale, shift, act);
}

template <class T, int kWide>
__global__ void eval_gradient_kernel(const T* __restrict__ x, const T* dy, size_t rows, int C,
                                     const float* __restrict__ gamma,
                                     const float* __restrict__ beta, const float* __restrict__ mean,
                                     const float* __restrict__ var, Activation act, float eps,
                                     T* dx) {
    const int c = first_channel<kWide>();
    if (c >= C) return;
    const Channels<kWide> center(mean, c), shift(beta, c);
    float scale[kWide];
    for (int e = 0; e < kWide; ++e) scale[e] = scale_of(gamma, var, eps, c + e);
    const size_t begin = rows * blockIdx.y / gridDim.y, end = rows * (blockIdx.y + 1) / gridDim.y;
    for (size_t row = begin + threadIdx.y; row < end; row += blockDim.y) {
        float dz[kWide], v[kWide] = {};
        load_pack(dz, dy + row * C + c);
        if (act) load_pack(v, x + row * C + c);
        to_dz(dz, v, static_cast<const T*>(nullptr), center, scale, shift, act);
#pragma unroll
        for (int e = 0; e < kWide; ++e) dz[e] *= scale[e];
        store_pack(dx + row * C + c, dz);
    }
}

// About 512 slabs in all, by shapes alone; a slab has some 64 rows at least.
Slabs cut(GroupBounds bounds, Tensor x, const int* bounds_there) {
    const int count = int(bounds.size()) - 1;
    const int64_t image_rows = int64_t(x.H) * x.W, rows = x.N * image_rows;
    const int64_t parts = std::min<int64_t>(512 / std::max(1, count), rows / count / 64);
    ENSURE(count * std::max<int64_t>(1, parts) <= 65535, "batch norm over ", count, " groups");
    return {{bounds_there, count, x.C, image_rows}, std::max<int64_t>(1, parts)};
}
unsigned eval_slabs(size_t rows) { return unsigned(std::clamp<size_t>(rows / 64, 1, 1024)); }

}  // namespace

void CudaBackend::batch_norm(Tensor x, GroupBounds groups, const float* mean_rstd,
                             const float* gamma, const float* beta, Tensor residual, Activation act,
                             Tensor y) {
    check_batch_norm(x, residual, act, y);
    check_groups(x, groups);
    if (x.elems() == 0) return;
    const Slabs slabs = cut(groups, x, bounds(groups));
    const unsigned count = unsigned(slabs.count * slabs.parts);
    with_columns({x, y, residual}, count, [&]<class T>(T, auto wide, dim3 grid, dim3 block) {
        normalise_kernel<T, wide()><<<grid, block, 0, stream_>>>(elements<T>(x), slabs, gamma, beta,
                                                                 elements<T>(residual), act,
                                                                 mean_rstd, elements<T>(y));
        CUDA_LAUNCHED();
    });
}

void CudaBackend::batch_norm_grad(Tensor x, Tensor y, Tensor dy, GroupBounds groups,
                                  const float* gamma, const float* beta, Activation act,
                                  const float* mean_rstd, Tensor dx, Tensor dresidual,
                                  float* dgamma, float* dbeta) {
    check_batch_norm_grad(x, y, dy, act, dx, dresidual);
    check_groups(x, groups);
    if (x.elems() == 0) return;
    const int C = x.C;
    const Slabs slabs = cut(groups, x, bounds(groups));
    const unsigned count = unsigned(slabs.count * slabs.parts);
    float* parts = memory_.scratch<float>(kSlotSums, size_t(count) * 2 * C);
    float* factors = memory_.scratch<float>(kSlotFactors, size_t(slabs.count) * 2 * C);
    with_columns({x, act && dresidual ? y : x, dy, dx, dresidual}, count,
                 [&]<class T>(T, auto wide, dim3 grid, dim3 block) {
                     gradient_sums_kernel<T, wide()><<<grid, block, 0, stream_>>>(
                         elements<T>(x), elements<T>(y), elements<T>(dy), slabs, gamma, beta, act,
                         mean_rstd, elements<T>(dresidual), parts);
                     CUDA_LAUNCHED();
                     const dim3 few =
                         column_block(std::min(C, 8));  // side by side: the slabs are many
                     finish_gradient_kernel<<<ceil_div(C, few.x), few, 0, stream_>>>(
                         slabs, parts, mean_rstd, factors, dgamma, dbeta);
                     CUDA_LAUNCHED();
                     gradient_kernel<T, wide()><<<grid, block, 0, stream_>>>(
                         elements<T>(x), elements<T>(dresidual ? dresidual : dy), slabs, gamma,
                         beta, dresidual ? Activation{Activation::kNone} : act, mean_rstd, factors,
                         elements<T>(dx));
                     CUDA_LAUNCHED();
                 });
}

void CudaBackend::batch_norm_eval(Tensor x, const float* gamma, const float* beta,
                                  const float* mean, const float* var, Tensor residual,
                                  Activation act, float eps, Tensor y) {
    check_batch_norm(x, residual, act, y);
    if (x.elems() == 0) return;
    const size_t rows = x.elems() / x.C;
    with_columns(
        {x, y, residual}, eval_slabs(rows), [&]<class T>(T, auto wide, dim3 grid, dim3 block) {
            eval_kernel<T, wide()>
                <<<grid, block, 0, stream_>>>(elements<T>(x), rows, x.C, gamma, beta, mean, var,
                                              elements<T>(residual), act, eps, elements<T>(y));
            CUDA_LAUNCHED();
        });
}

void CudaBackend::batch_norm_eval_grad(Tensor x, Tensor y, Tensor dy, const float* gamma,
                                       const float* beta, const float* mean, const float* var,
                                       Activation act, float eps, Tensor dx, Tensor dresidual) {
    check_batch_norm_grad(x, y, dy, act, dx, dresidual);
    if (dy.elems() == 0) return;
    if (dresidual) {
        if (dresidual.data != dy.data) copy(dresidual, dy);
        if (act) activate_grad(y, dresidual, act);
        dy = dresidual;
        act.kind = Activation::kNone;
    }
    const size_t rows = dy.elems() / dy.C;
    with_columns({x, dy, dx}, eval_slabs(rows), [&]<class T>(T, auto wide, dim3 grid, dim3 block) {
        eval_gradient_kernel<T, wide()>
            <<<grid, block, 0, stream_>>>(elements<T>(x), elements<T>(dy), rows, dy.C, gamma, beta,
                                          mean, var, act, eps, elements<T>(dx));
        CUDA_LAUNCHED();
    });
}

}  // namespace convoy::CONVOY_DEVICE
