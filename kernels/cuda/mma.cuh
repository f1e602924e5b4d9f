// mma.cuh — the tensor core instructions, each as one function. The emulator has the same functions
// (kernels/simt/mma.h). A whole warp executes each of them together, except for the copies.
//
// Fragments, as the PTX manual has them: which numbers of a matrix a lane holds in its registers,
// with group = lane / 4 (0 … 7) and member = lane % 4 (0 … 3).
//
//   d  16×8 floats        d[0], d[1]  row group,     columns 2·member, 2·member+1
//                         d[2], d[3]  row group + 8, the same columns
//   tf32: a 16×8          a[0] row group, depth member         a[1] row group + 8, depth member
//                         a[2] row group, depth member + 4     a[3] row group + 8, depth member + 4
//         b 8×8           b[0] depth member, column group      b[1] depth member + 4, column group
//   bf16: a 16×16         the same with pairs: depth 2·member, 2·member+1 instead of member, and 8
//         b 16×8          instead of 4; the lower depth is in the lower half of the register
//
// bf16 and AsyncCopies need compute capability 8.0. For 7.5 the kernels compile but are never
// launched (CudaBackend::precision_). CopyBarrier and GroupProducts need code for 9.0a (Hopper;
// ARCH=90a).
#pragma once

#include "kernels/cuda/cuda.h"

#ifndef __CUDACC__
#include "kernels/simt/mma.h"
#else

namespace convoy::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define CONVOY_PTX(...) asm volatile(__VA_ARGS__)
constexpr bool kHasTensorCores = true;
#else
#define CONVOY_PTX(...) __trap()
constexpr bool kHasTensorCores = false;
#endif
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool kHasGroupProducts = true;
#else
constexpr bool kHasGroupProducts = false;
#endif

