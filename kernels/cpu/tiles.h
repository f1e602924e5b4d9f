// tiles.h — products of bf16 in one layout: by AMX (tiles of x86), VDPBF16PS, or plain vectors.
//
// A tile is 16 rows of 64 bytes. Two tiles of A and two tiles of B give a block of 32 × 32 sums:
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
// chain of fused multiply-adds that starts at 0. Every operation rounds to nearest even; numbers
// below 2⁻¹²⁶ count as 0. Plain vectors (tile_body.h) compute the same in the same order, so the
// bits are equal under FlushSubnormals (except the bits of a NaN). arm64's BFMMLA would need groups
// of 4. VDPBF16PS adds one pair at a time, c += a(2p+1)·b(2p+1), then c += a(2p)·b(2p), both fused,
// so its sums are rounded differently.
#pragma once

#include <cstddef>
#include <optional>

#include "kernels/cpu/numbers.h"

namespace convoy {

// sums(i,j) = Σ_t Σ_k a_t(i,k)·b_t(k,j), i and j < 32, over `steps` of 32 deep.
struct TileBlock {
    int steps;
    const Bf16* a;
    ptrdiff_t a_row, a_half;  // stride of a row, of the second 16 rows
    ptrdiff_t a_step;         // stride of a step,
    const ptrdiff_t* a_at;    // or the start of each step, if not null
    const Bf16* b;
    ptrdiff_t b_step, b_half;             // stride of a step, of the second 16 columns
    float* sums;                          // 32 × 32
    int row_tiles = 2, column_tiles = 2;  // 1: only the first 16 rows, or columns
    bool add = false;                     // += instead of =
    // Prefetched into L2: `ahead_lines` cache lines with each step.
    const Bf16* ahead = nullptr;
    int ahead_lines = 0;
    const int* depth = nullptr;  // of each step: a multiple of 8, after which B is 0; null: all 32
};

// Where the rows of a block of sums are stored, and what is applied to them first.
template <class T>
struct TileRows {
    T* const* rows;  // start of each row; null: the row is not stored
    int count;
    int first, cols;                     // columns of the row
    bool accumulate = false;             // += instead of =
    bool relu = false;                   // then max(0, ·)
    const float* bias = nullptr;         // `cols` floats, added
    std::optional<ptrdiff_t> mask = {};  // result is 0 where row[*mask + column] <= 0
};

struct TileUnit {
    void (*multiply)(const TileBlock&);
    void (*store_floats)(const float* sums, const TileRows<float>&);
    void (*store_bf16)(const float* sums, const TileRows<Bf16>&);
    // Pairs of two rows of n numbers (0 up to a multiple of 16); columns from 16c on at to[c·step].
    void (*pair)(const Bf16* first, const Bf16* second, int n, Bf16* to, ptrdiff_t step);

    // AMX: direct products are faster than Winograd's method in fp32, and bands must be larger. A
    // thread configures its tiles with begin() and releases them with end().
    bool amx = false;
    void (*begin)() = nullptr;
    void (*end)() = nullptr;

    void store(const float* sums, const TileRows<float>& to) const { store_floats(sums, to); }
    void store(const float* sums, const TileRows<Bf16>& to) const { store_bf16(sums, to); }
};

// During its lifetime this thread may call TileUnit::multiply.
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

// Asks the system for permission to use AMX, for all threads. False: no AMX, or refused.
bool may_use_amx();

}  // namespace convoy
