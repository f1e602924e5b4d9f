// gemm.cpp — blocking and packing around the inner kernels of micro.h.
//
//            depth           columns                   loops, outermost first
//          ┌───┬───┐       ┌───┬───┬───┐      rows:  blocks of kRowBlock, shared out to threads
//     rows │ A │   │   ×   │ B │ B │ B │ kc   depth: blocks of kc: A block packed, stays in L2
//          ├───┼───┤       ├───┼───┼───┤      columns: panels of nr: B panel (kc·nr) stays in L1
//          │   │   │       │   │   │   │      rows:  panels of mr: one tile in registers
//          └───┴───┘       └───┴───┴───┘
//
// Goto, van de Geijn: "Anatomy of High-Performance Matrix Multiplication" (ACM TOMS 2008). Sums
// over depth are added in a fixed order, so the bits do not depend on chance.
#include "kernels/cpu/gemm.h"

#include <algorithm>

#include "kernels/cpu/pack.h"

namespace convoy {

namespace {

constexpr int kRowBlock = 280;  // 280·256 floats of A are 287 KB of the 1–2 MB of L2
constexpr int kThinGroup = 16;  // panels of columns whose results stay in L2 over all of the depth
constexpr int kThinPack = 4;    // panels packed together: runs of 512 bytes

// Multiplies a packed block of rows with packed panels of b, for one block of depth.
struct BlockProduct {
    const Micro& micro;
    const Panels& rows;
    int depth;         // of this block
    bool first, last;  // of the blocks of depth
    const Epilogue& epilogue;
    float* const* result;  // start of each row
    const float* base;     // of the result's tensor, for the mask

