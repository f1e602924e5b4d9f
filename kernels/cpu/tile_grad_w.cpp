// tile_grad_w.cpp — gradients of weights in bf16: the depth of the product is the pixels.
//
//   dw[k][r,s][c] += Σ_l dy[l][k] · x[l + shift(r,s)][c]      l: places of tile_pixels.h
//
//          l                          A    dyᵀ, aligned: 32 pixels are 64 bytes. Places between
//      ┌────────┐     ┌────┐               rows and images are 0.
//    k │ A: dyᵀ │   l │ B  │ c        B    x in pairs of pixels, twice: (0,1)(2,3)… for even
//      └────────┘     └────┘               shifts and (1,2)(3,4)… for odd shifts. So a tap is a
//                                          shift of B by whole rows, and each row of a tile is one
//                                          cache line (a row across two lines costs 6 times more).
//
// All threads pack a band of the line together, then share its blocks of 32 k × 32 c of a tap. If
// dw is small, each thread instead has its bands and its copy of dw; copies are added in order.
#include "kernels/cpu/tile_pixels.h"

namespace convoy {

namespace {

constexpr int kOwnSums = 600;            // up to so many blocks of dw, each thread has its copy
constexpr ptrdiff_t kOwnBand = 100'000;  // then: most numbers of a packed band,
constexpr int kLeastBand = 128;          // fewest pixels of it; both doubled on AMX
constexpr int kBand = 2048;              // otherwise: pixels of a band

struct GradW {
    const Micro& micro;
    const TilePixels pixels;
    const RowMapOf<const Bf16> dy;
    const int K;
    const Bf16* none;  // zeros

    int k_blocks() const { return ceil_div(K, 32); }
    int c_blocks() const { return ceil_div(pixels.channels, 32); }
    int phases() const { return pixels.reach() > 0 && !pixels.runs ? 2 : 1; }
    // A: tiles of 16 k × 32 pixels, contiguous for the same k. B: for each plane and phase, panels
    // of 16 channels with a row for two pixels. A cache line of padding separates their cache sets.
    ptrdiff_t a_half(int band) const { return band * 16 + 32; }
    ptrdiff_t a_elems(int band) const { return k_blocks() * 2 * a_half(band); }
    ptrdiff_t pair_places(int band) const { return (band + pixels.reach() + 31) / 32 * 32; }
    ptrdiff_t panel(int band) const { return pair_places(band) * 16 + 32; }
    ptrdiff_t phase(int band) const { return c_blocks() * 2 * panel(band); }
    ptrdiff_t band_elems(int band) const {
        return a_elems(band) + pixels.planes() * phases() * phase(band);
    }
    // Packing is divided into chunks of 32 places: first of A, then of each plane of B.
    int a_chunks(int band) const { return band / 32; }
    int plane_chunks(int band) const { return int(pair_places(band) / 32); }
    int chunks(int band) const { return a_chunks(band) + pixels.planes() * plane_chunks(band); }
    size_t chunk_floats() const {
        return size_t(std::max(k_blocks() * 32 * 16,
                               pixels.runs ? (33 + pixels.beyond()) * pixels.run_row() : 0)) +
               16;
    }

    void pack(int64_t first, int band, int chunk, float* scratch, Bf16* to) const {
        if (chunk < a_chunks(band)) return pack_dy(first, band, chunk, scratch, to);
        chunk -= a_chunks(band);
        const int plane = chunk / plane_chunks(band);
        pack_x(first, band, plane, chunk % plane_chunks(band), scratch,
               to + a_elems(band) + plane * phases() * phase(band));
    }
    // A block is 32 k × 32 c of a tap.
    struct Block {
        int k, c, tap;
    };
    int blocks() const { return k_blocks() * c_blocks() * pixels.taps(); }
    Block block(int task) const {
        return {task / pixels.taps() / c_blocks() * 32, task / pixels.taps() % c_blocks() * 32,
                task % pixels.taps()};
    }
    // sums (32 × 32) = the sums of a band for block `task`; += if add. Prefetches a share of the
    // band that begins at `next` into L2, unless `next` is 0.
    void multiply(const Bf16* packed, int band, int task, float* sums, bool add = false,
                  int64_t next = 0) const {
        const auto [k, c, tap] = block(task);
        const ptrdiff_t shift = pixels.shift(tap);
        const Bf16* b = packed + a_elems(band) +
                        (pixels.plane(tap) * phases() + shift % 2) * phase(band) +
                        c / 16 * panel(band) + shift / 2 * 32;
        const ptrdiff_t all = K + pixels.channels, begin = all * task / blocks();
        const Bf16* ahead = begin < K ? dy.data + next * K + begin * band
                                      : pixels.x.x + next * pixels.channels + (begin - K) * band;
        micro.tiles.multiply({band / 32, packed + k / 16 * a_half(band), 32, a_half(band), 512,
                              nullptr, b, 512, panel(band), sums, K - k > 16 ? 2 : 1,
                              pixels.channels - c > 16 ? 2 : 1, add, ahead,
                              next ? ceil_div(all, blocks()) : 0});
    }
    // The rows of dw to which the sums of block `task` are added.
    TileRows<float> rows_of(int task, float* dw, float* (&rows)[32]) const {
        const auto [k, c, tap] = block(task);
        const int count = std::min(32, K - k);
        for (int i = 0; i < count; ++i)
            rows[i] = dw + ptrdiff_t(k + i) * pixels.x.depth() + tap * pixels.channels + c;
        return {rows, count, 0, std::min(32, pixels.channels - c), /*accumulate=*/true};
    }