// The nearest number with 10 bits of mantissa.
__device__ __forceinline__ uint32_t to_tf32(float x) {
    uint32_t bits = 0;
    CONVOY_PTX("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}
// Two rounded numbers in one register, the first in the lower half.
__device__ __forceinline__ uint32_t to_bf16x2(float low, float high) {
    uint32_t pair = 0;
    CONVOY_PTX("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// d += a·b, of bf16 or tf32.
template <bool kBf16>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#define CONVOY_MMA(kind)                                                                         \
    CONVOY_PTX("mma.sync.aligned." kind " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
    if constexpr (kBf16)
        CONVOY_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
    else
        CONVOY_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
#undef CONVOY_MMA
}

// Four matrices of 8 rows of 16 bytes in shared memory: lane i brings the address of row i % 8 of
// matrix i / 8 and gets, of each matrix, word `member` of row `group`.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const void* row) {
    CONVOY_PTX("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(unsigned(__cvta_generic_to_shared(row)))
               : "memory");
}
// The same with each matrix transposed, as one of 8×8 16-bit numbers.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&to)[4], const void* row) {
    CONVOY_PTX("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(unsigned(__cvta_generic_to_shared(row)))
               : "memory");
}

// Copies from global to shared memory that continue while the thread computes. Copies requested
// between two commits are a group; groups arrive in order.
struct AsyncCopies {
    // 16 bytes, both addresses aligned to them; zeros, and nothing is read, if not `there`.
    __device__ __forceinline__ void copy(void* to, const void* from, bool there) {
        CONVOY_PTX("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                   :
                   : "r"(unsigned(__cvta_generic_to_shared(to))), "l"(from), "r"(there ? 16 : 0)
                   : "memory");
    }
    __device__ __forceinline__ void commit() { CONVOY_PTX("cp.async.commit_group;" ::: "memory"); }
    // All groups but the last kPending are there, for this thread; others need a barrier.
    template <int kPending>
    __device__ __forceinline__ void wait() {
        CONVOY_PTX("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
    }
};

// Waits for the first kThreads threads of the block, which are whole warps.
template <int kThreads>
__device__ __forceinline__ void sync_first() {
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// The map of an image in device memory, as cuTensorMapEncodeIm2col makes it. A copy brings 64
// channels of `pixels` pixels. These are every `step`th one from one corner of an image to the
// other, row by row, and then those of the next image.
//   sizes   C, W, H, N; C is a multiple of 8
//   lower, upper, step   for a row and for a column: W, then H; `upper` counts from W−1 or H−1
inline CUtensorMap image_map(const void* image, const int (&sizes)[4], const int (&lower)[2],
                             const int (&upper)[2], const int (&step)[2], int pixels) {
    static const auto encode = [] {  // the driver's function, which no library here links
        void* found = nullptr;
#if CUDART_VERSION >= 12050
        CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeIm2col", &found, 12000,
                                                    cudaEnableDefault, nullptr));
#else
        CUDA_CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeIm2col", &found, cudaEnableDefault));
#endif
        ENSURE(found, "the driver lacks cuTensorMapEncodeIm2col");
        return reinterpret_cast<decltype(&cuTensorMapEncodeIm2col)>(found);
    }();
    const auto [C, W, H, N] = sizes;
    const cuuint64_t extents[] = {cuuint64_t(C), cuuint64_t(W), cuuint64_t(H), cuuint64_t(N)};
    const cuuint64_t bytes[] = {2 * extents[0], 2 * extents[0] * W, 2 * extents[0] * W * H};
    const cuuint32_t steps[] = {1, cuuint32_t(step[0]), cuuint32_t(step[1]), 1};
    CUtensorMap map;
    const CUresult error =
        encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(image), extents, bytes,
               lower, upper, 64, cuuint32_t(pixels), steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    ENSURE(error == CUDA_SUCCESS, "cuTensorMapEncodeIm2col: error ", int(error));
    return map;
}

// A barrier in shared memory (mbarrier) that counts threads and the bytes of copies. When all of a
// phase have arrived, the next phase begins. Phases have the parities 0, 1, 0, …
class CopyBarrier {
 public:
    // By one thread, before a barrier of the block. `arrivals`: of threads, in each phase.
    __device__ void init(int arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(place()), "r"(arrivals));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __device__ __forceinline__ void arrive() {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(place()) : "memory");
    }
    // Arrives; the phase also waits for so many bytes.
    __device__ __forceinline__ void arrive_and_expect(int bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place()),
                     "r"(bytes)
                     : "memory");
    }
    // Starts a copy (TMA) of pixels from (n, h, w) on, moved by the tap (r, s), and of channels
    // from c on. The tap is at most 255 in each direction. What lies outside of the image is 0.
    // Pixel i is at to + 128·i, and its chunks of 16 bytes are exchanged by i % 8. `to` is a
    // multiple of 1024.
    __device__ __forceinline__ void copy(void* to, const CUtensorMap& map, int c, int w, int h,
                                         int n, int s, int r) {
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
            "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(shared_place(to)),
            "l"(&map), "r"(place()), "r"(c), "r"(w), "r"(h), "r"(n), "h"(short(s)), "h"(short(r))
            : "memory");
    }
    // Waits for the end of the phase of this parity: of the current one, or at once if that has
    // the other parity. Ends the kernel with an error if that takes 20 seconds.
    __device__ __forceinline__ void wait(int parity) {
        for (int64_t begin = 0; !is_over(parity);) {
            if (begin == 0) begin = clock64();
            if (clock64() - begin > kMostCycles) __trap();
        }
    }

 private:
    static constexpr int64_t kMostCycles = int64_t(1) << 35;  // 20 seconds

    static __device__ __forceinline__ unsigned shared_place(const void* p) {
        return unsigned(__cvta_generic_to_shared(p));
    }
    __device__ __forceinline__ unsigned place() const { return shared_place(this); }
    __device__ __forceinline__ bool is_over(int parity) const {
        unsigned over;
        asm volatile(
            "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
            "selp.u32 %0, 1, 0, p;}"
            : "=r"(over)
            : "r"(place()), "r"(parity)
            : "memory");
        return over;
    }

    uint64_t state_;
};

