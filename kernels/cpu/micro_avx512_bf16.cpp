// micro_avx512_bf16.cpp — AVX-512 with products of bf16 in hardware: VDPBF16PS, or AMX.
//
// VDPBF16PS adds a(2k+1)·b(2k+1), then a(2k)·b(2k) to each of 16 sums, and takes the place of the
// multiply-add in the tiles of micro_tile.h. TDPBF16PS multiplies 16 rows × 16 pairs of the depth
// with 16 pairs × 16 columns:
//
//       a: 16 pairs            b: 16 columns 16 columns
//      ┌───────────┐           ┌───────────┬───────────┐     3 tiles are loaded for 2 products of
//   16 │ tile 2    │        16 │ tile 3    │ tile 4    │     16·16·32 multiply-adds, 16 cycles each
//      └───────────┘     pairs └───────────┴───────────┘     The rest of the depth, fewer than 16
//                              ┌───────────┬───────────┐     pairs, is left to VDPBF16PS.
//                           16 │ sums 0    │ sums 1    │
//                              └───────────┴───────────┘
// Both round to nearest even and take numbers below 2⁻¹²⁶ as 0.
#include "kernels/cpu/micro.h"

namespace {
constexpr int kWidth = 16, kVecs = 2, kRows = 14, kLane = 16, kLaneRows = 8;
}  // namespace

// This file's compiler flags make vectors.h round to bf16 in hardware.
#include "kernels/cpu/micro_tile.h"

namespace convoy {
namespace {

struct PairProduct {
    static constexpr int kPerWord = 2;
    static void add(Vec& sum, float left, Vec row) {
        sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_ps(left), (__m512bh)row);
    }
};

// All eight tiles: 16 rows of 64 bytes.
struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, unused[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

void begin() {
    // Static: compilers assume that only the first bytes are read, and would not write the rest.
    static const Config config;
    _tile_loadconfig(&config);
}
void end() { _tile_release(); }

// Rows of a are `stride` words apart, their next 16 words `next` further.
void multiply_amx(int height, int depth, const float* a, ptrdiff_t stride, ptrdiff_t next,
                  const float* b, ptrdiff_t step, const TileOut& out) {
    alignas(64) float sums[16 * 32];
    const float* upcoming = out.upcoming;
    _tile_zero(0);
    _tile_zero(1);
    for (; depth >= kChunk; depth -= kChunk, a += next, b += kChunk * step) {
        for (int i = 0; i < out.upcoming_lines; ++i) __builtin_prefetch(upcoming + i * 16, 0, 2);
        upcoming += out.upcoming_step;
        _tile_loadd(2, a, stride * ptrdiff_t(sizeof(float)));
        _tile_loadd(3, b, step * ptrdiff_t(sizeof(float)));
        _tile_dpbf16ps(0, 2, 3);
        _tile_loadd(4, b + 16, step * ptrdiff_t(sizeof(float)));
        _tile_dpbf16ps(1, 2, 4);
    }
    _tile_stored(0, sums, 128);
    _tile_stored(1, sums + 16, 128);
    for (int i = 0; i < height && depth > 0; ++i)
        for (int j = 0; j < 32; j += kWidth) {
            Vec sum = load(sums + i * 32 + j);
            for (int k = 0; k < depth; ++k)
                PairProduct::add(sum, a[i * stride + k], load(b + k * step + j));
            store(sums + i * 32 + j, sum);
        }
    finish_tile(sums, 32, height, out);
}
template <int M>
void amx_by_row(int depth, const float* a, const float* b, const TileOut& out) {
    multiply_amx(M, depth, a, kRowStride, kChunk, b, 32, out);
}
template <int M>
void amx_in_chunks(int depth, const float* a, const float* b, ptrdiff_t step, const TileOut& out) {
    multiply_amx(M, depth, a, kChunk, 16 * kChunk, b, step, out);
}
// Four tiles of sums hide the latency: 52 cycles, and a product of tiles takes 16.
double amx_chains(int rounds, float* numbers) {
    alignas(64) float sums[4][16 * 16];
    begin();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, numbers, 64);
    _tile_loadd(5, numbers + 256, 64);
    for (int round = 0; round < rounds; ++round) {
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 5);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
    end();
    numbers[0] = sums[0][0] + sums[1][0] + sums[2][0] + sums[3][0];
    return rounds * 4.0 * 16 * 16 * 32;
}
struct AmxTiles {
    Tile by_row[17] = {};
    TileByDepth in_chunks[17] = {};
};
template <int... M>
constexpr AmxTiles all_amx_tiles(std::integer_sequence<int, M...>) {
    return {{nullptr, amx_by_row<M + 1>...}, {nullptr, amx_in_chunks<M + 1>...}};
}
constexpr AmxTiles kAmxTiles = all_amx_tiles(std::make_integer_sequence<int, 16>());

Micro with_pairs(const char* name, const Micro& pairs) {
    Micro micro = micro_avx512();
    micro.name = name;
    micro.on_bf16 = kPasses<Bf16>;
    micro.pairs = &pairs;
    return micro;
}
Micro pair_tiles() {
    Micro micro = micro_avx512();
    micro.tile_by_row = kTiles<PairProduct>.by_row;
    micro.tile_by_depth = kTiles<PairProduct>.by_depth;
    micro.round_tile = finish_tile<Bf16>;
    micro.multiply_add_chains = multiply_add_chains<PairProduct>;
    return micro;
}

}  // namespace

const Micro& micro_amx() {
    static const Micro pairs = [] {
        Micro micro = pair_tiles();
        micro.mr = 16;
        micro.tile_by_row = kAmxTiles.by_row, micro.tile_by_depth = kAmxTiles.in_chunks;
        micro.multiply_add_chains = amx_chains;
        micro.amx = true;
        micro.begin = begin, micro.end = end;
        return micro;
    }();
    static const Micro micro = with_pairs("AVX-512 with AMX", pairs);
    return micro;
}
const Micro& micro_avx512_bf16() {
    static const Micro pairs = pair_tiles();
    static const Micro micro = with_pairs("AVX-512 with BF16", pairs);
    return micro;
}

}  // namespace convoy
