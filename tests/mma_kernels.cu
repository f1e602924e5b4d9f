// mma_kernels.cu — see mma_kernels.h.
#include "tests/mma_kernels.h"

#include <string_view>

#include "kernels/cuda/mma.cuh"
#include "tests/device_memory.cuh"

namespace convoy::CONVOY_DEVICE {

namespace {

// Which rows, columns and depths a lane holds is written out here once more, after the manual.
__global__ void mma_kernel(bool bf16, const float* a, const float* b, float* d) {
    const int lane = threadIdx.x, group = lane / 4, member = lane % 4, depth = bf16 ? 16 : 8;
    uint32_t a_own[4], b_own[2];
    float d_own[4];
    for (int i = 0; i < 4; ++i) {
        const int row = group + i % 2 * 8, l = bf16 ? member * 2 + i / 2 * 8 : member + i / 2 * 4;
        const float* at = a + row * depth + l;
        a_own[i] = bf16 ? to_bf16x2(at[0], at[1]) : to_tf32(at[0]);
        d_own[i] = d[(group + i / 2 * 8) * 8 + member * 2 + i % 2];
    }
    for (int i = 0; i < 2; ++i) {
        const int l = bf16 ? member * 2 + i * 8 : member + i * 4;
        const float* at = b + l * 8 + group;
        b_own[i] = bf16 ? to_bf16x2(at[0], at[8]) : to_tf32(at[0]);
    }
    if (bf16)
        mma<true>(d_own, a_own, b_own);
    else
        mma<false>(d_own, a_own, b_own);
    for (int i = 0; i < 4; ++i) d[(group + i / 2 * 8) * 8 + member * 2 + i % 2] = d_own[i];
}

__global__ void load_kernel(bool transposed, const uint16_t* matrices, uint32_t* words) {
    __shared__ __align__(16) uint16_t rows[32][8];
    const int lane = threadIdx.x;
    for (int i = 0; i < 8; ++i) rows[lane][i] = matrices[lane * 8 + i];
    __syncthreads();
    uint32_t own[4];
    if (transposed)
        load_matrices_transposed(own, rows[lane]);
    else
        load_matrices(own, rows[lane]);
    for (int i = 0; i < 4; ++i) words[lane * 4 + i] = own[i];
}

__global__ void copy_kernel(const float* x, float* seen) {
    __shared__ __align__(16) float tile[32][12];
    const int thread = threadIdx.x;
    const auto look = [&](int read) {
        for (int i = 0; i < 12; ++i) seen[(read * 32 + thread) * 12 + i] = tile[thread][i];
    };
    AsyncCopies copies;
    copies.copy(&tile[thread][0], x + thread * 4, true);
    copies.commit();
    copies.copy(&tile[thread][4], x + (32 + thread) * 4, true);
    copies.copy(&tile[thread][8], x, false);
    copies.commit();
    look(0);
    copies.wait<1>();
    look(1);
    copies.wait<0>();
    look(2);
}

__global__ void misaligned_copy_kernel(const float* x) {
    __shared__ __align__(16) float tile[4];
    AsyncCopies copies;
    copies.copy(tile, x + 1, true);
}

// ---- boxes, and products of groups ---------------------------------------------------------

enum class Mistake {
    kNone,
    kNoWait,
    kWrongPhase,
    kFewBytes,
    kManyBytes,
    kNoExpect,
    kTwoArrivals,
    kNoInit,
    kTarget,
    kTap,
    kNoEnd,
    kEarly
};
Mistake mistake_of(std::string_view name) {
    const char* const names[] = {"",           "no wait",   "wrong phase",  "few bytes",
                                 "many bytes", "no expect", "two arrivals", "no init",
                                 "target",     "tap",       "no end",       "early"};
    for (int i = 0;; ++i)
        if (name == names[i]) return Mistake(i);
}

__global__ void box_kernel(const __grid_constant__ CUtensorMap map, BoxCase box, Mistake mistake,
                           uint16_t* out) {
    if constexpr (kHasGroupProducts) {
        __shared__ __align__(1024) uint16_t tile[128 * 64];
        __shared__ CopyBarrier there;
        const int bytes = box.pixels * 128;
        if (threadIdx.x == 0 && mistake != Mistake::kNoInit) there.init(1);
        __syncthreads();
        if (threadIdx.x == 0) {
            const int off = mistake == Mistake::kFewBytes    ? -128
                            : mistake == Mistake::kManyBytes ? 128
                                                             : 0;
            if (mistake == Mistake::kNoExpect)
                there.arrive();
            else
                there.arrive_and_expect(bytes + off);
            if (mistake == Mistake::kTwoArrivals) there.arrive();
            there.copy(tile + (mistake == Mistake::kTarget ? 64 : 0), map, box.c, box.w, box.h,
                       box.n, mistake == Mistake::kTap ? -1 : box.s, box.r);
        }
        if (mistake != Mistake::kNoWait && mistake != Mistake::kNoEnd)
            there.wait(mistake == Mistake::kWrongPhase ? 1 : 0);
        if (mistake == Mistake::kNoEnd) return;
        for (int i = threadIdx.x; i < bytes / 2; i += blockDim.x) out[i] = tile[i];
        __syncthreads();
        if (mistake != Mistake::kNone) there.wait(0);
    }
}

// One tile of 128 × 128 by two groups, with one stage of shared memory.
template <bool kDepthFastA, bool kDepthFastB>
__global__ void group_kernel(const __grid_constant__ CUtensorMap a,
                             const __grid_constant__ CUtensorMap b, int depth, Mistake mistake,
                             float* out) {
    if constexpr (kHasGroupProducts) {
        __shared__ __align__(1024) char tile[2 * 128 * 128];
        __shared__ CopyBarrier full;
        __shared__ CopyBarrier empty;
        const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
        if (thread == 0) full.init(1), empty.init(8);
        __syncthreads();
        const auto copy = [&](char* to, const CUtensorMap& map, bool depth_fast, int l) {
            if (depth_fast) return full.copy(to, map, l, 0, 0, 0, 0, 0);
            full.copy(to, map, 0, l, 0, 0, 0, 0), full.copy(to + 64 * 128, map, 64, l, 0, 0, 0, 0);
        };
        if (thread >= 256) {
            for (int l = 0; thread == 256 && l < depth; l += 64) {
                if (mistake != Mistake::kEarly) empty.wait(l / 64 % 2 ^ 1);
                full.arrive_and_expect(sizeof tile);
                copy(tile, a, kDepthFastA, l), copy(tile + 128 * 128, b, kDepthFastB, l);
            }
            return;
        }
        const uint64_t a_there = GroupProducts::descriptor<kDepthFastA>(tile + warp / 4 * 64 * 128);
        const uint64_t b_there = GroupProducts::descriptor<kDepthFastB>(tile + 128 * 128);
        GroupProducts products;
        float sums[16][4] = {};
        for (int l = 0; l < depth; l += 64) {
            if (mistake != Mistake::kNoWait)
                full.wait(l / 64 % 2 ^ int(mistake == Mistake::kWrongPhase));
            products.start<kDepthFastA, kDepthFastB>(sums, a_there, b_there);
            if (mistake != Mistake::kNoEnd) products.wait<0>();
            if (lane == 0) empty.arrive();
        }
        for (int n = 0; n < 16; ++n)
            for (int e = 0; e < 4; ++e)
                out[(warp * 16 + lane / 4 + e / 2 * 8) * 128 + n * 8 + lane % 4 * 2 + e % 2] =
                    sums[n][e];
    }
}

bool has_groups() {
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
    return has_group_products(properties);
}

std::vector<uint16_t> copied_box(const std::vector<uint16_t>& image, const BoxCase& box) {
    const Device<uint16_t> there(image), out(std::vector<uint16_t>(box.pixels * 64, 0xABCD));
    box_kernel<<<1, 32>>>(
        image_map(there.data, box.sizes, box.lower, box.upper, box.step, box.pixels), box,
        mistake_of(box.mistake), out.data);
    CUDA_LAUNCHED();
    return out.host();
}

std::vector<float> group_product(bool depth_fast_a, bool depth_fast_b,
                                 const std::vector<uint16_t>& a, const std::vector<uint16_t>& b,
                                 const char* mistake) {
    const Device<uint16_t> a_there(a), b_there(b);
    const Device<float> out(128 * 128);
    const int depth = int(a.size() / 128);
    const auto map = [&](const uint16_t* matrix, bool depth_fast) {
        const int slow = depth_fast ? 128 : depth, fast = depth_fast ? depth : 128;
        return image_map(matrix, {fast, slow, 1, 1}, {0, 0}, {0, 0}, {1, 1}, depth_fast ? 128 : 64);
    };
    const auto launch = [&](auto product) {
        product<<<1, 288>>>(map(a_there.data, depth_fast_a), map(b_there.data, depth_fast_b), depth,
                            mistake_of(mistake), out.data);
    };
    if (depth_fast_a)
        launch(depth_fast_b ? group_kernel<true, true> : group_kernel<true, false>);
    else
        launch(depth_fast_b ? group_kernel<false, true> : group_kernel<false, false>);
    CUDA_LAUNCHED();
    return out.host();
}

std::vector<float> one_mma(bool bf16, const std::vector<float>& a, const std::vector<float>& b,
                           const std::vector<float>& d) {
    const Device<float> a_there(a), b_there(b), d_there(d);
    mma_kernel<<<1, 32>>>(bf16, a_there.data, b_there.data, d_there.data);
    CUDA_LAUNCHED();
    return d_there.host();
}

std::vector<uint32_t> one_load(bool transposed, const std::vector<uint16_t>& matrices) {
    const Device<uint16_t> there(matrices);
    const Device<uint32_t> words(128);
    load_kernel<<<1, 32>>>(transposed, there.data, words.data);
    CUDA_LAUNCHED();
    return words.host();
}

std::vector<float> copies_seen(const std::vector<float>& x) {
    const Device<float> there(x), seen(3 * 32 * 12);
    copy_kernel<<<1, 32>>>(there.data, seen.data);
    CUDA_LAUNCHED();
    return seen.host();
}

void copy_misaligned() {
    const Device<float> x(8);
    misaligned_copy_kernel<<<1, 1>>>(x.data);
}

}  // namespace

MmaKernels mma_kernels() {
    return {one_mma, one_load, copies_seen, copy_misaligned, has_groups, copied_box, group_product};
}

}  // namespace convoy::CONVOY_DEVICE
