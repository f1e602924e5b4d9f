// direct.cpp — convolutions of stride 1 in bf16, without a matrix of patches.
//
// The images lie below each other, with zeros (0) between their lines, and lines of zeros between
// images. One column of zeros pads a line at the right and the next line at the left.
//
//      0 x x x x x 0           In this plane, filter row r of the window at pixel m reads S·C
//        x x x x x 0           numbers in a row: those of the S pixels that start at m + r·pitch.
//        x[x x x]x 0           So a window is R runs. The next pixel's runs start C numbers
//        x[x x x]x 0           further, and most of them are the same numbers.
//        x[x x x]x 0
//        0 0 0 0 0 0           A tile multiplies neighbouring pixels with a panel of columns.
//        x x x x x 0           AMX loads 16 pixels × 32 numbers, whose rows may overlap. Tiles at
//        …                     the end of a line also compute pixels that are not stored.
//
// A block of lines is copied into the L2 cache, which also adds the zeros. Windows of 1x1 need
// none, and read the image in place. All panels of a group, which stays in L2, too, are multiplied
// with a tile's pixels before the next pixels follow. The sums of a tile stay in registers.
#include "kernels/cpu/pack.h"

namespace convoy {
namespace {

constexpr size_t kWeightsInL2 = 512 << 10, kBlockInL2 = 600 << 10;  // bytes
constexpr int kLeastPixels = 64;

struct Direct {
    const Micro& micro;
    const PatchesOf<Bf16>& x;
    const RowMapOf<Bf16>& result;
    const EpilogueOf<Bf16>& epilogue;
    int columns;
    // Pixels from one line to the next, lines from one image to the next.
    int pitch = x.W + std::max({0, -x.w0, x.Q + x.S - 1 + x.w0 - x.W});
    int tall = x.H + std::max({0, -x.h0, x.P + x.R - 1 + x.h0 - x.H});
    int words = ceil_div(x.S * x.C, 2 * kChunk) * kChunk;  // of a run
    int panels = ceil_div(columns, micro.nr);

    int lines() const { return x.N * tall; }
    ptrdiff_t panel_elems() const { return ptrdiff_t(x.R) * words * micro.nr; }
    bool in_place() const { return x.is_matrix() && x.C == 2 * words; }
    // After the last line, tiles read up to this many numbers, which do not matter.
    ptrdiff_t tail() const { return ptrdiff_t(kTilePixels + x.S) * x.C + 2 * words; }
    ptrdiff_t block_elems(int count) const {
        return (ptrdiff_t(count + x.R - 1) * pitch - x.w0) * x.C + tail();
    }
    int lines_in_l2() const {
        const int all = int(kBlockInL2 / sizeof(Bf16) / (size_t(pitch) * x.C));
        return std::max({all - (x.R - 1), ceil_div(kTilePixels, pitch), 1});
    }
    // Floats for two tiles of sums, the block, whose lines begin with whole lines of the cache, and
    // a pointer per pixel.
    size_t sums_elems() const { return size_t(2) * kTilePixels * micro.nr; }
    size_t block_floats(int count) const { return size_t(ceil_div(block_elems(count), 32)) * 16; }
    size_t scratch_elems(int count) const {
        return sums_elems() + block_floats(count) + 2 * (size_t(count) * pitch + kTilePixels);
    }

    // Panel p of b(k,j): for each run its words, nr columns each. The rest is 0.
    void pack(const RightSideOf<Bf16>& b, int panel, float* to) const {
        std::fill_n(to, panel_elems(), 0.0f);
        const int first = panel * micro.nr, count = std::min(micro.nr, columns - first);
        const int tap_depth = x.depth() / b.taps, run = x.S * x.C;
        for (int k = 0; k < x.depth(); ++k) {
            const int tap = k / tap_depth, in_run = k % run;
            const Bf16* from = b.b + (b.tap_start ? b.tap_start[tap] : 0) +
                               (k - tap * tap_depth) * b.step_k + first * b.step_j;
            Bf16* at = reinterpret_cast<Bf16*>(to) + in_run % 2 +
                       2 * (ptrdiff_t(k / run) * words + in_run / 2) * micro.nr;
            for (int j = 0; j < count; ++j) at[2 * j] = from[j * b.step_j];
        }
    }

    // Copies lines [line, line + count) of the plane, and those below that windows reach.
    void copy(int line, int count, Bf16* to) const {
        const ptrdiff_t data = ptrdiff_t(x.W) * x.C, zeros = ptrdiff_t(pitch) * x.C - data;
        to = std::fill_n(to, -x.w0 * x.C, Bf16(0));
        for (int l = line + x.h0; l < line + x.h0 + count + x.R - 1; ++l) {
            const bool exists = l >= 0 && l < lines() && l % tall < x.H;
            if (exists)
                to = std::copy_n(x.x + (ptrdiff_t(l / tall) * x.H + l % tall) * data, data, to);
            to = std::fill_n(to, exists ? zeros : data + zeros, Bf16(0));
        }
        std::fill_n(to, tail(), Bf16(0));
    }