 private:
    void pack_dy(int64_t first, int band, int chunk, float* scratch, Bf16* to) const {
        const Bf16* from[32];
        pixels.outputs(dy, first + 32 * chunk, 32, none, from);
        Bf16* pairs = reinterpret_cast<Bf16*>(scratch);
        const int width = k_blocks() * 32;
        for (int i = 0; i < 16; ++i)
            micro.tiles.pair(from[2 * i], from[2 * i + 1], K, pairs + i * 2 * width, 32);
        for (int k = 0; k < width; k += 16)  // a pair moves as one float
            micro.transpose(scratch + k, width, 16, 16,
                            reinterpret_cast<float*>(to + k / 16 * a_half(band) + chunk * 512), 16);
    }
    void pack_x(int64_t first, int band, int plane, int chunk, float* scratch, Bf16* to) const {
        const Bf16* from[33];
        if (pixels.runs) {
            Bf16* rows = reinterpret_cast<Bf16*>(scratch);
            pixels.copy(plane, first + 32 * chunk, 33 + pixels.beyond(), rows, 0);
            for (int i = 0; i < 33; ++i) from[i] = rows + i * pixels.run_row();
        } else {
            pixels.pixels(plane, first + 32 * chunk, 33, none, from);
        }
        for (int odd = 0; odd < phases(); ++odd)
            for (int i = 0; i < 16; ++i)
                // Runs are padded to whole tiles; sums of the padding are dropped.
                micro.tiles.pair(from[2 * i + odd], from[2 * i + 1 + odd],
                                 pixels.runs ? pixels.depth : pixels.channels,
                                 to + odd * phase(band) + (16 * chunk + i) * 32, panel(band));
    }
};

}  // namespace

void multiply_rows(Cpu& cpu, const Bf16* dy, int K, const PatchesOf<Bf16>& x, float* dw,
                   bool rows_in_order) {
    if (x.rows() == 0) return;
    const TilePixels pixels(x);
    const size_t zeros = size_t(std::max(K, pixels.channels)) / 2 + 1;
    float* none = cpu.shared.get(kSlotSums, zeros);
    std::fill_n(none, zeros, 0.0f);
    const ptrdiff_t line = ptrdiff_t(x.Q) * K;
    const GradW op{
        cpu.micro, pixels, {dy, x.P * line, line, K}, K, reinterpret_cast<const Bf16*>(none)};

    const int64_t places = pixels.places();
    const int threads = cpu.pool.size();
    const bool own =
        threads > 1 && !rows_in_order && op.blocks() <= kOwnSums && places >= 1024 * threads;
    const int whole = int(std::min<int64_t>(kBand, (places + 31) / 32 * 32));
    int band = whole;
    const int twice = cpu.micro.tiles.amx ? 2 : 1;
    while (own && band > kLeastBand * twice && op.band_elems(band) > kOwnBand * twice)
        band = band / 64 * 32;
    const size_t packed_floats = size_t(op.band_elems(band)) / 2 + 16;
    const size_t chunk_floats = op.chunk_floats();
    float* const* scratch = cpu.for_threads(chunk_floats + (own ? packed_floats : 0));
    if (!own) {
        Bf16* packed = reinterpret_cast<Bf16*>(cpu.shared.get(kSlotA, packed_floats));
        for (int64_t first = 0; first < places; first += band) {
            cpu.pool.for_each(op.chunks(band), [&](int chunk, int thread) {
                op.pack(first, band, chunk, scratch[thread], packed);
            });
            cpu.pool.for_ranges(size_t(op.blocks()), 1, [&](size_t begin, size_t end) {
                const TileRegion region(cpu.micro.tiles);
                alignas(64) float sums[1024];
                float* rows[32];
                for (int task = int(begin); task < int(end); ++task) {
                    const TileRows<float> to = op.rows_of(task, dw, rows);
                    for (int i = 0; i < to.count; ++i)
                        __builtin_prefetch(rows[i], 1), __builtin_prefetch(rows[i] + 16, 1);
                    op.multiply(packed, band, task, sums);
                    cpu.micro.tiles.store(sums, to);
                }
            });
        }
        return;
    }
    const int bands = ceil_div(places, band);
    const auto first_band = [&](int thread) { return bands * thread / threads; };
    const size_t part = size_t(op.blocks()) * 1024;
    float* parts = cpu.shared.get(kSlotParts, part * threads);
    cpu.pool.for_each(threads, [&](int task, int thread) {
        const TileRegion region(cpu.micro.tiles);
        Bf16* packed = reinterpret_cast<Bf16*>(scratch[thread] + chunk_floats);
        for (int i = first_band(task); i < first_band(task + 1); ++i) {
            const bool last = i + 1 == first_band(task + 1);
            for (int chunk = 0; chunk < op.chunks(band); ++chunk)
                op.pack(int64_t(i) * band, band, chunk, scratch[thread], packed);
            for (int block = 0; block < op.blocks(); ++block)
                op.multiply(packed, band, block, parts + part * task + 1024 * block,
                            i > first_band(task),
                            x.is_matrix() && !last ? int64_t(i + 1) * band : 0);
        }
    });
    cpu.pool.for_each(op.blocks(), [&](int block, int) {
        float* rows[32];
        const TileRows<float> to = op.rows_of(block, dw, rows);
        for (int t = 0; t < threads; ++t)
            if (first_band(t) < first_band(t + 1))
                cpu.micro.tiles.store(parts + part * t + 1024 * block, to);
    });
}

}  // namespace convoy
