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
// bf16 and the copies need compute capability 8.0. For 7.5 the kernels compile but are never
// launched (CudaBackend::precision_).
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

// d += a·b
__device__ __forceinline__ void mma_tf32(float (&d)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[2]) {
    CONVOY_PTX(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[2]) {
    CONVOY_PTX(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
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
    // 4 or 16 bytes, both addresses aligned to them; zeros, and nothing is read, if not `there`.
    template <int kBytes>
    __device__ __forceinline__ void copy(void* to, const void* from, bool there) {
        static_assert(kBytes == 4 || kBytes == 16);
        const unsigned place = unsigned(__cvta_generic_to_shared(to));
        const int bytes = there ? kBytes : 0;
        if constexpr (kBytes == 16)
            CONVOY_PTX("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from),
                       "r"(bytes)
                       : "memory");
        else
            CONVOY_PTX("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(place), "l"(from),
                       "r"(bytes)
                       : "memory");
        (void)place, (void)bytes;
    }
    __device__ __forceinline__ void commit() { CONVOY_PTX("cp.async.commit_group;" ::: "memory"); }
    // All groups but the last kPending are there, for this thread; others need a barrier.
    template <int kPending>
    __device__ __forceinline__ void wait() {
        CONVOY_PTX("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
    }
};

}  // namespace convoy::cuda

#undef CONVOY_PTX
#endif