    // Lines [line, line + count) of the result.
    void operator()(int line, int count, const float* b, float* scratch) const {
        const int pixels = (count - 1) * pitch + x.Q;
        float* sums[2] = {scratch, scratch + sums_elems() / 2};
        auto* block = reinterpret_cast<Bf16*>(scratch + sums_elems());
        // Where each pixel of the plane is stored, null: nowhere.
        auto** rows = reinterpret_cast<Bf16**>(scratch + sums_elems() + block_floats(count));
        std::fill_n(rows, pixels + kTilePixels, nullptr);
        for (int l = 0; l < count; ++l)
            if (const int n = (line + l) / tall, p = (line + l) % tall; p < x.P)
                for (int q = 0; q < x.Q; ++q)
                    rows[l * pitch + q] =
                        result.data + n * result.step_n + p * result.step_p + q * result.step_q;
        const bool copies = !in_place() || pixels < kTilePixels;
        if (copies) copy(line, count, block);
        const Bf16* a = copies ? block : x.x + ptrdiff_t(line) * pitch * x.C;
        const TileRegion region(micro);
        const size_t panel_bytes = panel_elems() * sizeof(float);
        const int group = int(std::max<size_t>(1, kWeightsInL2 / panel_bytes));
        PixelSums before;
        int turn = 0;
        for (int g = 0; g < panels; g += group)
            for (int m = 0; m < pixels; m += kTilePixels) {
                // The last tile overlaps the one before it.
                const int start = std::max(0, std::min(m, pixels - kTilePixels));
                if (std::all_of(rows + m, rows + start + kTilePixels,
                                [](Bf16* row) { return !row; }))
                    continue;
                for (int p = g; p < std::min(panels, g + group); ++p, turn ^= 1) {
                    const PixelRuns runs{a + ptrdiff_t(start) * x.C, x.C, ptrdiff_t(pitch) * x.C,
                                         x.R, words};
                    micro.pixel_tile(runs, b + p * panel_elems(), sums[turn], before);
                    before = {sums[turn],
                              {rows + start, std::min(micro.nr, columns - p * micro.nr)},
                              p * micro.nr,
                              m - start};
                    set_epilogue(before.out, epilogue, p * micro.nr, result.data);
                }
            }
        micro.pixel_tile({a, 0, 0, 0, 0}, nullptr, sums[turn], before);
    }
};

}  // namespace

bool multiply_direct(Cpu& cpu, const PatchesOf<Bf16>& a, const RightSideOf<Bf16>& b, int columns,
                     const RowMapOf<Bf16>& result, const EpilogueOf<Bf16>& epilogue) {
    if (!cpu.micro.has_pixel_tile() || a.rows() < kLeastPixels) return false;
    if (a.step_h * a.step_w * a.dilation_h * a.dilation_w != 1 || a.h0 > 0 || a.w0 > 0)
        return false;
    PatchesOf<Bf16> x = a;
    RowMapOf<Bf16> to = result;
    if (a.is_matrix() && result.step_p == a.Q * result.step_q &&
        result.step_n == a.P * result.step_p)  // one image of many short lines
        x.N = x.W = x.Q = 1, x.H = x.P = int(a.rows()), to.step_p = result.step_q;
    const Direct direct{*cpu.micro.pairs, x, to, epilogue, columns};
    if (x.P > direct.tall || x.Q > direct.pitch) return false;

    float* packed = cpu.shared.get(kSlotB, size_t(direct.panel_elems()) * direct.panels);
    cpu.pool.for_each(direct.panels, [&](int panel, int) {
        direct.pack(b, panel, packed + panel * direct.panel_elems());
    });
    // As many blocks for each thread, because each block reads all weights.
    const int threads = cpu.pool.size(), lines = direct.lines();
    const int least = std::min(threads, lines);
    const int blocks =
        ceil_div(std::max(ceil_div(lines, direct.lines_in_l2()), least), least) * least;
    const int most = ceil_div(lines, std::min(blocks, lines));
    float* const* scratch = cpu.for_threads(direct.scratch_elems(most));
    cpu.pool.for_each(ceil_div(lines, most), [&](int block, int thread) {
        direct(block * most, std::min(most, lines - block * most), packed, scratch[thread]);
    });
    return true;
}

}  // namespace convoy
