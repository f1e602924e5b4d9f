// gemm_rows.cpp — products that sum over the rows of two matrices: gradients of weights.
//
//   dw[k][f] += Σ_row dy[row][k] · patches(row, f)
//
//            f                    rows:   blocks of kRowsBlock, packed; the sums of one block are
//          ┌──────────────┐               added to dw
//     rows │   patches    │       f:      groups of 8 panels of nr columns, packed, stay in L2
//          ├──────────────┤       k:      panels of ≤ mr columns of dy, packed k-major
//   dyᵀ ×  │              │
//          └──────────────┘
//
// A matrix x with few columns (kMostInPlace) is read in place instead of being packed. If dy also
// has few, but more than x, dy is read in place and the product is dwᵀ. A task is a range of rows
// and one of columns. Each range of rows has its own sums, added in order; so their number depends
// only on the shape (separate_sums).
#include <algorithm>
#include <span>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pack.h"

namespace convoy {
namespace {

constexpr int kRowsBlock = 288;
constexpr int kPanelGroup = 8;
constexpr int kMostInPlace = 256;
constexpr int kLeastRows = 384;  // for a separate sum

// `count` words of the depth of dy (which has `rows` rows), its columns in panels: a(i,k) at lane·k
// + i in each, on AMX rows in chunks. zeros: a row of them, for words beyond the last row.
template <class Form, class T>
void pack_by_depth(const Micro& micro, Form, const T* dy, int64_t rows, int K, const T* zeros,
                   int count, const Panels& panels, ptrdiff_t panel_elems, float* to) {
    const int lane = micro.lane;
    // Words from height to lane are never used; copying them makes the length a constant.
    int whole = 0;
    while (whole < panels.count && panels.begin(whole) + lane <= K) ++whole;
    // A few panels at a time, so that the lines being written stay in L1.
    for (int first = 0; first < panels.count; first += kPanelGroup) {
        const int last = std::min(panels.count, first + kPanelGroup);
        for (int k = 0; k < count; ++k) {
            const int64_t row = int64_t(k) * Form::kDepth;
            const T* one = row < rows ? dy + row * K : zeros;
            const T* two = row + 1 < rows ? dy + (row + 1) * K : zeros;
            float* at = to + first * panel_elems + k * lane;
            for (int p = first; p < last; ++p, at += panel_elems) {
                const int j = panels.begin(p);
                Form::put(at, one + j, two + j, p < whole ? lane : panels.height(p));
            }
        }
        for (int p = first; p < last && micro.amx; ++p)  // in place: 16 rows lie in registers
            for (float* at = to + p * panel_elems; at < to + p * panel_elems + count * lane;
                 at += lane * kChunk)
                micro.transpose(at, lane, kChunk, kChunk, at, kChunk);
    }
}

// Packs columns [begin, end) of patches, for `count` words of the depth, into panels
// b[panel][k][nr]; the last panel and rows after row_end are padded with zeros. A few rows at a
// time are first copied out of the image.
template <class Form, class T>
void pack_columns(Form, const PatchesOf<T>& x, int64_t row, int64_t row_end, int count, int begin,
                  int end, int nr, ptrdiff_t panel_elems, float* to) {
    constexpr int kWords = 16, kPer = Form::kDepth;
    using Row = std::conditional_t<kPer == 2, Bf16, float>;
    using Copied = std::conditional_t<kPer == 2, Pairs, Floats>;  // Widened on the way to rows
    Row rows[kWords * kPer * kRowStride];
    for (int k = 0; k < count; k += kWords, row += kWords * kPer, to += kWords * nr) {
        const int here = std::min(kWords, count - k) * kPer;
        const int real = int(std::clamp<int64_t>(row_end - row, 0, here));
        pack_by_row(x, row, real, begin, end, rows);
        const int width = (end - begin + nr - 1) / nr * nr;
        for (int i = 0; i < here; ++i) {
            Row* line = rows + i * kRowStride;
            std::fill(line + (i < real ? end - begin : 0), line + width, Row(0));
        }
        for (int j = 0; j < width; j += nr)
            for (int i = 0; i < here; i += kPer)
                Copied::put(to + j / nr * panel_elems + i / kPer * nr, rows + i * kRowStride + j,
                            rows + (i + kPer - 1) * kRowStride + j, nr);
    }
}

// Whether x is read in place: packing few columns takes longer than it saves.
template <class T>
bool reads_in_place(const Micro& micro, const PatchesOf<T>& x) {
    return std::is_same_v<T, float> && x.is_matrix() && x.C % micro.nr == 0 && x.C <= kMostInPlace;
}

// Adds the product of words [row, row_end) of the depth into columns [panel·nr, …) of dw. In pairs
// a word is two rows; rows after the last are 0.
template <class Form>
struct RowsProduct {
    using T = typename Form::T;
    const Micro& micro;
    const T* dy;
    int K;
    const PatchesOf<T>& patches;
    std::vector<T> zeros = std::vector<T>(size_t(K), T(0));

