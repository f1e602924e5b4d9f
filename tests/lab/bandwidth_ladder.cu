// bandwidth_ladder.cu — the gradient of batch norm, six times: what it takes to keep the memory of
// a GPU busy, one step each.
//
//   x̂  = (x − mean)·rstd      dz = dy·act'(gamma·x̂ + beta)
//   dx = gamma·rstd·(dz − mean(dz) − x̂·mean(dz·x̂))      dgamma = Σ dz·x̂      dbeta = Σ dz
//
// To be read from top to bottom, after gemm_ladder.cu. A product is bound by arithmetic, and this
// gradient is bound by memory. dx needs the sums, and the sums need all of x and dy. So a first
// pass reads x and dy, and a second pass reads both again and writes dx: 5·4 bytes per number, in
// bf16 5·2. Each rung moves these bytes. The rungs differ in two figures, which have limits on each
// GPU. Here they are those of an H200: 132 multiprocessors, 1.75 GHz, 4 instructions per cycle, 4.3
// TB/s.
//
//   instructions   per 16 bytes that a thread reads or writes: 110 take as long as the bytes do
//   in flight      bytes that were asked for and have not come yet. If an access takes 0.7 µs, it
//                  needs 23 KB per multiprocessor to keep the memory busy: 4.3 TB/s · 0.7 µs / 132.
//
//   rows      A row is a pixel: C numbers. The rows are cut into slabs of at least 64.
//   grid      (⌈C/columns of a block⌉, slabs) blocks of 256 threads. threadIdx.x, at most 32, walks
//             channels; threadIdx.y strides over rows.
//   order     of sums: rows of a thread, threads of a column, then slabs in double
//   counted   in the code that nvcc 13.0 makes for compute capability 9.0, bf16 and relu
//
// Loads and sums are those of batch_norm.cu: load_pack() (elements.h), add_columns() (moments.cuh),
// which has the barriers.
#include "tests/lab/bandwidth_ladder.h"

#include <cmath>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/make_backend.h"
#include "kernels/cuda/moments.cuh"
#include "tests/lab/rung.h"

namespace convoy::CONVOY_DEVICE {

namespace {

// What the kernels read and write. dx might be dy, as in training: so no pointer is __restrict__,
// and the compiler may not move a load before a store.
template <class T>
struct Norm {
    const T *x, *dy;
    T* dx;
    const float *gamma, *beta, *mean, *rstd;
    float* sums;     // [slab][Σ dz, Σ dz·x̂][c]
    float* factors;  // [mean(dz), mean(dz·x̂)·rstd][c]
    float *dgamma, *dbeta;
    int64_t rows;
    int C, slabs;