    // `upcoming`, as large as b: what is needed after this, or null.
    void operator()(const float* a, const float* b, int j, int columns,
                    const float* upcoming) const {
        TileOut out{nullptr, std::min(micro.nr, columns - j)};
        out.accumulate = !first;
        if (last) {
            out.relu = epilogue.relu;
            out.bias = epilogue.bias ? epilogue.bias + j : nullptr;
            out.mask = epilogue.mask ? epilogue.mask - base : 0;
        }
        float* tile_rows[16];
        out.rows = tile_rows;
        for (int panel = 0; panel < rows.count; ++panel) {
            const int height = rows.height(panel), begin = rows.begin(panel);
            for (int i = 0; i < height; ++i) tile_rows[i] = result[begin + i] + j;
            if (upcoming && 2 * panel < micro.nr) out.upcoming = upcoming + 2 * panel * depth;
            micro.tile_by_row(height, depth, a + ptrdiff_t(begin) * kRowStride, b, out);
        }
    }
};

void fill_without_depth(Cpu& cpu, const Patches& a, int columns, const RowMap& result,
                        const Epilogue& epilogue) {
    cpu.pool.for_each(a.N * a.P, [&](int task, int) {
        for (int q = 0; q < a.Q; ++q) {
            float* row = result.data + task / a.P * result.step_n + task % a.P * result.step_p +
                         q * result.step_q;
            for (int j = 0; j < columns; ++j) {
                const float v = epilogue.bias ? epilogue.bias[j] : 0.0f;
                const bool masked = epilogue.mask && row[epilogue.mask - result.data + j] <= 0;
                row[j] = (epilogue.relu && v < 0) || masked ? 0.0f : v;
            }
        }
    });
}

}  // namespace

float* const* Cpu::for_threads(size_t elems) {
    thread_blocks_.resize(pool.size());
    for (int t = 0; t < pool.size(); ++t) thread_blocks_[t] = threads.get(t, elems);
    return thread_blocks_.data();
}

void multiply_patches(Cpu& cpu, const Patches& x, const RightSide& b, int columns,
                      const RowMap& result, const Epilogue& epilogue) {
    const int64_t rows = x.rows();
    if (rows == 0) return;
    const bool plain = x.is_matrix() && result.step_p == x.Q * result.step_q &&
                       result.step_n == x.P * result.step_p;
    const Patches a = plain ? Patches::matrix(x.x, int(rows), x.C) : x;
    const int depth = a.depth();
    if (depth == 0) return fill_without_depth(cpu, a, columns, result, epilogue);
    const Micro& micro = cpu.micro;
    const Cut depths(depth, kDepthBlock, kPiece);
    const int panels = ceil_div(columns, micro.nr);

    // All of b: for each block of depth, its panels one after the other.
    float* packed = cpu.shared.get(kSlotB, size_t(depth) * panels * micro.nr);
    const auto panel_at = [&](int block, int panel) {
        return packed + size_t(depths.begin(block)) * panels * micro.nr +
               size_t(panel) * depths.length(block) * micro.nr;
    };
    cpu.pool.for_each(depths.parts * panels, [&](int task, int) {
        const int block = task / panels, panel = task % panels, k = depths.begin(block);
        pack_panel(micro, b, depth, k, k + depths.length(block), panel * micro.nr, columns,
                   panel_at(block, panel));
    });

    // Blocks of rows; where there are fewer than threads, each is cut by columns as well.
    const int threads = cpu.pool.size();
    const int most = int(std::clamp<int64_t>((rows + threads - 1) / threads, micro.mr, kRowBlock));
    const int blocks = ceil_div(rows, most);
    const int cuts = std::min(panels, blocks >= threads ? 1 : ceil_div(threads, blocks));
    float* const* scratch = cpu.for_threads(size_t(kRowBlock + 16) * kRowStride);
    cpu.pool.for_each(blocks * cuts, [&](int task, int thread) {
        const int64_t row = rows * (task / cuts) / blocks;
        const Panels block(int(rows * (task / cuts + 1) / blocks - row), micro.mr);
        const int panel_begin = panels * (task % cuts) / cuts;
        const int panel_end = panels * (task % cuts + 1) / cuts;
        float* starts[kRowBlock + 16];
        Row at(a, row);
        for (int i = 0; i < block.rows; ++i, at.skip(a, 1))
            starts[i] =
                result.data + at.n * result.step_n + at.p * result.step_p + at.q * result.step_q;
        for (int d = 0; d < depths.parts; ++d) {
            const int k = depths.begin(d), length = depths.length(d);
            pack_by_row(a, row, block.rows, k, k + length, scratch[thread]);
            const BlockProduct product{micro,    block,  length,     d == 0, d + 1 == depths.parts,
                                       epilogue, starts, result.data};
            for (int panel = panel_begin; panel < panel_end; ++panel) {
                const bool more = panel + 1 < panel_end;
                const int next = more ? d : (d + 1) % depths.parts;
                product(scratch[thread], panel_at(d, panel), panel * micro.nr, columns,
                        panel_at(next, more ? panel + 1 : panel_begin));
            }
        }
    });
}

void multiply_thin(Cpu& cpu, const float* a, int rows, int depth, const RightSide& b, int columns,
                   float* result, const Epilogue& epilogue) {
    if (rows == 0) return;
    const Micro& micro = cpu.micro;
    const Patches left = Patches::matrix(a, rows, depth);
    const Cut depths(depth, kDepthBlock, kPiece);
    const Panels all_rows(rows, micro.mr);

    // All of a, packed by blocks of depth.
    const size_t block = size_t(rows) * kRowStride;
    float* packed = cpu.shared.get(kSlotA, block * depths.parts);
    cpu.pool.for_each(depths.parts, [&](int d, int) {
        const int k = depths.begin(d);
        pack_by_row(left, 0, rows, k, k + depths.length(d), packed + block * d);
    });
    std::vector<float*> starts(rows);
    for (int i = 0; i < rows; ++i) starts[i] = result + ptrdiff_t(i) * columns;

    const int panels = ceil_div(columns, micro.nr);
    const int tasks = std::min(panels, cpu.pool.size());
    const ptrdiff_t panel_elems = ptrdiff_t(kDepthBlock) * micro.nr;
    float* const* scratch = cpu.for_threads(kThinPack * panel_elems);
    cpu.pool.for_each(tasks, [&](int task, int thread) {
        const int end = int(int64_t(panels) * (task + 1) / tasks);
        const auto multiply = [&](int d, int from, int until) {
            const int k = depths.begin(d), length = depths.length(d);
            pack_panels(micro, b, depth, k, k + length, from * micro.nr, (until - from) * micro.nr,
                        columns, scratch[thread], panel_elems);
            const BlockProduct product{
                micro,    all_rows,      length, d == 0, d + 1 == depths.parts,
                epilogue, starts.data(), result};
            for (int panel = from; panel < until; ++panel)
                product(packed + block * d, scratch[thread] + (panel - from) * panel_elems,
                        panel * micro.nr, columns, nullptr);
        };
        for (int group = int(int64_t(panels) * task / tasks); group < end; group += kThinGroup)
            for (int d = 0; d < depths.parts; ++d)
                for (int p = group; p < std::min(end, group + kThinGroup); p += kThinPack)
                    multiply(d, p, std::min({end, group + kThinGroup, p + kThinPack}));
    });
}

}  // namespace convoy