    size_t scratch_elems() const {
        const Panels out(K, micro.mr);
        return (out.count + kPanelGroup) *
               (size_t(kRowsBlock + kChunk) * std::max(micro.lane, micro.nr) + kStagger);
    }

    void operator()(int64_t row, int64_t row_end, int panel_begin, int panel_end, float* scratch,
                    float* dw) const {
        const int depth = patches.depth(), nr = micro.nr, per = Form::kDepth;
        const Panels out(K, micro.mr);
        const int blocks = ceil_div(row_end - row, kRowsBlock);
        for (int i = 0; i < blocks; ++i) {
            const int64_t begin = row + (row_end - row) * i / blocks;
            const int64_t end = row + (row_end - row) * (i + 1) / blocks;
            // AMX multiplies 16 words at a time.
            const int count = micro.amx ? ceil_div(end - begin, kChunk) * kChunk : int(end - begin);
            Block block{end * per, count, out, scratch, nullptr};
            block.b = scratch + out.count * a_elems(count);
            block.next = int(std::min<int64_t>(patches.rows() - end * per, kRowsBlock * per));
            if (end == row_end) block.next = 0;
            const int64_t first = begin * per, last = std::min(patches.rows(), end * per);
            pack_by_depth(micro, Form(), dy + first * K, last - first, K, zeros.data(), count, out,
                          a_elems(count), block.a);
            for (int p = panel_begin; p < panel_end; p += kPanelGroup) {
                const int group_end = std::min(panel_end, p + kPanelGroup);
                if (!in_place())
                    pack_columns(Form(), patches, first, last, count, p * nr,
                                 std::min(depth, group_end * nr), nr, b_elems(count), block.b);
                block.group = p - panel_begin, block.groups = panel_end - panel_begin;
                multiply_group(block, p, group_end, dw);
            }
        }
    }

 private:
    bool in_place() const { return reads_in_place(micro, patches); }
    // `count` packed words; the `next` rows of the next block begin at next_row.
    struct Block {
        int64_t next_row;
        int count;
        const Panels& out;
        float *a, *b;
        int next = 0;
        int group = 0, groups = 1;  // panels of patches before this group, and in all
    };
    ptrdiff_t a_elems(int count) const { return ptrdiff_t(count) * micro.lane + kStagger; }
    ptrdiff_t b_elems(int count) const { return ptrdiff_t(count) * micro.nr + kStagger; }

