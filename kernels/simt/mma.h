// mma.h — the tensor core instructions on the CPU: the functions of kernels/cuda/mma.cuh on the
// same fragments. A fragment is spread over the 32 lanes of a warp as the PTX manual draws it
// (chapter "Matrix instructions"); below, group = lane / 4 and member = lane % 4.
//
// The target of an asynchronous copy holds NaN from the request to the wait. So a test fails if a
// kernel reads the target too early, or still needs its old content.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "kernels/simt/emulator.h"

namespace convoy::simt {

constexpr bool kHasTensorCores = true, kHasGroupProducts = true;

// Waits for the first kThreads threads of the block.
template <int kThreads>
void sync_first(Here here = {}) {
    barrier(1, kThreads, here);
}

// ---- rounding ------------------------------------------------------------------------------

// cvt.rna.tf32.f32: 10 bits of mantissa, ties away from zero, in the upper 19 bits of a float.
inline uint32_t to_tf32(float x) {
    if (x != x) return 0x7FFFFFFFu;
    return (std::bit_cast<uint32_t>(x) + 0x1000u) & ~0x1FFFu;
}
// cvt.rn.bf16x2.f32: the first number in the lower half.
inline uint32_t to_bf16x2(float low, float high) {
    return uint32_t(__nv_bfloat16(high).bits) << 16 | __nv_bfloat16(low).bits;
}

// ---- products ------------------------------------------------------------------------------

struct MmaLane {
    float* d;
    const uint32_t *a, *b;
};
// d[16][8] += a[16][K]·b[K][8], where K is 8 words: 8 tf32 or 16 bf16. The hardware's order of
// additions is not known. Here the sums are in double and are rounded once.
template <bool kBf16>
void mma_work(void* const* lanes, unsigned) {
    const auto lane = [&](int i) { return static_cast<MmaLane*>(lanes[i]); };
    const auto value = [](uint32_t word, int half) -> double {
        if (kBf16) return from_bf16(uint16_t(word >> 16 * half));
        return std::bit_cast<float>(word & ~0x1FFFu);  // a tensor core reads 19 bits
    };
    for (int row = 0; row < 16; ++row)
        for (int column = 0; column < 8; ++column) {
            float& d = lane(row % 8 * 4 + column / 2)->d[row / 8 * 2 + column % 2];
            double sum = d;
            for (int l = 0; l < 8; ++l) {
                const uint32_t a = lane(row % 8 * 4 + l % 4)->a[row / 8 + l / 4 * 2];
                const uint32_t b = lane(column * 4 + l % 4)->b[l / 4];
                for (int half = 0; half <= int(kBf16); ++half)
                    sum += value(a, half) * value(b, half);
            }
            d = float(sum);
        }
}

template <bool kBf16>
void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Here here = {}) {
    MmaLane own{d, a, b};
    warp_operation(0xFFFFFFFFu, &own, mma_work<kBf16>,
                   kBf16 ? "mma.m16n8k16.bf16" : "mma.m16n8k8.tf32", here);
}

// ---- matrices of 8 rows of 16 bytes --------------------------------------------------------

struct LoadLane {
    uint32_t* to;
    const void* row;
};
// Lane i gives the address of row i % 8 of matrix i / 8, and gets word `member` of row `group` of
// each matrix. If transposed, each matrix of 16-bit numbers is transposed first.
template <bool kTransposed>
void load_matrices_work(void* const* lanes, unsigned) {
    uint16_t rows[4][8][8];
    for (int i = 0; i < 32; ++i) {
        const void* row = static_cast<LoadLane*>(lanes[i])->row;
        if (reinterpret_cast<uintptr_t>(row) % 16)
            fault(cat("ldmatrix: the row of lane ", i, " is not aligned to 16 bytes"));
        std::memcpy(rows[i / 8][i % 8], row, 16);
    }
    for (int i = 0; i < 32; ++i)
        for (int m = 0; m < 4; ++m) {
            const int group = i / 4, first = i % 4 * 2;
            const auto number = [&](int at) {
                return uint32_t(kTransposed ? rows[m][at][group] : rows[m][group][at]);
            };
            static_cast<LoadLane*>(lanes[i])->to[m] = number(first) | number(first + 1) << 16;
        }
}
inline void load_matrices(uint32_t (&to)[4], const void* row, Here here = {}) {
    LoadLane own{to, row};
    warp_operation(0xFFFFFFFFu, &own, load_matrices_work<false>, "ldmatrix.x4", here);
}
inline void load_matrices_transposed(uint32_t (&to)[4], const void* row, Here here = {}) {
    LoadLane own{to, row};
    warp_operation(0xFFFFFFFFu, &own, load_matrices_work<true>, "ldmatrix.x4.trans", here);
}

