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
// has few, but more than x, dy is read in place and the product is dwᵀ. Each thread sums a range of
// rows into its own copy of dw; the copies are added in the order of the threads. If dw is too
// large to copy, each thread takes a range of its columns instead.
#include <algorithm>
#include <span>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pack.h"

namespace convoy {

namespace {

constexpr int kRowsBlock = 288;
constexpr int kPanelGroup = 8;
constexpr int kMostInPlace = 256;
constexpr size_t kOwnSums = 300'000;  // up to so many floats, each thread has its own dw
// Padding between panels. Without it their size is often a multiple of 4 KB, and the same row of
// all panels would fall into one set of the L1 cache.
constexpr int kStagger = 16;

// Rows [row, row + count) of dy, its columns in panels: a(i,k) at lane·k + i in each.
void pack_by_depth(const float* dy, int K, int count, const Panels& panels, int lane,
                   ptrdiff_t panel_elems, float* to) {
    // Floats from height to lane are never used; copying them makes the length a constant.
    int whole = 0;
    while (whole < panels.count && panels.begin(whole) + lane <= K) ++whole;
    // A few panels at a time, so that the lines being written stay in L1.
    for (int first = 0; first < panels.count; first += kPanelGroup) {
        const int last = std::min(panels.count, first + kPanelGroup);
        for (int k = 0; k < count; ++k) {
            const float* row = dy + ptrdiff_t(k) * K;
            float* at = to + first * panel_elems + k * lane;
            for (int p = first; p < last; ++p, at += panel_elems) {
                const float* from = row + panels.begin(p);
                if (p < whole && lane == 16)
                    copy_floats<16>(at, from);
                else if (p < whole && lane == 8)
                    copy_floats<8>(at, from);
                else
                    for (int i = 0; i < panels.height(p); ++i) at[i] = from[i];
            }
        }
    }
}

// Packs columns [begin, end) of `count` rows of patches into panels b[panel][row][nr]; the last
// panel is padded with zeros. A few rows at a time are first copied out of the image.
void pack_columns(const Patches& x, int64_t row, int count, int begin, int end, int nr,
                  ptrdiff_t panel_elems, float* to) {
    constexpr int kRows = 16;
    float rows[kRows * kRowStride];
    const int rest = (end - begin) % nr;
    for (int k = 0; k < count; k += kRows, to += kRows * nr) {
        const int here = std::min(kRows, count - k);
        pack_by_row(x, row + k, here, begin, end, rows);
        if (rest)
            for (int i = 0; i < here; ++i)
                std::fill_n(rows + i * kRowStride + (end - begin), nr - rest, 0.0f);
        for (int j = 0; j < end - begin; j += nr)
            for (int i = 0; i < here; ++i)
                copy_panel_row(to + j / nr * panel_elems + i * nr, rows + i * kRowStride + j, nr);
    }
}

// Whether x is read in place: packing few columns takes longer than it saves.
bool reads_in_place(const Micro& micro, const Patches& x) {
    return x.is_matrix() && x.C % micro.nr == 0 && x.C <= kMostInPlace;
}

// Adds the product of rows [row, row_end) into columns [panel·nr, …) of dw.
struct RowsProduct {
    const Micro& micro;
    const float* dy;
    int K;
    const Patches& patches;

    size_t scratch_elems() const {
        const Panels out(K, micro.mr);
        return (out.count + kPanelGroup) *
               (size_t(kRowsBlock) * std::max(micro.lane, micro.nr) + kStagger);
    }

    void operator()(int64_t row, int64_t row_end, int panel_begin, int panel_end, float* scratch,
                    float* dw) const {
        const int depth = patches.depth(), nr = micro.nr;
        const Panels out(K, micro.mr);
        const int blocks = ceil_div(row_end - row, kRowsBlock);
        for (int i = 0; i < blocks; ++i) {
            const int64_t begin = row + (row_end - row) * i / blocks;
            const int64_t end = row + (row_end - row) * (i + 1) / blocks;
            Block block{begin, int(end - begin), out, scratch, nullptr};
            block.b = scratch + out.count * a_elems(block.count);
            block.next = int(std::min<int64_t>(row_end - end, kRowsBlock));
            pack_by_depth(dy + begin * K, K, block.count, out, micro.lane, a_elems(block.count),
                          block.a);
            for (int p = panel_begin; p < panel_end; p += kPanelGroup) {
                const int group_end = std::min(panel_end, p + kPanelGroup);
                if (!in_place())
                    pack_columns(patches, begin, block.count, p * nr,
                                 std::min(depth, group_end * nr), nr, b_elems(block.count),
                                 block.b);
                block.group = p - panel_begin, block.groups = panel_end - panel_begin;
                multiply_group(block, p, group_end, dw);
            }
        }
    }

