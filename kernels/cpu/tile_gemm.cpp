// tile_gemm.cpp — products of bf16 in the blocks of tiles.h: conv2d, conv2d_grad_x, linear layers.
//
//            depth            columns
//          ┌────────┐       ┌────┬────┐    Rows are places (tile_pixels.h): x itself, or a copy of
//     rows │ A: band│   ×   │ B  │    │    it with padding. A tap is a shift of the rows, so no
//          ├────────┤       │    │    │    patches are written.
//          │        │       └────┴────┘    B is packed in panels of 32 columns: for each step two
//          └────────┘                      tiles of pairs of the depth.
// A step is 32 channels of one tap. All taps of the same channels follow each other, A being in L1.
//
// A thread takes a band, rows that stay in its L2, and walks all panels. If there are few rows (the
// images of a linear layer), a thread takes panels instead, and packs each before it is used. Each
// result is one sum in the order of the steps, so its bits do not depend on the thread.
#include <vector>

#include "kernels/cpu/tile_pixels.h"

namespace convoy {

namespace {

constexpr ptrdiff_t kBand = 400'000;        // numbers of A that stay in L2
constexpr ptrdiff_t kFewRows = 1 << 20;     // up to so many numbers of A, threads take panels
constexpr ptrdiff_t kSmallRight = 100'000;  // numbers of B that stay in L2 together with rows of A
constexpr int kPart = 48;                   // steps
constexpr int kPanelStep = 1024;            // numbers of a panel for one step: two tiles

template <class T>
struct TileProduct {
    struct Step {
        int tap, first, count;  // numbers [first, first + count) of a place
    };
    const Micro& micro;
    const TilePixels pixels;
    const RightSideOf<Bf16>& b;
    const int columns;
    const RowMapOf<T>& result;
    const EpilogueOf<T>& epilogue;
    const bool transposed;  // a row of the result is a column of B
    const ptrdiff_t row;    // stride of places in a band
    std::vector<Step> steps = {};
    std::vector<ptrdiff_t> at = {};  // start of each step in a band
    std::vector<int> depths = {};    // depth of each step; empty: all 32

    TileProduct(const Micro& micro, const PatchesOf<Bf16>& x, const RightSideOf<Bf16>& b,
                int columns, const RowMapOf<T>& result, const EpilogueOf<T>& epilogue,
                bool transposed)
        : micro(micro),
          pixels(x),
          b(b),
          columns(columns),
          result(result),
          epilogue(epilogue),
          transposed(transposed),
          // An odd number of cache lines, so that rows fall into different sets of the L1 cache.
          row(pixels.runs             ? pixels.run_row()
              : pixels.depth / 32 % 2 ? pixels.depth
                                      : pixels.depth + 32) {
        for (int c = 0; c < pixels.channels; c += 32)
            for (int tap = 0; tap < pixels.taps(); ++tap)
                steps.push_back({tap, c, std::min(32, pixels.channels - c)});
        if (pixels.channels % 32)
            for (const Step& step : steps) depths.push_back(ceil_div(step.count, 8) * 8);
    }

    int panels() const { return ceil_div(columns, 32); }
    ptrdiff_t panel_elems() const { return ptrdiff_t(steps.size()) * kPanelStep; }
    bool in_place() const { return pixels.x.is_matrix() && pixels.x.C % 32 == 0; }
    // In a band of `rows`: the places of a plane, and the numbers of all planes.
    ptrdiff_t plane_places(int rows) const {
        return (rows + 31) / 32 * 32 + pixels.reach() + pixels.beyond();
    }
    ptrdiff_t band_elems(int rows) const { return pixels.planes() * plane_places(rows) * row; }
    void set_band(int rows) {
        for (const Step& step : steps)
            at.push_back((pixels.plane(step.tap) * plane_places(rows) + pixels.shift(step.tap)) *
                             row +
                         step.first);
    }

    void copy_band(int64_t first, int rows, int most, Bf16* to) const {
        for (int plane = 0; plane < pixels.planes(); ++plane)
            pixels.copy(plane, first, int(plane_places(rows)),
                        to + plane * plane_places(most) * row, row);
    }