// ---- asynchronous copies from global to shared memory ---------------------------------------

class AsyncCopies {
 public:
    void copy(void* to, const void* from, bool there) {
        if (reinterpret_cast<uintptr_t>(to) % kBytes || reinterpret_cast<uintptr_t>(from) % kBytes)
            fault(cat("cp.async of ", kBytes, " bytes: an address is not aligned to them"));
        if (requested_ - done_ == kMost) fault(cat("cp.async: more than ", kMost, " on their way"));
        copies_[requested_++ % kMost] = {to, there ? from : nullptr, groups_};
        std::memset(to, 0xFF, kBytes);
    }
    void commit() { ++groups_; }
    // All groups but the last kPending are there, for this thread.
    template <int kPending>
    void wait() {
        for (; done_ != requested_ && copies_[done_ % kMost].group < groups_ - kPending; ++done_) {
            const Copy& copy = copies_[done_ % kMost];
            if (copy.from)
                std::memcpy(copy.to, copy.from, kBytes);
            else
                std::memset(copy.to, 0, kBytes);
        }
    }

 private:
    static constexpr int kBytes = 16;
    static constexpr unsigned kMost = 128;  // a power of two
    struct Copy {
        void* to;
        const void* from;  // null: zeros
        int group;
    };
    Copy copies_[kMost] = {};
    unsigned requested_ = 0, done_ = 0;
    int groups_ = 0;  // committed groups
};

// ---- barriers that count copies, copies of boxes ----------------------------------------------

// As image_map of mma.cuh describes it.
struct CUtensorMap {
    const char* image;
    int sizes[4], lower[2], upper[2], step[2], pixels;
};
inline CUtensorMap image_map(const void* image, const int (&sizes)[4], const int (&lower)[2],
                             const int (&upper)[2], const int (&step)[2], int pixels) {
    const auto within = [](const int(&x)[2], int least, int most) {
        return std::min(x[0], x[1]) >= least && std::max(x[0], x[1]) <= most;
    };
    ENSURE(reinterpret_cast<uintptr_t>(image) % 16 == 0 && sizes[0] % 8 == 0,
           "a box of an image that is not aligned to 16 bytes, with ", sizes[0], " channels");
    ENSURE(within(lower, -128, 127) && within(upper, -128, 127) && within(step, 1, 8) &&
               std::ranges::min(sizes) > 0 && pixels > 0 && pixels <= 1024,
           "a box beyond what TMA can describe");
    CUtensorMap map{static_cast<const char*>(image), {}, {}, {}, {}, pixels};
    std::ranges::copy(sizes, map.sizes), std::ranges::copy(lower, map.lower);
    std::ranges::copy(upper, map.upper), std::ranges::copy(step, map.step);
    return map;
}

inline std::atomic<int64_t> boxes_copied = 0;  // so that a test knows that a product came this way

// A copy arrives when no thread of the block can go on without it; its target holds NaN until then.
class CopyBarrier {
 public:
    void init(int arrivals) { arrivals_ = left_ = uint16_t(arrivals), bytes_ = 0, parity_ = 0; }
    void arrive(Here here = {}) {
        if (is_left_out(here)) return;
        if (arrivals_ == 0xFFFF || left_ == 0)
            fault("mbarrier: an arrival that it does not expect");
        --left_;
        advance();
    }
    void arrive_and_expect(int bytes, Here here = {}) {
        bytes_ += bytes;
        arrive(here);
    }
    void copy(void* to, const CUtensorMap& map, int c, int w, int h, int n, int s, int r) {
        if (reinterpret_cast<uintptr_t>(to) % 1024) fault("TMA: the target is not aligned to 1024");
        if (std::min(s, r) < 0 || std::max(s, r) > 255) fault("TMA: a tap outside of 0 ... 255");
        if (w < map.lower[0] || h < map.lower[1]) fault("TMA: a box that begins before its image");
        std::memset(to, 0xFF, size_t(map.pixels) * 128), ++boxes_copied;
        copy_later([=, this] {
            const auto [C, W, H, N] = map.sizes;
            int x = w, y = h, image = n;  // of the pixel before the tap moves it
            for (int i = 0; i < map.pixels; ++i) {
                const int row = y + r, column = x + s;
                const bool inside = image < N && row >= 0 && row < H && column >= 0 && column < W;
                for (int chunk = 0; chunk < 8; ++chunk) {
                    char* const at = static_cast<char*>(to) + i * 128 + (chunk ^ i % 8) * 16;
                    const int first = c + chunk * 8;
                    if (inside && first < C)
                        std::memcpy(
                            at,
                            map.image + 2 * (((int64_t(image) * H + row) * W + column) * C + first),
                            16);
                    else
                        std::memset(at, 0, 16);
                }
                if ((x += map.step[0]) < W + map.upper[0]) continue;
                x = map.lower[0];
                if ((y += map.step[1]) < H + map.upper[1]) continue;
                y = map.lower[1], ++image;
            }
            bytes_ -= map.pixels * 128;
            advance();
        });
    }
    void wait(int parity, Here here = {}) {
        wait_until([this, parity] { return int(parity_) != parity; }, "mbarrier.try_wait", here);
    }

