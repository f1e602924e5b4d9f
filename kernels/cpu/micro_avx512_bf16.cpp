// micro_avx512_bf16.cpp — AVX-512 with products of bf16 in hardware: AMX or VDPBF16PS (tiles.h).
#include <cstring>

#include "kernels/cpu/micro.h"

namespace {
constexpr int kWidth = 16;
}

// This file's compiler flags make vectors.h round to bf16 in hardware.
#include "kernels/cpu/vectors.h"

#include "kernels/cpu/tile_body.h"

#include "kernels/cpu/passes_body.h"

#include "kernels/cpu/winograd_body.h"

namespace convoy {

namespace {

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

// I × J tiles of sums. The compiler does not reorder tile loads: each stands before its first use.
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

// 8 rows × J tiles of columns. The sums stay in registers over all steps.
template <int J>
void dot_rows(const TileBlock& block, int row, float* sums) {
    constexpr int kRows = 8;
    __m512 c[kRows][J];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
        for (int j = 0; j < J; ++j)
            c[i][j] = block.add ? _mm512_loadu_ps(sums + i * 32 + j * 16) : _mm512_setzero_ps();
    const Bf16 *b = block.b, *ahead = block.ahead;
    for (int t = 0; t < block.steps; ++t, b += block.b_step) {
        for (int i = 0; row == 0 && i < block.ahead_lines; ++i, ahead += 32)
            __builtin_prefetch(ahead, 0, 2);
        const Bf16* a = block.a + (block.a_at ? block.a_at[t] : block.a_step * t) +
                        row / 16 * block.a_half + row % 16 * block.a_row;
        const int depth = block.depth ? block.depth[t] : 32;
#pragma GCC unroll 4
        for (int p = 0; p < depth; p += 2) {
            __m512bh pairs[J];
#pragma GCC unroll 2
            for (int j = 0; j < J; ++j)
                pairs[j] = __m512bh(_mm512_loadu_si512(b + j * block.b_half + p * 16));
#pragma GCC unroll 8
            for (int i = 0; i < kRows; ++i) {
                int pair;
                std::memcpy(&pair, a + i * block.a_row + p, sizeof pair);
#pragma GCC unroll 2
                for (int j = 0; j < J; ++j)
                    c[i][j] =
                        _mm512_dpbf16_ps(c[i][j], __m512bh(_mm512_set1_epi32(pair)), pairs[j]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
        for (int j = 0; j < J; ++j) _mm512_storeu_ps(sums + i * 32 + j * 16, c[i][j]);
}

void multiply_dots(const TileBlock& block) {
    for (int row = 0; row < 16 * block.row_tiles; row += 8)
        (block.column_tiles > 1 ? dot_rows<2> : dot_rows<1>)(block, row, block.sums + row * 32);
}

Micro with_bf16(const char* name, void (*multiply)(const TileBlock&)) {
    Micro micro = micro_avx512();
    micro.name = name;
    micro.tiles = kTileTwin;
    micro.tiles.multiply = multiply;
    micro.on_bf16 = kPasses<Bf16>;
    micro.winograd3_bf16 = kWinograd3<Bf16>, micro.winograd5_bf16 = kWinograd5<Bf16>;
    return micro;
}

}  // namespace

const Micro& micro_amx() {
    static const Micro micro = [] {
        Micro with_tiles = with_bf16("AVX-512 with AMX", multiply_any);
        with_tiles.tiles.begin = begin, with_tiles.tiles.end = end;
        with_tiles.tiles.amx = true;
        return with_tiles;
    }();
    return micro;
}
const Micro& micro_avx512_bf16() {
    static const Micro micro = with_bf16("AVX-512 with BF16", multiply_dots);
    return micro;
}

}  // namespace convoy
