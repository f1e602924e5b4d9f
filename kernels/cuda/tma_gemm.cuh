// tma_gemm.cuh — the product of tensor_gemm.cuh for Hopper, of bf16: one warp copies, two groups of
// 4 warps multiply.
//
//   out[i][j] = epilogue(Σ_l a(i,l) · b(j,l))     the same tiles, stages, parts, and order of sums
//
//   copies    by TMA: one instruction of one thread brings a box of 64 numbers of the fast index
//             by 64 to 256 of the slow one. The hardware finds the addresses, writes zeros for what
//             lies outside of an image, and exchanges the chunks of a row as tensor_gemm.cuh does.
//   products  by wgmma, straight from shared memory. A group has 64 rows of the tile and all
//             columns, or half of the columns of a low tile.
//   barriers  full[s]: the boxes of stage s are there.   empty[s]: all 8 warps have multiplied it.
//
//               the warp that copies      wait empty[s] ─ expect, copy a and b ─► full[s] …
//               8 warps that multiply     wait full[s] ─ start ─ wait for s−1 ─► empty[s−1] …
//
//             The products of one stage run while the next ones are started, so the tensor cores
//             need not wait for a barrier. No thread of the multiplying warps computes an address.
//   grid      as in tensor_gemm.cuh, blocks of 288 threads. Two blocks share a multiprocessor: one
//             stores its tile while the other multiplies. With 9 warps of at most 112 registers, no
//             registers need to move from the copying warp to others (setmaxnreg). There are also
//             tiles of 128 × 256, for which the L2 cache reads a quarter less, in a block that has
//             a multiprocessor for itself.
//   order     l rises in steps of 16 within a part.
//
// Every operand is seen as pixels of images (PixelGrid of pixel.cuh), a matrix too, so one kind of
// map and of copy is enough (im2col mode: PTX manual, "Tensor im2col mode"). Not measured on a GPU.
#pragma once

#include "kernels/cuda/finish_tile.cuh"

namespace convoy::CONVOY_DEVICE {

constexpr int kTmaThreads = kTensorThreads + 32, kBoxDepth = 64;

// Whether TMA can copy an operand. A tap has whole boxes of channels, unless it is the only one.
inline bool fits_boxes(const PixelGrid& g) {
    const auto fits = [](int size, int made, int taps, int first, int stride, int tap) {
        const int behind = first + (made - 1) * stride - (size - 1);
        return std::min(first, behind) >= -128 && std::max(first, behind) <= 127 && stride <= 8 &&
               taps * tap <= 255;
    };
    return reinterpret_cast<uintptr_t>(g.data) % 16 == 0 && g.C.by % 8 == 0 &&
           (g.C.by % kBoxDepth == 0 || g.R * g.S.by == 1) &&
           fits(g.H, g.P.by, g.R, g.first_h, g.stride_h, g.tap_h) &&
           fits(g.W, g.Q.by, g.S.by, g.first_w, g.stride_w, g.tap_w);
}

// Copies one operand to shared memory: in each stage kRows rows of it, for b columns of out.
template <bool DepthFast, int kRows>
struct Boxes {
    static constexpr bool kDepthFast = DepthFast;
    CUtensorMap map;
    PixelGrid grid;

    explicit Boxes(const PixelGrid& g)
        : map(image_map(g.data, {g.C.by, g.W, g.H, g.N}, {g.first_w, g.first_h},
                        {g.first_w + (g.Q.by - 1) * g.stride_w - (g.W - 1),
                         g.first_h + (g.P.by - 1) * g.stride_h - (g.H - 1)},
                        {g.stride_w, g.stride_h}, kDepthFast ? kRows : kBoxDepth)),
          grid(g) {}
    // Starts the copies of rows from `row` and depths from l on.
    __device__ __forceinline__ void copy(char* to, CopyBarrier& full, int row, int l) const {
        if constexpr (kDepthFast)
            copy_box(to, full, row, l);
        else
            for (int i = 0; i < kRows; i += kBoxDepth) copy_box(to + i * 128, full, l, row + i);
    }

