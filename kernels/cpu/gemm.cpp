// gemm.cpp — blocking and packing around the inner kernels of micro.h.
//
//            depth             columns
//          ┌────┬────┐       ┌────┬────┬────┐  threads  Each thread has its rows. For each block of
//          ├────┤    │       │ B  │    │    │           B it walks all of them.
//     rows ├────┤    │   ×   │    │    │    │
//          ├────┤    │       ├────┼────┼────┤  B        A cache block is at most 1024 deep and has
//          │ A  │    │       │    │    │    │           the columns that stay in L2 (kStaysInL2).
//          └────┴────┘       └────┴────┴────┘  A        A block is 2·mr rows × 256 deep.
//
// A block of A in L1 is multiplied with all panels (nr columns) of a block of B in L2. The next 256
// of the depth follow for the same rows, whose sums are still in the cache. Meanwhile the next rows
// of A are prefetched into L2. Goto, van de Geijn: "Anatomy of High-Performance Matrix
// Multiplication" (ACM TOMS 2008), with the sides exchanged: images have many rows, filters few
// columns. Sums over the depth are added in a fixed order.
#include "kernels/cpu/gemm.h"

#include "kernels/cpu/pack.h"

namespace convoy {
namespace {

constexpr int kBlockDepths = 4;         // depth of a block of B, in units of kDepthBlock
constexpr size_t kStaysInL2 = 160'000;  // floats of B that stay in L2 while rows of A are read
constexpr int kFewPanels = 4;           // with so few panels of B, transposing A does not pay
constexpr int kMostRows = 32;           // ≥ 2·mr
constexpr int kSkinnyGroup = 16;        // panels whose results stay in L2 over the whole depth
constexpr int kSkinnyPack = 4;          // panels packed together: runs of 512 bytes

// What to prefetch: `runs` runs of `run` floats; run i starts at data + i·step.
struct Ahead {
    const float* data = nullptr;
    int runs = 0, run = 0;
    ptrdiff_t step = 0;
};

// Multiplies packed rows with one packed panel of b, for one block of depth. A result of floats
// holds the sums of the blocks of depth so far. For a result of bf16 they are in `sums` instead, of
// which this panel begins at `sums`.
template <class Y>
struct BlockProduct {
    const Micro& micro;
    bool by_row;  // packed for tile_by_row, not tile_by_depth
    const Panels& rows;
    int depth;         // of this block
    bool first, last;  // whether it is the first, or last, block of depth
    const EpilogueOf<Y>& epilogue;
    Y* const* result;  // start of each row
    const Y* base;     // start of the result, for the mask
    ptrdiff_t sums_step = 0;

    static constexpr bool kRounds = std::is_same_v<Y, Bf16>;

    // Also prefetches `ahead` into L2.
    void operator()(const float* a, const float* b, int j, int columns, float* sums,
                    const Ahead& ahead) const {
        const int cols = std::min(micro.nr, columns - j);
        float* tile_rows[16];
        TileOut out{tile_rows, kRounds ? micro.nr : cols};
        out.accumulate = !first || (!kRounds && epilogue.add);
        if constexpr (!kRounds)
            if (last) set_epilogue(out, epilogue, j, base);
        for (int panel = 0; panel < rows.count; ++panel) {
            const int height = rows.height(panel), begin = rows.begin(panel);
            for (int i = 0; i < height; ++i)
                if constexpr (kRounds)
                    tile_rows[i] = sums + (begin + i) * sums_step;
                else
                    tile_rows[i] = result[begin + i] + j;
            fetch(ahead, panel, out);
            if (kRounds && last)
                for (int i = 0; i < height; ++i) __builtin_prefetch(result[begin + i] + j, 1);
            if (by_row)
                micro.tile_by_row[height](depth, a + ptrdiff_t(begin) * kRowStride, b, out);
            else
                micro.tile_by_depth[height](depth, a + panel * depth_panel_elems(micro, depth), b,
                                            micro.nr, out);
            if constexpr (kRounds)
                if (last) round(begin, height, j, cols, tile_rows[0]);
        }
    }

