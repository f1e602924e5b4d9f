// tiles.h — products of bf16 on the tile unit of x86 (AMX), and a twin in plain vectors; blocks of
// the same layout by VDPBF16PS.
//
// A tile is 16 rows of 64 bytes. Two tiles of A and two of B make a block of 32 × 32 sums:
//
//       A: 32 deep             B: 16 columns 16 columns
//      ┌───────────┐           ┌───────────┬───────────┐    A's rows hold 32 numbers of the depth.
//   16 │ tile 4    │        16 │ tile 6    │ tile 7    │    Row p of B holds pairs: the numbers 2p
//      ├───────────┤     pairs └───────────┴───────────┘    and 2p+1 of the depth, for each of 16
//   16 │ tile 5    │           ┌───────────┬───────────┐    columns. So the depth is interleaved by
//      └───────────┘           │ sums 0    │ sums 1    │    pairs where B is packed, and nowhere
//                              ├───────────┼───────────┤    else. 4 tiles are loaded for 4 products
//                              │ sums 2    │ sums 3    │    of 16·16·32 multiply-adds, 16 cycles
//                              └───────────┴───────────┘    each.
//
// One product of tiles (TDPBF16PS) is  c += (Σ_p a(2p)·b(2p)) + (Σ_p a(2p+1)·b(2p+1)), each Σ a
// chain of fused multiply-adds that starts at 0; every step rounds to nearest even, and numbers
// below 2⁻¹²⁶ are taken and given as 0. The twin (tile_body.h) does the same in the same order, so
// the bits are equal (except NaNs' own bits) under FlushSubnormals. On arm64 the instruction would
// be BFMMLA, with pairs of 4.
//
// VDPBF16PS adds a pair at a time: c += a(2p+1)·b(2p+1), then c += a(2p)·b(2p), both fused. So its
// sums have other roundings than those of the other two.
#pragma once

#include <cstddef>
#include <optional>

#include "kernels/cpu/numbers.h"

namespace convoy {

// sums(i,j) = Σ_t Σ_k a_t(i,k)·b_t(k,j), i and j < 32, over `steps` of 32 deep.
struct TileBlock {
    int steps;
    const Bf16* a;
    ptrdiff_t a_row, a_half;  // from one row, from the first 16 rows, to the next
    ptrdiff_t a_step;         // from one step to the next,
    const ptrdiff_t* a_at;    // or where each begins
    const Bf16* b;
    ptrdiff_t b_step, b_half;             // from one step, from the first 16 columns, to the next
    float* sums;                          // 32 × 32
    int row_tiles = 2, column_tiles = 2;  // 1: the second 16 rows, or columns, are not made
    bool add = false;                     // to what is in `sums`
    // What is needed next is brought to L2: so many lines of the cache with each step.
    const Bf16* ahead = nullptr;
    int ahead_lines = 0;
    const int* depth = nullptr;  // of each step: a multiple of 8, beyond it B is 0; null: 32
};

// Where the rows of a block of sums go, and what is applied to them before.
template <class T>
struct TileRows {
    T* const* rows;  // where they start; null: it is not stored
    int count;
    int first, cols;                     // columns of the row
    bool accumulate = false;             // add what is there
    bool relu = false;                   // then max(0, ·)
    const float* bias = nullptr;         // added: `cols` floats
    std::optional<ptrdiff_t> mask = {};  // result is 0 where row[*mask + column] <= 0
};

struct TileUnit {
    void (*multiply)(const TileBlock&);
    void (*store_floats)(const float* sums, const TileRows<float>&);
    void (*store_bf16)(const float* sums, const TileRows<Bf16>&);
    // Pairs of two rows of n numbers, zeros up to a multiple of 16; those of columns [16c, 16c+16)
    // at to[c·step].
    void (*pair)(const Bf16* first, const Bf16* second, int n, Bf16* to, ptrdiff_t step);

    // AMX. Products are so fast that Winograd's method, with a fourth of them in floats, is not,
    // and that sums have to be fetched and stored more rarely. A thread prepares its tiles before
    // products and releases them afterwards.
    bool amx = false;
    void (*begin)() = nullptr;
    void (*end)() = nullptr;

    void store(const float* sums, const TileRows<float>& to) const { store_floats(sums, to); }
    void store(const float* sums, const TileRows<Bf16>& to) const { store_bf16(sums, to); }
};

// While it lives, this thread may multiply.
class TileRegion {
 public:
    explicit TileRegion(const TileUnit& unit) : unit_(unit) {
        if (unit.begin) unit.begin();
    }
    ~TileRegion() {
        if (unit_.end) unit_.end();
    }
    TileRegion(const TileRegion&) = delete;

 private:
    const TileUnit& unit_;
};

// Whether this processor has the unit and the system lets this process use it, which it is asked
// for here. Threads that run already may then use it as well.
bool may_use_amx();

}  // namespace convoy