// Products of bf16 that run while the threads do something else (wgmma). The 4 warps of a group
// call each function together. Both operands stay in shared memory, as CopyBarrier::copy leaves
// them.
class GroupProducts {
 public:
    // Starts sums += a·b for 64 rows of a, 8·kN columns of b and a depth of 64: one stage. Each
    // warp has 16 rows, and sums[n] is the fragment d of columns 8·n … 8·n+7, not to be used until
    // wait().
    //   a, b   descriptors of the operands at row (column) 0 and the first depth
    template <bool kDepthFastA, bool kDepthFastB, int kN>
    __device__ __forceinline__ void start(float (&sums)[kN][4], uint64_t a, uint64_t b) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int l = 0; l < 64; l += 16) {
            const uint64_t a_there = a + l * (kDepthFastA ? 2 : 128) / 16;
            const uint64_t b_there = b + l * (kDepthFastB ? 2 : 128) / 16;
            add<!kDepthFastA, !kDepthFastB, 0>(sums, a_there, b_there);
            if constexpr (kN == 32)  // columns 128 … 255 follow 128 rows of 128 bytes further
                add<!kDepthFastA, !kDepthFastB, 16>(sums, a_there, b_there + 128 * 128 / 16);
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    }
    // All stages but the last kPending are in the sums, and may be overwritten.
    template <int kPending>
    __device__ __forceinline__ void wait() {
        asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
    }

    // The descriptor of an operand that begins at `at`. 16 bytes further it is larger by 1.
    // A block is 8 rows of 128 bytes; its chunks of 16 bytes are exchanged by row % 8. Blocks
    // follow each other after 1024 bytes. If the depth is the slow index, a block has 64 rows of
    // the operand and 8 depths, and the next 64 rows follow after 64 depths.
    template <bool kDepthFast>
    static __device__ __forceinline__ uint64_t descriptor(const char* at) {
        // The same in all lanes of a warp. The compiler must know it, or each product moves it to
        // uniform registers once more.
        const uint64_t place = __shfl_sync(~0u, unsigned(__cvta_generic_to_shared(at)), 0);
        constexpr uint64_t kNextRows = kDepthFast ? 16 : 64 * 128;
        return place / 16 | kNextRows / 16 << 16 | uint64_t(1024 / 16) << 32 | uint64_t(1) << 62;
    }

 private:
    // The same for a depth of 16, and for at most 128 columns, the first in sums[kFirst].
    template <int kTurnA, int kTurnB, int kFirst, int kN>
    static __device__ __forceinline__ void add(float (&sums)[kN][4], uint64_t a, uint64_t b) {
        static_assert(kN == 8 || kN == 16 || kN == 32);
#define FOUR(n)                                                                      \
    "+f"(sums[kFirst + n][0]), "+f"(sums[kFirst + n][1]), "+f"(sums[kFirst + n][2]), \
        "+f"(sums[kFirst + n][3])
#define EIGHT(n)                                                                           \
    FOUR(n), FOUR(n + 1), FOUR(n + 2), FOUR(n + 3), FOUR(n + 4), FOUR(n + 5), FOUR(n + 6), \
        FOUR(n + 7)
        if constexpr (kN >= 16)
            asm volatile(
                "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,"
                "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,"
                "%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,"
                "%62,%63}, %64, %65, 1, 1, 1, %66, %67;"
                : EIGHT(0), EIGHT(8)
                : "l"(a), "l"(b), "n"(kTurnA), "n"(kTurnB));
        else
            asm volatile(
                "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,"
                "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, %34, %35;"
                : EIGHT(0)
                : "l"(a), "l"(b), "n"(kTurnA), "n"(kTurnB));
#undef EIGHT
#undef FOUR
    }
};

}  // namespace convoy::cuda

#undef CONVOY_PTX
#endif