    // Number i of a step's depth in column j of B.
    const Bf16* right(const Step& step, int i, int j) const {
        const int C = pixels.x.C, k = step.tap * pixels.channels + step.first + i;
        const int tap = k / C, c = k % C;
        const ptrdiff_t start = b.tap_start ? b.tap_start[tap] : tap * C * b.step_k;
        return b.b + start + c * b.step_k + j * b.step_j;
    }
    // Packs 32 columns of b. none: zeros.
    void pack_panel(int panel, const Bf16* none, Bf16* to) const {
        const int j = panel * 32, count = std::min(32, columns - j);
        for (size_t s = 0; s < steps.size(); ++s) {
            const Step& step = steps[s];
            if (b.step_k == 1) {
                alignas(64) Bf16 rows[32][32] = {};
                const Step& soon = steps[std::min(s + 2, steps.size() - 1)];
                for (int i = 0; i < count; ++i) __builtin_prefetch(right(soon, 0, j + i));
                for (int i = 0; i < count; ++i)
                    std::memcpy(rows[i], right(step, 0, j + i), size_t(step.count) * sizeof(Bf16));
                for (int half = 0; half < 2; ++half)  // a pair is moved as one float
                    micro.transpose(reinterpret_cast<const float*>(rows[16 * half]), 16, 16, 16,
                                    reinterpret_cast<float*>(to + 512 * half), 16);
            } else {
                for (int i = 0; i < 32; ++i)  // rows of the next step, far apart in memory
                    __builtin_prefetch(right(step, 0, j) + (32 + i) * b.step_k);
                for (int i = 0; i < 32; i += 2)
                    micro.tiles.pair(i < step.count ? right(step, i, j) : none,
                                     i + 1 < step.count ? right(step, i + 1, j) : none, count,
                                     to + i * 16, 512);
                if (count <= 16) std::fill_n(to + 512, 512, Bf16());
            }
            to += kPanelStep;
        }
    }