 private:
    bool in_place() const { return reads_in_place(micro, patches); }
    // Packed rows [row, row + count); `next` is the number of rows of the next block.
    struct Block {
        int64_t row;
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
        const auto tile = [&](int m, int p) {
            const int j = (panel_begin + p) * micro.nr;
            const float* b = in_place() ? patches.x + block.row * patches.C + j
                                        : block.b + p * b_elems(block.count);
            add_tile(block, m, j, b, in_place() ? patches.C : micro.nr, dw, ahead(block, done++));
        };
        // The outer loop follows the rows of dw, which may be large; packed patches stay in L2.
        for (int m = 0; m < count; ++m)
            for (int p = 0; p < panels; ++p) tile(m, p);
    }
    // Tile number `done` prefetches this share of the next rows of dy, and of x if it is a matrix.
    std::span<const float> ahead(const Block& block, int done) const {
        const size_t tiles = size_t(block.groups) * block.out.count;
        const size_t dy_elems = size_t(block.next) * K;
        const size_t x_elems = patches.is_matrix() ? size_t(block.next) * patches.C : 0;
        const size_t begin = (dy_elems + x_elems) * done / tiles;
        const size_t end = (dy_elems + x_elems) * (done + 1) / tiles;
        const int64_t row = block.row + block.count;
        if (begin < dy_elems) return {dy + row * K + begin, end - begin};
        return {patches.x + row * patches.C + (begin - dy_elems), end - begin};
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

}  // namespace

void multiply_rows(Cpu& cpu, const float* dy, int K, const Patches& x, float* dw,
                   bool rows_in_order) {
    const int64_t rows = x.rows();
    if (rows == 0) return;
    const Patches patches = x.is_matrix() ? Patches::matrix(x.x, int(rows), x.C) : x;
    const int depth = patches.depth(), threads = cpu.pool.size();
    const size_t elems = size_t(K) * depth;
    const bool own = elems <= kOwnSums && rows >= kRowsBlock * threads && !rows_in_order;
    // Computes dwᵀ, with the sides exchanged, if the wider side can then be read in place.
    const Patches dy_rows = Patches::matrix(dy, int(rows), K);
    const bool transposed = own && x.is_matrix() && depth < K && reads_in_place(cpu.micro, dy_rows);
    const RowsProduct product = transposed ? RowsProduct{cpu.micro, x.x, depth, dy_rows}
                                           : RowsProduct{cpu.micro, dy, K, patches};
    const int panels = ceil_div(product.patches.depth(), cpu.micro.nr);
    float* const* scratch = cpu.for_threads(product.scratch_elems());
    if (!transposed && (threads == 1 || rows_in_order || (!own && panels >= threads))) {
        cpu.pool.for_each(threads, [&](int task, int thread) {
            product(0, rows, int(int64_t(panels) * task / threads),
                    int(int64_t(panels) * (task + 1) / threads), scratch[thread], dw);
        });
        return;
    }
    float* parts = cpu.shared.get(kSlotParts, elems * threads);
    cpu.pool.for_each(threads, [&](int task, int thread) {
        float* part = parts + elems * task;
        std::fill_n(part, elems, 0.0f);
        product(rows * task / threads, rows * (task + 1) / threads, 0, panels, scratch[thread],
                part);
    });
    cpu.pool.for_ranges(elems, 4096, [&](size_t begin, size_t end) {
        for (int t = 0; t < threads; ++t)
            for (size_t i = begin; i < end; ++i)
                dw[i] += parts[elems * t + (transposed ? i % depth * K + i / depth : i)];
    });
}

}  // namespace convoy