    __device__ int64_t first_row(int slab) const { return rows * slab / slabs; }
    __device__ int64_t at(int64_t row, int c) const { return row * C + c; }
};

// The sums of a block, which holds kWide channels per thread from channel c on.
template <class T, int kWide>
__device__ __forceinline__ void store_sums(const Norm<T>& n, int c, float (&dz)[kWide],
                                           float (&dot)[kWide]) {
    add_columns(dz);
    add_columns(dot);
    if (threadIdx.y > 0 || c >= n.C) return;
    float* to = n.sums + size_t(blockIdx.y) * 2 * n.C + c;
    for (int e = 0; e < kWide; ++e) to[e] = dz[e], to[n.C + e] = dot[e];
}

// Between the passes, for all rungs: a block of at most 8 channels adds the sums of all slabs. It
// reads 3 % of what the first pass reads, or less.
template <class T>
__global__ void finish_kernel(Norm<T> n) {
    const int c = first_channel<1>();
    double sums[2] = {};
    for (int slab = threadIdx.y; slab < n.slabs && c < n.C; slab += blockDim.y) {
        const float* from = n.sums + size_t(slab) * 2 * n.C + c;
        sums[0] += from[0], sums[1] += from[n.C];
    }
    add_columns(sums);
    if (threadIdx.y > 0 || c >= n.C) return;
    n.dbeta[c] = float(sums[0]), n.dgamma[c] = float(sums[1]);
    n.factors[c] = float(sums[0] / double(n.rows));
    n.factors[n.C + c] = float(sums[1] / double(n.rows) * n.rstd[c]);
}

// ---- 1. scalar -------------------------------------------------------------------------------
//
//   mapping   A thread takes one channel, one number at a time. The loop asks which activation it
//             is. (nvcc moves the question out of this loop, because the loop is short.)
//   bytes     A warp loads 32 neighbours: 128 bytes per instruction, in bf16 64.
//   limit     A number takes 28 instructions in the first pass, which are 112 per 16 bytes. And a
//             thread waits for 2 numbers at a time: 8 KB in flight, with 8 blocks of 256 threads.
struct AnyGradient {
    Kind kind;
    __device__ __forceinline__ float operator()(float dy, float z) const {
        switch (kind) {
            case Kind::kRelu: return activated_grad<Kind::kRelu>(z, dy);
            case Kind::kRelu6: return activated_grad<Kind::kRelu6>(z, dy);
            case Kind::kSilu: return activated_grad<Kind::kSilu>(z, dy);
            case Kind::kHardSwish: return activated_grad<Kind::kHardSwish>(z, dy);
            default: return dy;
        }
    }
};

template <class T>
__global__ void scalar_sums_kernel(Norm<T> n, AnyGradient gradient) {
    const int c = first_channel<1>();
    float sum[1] = {}, dot[1] = {};
    if (c < n.C) {
        const float mean = n.mean[c], rstd = n.rstd[c], gamma = n.gamma[c], beta = n.beta[c];
        const int64_t end = n.first_row(blockIdx.y + 1);
        for (int64_t row = n.first_row(blockIdx.y) + threadIdx.y; row < end; row += blockDim.y) {
            const float xhat = (load(n.x + n.at(row, c)) - mean) * rstd;
            const float dz = gradient(load(n.dy + n.at(row, c)), gamma * xhat + beta);
            sum[0] += dz, dot[0] += dz * xhat;
        }
    }
    store_sums(n, c, sum, dot);
}

template <class T>
__global__ void scalar_apply_kernel(Norm<T> n, AnyGradient gradient) {
    const int c = first_channel<1>();
    if (c >= n.C) return;
    const float mean = n.mean[c], rstd = n.rstd[c], gamma = n.gamma[c], beta = n.beta[c];
    const float mean_dz = n.factors[c], slope = n.factors[n.C + c];
    const int64_t end = n.first_row(blockIdx.y + 1);
    for (int64_t row = n.first_row(blockIdx.y) + threadIdx.y; row < end; row += blockDim.y) {
        const float v = load(n.x + n.at(row, c)) - mean;
        const float dz = gradient(load(n.dy + n.at(row, c)), gamma * (v * rstd) + beta);
        store(n.dx + n.at(row, c), gamma * rstd * (dz - mean_dz - v * slope));
    }
}

// ---- 2. packs --------------------------------------------------------------------------------
//
//   mapping   A thread takes 16 bytes of neighbouring channels: 4 floats, 8 bf16. C must be a
//             multiple of that.
//   bytes     512 per instruction of a warp.
//   gains     An address and a branch serve 8 numbers. The first pass takes 56 instructions per 16
//             bytes instead of 112, and the second pass 41 instead of 88.
//   limit     A thread needs 80 registers, most of them for its 8 channels. So only 3 blocks fit.
//             With 32 bytes per thread 24 KB are in flight, which barely suffices.
//
// What a thread needs of its channels. scale = gamma·rstd, so z = (x − mean)·scale + beta.
template <int kWide>
struct Channels {
    float mean[kWide], rstd[kWide], scale[kWide], beta[kWide];
    template <class T>
    __device__ __forceinline__ Channels(const Norm<T>& n, int c) {
#pragma unroll
        for (int e = 0; e < kWide; ++e) {
            mean[e] = n.mean[c + e], rstd[e] = n.rstd[c + e], beta[e] = n.beta[c + e];
            scale[e] = n.gamma[c + e] * rstd[e];
        }
    }
};
// Adds the numbers of one row to the sums.
template <int kWide, class Gradient>
__device__ __forceinline__ void add_row(const Channels<kWide>& of, const Gradient& gradient,
                                        const float (&x)[kWide], const float (&dy)[kWide],
                                        float (&sum)[kWide], float (&dot)[kWide]) {
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
        const float v = x[e] - of.mean[e], dz = gradient(dy[e], v * of.scale[e] + of.beta[e]);
        sum[e] += dz, dot[e] += dz * (v * of.rstd[e]);
    }
}
// x becomes dx.
template <int kWide, class Gradient>
__device__ __forceinline__ void apply_row(const Channels<kWide>& of, const Gradient& gradient,
                                          const float (&mean_dz)[kWide],
                                          const float (&slope)[kWide], float (&x)[kWide],
                                          const float (&dy)[kWide]) {
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
        const float v = x[e] - of.mean[e], dz = gradient(dy[e], v * of.scale[e] + of.beta[e]);
        x[e] = of.scale[e] * (dz - mean_dz[e] - v * slope[e]);
    }
}

