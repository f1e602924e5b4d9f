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
// Numbers of a thread's channels in kCount rows that are `apart` numbers apart.
template <int kCount>
struct Rows {
    static constexpr int count = kCount;
    int64_t first, apart;
    __device__ int64_t operator[](int r) const { return first + r * apart; }
};
// Calls work(Rows) for each row of a thread's channels in rows [begin, end), kAtOnce rows at a
// time. work loads all of them first, because a load cannot pass a store to what may be the same
// tensor. The launch bounds of its kernels leave the compiler enough registers for that: without
// them it assumes blocks of 1024 threads, and loads the second row when the first one is done.
template <int kAtOnce, class Work>
__device__ __forceinline__ void for_rows(int64_t begin, int64_t end, int C, int c,
                                         const Work& work) {
    const int64_t apart = int64_t(blockDim.y) * C;
    const int step = blockDim.y;
    int64_t at = (begin + threadIdx.y) * C + c;
    int left = int(end - begin) - int(threadIdx.y);  // a tensor has less than 2³¹ rows
    for (; left > (kAtOnce - 1) * step; left -= kAtOnce * step, at += kAtOnce * apart)
        work(Rows<kAtOnce>{at, apart});
    for (; left > 0; left -= step, at += apart) work(Rows<1>{at, apart});
}

// dz = dy·act'(of), where of = y, or (x − center)·scale + shift if kFromX.
template <Activation::Kind kKind, bool kFromX, int kWide, class A, class B, class D>
__device__ __forceinline__ void to_dz(float (&dz)[kWide], const float (&x)[kWide],
                                      const float (&y)[kWide], const A& center, const B& scale,
                                      const D& shift) {
#pragma unroll
    for (int e = 0; e < kWide; ++e)
        dz[e] =
            ActivateGrad<kKind>{}(dz[e], kFromX ? (x[e] - center[e]) * scale[e] + shift[e] : y[e]);
}

// y = act((x − center)·scale + shift + residual) in rows [begin, end). y may be x or the residual.
template <Activation::Kind kKind, bool kResidual, int kWide, class T, class A, class B, class D>
__device__ __forceinline__ void normalise(const T* x, const T* residual, T* y, int C, int c,
                                          int64_t begin, int64_t end, const A& center,
                                          const B& scale, const D& shift) {
    for_rows<kResidual ? 2 : 4>(begin, end, C, c, [&](auto at) {
        float v[at.count][kWide];
        [[maybe_unused]] float addend[at.count][kWide];  // without a residual nothing reads it
#pragma unroll
        for (int r = 0; r < at.count; ++r) {
            load_pack(v[r], x + at[r]);
            if constexpr (kResidual) load_pack(addend[r], residual + at[r]);
        }
#pragma unroll
        for (int r = 0; r < at.count; ++r) {
#pragma unroll
            for (int e = 0; e < kWide; ++e) {
                v[r][e] = (v[r][e] - center[e]) * scale[e] + shift[e];
                if constexpr (kResidual) v[r][e] += addend[r][e];
                v[r][e] = Activate<kKind>{}(v[r][e], 0);
            }
            store_pack(y + at[r], v[r]);
        }
    });
}

// The slabs from the last to the first: the pass before has left the end of x in the L2 cache.
template <class T, int kWide, Activation::Kind kKind, bool kResidual>
__global__ void __launch_bounds__(kColumnThreads, 4)
    normalise_kernel(const T* x, Slabs slabs, const float* __restrict__ gamma,
                     const float* __restrict__ beta, const T* residual,
                     const float* __restrict__ mean_rstd, T* y) {
    const Slab slab(slabs, gridDim.y - 1 - blockIdx.y);
    const int C = slabs.C, c = first_channel<kWide>();
    if (c >= C || slab.begin >= slab.end) return;
    const float* mean = mean_rstd + size_t(slab.g) * 2 * C;
    const Channels<kWide> center(mean, c), shift(beta, c), rstd(mean + C, c);
    Channels<kWide> scale(gamma, c);
    for (int e = 0; e < kWide; ++e) scale.at[e] *= rstd[e];
    normalise<kKind, kResidual, kWide>(x, residual, y, C, c, slab.begin, slab.end, center, scale,
                                       shift);
}

