// micro.h — the innermost loops, compiled once for each width of vector registers.
//
// micro_body.h is the source; micro_base.cpp compiles it for the floor of the build (AVX2, NEON,
// …), micro_avx512.cpp for AVX-512. pick_micro() chooses at run time.
#pragma once

#include <cstddef>

namespace convoy {

// Where a tile of sums goes, and what is done on the way.
struct TileOut {
    float* const* rows;           // of each row, the element in the tile's first column
    int cols;                     // columns that exist, ≤ nr
    bool accumulate = false;      // add what is there
    bool relu = false;            // then max(0, ·)
    const float* bias = nullptr;  // added: `cols` floats
    ptrdiff_t mask = 0;           // if not 0: result is 0 where row[mask + column] <= 0
};

struct Micro {
    const char* name;
    int width;  // floats in a vector register
    int mr;     // rows of the largest tile
    int nr;     // columns of a tile
    int lane;   // floats from one k to the next in a k-major panel of A, ≥ mr

    // tile = Σ_k a(i,k)·b(k,j) for i < rows ≤ mr, j < nr.
    //   b          b(k,j) at b[k·nr + j]
    //   by_row     a(i,k) at a[(k/16)·rows·16 + i·16 + k%16]: rows copied in pieces of 16
    //   by_depth   a(i,k) at a[k·lane + i]
    void (*tile_by_row)(int rows, int depth, const float* a, const float* b, const TileOut& out);
    void (*tile_by_depth)(int rows, int depth, const float* a, const float* b, const TileOut& out);
};

constexpr int kPiece = 16;  // floats of a row that lie together in a by_row panel

const Micro& micro_base();
const Micro& micro_avx512();  // only on x86-64, only to be called where the processor has it
const Micro& pick_micro();

}  // namespace convoy
