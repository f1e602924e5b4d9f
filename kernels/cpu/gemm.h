// gemm.h — matrix products whose left or right side may be the patches of an image. A convolution
// is a product with the matrix of patches (im2col): row (n,p,q) holds the R·S·C numbers under the
// window at output (p,q). That matrix is R·S times as large as the image and never stored: blocks
// of it are copied from the image into the packed form that the inner kernels read. A plain matrix
// is an image of one line under a window of 1x1.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "kernels/cpu/elements.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/micro.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/tensor.h"

namespace convoy {

// The resources that all ops of the CPU backend share.
struct Cpu {
    ThreadPool pool;
    const Micro& micro;
    Scratch shared;   // slots by use: see Slot
    Scratch threads;  // slot t belongs to thread t

    Cpu(int n, const Micro& micro, bool idle = false)
        : pool(n, /*flushes=*/true, idle), micro(micro) {}
    // Returns an array of pointers: [t] is scratch of `elems` floats for thread t.
    float* const* for_threads(size_t elems) {
        thread_blocks_.resize(pool.size());
        for (int t = 0; t < pool.size(); ++t) thread_blocks_[t] = threads.get(t, elems);
        return thread_blocks_.data();
    }

 private:
    std::vector<float*> thread_blocks_;
};
// How many sums of `elems` floats an op over so many rows keeps separately, so that threads can
// share it: one per `least` rows, which take much longer than to add it up, and 8 MB in all. A
// power of two, because most machines have an even number of cores.
inline int separate_sums(int64_t rows, int64_t least, size_t elems) {
    const int64_t most = std::min(rows / least, (2 << 20) / int64_t(elems));
    return int(std::bit_floor(uint64_t(std::clamp<int64_t>(most, 1, 8))));
}
enum Slot : size_t { kSlotB, kSlotA, kSlotSums, kSlotParts, kSlotImages, kSlotFilters };

// Element f = (r·S + s)·C + c of row (n,p,q):
// x[n, p·step_h + h0 + r·dilation_h, q·step_w + w0 + s·dilation_w, c], or 0.
template <class T>
struct PatchesOf {
    const T* x;
    int N, H, W, C;
    int R = 1, S = 1, h0 = 0, w0 = 0, step_h = 1, step_w = 1;
    int P = 1, Q = 1, dilation_h = 1, dilation_w = 1;

    int64_t rows() const { return int64_t(N) * P * Q; }
    int depth() const { return R * S * C; }
    static PatchesOf matrix(const T* x, int rows, int columns) {
        PatchesOf a{x, 1, 1, rows, columns};
        a.Q = rows;
        return a;
    }
    // Whether the patches are the rows of x.
    bool is_matrix() const {
        return R == 1 && S == 1 && step_h == 1 && step_w == 1 && P == H && Q == W;
    }
};

// Where row (n,p,q) of a result starts: data + n·step_n + p·step_p + q·step_q.
template <class T>
struct RowMapOf {
    T* data;
    ptrdiff_t step_n, step_p, step_q;
};

template <class T>
struct EpilogueOf {
    const float* bias = nullptr;  // one a column
    bool relu = false;
    const T* mask = nullptr;  // laid out as the whole result: result is 0 where mask <= 0
    bool add = false;         // result += instead of =
};

// Sets what a tile applies to its sums, which begin at `column`. result: the start of the result.
template <class Out, class T>
void set_epilogue(Out& out, const EpilogueOf<T>& epilogue, ptrdiff_t column, const T* result) {
    out.relu = epilogue.relu;
    out.accumulate |= epilogue.add;
    if (epilogue.bias) out.bias = epilogue.bias + column;
    if (epilogue.mask) out.mask = epilogue.mask - result;
}

// The right side b(k,j), k < depth, j < columns, at b[k·step_k + j·step_j]. One of the two strides
// is 1. The depth may be cut into `taps` equal parts with listed starts: k = tap·(depth/taps) + i
// is at b[tap_start[tap] + i·step_k + j·step_j].
template <class T>
struct RightSideOf {
    const T* b;
    ptrdiff_t step_k, step_j;
    int taps = 1;
    const ptrdiff_t* tap_start = nullptr;  // null: all 0
};

// Products of floats, or of bf16 with sums in fp32 and a result in bf16 or fp32 (see pack.h).

// result(row, j) = epilogue(Σ_k a(row,k)·b(k,j)). b is packed once, as a whole: for weights of
// convolutions, which are small compared with the image.
template <class T, class Y>
void multiply_patches(Cpu& cpu, const PatchesOf<T>& a, const RightSideOf<T>& b, int columns,
                      const RowMapOf<Y>& result, const EpilogueOf<Y>& epilogue);

// The same for a plain matrix a of few rows and a large b, which is packed in parts and read once.
template <class T, class Y>
void multiply_skinny(Cpu& cpu, const T* a, int rows, int depth, const RightSideOf<T>& b,
                     int columns, Y* result, const EpilogueOf<Y>& epilogue);

// dw[k][f] += Σ_row dy[row][k]·patches(row, f), dw K × patches.depth(). The bits do not depend on
// the number of threads.
template <class T>
void multiply_rows(Cpu& cpu, const T* dy, int K, const PatchesOf<T>& patches, float* dw);

// db[k] += Σ_row dy[row][k].
template <class T>
void add_column_sums(Cpu& cpu, const T* dy, int64_t rows, int K, float* db);

}  // namespace convoy