// parts[slab][0][c] = Σ dz, parts[slab][1][c] = Σ dz·x̂; dresidual = dz, if there is a residual. It
// may be dy: each number is read before it is written, by the same thread.
template <class T, int kWide, Activation::Kind kKind, bool kResidual>
__global__ void __launch_bounds__(kColumnThreads, 3)
    gradient_sums_kernel(const T* __restrict__ x, const T* __restrict__ y, const T* dy, Slabs slabs,
                         const float* __restrict__ gamma, const float* __restrict__ beta,
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
        for_rows<2>(slab.begin, slab.end, C, c, [&](auto at) {
            constexpr bool kReadY = kResidual && kKind != Activation::kNone;
            float dz[at.count][kWide], v[at.count][kWide], of[at.count][kWide];
#pragma unroll
            for (int r = 0; r < at.count; ++r) {
                load_pack(dz[r], dy + at[r]);
                load_pack(v[r], x + at[r]);
                if constexpr (kReadY) load_pack(of[r], y + at[r]);
            }
#pragma unroll
            for (int r = 0; r < at.count; ++r) {
                to_dz<kKind, !kResidual>(dz[r], v[r], of[r], center, scale, shift);
                if constexpr (kResidual) store_pack(dresidual + at[r], dz[r]);
#pragma unroll
                for (int e = 0; e < kWide; ++e) {
                    sums[e] += dz[r][e];
                    sums[kWide + e] += dz[r][e] * ((v[r][e] - center[e]) * rstd[e]);
                }
            }
        });
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

// dx may be dy. The slabs from the last to the first, as in normalise_kernel.
template <class T, int kWide, Activation::Kind kKind>
__global__ void __launch_bounds__(kColumnThreads, 3)
    gradient_kernel(const T* __restrict__ x, const T* dy, Slabs slabs,
                    const float* __restrict__ gamma, const float* __restrict__ beta,
                    const float* __restrict__ mean_rstd, const float* __restrict__ factors, T* dx) {
    const Slab slab(slabs, gridDim.y - 1 - blockIdx.y);
    const int C = slabs.C, c = first_channel<kWide>();
    if (c >= C || slab.begin >= slab.end) return;
    const float* mean = mean_rstd + size_t(slab.g) * 2 * C;
    const float* factor = factors + size_t(slab.g) * 2 * C;
    const Channels<kWide> center(mean, c), rstd(mean + C, c), shift(beta, c);
    const Channels<kWide> mean_dz(factor, c), slope(factor + C, c);
    Channels<kWide> scale(gamma, c);
    for (int e = 0; e < kWide; ++e) scale.at[e] *= rstd[e];
    for_rows<2>(slab.begin, slab.end, C, c, [&](auto at) {
        float dz[at.count][kWide], v[at.count][kWide];
#pragma unroll
        for (int r = 0; r < at.count; ++r) load_pack(dz[r], dy + at[r]), load_pack(v[r], x + at[r]);
#pragma unroll
        for (int r = 0; r < at.count; ++r) {
            to_dz<kKind, true>(dz[r], v[r], v[r], center, scale, shift);
#pragma unroll
            for (int e = 0; e < kWide; ++e)
                v[r][e] = scale[e] * (dz[r][e] - mean_dz[e] - (v[r][e] - center[e]) * slope[e]);
            store_pack(dx + at[r], v[r]);
        }
    });
}

__device__ __forceinline__ float scale_of(const float* gamma, const float* var, float eps, int c) {
    return float(double(gamma[c]) / sqrt(double(var[c]) + double(eps)));
}

template <class T, int kWide, Activation::Kind kKind, bool kResidual>
__global__ void __launch_bounds__(kColumnThreads, 4)
    eval_kernel(const T* x, size_t rows, int C, const float* __restrict__ gamma,
                const float* __restrict__ beta, const float* __restrict__ mean,
                const float* __restrict__ var, const T* residual, float eps, T* y) {
    const int c = first_channel<kWide>();
    if (c >= C) return;
    const Channels<kWide> center(mean, c), shift(beta, c);
    float scale[kWide];
    for (int e = 0; e < kWide; ++e) scale[e] = scale_of(gamma, var, eps, c + e);
    const size_t begin = rows * blockIdx.y / gridDim.y, end = rows * (blockIdx.y + 1) / gridDim.y;
    normalise<kKind, kResidual, kWide>(x, residual, y, C, c, begin, end, center, scale, shift);
}

template <class T, int kWide, Activation::Kind kKind>
__global__ void eval_gradient_kernel(const T* __restrict__ x, const T* dy, size_t rows, int C,
                                     const float* __restrict__ gamma,
                                     const float* __restrict__ beta, const float* __restrict__ mean,
                                     const float* __restrict__ var, float eps, T* dx) {
    const int c = first_channel<kWide>();
    if (c >= C) return;
    const Channels<kWide> center(mean, c), shift(beta, c);
    float scale[kWide];
    for (int e = 0; e < kWide; ++e) scale[e] = scale_of(gamma, var, eps, c + e);
    const size_t begin = rows * blockIdx.y / gridDim.y, end = rows * (blockIdx.y + 1) / gridDim.y;
    for_rows<1>(begin, end, C, c, [&](auto at) {
        float dz[kWide], v[kWide] = {};
        load_pack(dz, dy + at[0]);
        if constexpr (kKind != Activation::kNone) load_pack(v, x + at[0]);
        to_dz<kKind, true>(dz, v, v, center, scale, shift);
#pragma unroll
        for (int e = 0; e < kWide; ++e) dz[e] *= scale[e];
        store_pack(dx + at[0], dz);
    });
}

// About 1056 slabs in all, by shapes alone: whole rounds of blocks on 132 multiprocessors that run
// two, four or eight. A slab has some 64 rows at least.
Slabs cut(GroupBounds bounds, Tensor x, const int* bounds_there) {
    const int count = int(bounds.size()) - 1;
    const int64_t image_rows = int64_t(x.H) * x.W, rows = x.N * image_rows;
    const int64_t parts = std::min<int64_t>(1056 / std::max(1, count), rows / count / 64);
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
    with_norm_kind(act, bool(residual), [&](auto kind, auto has_residual) {
        with_columns({x, y, residual}, count, [&]<class T>(T, auto wide, dim3 grid, dim3 block) {
            normalise_kernel<T, wide(), kind(), has_residual()>
                <<<grid, block, 0, stream_>>>(elements<T>(x), slabs, gamma, beta,
                                              elements<T>(residual), mean_rstd, elements<T>(y));
            CUDA_LAUNCHED();
        });
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
    const std::initializer_list<Tensor> all = {x, act && dresidual ? y : x, dy, dx, dresidual};
    with_norm_kind(act, bool(dresidual), [&](auto kind, auto has_residual) {
        with_columns(all, count, [&]<class T>(T, auto wide, dim3 grid, dim3 block) {
            gradient_sums_kernel<T, wide(), kind(), has_residual()><<<grid, block, 0, stream_>>>(
                elements<T>(x), elements<T>(y), elements<T>(dy), slabs, gamma, beta, mean_rstd,
                elements<T>(dresidual), parts);
            CUDA_LAUNCHED();
            const dim3 few = column_block(std::min(C, 8));  // side by side: the slabs are many
            finish_gradient_kernel<<<ceil_div(C, few.x), few, 0, stream_>>>(slabs, parts, mean_rstd,
                                                                            factors, dgamma, dbeta);
            CUDA_LAUNCHED();
            gradient_kernel<T, wide(), has_residual() ? Activation::kNone : kind()>
                <<<grid, block, 0, stream_>>>(elements<T>(x),
                                              elements<T>(dresidual ? dresidual : dy), slabs, gamma,
                                              beta, mean_rstd, factors, elements<T>(dx));
            CUDA_LAUNCHED();
        });
    });
}

void CudaBackend::batch_norm_eval(Tensor x, const float* gamma, const float* beta,
                                  const float* mean, const float* var, Tensor residual,
                                  Activation act, float eps, Tensor y) {
    check_batch_norm(x, residual, act, y);
    if (x.elems() == 0) return;
    const size_t rows = x.elems() / x.C;
    with_norm_kind(act, bool(residual), [&](auto kind, auto has_residual) {
        with_columns(
            {x, y, residual}, eval_slabs(rows), [&]<class T>(T, auto wide, dim3 grid, dim3 block) {
                eval_kernel<T, wide(), kind(), has_residual()>
                    <<<grid, block, 0, stream_>>>(elements<T>(x), rows, x.C, gamma, beta, mean, var,
                                                  elements<T>(residual), eps, elements<T>(y));
                CUDA_LAUNCHED();
            });
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
    with_norm_kind(act, false, [&](auto kind, auto) {
        with_columns(
            {x, dy, dx}, eval_slabs(rows), [&]<class T>(T, auto wide, dim3 grid, dim3 block) {
                eval_gradient_kernel<T, wide(), kind()>
                    <<<grid, block, 0, stream_>>>(elements<T>(x), elements<T>(dy), rows, dy.C,
                                                  gamma, beta, mean, var, eps, elements<T>(dx));
                CUDA_LAUNCHED();
            });
    });
}

}  // namespace convoy::CONVOY_DEVICE