 private:
    // Each tile prefetches a part of the single run; several runs: one run per 16 of depth.
    void fetch(const Ahead& ahead, int panel, TileOut& out) const {
        if (ahead.runs <= 1) {
            const size_t from = size_t(ahead.run) * panel / rows.count;
            const size_t until = size_t(ahead.run) * (panel + 1) / rows.count;
            out.upcoming = ahead.data + from;
            out.upcoming_lines = ceil_div(int64_t(until - from), depth);
            out.upcoming_step = out.upcoming_lines * 16;
        } else {
            const int chunks = depth / kChunk;
            out.upcoming = ahead.data + ptrdiff_t(panel) * chunks * ahead.step;
            out.upcoming_lines = panel * chunks < ahead.runs ? ceil_div(ahead.run, 16) : 0;
            out.upcoming_step = ahead.step;
        }
    }
    void round(int begin, int height, int j, int cols, const float* sums) const {
        Bf16* to[16];
        for (int i = 0; i < height; ++i) to[i] = result[begin + i] + j;
        TileOutOf<Bf16> out{to, cols};
        set_epilogue(out, epilogue, j, base);
        micro.round_tile(sums, sums_step, height, out);
    }
};

// What to prefetch during a block, cut into `parts`: the next rows of the matrix, to the depth of
// the cache block. Rows of full depth are one run in memory; otherwise each row is a run.
class NextRows {
 public:
    template <class T>
    NextRows(const PatchesOf<T>& a, int64_t row, int most, const Cut& depths, int d, int d_end,
             int parts)
        : step_(a.C / kIn<T>) {
        const int rows = int(std::min<int64_t>(most, a.rows() - row));
        const int deep = std::min(d_end * depths.size, depths.count) - depths.begin(d);
        const bool whole = deep == depths.count;
        runs_ = whole ? std::min(rows, 1) : rows;
        run_ = (whole ? rows * deep : rows > 0 ? deep : 0) / kIn<T>;
        part_ = (ceil_div(run_, parts) + 15) / 16 * 16;  // whole lines of the cache
        if (rows > 0) data_ = reinterpret_cast<const float*>(a.x + row * a.C + depths.begin(d));
    }
    Ahead part(int i) const {
        const int begin = std::min(run_, i * part_);
        return {data_ + begin, runs_, std::min(part_, run_ - begin), step_};
    }

 private:
    template <class T>
    static constexpr int kIn = sizeof(float) / sizeof(T);  // numbers in 4 bytes

    const float* data_ = nullptr;
    int runs_, run_, part_;
    ptrdiff_t step_ = 0;
};

// All of b, packed: for each block of depth, its panels one after the other.
struct PackedRight {
    const Cut& depths;
    int panels, nr;
    float* data;

    float* panel(int d, int p) const {
        return data + (size_t(depths.begin(d)) * panels + size_t(depths.length(d)) * p) * nr;
    }
};

// The work of one thread: rows [row, row_end) × panels [panel, panel_end).
template <class T, class Y>
struct RowsOfResult {
    const Micro& micro;
    const PatchesOf<T>& a;
    const PackedRight& b;
    int columns;
    const RowMapOf<Y>& result;
    const EpilogueOf<Y>& epilogue;
    bool plain;  // a is a matrix, so the next rows follow these in memory

    // Whether so many panels of B stay in L2.
    bool right_stays(int panels) const { return panels <= wide(); }

    size_t scratch_elems() const {
        return size_t(kMostRows) * (kDepthBlock + kRowStride + sums_step());
    }

    void operator()(int64_t row, int64_t row_end, int panel, int panel_end, float* scratch) const {
        const int blocks = ceil_div(row_end - row, 2 * micro.mr);
        const int blocks_b = std::max(1, ceil_div(panel_end - panel, wide()));
        const auto begin = [&](int block) { return row + (row_end - row) * block / blocks; };
        const auto first = [&](int j) { return panel + (panel_end - panel) * j / blocks_b; };
        for (int d = 0; d < b.depths.parts; d += group())
            for (int j = 0; j < blocks_b; ++j)
                for (int i = 0; i < blocks; ++i)
                    multiply(begin(i), begin(i + 1), d, std::min(b.depths.parts, d + group()),
                             first(j), first(j + 1), scratch);
    }

 private:
    // The cache block of B: the number of blocks of depth, their total depth, the number of panels.
    // All of the depth if the result cannot hold sums.
    int group() const {
        if (std::is_same_v<Y, Bf16>) return b.depths.parts;
        return std::max(1, ceil_div(b.depths.parts, ceil_div(b.depths.parts, kBlockDepths)));
    }
    int deep() const { return std::min(group() * b.depths.size, b.depths.count); }
    int wide() const { return int(std::max<size_t>(2, kStaysInL2 / (size_t(deep()) * b.nr))); }
    // Of the sums of a block for a result of bf16: one panel wide if they are complete at once.
    ptrdiff_t sums_step() const {
        if (std::is_same_v<Y, float>) return 0;
        return (b.depths.parts == 1 ? 1 : std::min(wide(), b.panels)) * b.nr + kChunk;
    }

