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
// Threads take columns of dw each. Where dw has too few (first layers), they take rows, each adds
// into a dw of its own, and these are added up in the order of the threads.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pack.h"

namespace convoy {

namespace {

constexpr int kRowsBlock = 256;
constexpr int kPanelGroup = 8;

// Rows [row, row + count) of dy, its columns in panels: a(i,k) at lane·k + i in each.
void pack_by_depth(const float* dy, int K, int count, const Panels& panels, int lane, float* to) {
    for (int panel = 0; panel < panels.count; ++panel) {
        const float* from = dy + panels.begin(panel);
        // The floats from height to lane are never used; where they exist, copying them along
        // makes the length constant.
        const bool whole = panels.begin(panel) + lane <= K;
        const int height = panels.height(panel);
        for (int k = 0; k < count; ++k, from += K, to += lane) {
            if (whole && lane == 16)
                std::memcpy(to, from, 16 * sizeof(float));
            else if (whole && lane == 8)
                std::memcpy(to, from, 8 * sizeof(float));
            else
                for (int i = 0; i < height; ++i) to[i] = from[i];
        }
    }
}

// One row of a panel; copies of a constant length need no call.
inline void copy_panel_row(float* to, const float* from, int nr) {
    if (nr == 32)
        std::memcpy(to, from, 32 * sizeof(float));
    else if (nr == 16)
        std::memcpy(to, from, 16 * sizeof(float));
    else
        std::memcpy(to, from, nr * sizeof(float));
}

// Columns [begin, end) of `count` rows of patches as panels b[panel][row][nr], the last filled up
// with zeros: a few rows at a time are first laid side by side.
void pack_columns(const Patches& x, int64_t row, int count, int begin, int end, int nr, float* to) {
    constexpr int kRows = 16;
    float rows[kRows * kRowStride];
    const ptrdiff_t panel = ptrdiff_t(count) * nr;
    const int rest = (end - begin) % nr;
    for (int k = 0; k < count; k += kRows, to += kRows * nr) {
        const int here = std::min(kRows, count - k);
        pack_by_row(x, row + k, here, begin, end, rows);
        if (rest)
            for (int i = 0; i < here; ++i)
                std::fill_n(rows + i * kRowStride + (end - begin), nr - rest, 0.0f);
        for (int j = 0; j < end - begin; j += nr)
            for (int i = 0; i < here; ++i)
                copy_panel_row(to + j / nr * panel + i * nr, rows + i * kRowStride + j, nr);
    }
}

// Adds the product of rows [row, row_end) into columns [panel·nr, …) of dw.
struct RowsProduct {
    const Micro& micro;
    const float* dy;
    int K;
    const Patches& patches;

    size_t scratch_elems() const {
        const Panels out(K, micro.mr);
        return size_t(kRowsBlock) * (out.count * micro.lane + kPanelGroup * micro.nr);
    }

    void operator()(int64_t row, int64_t row_end, int panel_begin, int panel_end, float* scratch,
                    float* dw) const {
        const int depth = patches.depth(), nr = micro.nr;
        const Panels out(K, micro.mr);
        for (; row < row_end; row += kRowsBlock) {
            const int count = int(std::min<int64_t>(kRowsBlock, row_end - row));
            float* a = scratch;
            float* b = scratch + size_t(out.count) * kRowsBlock * micro.lane;
            pack_by_depth(dy + row * K, K, count, out, micro.lane, a);
            for (int p = panel_begin; p < panel_end; p += kPanelGroup) {
                const int group_end = std::min(panel_end, p + kPanelGroup);
                pack_columns(patches, row, count, p * nr, std::min(depth, group_end * nr), nr, b);
                multiply_group(count, p, group_end, out, a, b, dw);
            }
        }
    }

 private:
    void multiply_group(int count, int panel_begin, int panel_end, const Panels& out,
                        const float* a, const float* b, float* dw) const {
        const int panels = panel_end - panel_begin;
        const auto tile = [&](int m, int p) {
            add_tile(count, m, panel_begin + p, out, a, b + size_t(p) * count * micro.nr, dw);
        };
        // Few rows (linear layers): all is in cache but dw, which is then walked along its rows.
        if (count <= 64) {
            for (int m = 0; m < out.count; ++m)
                for (int p = 0; p < panels; ++p) tile(m, p);
        } else {
            for (int p = 0; p < panels; ++p)
                for (int m = 0; m < out.count; ++m) tile(m, p);
        }
    }
    void add_tile(int count, int m, int panel, const Panels& out, const float* a, const float* b,
                  float* dw) const {
        const int depth = patches.depth(), column = panel * micro.nr;
        float* rows[16];
        for (int i = 0; i < out.height(m); ++i)
            rows[i] = dw + ptrdiff_t(out.begin(m) + i) * depth + column;
        TileOut to{rows, std::min(micro.nr, depth - column)};
        to.accumulate = true;
        micro.tile_by_depth(out.height(m), count, a + size_t(m) * count * micro.lane, b, to);
    }
};

}  // namespace

void multiply_rows(Cpu& cpu, const float* dy, int K, const Patches& x, float* dw) {
    const int64_t rows = x.rows();
    if (rows == 0) return;
    const Patches patches = x.is_matrix() ? Patches::matrix(x.x, int(rows), x.C) : x;
    const RowsProduct product{cpu.micro, dy, K, patches};
    const int panels = ceil_div(patches.depth(), cpu.micro.nr), threads = cpu.pool.size();
    float* const* scratch = cpu.for_threads(product.scratch_elems());
    if (panels >= 2 * threads || threads == 1) {
        cpu.pool.for_each(threads, [&](int task, int thread) {
            product(0, rows, int(int64_t(panels) * task / threads),
                    int(int64_t(panels) * (task + 1) / threads), scratch[thread], dw);
        });
        return;
    }
    const size_t elems = size_t(K) * patches.depth();
    float* parts = cpu.shared.get(kSlotParts, elems * threads);
    cpu.pool.for_each(threads, [&](int task, int thread) {
        float* part = parts + elems * task;
        std::fill_n(part, elems, 0.0f);
        product(rows * task / threads, rows * (task + 1) / threads, 0, panels, scratch[thread],
                part);
    });
    cpu.pool.for_ranges(elems, 4096, [&](size_t begin, size_t end) {
        for (int t = 0; t < threads; ++t)
            for (size_t i = begin; i < end; ++i) dw[i] += parts[elems * t + i];
    });
}

// Slabs of a fixed number of rows, each summed on its own and then added in order: the bits do
// not depend on the number of threads, and no sum has more than a few thousand addends in a row.
void add_column_sums(Cpu& cpu, const float* dy, int64_t rows, int K, float* db) {
    if (rows == 0) return;
    const int slabs = int(std::clamp<int64_t>(rows / 256, 1, 256));
    float* sums = cpu.shared.get(kSlotSums, size_t(slabs) * K);
    cpu.pool.for_each(slabs, [&](int slab, int) {
        float* sum = sums + size_t(slab) * K;
        std::fill_n(sum, K, 0.0f);
        for (int64_t row = rows * slab / slabs; row < rows * (slab + 1) / slabs; ++row)
            for (int k = 0; k < K; ++k) sum[k] += dy[row * K + k];
    });
    for (int k = 0; k < K; ++k) {
        double sum = 0;
        for (int slab = 0; slab < slabs; ++slab) sum += sums[size_t(slab) * K + k];
        db[k] += float(sum);
    }
}

}  // namespace convoy