    void multiply_group(const Block& block, int panel_begin, int panel_end, float* dw) const {
        const int panels = panel_end - panel_begin, count = block.out.count;
        int done = block.group * count;
        // The outer loop follows the rows of dw, which may be large; packed patches stay in L2.
        for (int m = 0; m < count; ++m)
            for (int p = 0; p < panels; ++p) {
                const int j = (panel_begin + p) * micro.nr;
                const float* b = block.b + p * b_elems(block.count);
                if constexpr (std::is_same_v<T, float>)
                    if (in_place()) b = patches.x + (block.next_row - block.count) * patches.C + j;
                add_tile(block, m, j, b, in_place() ? patches.C : micro.nr, dw,
                         ahead(block, done++));
            }
    }
    // Tile number `done` prefetches this share of the next rows of dy, and of x if it is a matrix.
    std::span<const float> ahead(const Block& block, int done) const {
        const size_t tiles = size_t(block.groups) * block.out.count;
        const size_t dy_elems = size_t(block.next) * K;
        const size_t x_elems = patches.is_matrix() ? size_t(block.next) * patches.C : 0;
        const size_t begin = (dy_elems + x_elems) * done / tiles;
        const size_t end = (dy_elems + x_elems) * (done + 1) / tiles;
        const T* from = begin < dy_elems
                            ? dy + block.next_row * K + begin
                            : patches.x + block.next_row * patches.C + (begin - dy_elems);
        return {reinterpret_cast<const float*>(from), (end - begin) * sizeof(T) / sizeof(float)};
    }
    void add_tile(const Block& block, int m, int column, const float* b, ptrdiff_t step, float* dw,
                  std::span<const float> ahead) const {
        const int depth = patches.depth();
        float* rows[16];
        for (int i = 0; i < block.out.height(m); ++i)
            rows[i] = dw + ptrdiff_t(block.out.begin(m) + i) * depth + column;
        TileOut to{rows, std::min(micro.nr, depth - column)};
        to.accumulate = true;
        to.upcoming = ahead.data();
        to.upcoming_lines = ceil_div(int64_t(ahead.size()), block.count);
        to.upcoming_step = to.upcoming_lines * 16;
        micro.tile_by_depth[block.out.height(m)](block.count, block.a + m * a_elems(block.count), b,
                                                 step, to);
    }
};

template <class Form, class T>
void multiply_rows_of(Cpu& cpu, const Micro& micro, Form, const T* dy, int K, const PatchesOf<T>& x,
                      float* dw) {
    const auto patches = x.is_matrix() ? PatchesOf<T>::matrix(x.x, int(x.rows()), x.C) : x;
    const int64_t rows = ceil_div(x.rows(), Form::kDepth);  // in words
    const int depth = patches.depth(), threads = cpu.pool.size();
    const size_t elems = size_t(K) * depth;
    const int parts = separate_sums(x.rows(), kLeastRows, elems);
    // Computes dwᵀ, with the sides exchanged, if the wider side can then be read in place.
    const auto dy_rows = PatchesOf<T>::matrix(dy, int(x.rows()), K);
    const bool transposed =
        parts > 1 && x.is_matrix() && depth < K && reads_in_place(micro, dy_rows);
    const RowsProduct<Form> product = transposed ? RowsProduct<Form>{micro, x.x, depth, dy_rows}
                                                 : RowsProduct<Form>{micro, dy, K, patches};
    const int width = product.patches.depth(), panels = ceil_div(width, micro.nr);
    // A few tasks per thread, but each packs its rows of dy again, for 24 panels or more.
    const int most_cuts = std::max(panels / (3 * kPanelGroup), ceil_div(threads, parts));
    const int cuts = std::clamp(ceil_div(4 * threads, parts), 1, std::min(panels, most_cuts));
    float* const* scratch = cpu.for_threads(product.scratch_elems());
    float* sums = parts > 1 ? cpu.shared.get(kSlotParts, elems * parts) : dw;
    cpu.pool.for_each(parts * cuts, [&](int task, int thread) {
        const TileRegion region(micro);
        const int part = task / cuts, cut = task % cuts;
        const int first = panels * cut / cuts, last = panels * (cut + 1) / cuts;
        float* own = sums + elems * part;
        if (parts > 1)
            for (int k = 0; k < product.K; ++k)
                std::fill(own + ptrdiff_t(k) * width + first * micro.nr,
                          own + ptrdiff_t(k) * width + std::min(width, last * micro.nr), 0.0f);
        product(rows * part / parts, rows * (part + 1) / parts, first, last, scratch[thread], own);
    });
    if (parts == 1) return;
    cpu.pool.for_ranges(elems, 4096, [&](size_t begin, size_t end) {
        for (int part = 0; part < parts; ++part)
            for (size_t i = begin; i < end; ++i)
                dw[i] += sums[elems * part + (transposed ? i % depth * K + i / depth : i)];
    });
}

}  // namespace

template <class T>
void multiply_rows(Cpu& cpu, const T* dy, int K, const PatchesOf<T>& x, float* dw) {
    if (x.rows() == 0) return;
    const auto run = [&](const Micro& micro, auto form) {
        multiply_rows_of(cpu, micro, form, dy, K, x, dw);
    };
    if constexpr (std::is_same_v<T, float>)
        run(cpu.micro, Floats());
    else if (cpu.micro.pairs)
        run(*cpu.micro.pairs, Pairs());
    else
        run(cpu.micro, Widened());
}
template void multiply_rows(Cpu&, const float*, int, const PatchesOf<float>&, float*);
template void multiply_rows(Cpu&, const Bf16*, int, const PatchesOf<Bf16>&, float*);

}  // namespace convoy