template <class T, int kWide, class Gradient>
__global__ void packs_sums_kernel(Norm<T> n, Gradient gradient) {
    const int c = first_channel<kWide>();
    float sum[kWide] = {}, dot[kWide] = {};
    if (c < n.C) {
        const Channels<kWide> of(n, c);
        const int64_t end = n.first_row(blockIdx.y + 1);
        for (int64_t row = n.first_row(blockIdx.y) + threadIdx.y; row < end; row += blockDim.y) {
            float x[kWide], dy[kWide];
            load_pack(x, n.x + n.at(row, c));
            load_pack(dy, n.dy + n.at(row, c));
            add_row(of, gradient, x, dy, sum, dot);
        }
    }
    store_sums(n, c, sum, dot);
}

template <class T, int kWide, class Gradient>
__global__ void packs_apply_kernel(Norm<T> n, Gradient gradient) {
    const int c = first_channel<kWide>();
    if (c >= n.C) return;
    const Channels<kWide> of(n, c);
    float mean_dz[kWide], slope[kWide];
    load_pack(mean_dz, n.factors + c);
    load_pack(slope, n.factors + n.C + c);
    const int64_t end = n.first_row(blockIdx.y + 1);
    for (int64_t row = n.first_row(blockIdx.y) + threadIdx.y; row < end; row += blockDim.y) {
        float x[kWide], dy[kWide];
        load_pack(x, n.x + n.at(row, c));
        load_pack(dy, n.dy + n.at(row, c));
        apply_row(of, gradient, mean_dz, slope, x, dy);
        store_pack(n.dx + n.at(row, c), x);
    }
}

// ---- 3. specialised --------------------------------------------------------------------------
//
//   mapping   As before. The kernels are compiled for one activation: Gradient is
//             ActivateGrad<kRelu> instead of AnyGradient. Training has a kernel for each activation
//             that batch norm can apply (with_norm_kind in kernels/kinds.h).
//   gains     48 instructions in the first pass, 35 in the second. The code of the loop shrinks
//   from
//             440 instructions, with those for an exponential, to 100.

// ---- 4. rows in flight -----------------------------------------------------------------------
//
//   mapping   As before, but a thread loads kRows rows before it uses the first of them. In the
//             second pass the compiler could not do so by itself: no load may pass a store to dx.
//   gains     2 rows: 64 bytes per thread, 48 KB in flight with 3 blocks. 4 rows: 128 bytes, 64 KB
//             with 2 blocks, as a thread needs up to 106 registers.
//   bounds    The launch bounds say how many blocks must fit. Without them nvcc saves registers
//             (80 instead of 96 for 4 rows in the second pass): it uses the first row, and only
//             then loads the next. The source does not show this, but the machine code does
//             (cuobjdump -sass): each LDG of the loop must come before the first use of a number.
//
// ---- 5. backwards ----------------------------------------------------------------------------
//
//   mapping   As before, 2 rows in flight. In the second pass block 0 takes the last slab.
//   gains     The first pass leaves the end of x and dy in the L2 cache. If the second pass begins
//             there, it does not ask the memory for up to 50 MB. For 256 images of 56×56×256 these
//             are 2 % of all bytes; of 7×7×2048, 20 %. So the figure in GB/s, which counts all
//             bytes, may be higher than that of a copy. (If the gradient is computed again and
//             again, the first pass finds a part of x and dy there as well.)
template <int kRows>
using Count = std::integral_constant<int, kRows>;

// Calls work(first, apart, Count<kRows>()) for kRows of the thread's rows in rows [begin, end) at a
// time, and with Count<1>() for each row that remains. Its numbers are first + r·apart.
template <int kRows, class Work>
__device__ __forceinline__ void for_rows(int64_t begin, int64_t end, int C, int c,
                                         const Work& work) {
    const int step = blockDim.y;
    const int64_t apart = int64_t(step) * C;
    int64_t at = (begin + threadIdx.y) * C + c;
    int left = int(end - begin) - int(threadIdx.y);
    for (; left > (kRows - 1) * step; left -= kRows * step, at += kRows * apart)
        work(at, apart, Count<kRows>());
    for (; left > 0; left -= step, at += apart) work(at, apart, Count<1>());
}