 private:
    void advance() {
        if (left_ > 0 || bytes_ != 0) return;
        left_ = arrivals_, parity_ ^= 1;
        something_came();
    }
    uint16_t arrivals_, left_;
    int32_t bytes_ : 31;
    uint32_t parity_ : 1;
};
static_assert(sizeof(CopyBarrier) == 8);

// ---- products of groups of warps -------------------------------------------------------------

// The products are made at wait(), from what is in shared memory then. So a test fails if a kernel
// overwrites an operand or reads the sums too early. Bits 7 to 9 of an address turn the chunks of
// 16 bytes in a row: probed on an H200 for the fast depth, for the slow one by the PTX manual.
class GroupProducts {
 public:
    template <bool kDepthFastA, bool kDepthFastB, int kN>
    void start(float (&sums)[kN][4], uint64_t a, uint64_t b) {
        if (count_ == kMost) fault("wgmma: a fifth stage begins before the wait for the first one");
        started_[count_++] = {multiply<kDepthFastA, kDepthFastB, kN>, sums[0], int(threadIdx.x),
                              reinterpret_cast<const char*>(a * 16),
                              reinterpret_cast<const char*>(b * 16)};
    }
    template <bool kDepthFast>
    static uint64_t descriptor(const char* at) {
        return reinterpret_cast<uintptr_t>(at) / 16;
    }
    template <int kPending>
    void wait(Here here = {}) {
        warp_operation(
            0xFFFFFFFFu, this,
            [](void* const* lanes, unsigned) {
                for (int i = 0; i < warpSize; ++i)
                    static_cast<GroupProducts*>(lanes[i])->finish(kPending);
            },
            "wgmma.wait_group", here);
    }

 private:
    template <bool kDepthFast>
    static float number(const char* tile, int row, int l) {
        uintptr_t at = reinterpret_cast<uintptr_t>(tile);
        at += kDepthFast ? row * 128 + l * 2 : row / 64 * 64 * 128 + l * 128 + row % 64 * 2;
        return from_bf16(*reinterpret_cast<const uint16_t*>(at ^ (at >> 7 & 7) << 4));
    }
    // The part of this thread.
    template <bool kDepthFastA, bool kDepthFastB, int kN>
    static void multiply(float* sums, int thread, const char* a, const char* b) {
        thread %= 128;
        for (int half = 0; half < 2; ++half)
            for (int i = 0; i < kN * 2; ++i) {
                const int row = thread / 32 * 16 + thread % 32 / 4 + half * 8;
                const int column = i / 2 * 8 + thread % 4 * 2 + i % 2;
                float& to = sums[i / 2 * 4 + half * 2 + i % 2];
                for (int first = 0; first < 64; first += 16) {
                    double sum = to;
                    for (int l = first; l < first + 16; ++l)
                        sum += double(number<kDepthFastA>(a, row, l)) *
                               number<kDepthFastB>(b, column, l);
                    to = float(sum);
                }
            }
    }

    void finish(int pending) {
        for (; count_ > pending; std::copy(started_ + 1, started_ + kMost, started_), --count_)
            started_[0].multiply(started_[0].sums, started_[0].thread, started_[0].a,
                                 started_[0].b);
    }

    struct Stage {
        void (*multiply)(float* sums, int thread, const char* a, const char* b);
        float* sums;
        int thread;
        const char *a, *b;
    };
    static constexpr int kMost = 4;
    Stage started_[kMost];
    int count_ = 0;
};

}  // namespace convoy::simt
