// micro_amx.cpp — AVX-512, with products of bf16 on the tile unit (tiles.h).

#include "kernels/cpu/micro.h"

namespace {
constexpr int kWidth = 16;
}

// With the processor's own rounding to bf16.
#include "kernels/cpu/vectors.h"

#include "kernels/cpu/tile_body.h"

#include "kernels/cpu/passes_body.h"

namespace convoy {

namespace {

// All eight tiles: 16 rows of 64 bytes.
struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, unused[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

unsigned begin() {
    // Static, since compilers take only its first bytes to be read, and would not write the rest.
    static const Config config;
    _tile_loadconfig(&config);
    return begin_tiles();
}
void end(unsigned state) {
    _tile_release();
    end_tiles(state);
}

// I × J tiles of sums. Loads stand before the product that needs them: the compiler moves none.
template <int I, int J>
void multiply(const TileBlock& block) {
    const ptrdiff_t row = block.a_row * ptrdiff_t(sizeof(Bf16));
    float* sums = block.sums;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (block.add) {
        _tile_loadd(0, sums, 128);
        if (J > 1) _tile_loadd(1, sums + 16, 128);
        if (I > 1) _tile_loadd(2, sums + 512, 128);
        if (I * J > 2) _tile_loadd(3, sums + 528, 128);
    }
    const Bf16 *b = block.b, *ahead = block.ahead;
    for (int t = 0; t < block.steps; ++t, b += block.b_step) {
        for (int i = 0; i < block.ahead_lines; ++i, ahead += 32) __builtin_prefetch(ahead, 0, 2);
        const Bf16* a = block.a + (block.a_at ? block.a_at[t] : block.a_step * t);
        _tile_loadd(6, b, 64);
        _tile_loadd(4, a, row);
        _tile_dpbf16ps(0, 4, 6);
        if (J > 1) {
            _tile_loadd(7, b + block.b_half, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (I > 1) {
            _tile_loadd(5, a + block.a_half, row);
            _tile_dpbf16ps(2, 5, 6);
            if (J > 1) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, 128);
    if (J > 1) _tile_stored(1, sums + 16, 128);
    if (I > 1) _tile_stored(2, sums + 512, 128);
    if (I * J > 2) _tile_stored(3, sums + 528, 128);
}

void multiply_any(const TileBlock& block) {
    if (block.row_tiles > 1)
        block.column_tiles > 1 ? multiply<2, 2>(block) : multiply<2, 1>(block);
    else
        block.column_tiles > 1 ? multiply<1, 2>(block) : multiply<1, 1>(block);
}

}  // namespace

const Micro& micro_amx() {
    static const Micro micro = [] {
        Micro with_tiles = micro_avx512();
        with_tiles.name = "AVX-512 with AMX";
        with_tiles.tiles = kTileTwin;
        with_tiles.tiles.begin = begin, with_tiles.tiles.end = end;
        with_tiles.tiles.multiply = multiply_any;
        with_tiles.on_bf16 = kPasses<Bf16>;
        return with_tiles;
    }();
    return micro;
}

}  // namespace convoy