// All rows before the first is used.
template <class T, int kRows, int kWide>
__device__ __forceinline__ void load_rows(const Norm<T>& n, int64_t first, int64_t apart,
                                          float (&x)[kRows][kWide], float (&dy)[kRows][kWide]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        load_pack(x[r], n.x + first + r * apart);
        load_pack(dy[r], n.dy + first + r * apart);
    }
}

template <class T, int kWide, int kRows>
__global__ void __launch_bounds__(kColumnThreads, kRows == 2 ? 3 : 2) rows_sums_kernel(Norm<T> n) {
    const int c = first_channel<kWide>();
    float sum[kWide] = {}, dot[kWide] = {};
    if (c < n.C) {
        const Channels<kWide> of(n, c);
        const auto work = [&](int64_t first, int64_t apart, auto count) {
            float x[count()][kWide], dy[count()][kWide];
            load_rows(n, first, apart, x, dy);
#pragma unroll
            for (int r = 0; r < count(); ++r)
                add_row(of, ActivateGrad<Kind::kRelu>{}, x[r], dy[r], sum, dot);
        };
        for_rows<kRows>(n.first_row(blockIdx.y), n.first_row(blockIdx.y + 1), n.C, c, work);
    }
    store_sums(n, c, sum, dot);
}

template <class T, int kWide, int kRows>
__global__ void __launch_bounds__(kColumnThreads, kRows == 2 ? 3 : 2)
    rows_apply_kernel(Norm<T> n, bool backwards) {
    const int c = first_channel<kWide>();
    if (c >= n.C) return;
    const Channels<kWide> of(n, c);
    float mean_dz[kWide], slope[kWide];
    load_pack(mean_dz, n.factors + c);
    load_pack(slope, n.factors + n.C + c);
    const auto work = [&](int64_t first, int64_t apart, auto count) {
        float x[count()][kWide], dy[count()][kWide];
        load_rows(n, first, apart, x, dy);
#pragma unroll
        for (int r = 0; r < count(); ++r) {
            apply_row(of, ActivateGrad<Kind::kRelu>{}, mean_dz, slope, x[r], dy[r]);
            store_pack(n.dx + first + r * apart, x[r]);
        }
    };
    const int slab = backwards ? n.slabs - 1 - int(blockIdx.y) : int(blockIdx.y);
    for_rows<kRows>(n.first_row(slab), n.first_row(slab + 1), n.C, c, work);
}

// ---- 6. production ---------------------------------------------------------------------------
//
//   mapping   kernels/cuda/batch_norm.cu, as training calls it: rung 5 for all activations, groups
//             of images, residuals, and any C.
//
//   fused     would be the next rung. The convolution that computes dy holds it in registers. It
//             could make the sums in its epilogue, as it makes the statistics of y in the forward
//             pass (tensor_gemm.cuh). It would read x for that. The first pass would not read dy
//             any more, a fifth of all bytes, and x would be read during a product, which is bound
//             by arithmetic. What is left to this file is the second pass: 3 of 5 bytes.

// rung(name, submit) runs what submits one gradient.
using Submit = std::function<void()>;
template <class T>
void own_rungs(const std::function<void(const char*, const Submit&)>& rung, const Norm<T>& n,
               Activation act) {
    constexpr int kWide = 16 / int(sizeof(T));
    using Relu = ActivateGrad<Kind::kRelu>;
    const auto grid = [&](dim3 block, int wide) {
        return dim3(ceil_div(n.C, int64_t(block.x) * wide), n.slabs);
    };
    const auto finish = [&] {
        const dim3 block = column_block(std::min(n.C, 8));
        finish_kernel<T><<<ceil_div(n.C, block.x), block>>>(n);
    };
    const AnyGradient any{act.kind};
    rung("scalar", [&] {
        const dim3 block = column_block(n.C);
        scalar_sums_kernel<T><<<grid(block, 1), block>>>(n, any);
        finish();
        scalar_apply_kernel<T><<<grid(block, 1), block>>>(n, any);
    });
    if (n.C % kWide != 0) return;
    const dim3 block = column_block(n.C / kWide), blocks = grid(block, kWide);
    rung("packs", [&] {
        packs_sums_kernel<T, kWide, AnyGradient><<<blocks, block>>>(n, any);
        finish();
        packs_apply_kernel<T, kWide, AnyGradient><<<blocks, block>>>(n, any);
    });
    if (act.kind != Kind::kRelu) return;
    rung("specialised", [&] {
        packs_sums_kernel<T, kWide, Relu><<<blocks, block>>>(n, {});
        finish();
        packs_apply_kernel<T, kWide, Relu><<<blocks, block>>>(n, {});
    });
    rung("2-rows", [&] {
        rows_sums_kernel<T, kWide, 2><<<blocks, block>>>(n);
        finish();
        rows_apply_kernel<T, kWide, 2><<<blocks, block>>>(n, false);
    });
    rung("4-rows", [&] {
        rows_sums_kernel<T, kWide, 4><<<blocks, block>>>(n);
        finish();
        rows_apply_kernel<T, kWide, 4><<<blocks, block>>>(n, false);
    });
    rung("backwards", [&] {
        rows_sums_kernel<T, kWide, 2><<<blocks, block>>>(n);
        finish();
        rows_apply_kernel<T, kWide, 2><<<blocks, block>>>(n, true);
    });
}

}  // namespace