    // A range of places of A, and where their results go.
    struct Band {
        int64_t first;
        int rows;
        const Bf16* a;
        ptrdiff_t a_row;
        const ptrdiff_t* at;  // null: the steps follow each other
        T* const* to;         // unused if transposed
    };
    // Multiplies rows [i, i + 32) of a band with a panel, for steps [from, until). Adds to `sums`
    // (one block) unless from is 0; stores them after the last step. ahead: to be prefetched.
    void multiply(const Band& band, int i, const Bf16* packed, int panel, int from, int until,
                  float* sums, const Bf16* ahead = nullptr, ptrdiff_t ahead_elems = 0) const {
        const int rows = std::min(32, band.rows - i), j = panel * 32,
                  cols = std::min(32, columns - j);
        const Bf16* a = band.a + i * band.a_row + (band.at ? 0 : 32 * from);
        // Prefetching the result does not pay on AMX.
        if (until == int(steps.size()) && !transposed && !micro.tiles.amx)
            for (int r = 0; r < rows; ++r)
                if (T* row = band.to[i + r]) __builtin_prefetch(row + j, 1);
        micro.tiles.multiply({until - from, a, band.a_row, 16 * band.a_row, 32,
                              band.at ? band.at + from : nullptr, packed + from * kPanelStep,
                              kPanelStep, 512, sums, (rows + 15) / 16, (cols + 15) / 16, from > 0,
                              ahead, ceil_div(ahead_elems, 32 * (until - from)),
                              depths.empty() ? nullptr : &depths[size_t(from)]});
        if (until < int(steps.size())) return;
        TileRows<T> out{band.to + i, rows, j, cols};
        T* to[32];
        alignas(64) float turned[1024];
        if (transposed) {
            micro.transpose(sums, 32, 32, 32, turned, 32);
            for (int c = 0; c < cols; ++c) to[c] = result.data + (j + c) * result.step_n;
            out = {to, cols, int(band.first) + i, rows}, sums = turned;
        }
        set_epilogue(out, epilogue, out.first, result.data);
        micro.tiles.store(sums, out);
    }
};

template <class T>
void run(Cpu& cpu, TileProduct<T>& product) {
    const TilePixels& pixels = product.pixels;
    const int64_t places = pixels.places();
    const int threads = cpu.pool.size(), panels = product.panels();
    const int steps = int(product.steps.size());
    Bf16* none = reinterpret_cast<Bf16*>(cpu.shared.get(kSlotSums, 16));
    std::fill_n(none, 32, Bf16());
    const ptrdiff_t panel_elems = product.panel_elems(), right_elems = panel_elems * panels;
    const ptrdiff_t all_elems = product.row * (places + pixels.reach()) * pixels.planes();
    const bool few = panels >= 2 * threads && all_elems <= std::min(kFewRows, right_elems / 2);

    // If B has few, very deep panels, split the depth so that a part of B and all sums fit in L2.
    const int part = steps > 192 && panels <= 8 ? kPart : steps;
    // Bands of nearly the same size, the same number for each thread.
    int most = int(places);
    if (!few) {
        const ptrdiff_t row = std::min<ptrdiff_t>(product.row, part * 32);
        const ptrdiff_t free = kBand / row / pixels.planes() - pixels.reach();
        const int each = ceil_div(places, threads * std::max<ptrdiff_t>(64, free));
        most = ceil_div(ceil_div(places, int64_t(each) * threads), 32) * 32;
    }
    product.set_band(most);
    const size_t band_floats = size_t(product.band_elems(most) + 1) / 2 + 16;
    const size_t to_floats = size_t(most) * sizeof(T*) / sizeof(float) + 16;
    const auto band_of = [&](int64_t first, T** to, Bf16* room) {
        const int rows = int(std::min<int64_t>(most, places - first));
        typename TileProduct<T>::Band band{first, rows, room, product.row, product.at.data(), to};
        if (!product.transposed)
            pixels.outputs(product.result, first, rows, static_cast<T*>(nullptr), to);
        if (!few && product.in_place() && rows % 32 == 0)
            band.a = pixels.x.x + first * pixels.x.C, band.a_row = pixels.x.C, band.at = nullptr;
        return band;
    };
    if (few) {
        Bf16* a = reinterpret_cast<Bf16*>(cpu.shared.get(kSlotA, band_floats));
        T** to = reinterpret_cast<T**>(cpu.shared.get(kSlotParts, to_floats));
        const auto band = band_of(0, to, a);
        const int all = int(product.plane_places(most)), chunks = ceil_div(all, 32);
        cpu.pool.for_each(pixels.planes() * chunks, [&](int task, int) {
            const int plane = task / chunks, i = task % chunks * 32;
            pixels.copy(plane, i, std::min(32, all - i),
                        a + (ptrdiff_t(plane) * all + i) * product.row, product.row);
        });
        float* const* scratch = cpu.for_threads(1024 + size_t(panel_elems) / 2);
        cpu.pool.for_each(panels, [&](int p, int thread) {
            const TileRegion region(cpu.micro.tiles);
            Bf16* packed = reinterpret_cast<Bf16*>(scratch[thread] + 1024);
            product.pack_panel(p, none, packed);
            for (int i = 0; i < band.rows; i += 32)
                product.multiply(band, i, packed, p, 0, steps, scratch[thread]);
        });
        return;
    }
    Bf16* packed = reinterpret_cast<Bf16*>(cpu.shared.get(kSlotB, size_t(right_elems) / 2));
    cpu.pool.for_each(panels,
                      [&](int p, int) { product.pack_panel(p, none, packed + panel_elems * p); });
    const size_t sums = part < steps ? size_t(panels) * ceil_div(most, 32) : 1;
    float* const* scratch = cpu.for_threads(sums * 1024 + to_floats + band_floats);
    cpu.pool.for_each(ceil_div(places, most), [&](int task, int thread) {
        const TileRegion region(cpu.micro.tiles);
        float* to = scratch[thread] + sums * 1024;
        Bf16* room = reinterpret_cast<Bf16*>(to + to_floats);
        const auto band = band_of(int64_t(task) * most, reinterpret_cast<T**>(to), room);
        if (band.a == room) product.copy_band(band.first, band.rows, most, room);
        // A small B stays in the cache while the rows change; otherwise the rows stay.
        const bool by_rows = right_elems <= kSmallRight;
        const int blocks = ceil_div(band.rows, 32), all = blocks * panels;
        for (int from = 0; from < steps; from += part)
            for (int i = 0; i < all; ++i) {
                const int p = by_rows ? i % panels : i / blocks,
                          row = by_rows ? i / panels : i % blocks;
                const Bf16* b = packed + panel_elems * p;
                const ptrdiff_t share = by_rows || p + 1 == panels ? 0 : panel_elems / blocks;
                product.multiply(band, row * 32, b, p, from, std::min(steps, from + part),
                                 scratch[thread] + (part < steps ? i * 1024 : 0),
                                 b + panel_elems + row * share, share);
            }
    });
}

}  // namespace

template <class T>
void multiply_patches(Cpu& cpu, const PatchesOf<Bf16>& x, const RightSideOf<Bf16>& b, int columns,
                      const RowMapOf<T>& result, const EpilogueOf<T>& epilogue, bool transposed) {
    if (x.rows() == 0) return;
    TileProduct<T> product(cpu.micro, x, b, columns, result, epilogue, transposed);
    run(cpu, product);
}
template void multiply_patches(Cpu&, const PatchesOf<Bf16>&, const RightSideOf<Bf16>&, int,
                               const RowMapOf<float>&, const EpilogueOf<float>&, bool);
template void multiply_patches(Cpu&, const PatchesOf<Bf16>&, const RightSideOf<Bf16>&, int,
                               const RowMapOf<Bf16>&, const EpilogueOf<Bf16>&, bool);

}  // namespace convoy