 private:
    __device__ __forceinline__ void copy_box(char* to, CopyBarrier& full, int slow,
                                             int fast) const {
        const PixelGrid& g = grid;
        const int line = slow / g.Q, n = line / g.P, tap = fast / g.C, r = tap / g.S;
        full.copy(to, map, fast - tap * g.C.by, (slow - line * g.Q.by) * g.stride_w + g.first_w,
                  (line - n * g.P.by) * g.stride_h + g.first_h, n, (tap - r * g.S.by) * g.tap_w,
                  r * g.tap_h);
    }
};

// Blocks that a multiprocessor runs at once: a wide tile needs more than half of the registers.
constexpr int blocks_at_once(int columns) { return columns > kTensorRows ? 1 : kBlocksAtOnce; }

template <class A, class B, int kRows, int kColumns, class F>
__global__ void __launch_bounds__(kTmaThreads, blocks_at_once(kColumns))
    tma_product_kernel(const __grid_constant__ A a, const __grid_constant__ B b, int I, int J,
                       int L, int part_depth, float* parts, F epilogue) {
    if constexpr (!kHasGroupProducts)
        __trap();
    else {
        extern __shared__ __align__(1024) char shared[];
        __shared__ CopyBarrier full[kStages];
        __shared__ CopyBarrier empty[kStages];
        // A warp has 16 rows; kDown warps share columns.
        constexpr int kN = kRows * kColumns / 1024, kDown = kRows / 16;
        constexpr int kStageA = kRows * 128, kStage = kStageA + kColumns * 128;
        const int thread = threadIdx.x, warp = thread / 32;
        const Place at(blockIdx.x, ceil_div(J, kColumns));
        const int begin = blockIdx.z * part_depth, end = min(L, begin + part_depth);
        const int steps = ceil_div(end - begin, kBoxDepth);
        int stage = 0, parity = 0;  // of the phase in which the stage is filled
        const auto next = [&] {
            if (++stage == kStages) stage = 0, parity ^= 1;
        };
        if (thread == kTensorThreads)
            for (int s = 0; s < kStages; ++s) full[s].init(1), empty[s].init(kTensorThreads / 32);
        __syncthreads();  // the barriers are there
        if (thread >= kTensorThreads) {
            for (int step = 0; step < steps && thread == kTensorThreads; ++step, next()) {
                char* const to = shared + stage * kStage;
                empty[stage].wait(parity ^ 1);  // at once in the first round
                full[stage].arrive_and_expect(kStage);
                a.copy(to, full[stage], at.row * kRows, begin + step * kBoxDepth);
                b.copy(to + kStageA, full[stage], at.column * kColumns, begin + step * kBoxDepth);
            }
            return;
        }
        const int row = warp % kDown * 16, column = warp / kDown * (kN * 8);
        const uint64_t group_a =
            GroupProducts::descriptor<A::kDepthFast>(shared + row / 64 * 64 * 128);
        const uint64_t group_b =
            GroupProducts::descriptor<B::kDepthFast>(shared + kStageA + column * 128);
        GroupProducts products;
        float sums[1][kN][4] = {};
        int before = 0;  // the stage of the last step
        for (int step = 0; step < steps; ++step, before = stage, next()) {
            full[stage].wait(parity);
            products.template start<A::kDepthFast, B::kDepthFast>(
                sums[0], group_a + stage * (kStage / 16), group_b + stage * (kStage / 16));
            products.template wait<1>();
            if (step > 0 && thread % 32 == 0) empty[before].arrive();
        }
        products.template wait<0>();
        finish_tile<kRows, kColumns>(shared, sums, row, column, at, I, J, parts, epilogue);
    }
}

}  // namespace convoy::CONVOY_DEVICE