    void multiply(int64_t row, int64_t row_end, int d, int d_end, int panel, int panel_end,
                  float* scratch) const {
        const Panels block(int(row_end - row), micro.mr);
        Y* starts[kMostRows];
        Row at(a, row);
        for (int i = 0; i < block.rows; ++i, at.skip(a, 1))
            starts[i] =
                result.data + at.n * result.step_n + at.p * result.step_p + at.q * result.step_q;
        const int parts = (panel_end - panel) * (d_end - d);
        const NextRows next(a, plain ? row_end : a.rows(), block.rows, b.depths, d, d_end, parts);
        for (int done = 0; d < d_end; ++d) {
            const int k = b.depths.begin(d), length = b.depths.length(d);
            const bool by_row = b.panels <= kFewPanels;
            if (by_row)
                pack_by_row(a, row, block.rows, k, k + length, scratch);
            else
                pack_by_depth(micro, a, plain, row, block, k, k + length,
                              scratch + kMostRows * kDepthBlock, scratch);
            const BlockProduct<Y> product{
                micro,    by_row, block,       length,     d == 0, d + 1 == b.depths.parts,
                epilogue, starts, result.data, sums_step()};
            float* sums = scratch + kMostRows * (kDepthBlock + kRowStride);
            for (int p = panel; p < panel_end; ++p)
                product(scratch, b.panel(d, p), p * micro.nr, columns,
                        b.depths.parts == 1 ? sums : sums + (p - panel) * micro.nr,
                        next.part(done++));
        }
    }
};

template <class Form, class T, class Y>
void multiply_words(Cpu& cpu, const Micro& micro, const PatchesOf<T>& x,
                    const RightSideOf<typename Form::T>& b, Form form, int columns,
                    const RowMapOf<Y>& result, const EpilogueOf<Y>& epilogue) {
    const int64_t rows = x.rows();
    const bool plain = x.is_matrix() && result.step_p == x.Q * result.step_q &&
                       result.step_n == x.P * result.step_p;
    const PatchesOf<T> a = plain ? PatchesOf<T>::matrix(x.x, int(rows), x.C) : x;
    const int depth = a.depth();
    const Cut depths(depth, kDepthBlock, kChunk);
    const int panels = ceil_div(columns, micro.nr);
    const PackedRight packed{depths, panels, micro.nr,
                             cpu.shared.get(kSlotB, size_t(depth) * panels * micro.nr)};
    cpu.pool.for_each(depths.parts * panels, [&](int task, int) {
        const int d = task / panels, panel = task % panels, k = depths.begin(d);
        pack_panels(micro, form, b, depth, k, k + depths.length(d), panel * micro.nr, micro.nr,
                    columns, packed.panel(d, panel));
    });

    // Threads divide the rows, and also the columns if there are too few rows for all threads. Each
    // has a few tasks, because the OS may deschedule a thread; but a large B is read by every task.
    const int threads = cpu.pool.size();
    RowsOfResult<T, Y> multiply{micro, a, packed, columns, result, epilogue, plain};
    const int64_t least = std::min<int64_t>(threads, (rows + micro.mr - 1) / micro.mr);
    const int tasks = threads > 1 && multiply.right_stays(panels) ? 4 * threads : threads;
    const int shares = int(std::clamp<int64_t>(rows / (8 * micro.mr), least, tasks));
    const int cuts = std::min(panels, ceil_div(threads, shares));
    float* const* scratch = cpu.for_threads(multiply.scratch_elems());
    cpu.pool.for_each(shares * cuts, [&](int task, int thread) {
        const TileRegion region(micro);
        const int share = task / cuts, cut = task % cuts;
        multiply(rows * share / shares, rows * (share + 1) / shares, panels * cut / cuts,
                 panels * (cut + 1) / cuts, scratch[thread]);
    });
}

template <class Form, class T, class Y>
void multiply_skinny_words(Cpu& cpu, const Micro& micro, const PatchesOf<T>& left,
                           const RightSideOf<typename Form::T>& b, Form form, int columns,
                           Y* result, const EpilogueOf<Y>& epilogue) {
    const int rows = int(left.rows()), depth = left.depth();
    const Cut depths(depth, kDepthBlock, kChunk);
    const Panels all_rows(rows, micro.mr);

    const size_t block = size_t(rows) * kRowStride;
    // AMX reads 16 rows.
    float* packed = cpu.shared.get(kSlotA, block * depths.parts + 16 * kRowStride);
    cpu.pool.for_each(depths.parts, [&](int d, int) {
        const int k = depths.begin(d);
        pack_by_row(left, 0, rows, k, k + depths.length(d), packed + block * d);
    });
    std::vector<Y*> starts(rows);
    for (int i = 0; i < rows; ++i) starts[i] = result + ptrdiff_t(i) * columns;

    const int panels = ceil_div(columns, micro.nr);
    const int tasks = std::min(ceil_div(panels, kSkinnyPack), 4 * cpu.pool.size());
    const ptrdiff_t panel_elems = ptrdiff_t(kDepthBlock) * micro.nr;
    const ptrdiff_t sums_step = std::is_same_v<Y, float> ? 0 : kSkinnyGroup * micro.nr + kChunk;
    float* const* scratch = cpu.for_threads(kSkinnyPack * panel_elems + rows * sums_step);
    cpu.pool.for_each(tasks, [&](int task, int thread) {
        const TileRegion region(micro);
        const int end = int(int64_t(panels) * (task + 1) / tasks);
        float* sums = scratch[thread] + kSkinnyPack * panel_elems;
        // Multiplies panels [from, until) of a group; prefetches from `next` on, of block next_d.
        const auto multiply = [&](int group, int d, int from, int until, int next_d, int next) {
            const int k = depths.begin(d), length = depths.length(d), width = until - from;
            pack_panels(micro, form, b, depth, k, k + length, from * micro.nr, width * micro.nr,
                        columns, scratch[thread], panel_elems);
            const BlockProduct<Y> product{
                micro,    true,          all_rows, length,   d == 0, d + 1 == depths.parts,
                epilogue, starts.data(), result,   sums_step};
            const int next_columns = std::min(kSkinnyPack * micro.nr, columns - next * micro.nr);
            const bool by_row = b.step_j == 1;
            constexpr int kIn = sizeof(float) / sizeof(*b.b);  // numbers in 4 bytes
            const int next_depth = depths.length(next_d) * Form::kDepth;
            const int runs = by_row ? next_depth : next_columns;
            const ptrdiff_t step = by_row ? b.step_k : b.step_j;
            const auto* next_data =
                b.b + depths.begin(next_d) * Form::kDepth * b.step_k + next * micro.nr * b.step_j;
            for (int p = 0; p < width; ++p) {
                const Ahead ahead{
                    reinterpret_cast<const float*>(next_data + runs * p / width * step),
                    runs * (p + 1) / width - runs * p / width,
                    (by_row ? next_columns : next_depth) / kIn, step / kIn};
                product(packed + block * d, scratch[thread] + p * panel_elems,
                        (from + p) * micro.nr, columns, sums + (from + p - group) * micro.nr,
                        next < end ? ahead : Ahead{});
            }
        };
        for (int group = int(int64_t(panels) * task / tasks); group < end; group += kSkinnyGroup) {
            const int group_end = std::min(end, group + kSkinnyGroup);
            for (int d = 0; d < depths.parts; ++d)
                for (int p = group; p < group_end; p += kSkinnyPack) {
                    const bool more = p + kSkinnyPack < group_end, deeper = d + 1 < depths.parts;
                    multiply(group, d, p, std::min(group_end, p + kSkinnyPack),
                             more     ? d
                             : deeper ? d + 1
                                      : 0,
                             more     ? p + kSkinnyPack
                             : deeper ? group
                                      : group_end);
                }
        }
    });
}

}  // namespace

template <class T, class Y>
void multiply_patches(Cpu& cpu, const PatchesOf<T>& a, const RightSideOf<T>& b, int columns,
                      const RowMapOf<Y>& result, const EpilogueOf<Y>& epilogue) {
    if (a.rows() == 0) return;
    with_words(cpu, a, b, [&](const Micro& micro, auto left, auto right, auto form) {
        multiply_words(cpu, micro, left, right, form, columns, result, epilogue);
    });
}

template <class T, class Y>
void multiply_skinny(Cpu& cpu, const T* a, int rows, int depth, const RightSideOf<T>& b,
                     int columns, Y* result, const EpilogueOf<Y>& epilogue) {
    if (rows == 0) return;
    const auto matrix = PatchesOf<T>::matrix(a, rows, depth);
    with_words(cpu, matrix, b, [&](const Micro& micro, auto left, auto right, auto form) {
        multiply_skinny_words(cpu, micro, left, right, form, columns, result, epilogue);
    });
}

#define PRODUCTS(T, Y)                                                                      \
    template void multiply_patches(Cpu&, const PatchesOf<T>&, const RightSideOf<T>&, int,   \
                                   const RowMapOf<Y>&, const EpilogueOf<Y>&);               \
    template void multiply_skinny(Cpu&, const T*, int, int, const RightSideOf<T>&, int, Y*, \
                                  const EpilogueOf<Y>&);
PRODUCTS(float, float)
PRODUCTS(Bf16, float)
PRODUCTS(Bf16, Bf16)
#undef PRODUCTS

}  // namespace convoy