void climb_bandwidth_ladder(const NormGradient& problem, const BandwidthVisitor& visit) {
    const Shape shape = problem.shape;
    const size_t elems = shape.elems(), C = size_t(shape.C);
    ENSURE(elems > 0 && problem.act.fits_norm(), "a tensor ", shape.text());
    const auto backend = make_device_backend(0, {});
    const auto on_device = [&](const std::vector<float>& numbers) {
        float* to = backend->alloc(numbers.size());
        backend->upload(to, numbers.data(), numbers.size() * sizeof(float));
        return to;
    };
    const auto on_host = [&](const float* numbers, size_t count) {
        std::vector<float> to(count);
        backend->download(to.data(), numbers, count * sizeof(float));
        return to;
    };
    const float *gamma = on_device(problem.gamma), *beta = on_device(problem.beta),
                *mean_rstd = on_device(problem.mean_rstd);
    const int64_t rows = int64_t(elems / C);
    const int slabs = int(std::clamp<int64_t>(rows / 64, 1, 1056));
    float *sums = backend->alloc(2 * C * slabs), *factors = backend->alloc(2 * C),
          *dgamma = backend->alloc(C), *dbeta = backend->alloc(C);
    const Tensor wide(backend->alloc(elems), shape);  // floats, on their way from or to bf16

    for (const Type type : {Type::kFloat32, Type::kBfloat16}) {
        const auto tensor = [&](const std::vector<float>& numbers) {
            const Tensor to(backend->alloc((elems * bytes_of(type) + 3) / 4), shape, type);
            backend->upload(wide.data, numbers.data(), wide.bytes());
            backend->copy(to, wide);
            return to;
        };
        const Tensor x = tensor(problem.x), dy = tensor(problem.dy), dx = tensor(problem.dy);

        // Runs what submits a gradient, from results full of NaN; then times it.
        const auto rung = [&](const char* name, const Submit& submit, int moved = 5) {
            backend->fill(wide.floats(), elems, NAN);
            backend->copy(dx, wide);
            backend->fill(sums, 2 * C * slabs, NAN);
            backend->fill(factors, 2 * C, NAN);
            backend->fill(dgamma, C, 0);  // "production" adds to them
            backend->fill(dbeta, C, 0);
            time(submit, 1);
            backend->copy(wide, dx);
            visit({name, type, on_host(wide.floats(), elems), on_host(dgamma, C), on_host(dbeta, C),
                   double(moved * x.bytes()), seconds_of(submit)});
        };
        rung(
            "copy", [&] { backend->copy(dx, x); }, 2);
        with_type(type, [&]<class T>(T) {
            const float* rstd = mean_rstd + C;
            own_rungs<T>(rung,
                         {elements<T>(x), elements<T>(dy), elements<T>(dx), gamma, beta, mean_rstd,
                          rstd, sums, factors, dgamma, dbeta, rows, shape.C, slabs},
                         problem.act);
        });
        const std::vector<int> all{0, shape.N};
        rung("production", [&] {
            backend->batch_norm_grad(x, nullptr, dy, all, gamma, beta, problem.act, mean_rstd, dx,
                                     nullptr, dgamma, dbeta);
        });
    }
}

}  // namespace convoy::CONVOY_DEVICE
