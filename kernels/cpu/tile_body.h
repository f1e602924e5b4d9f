// tile_body.h — products of tiles by plain vectors (tiles.h); compiled for each vector width.
namespace convoy {
namespace {

constexpr int kTwinRows = kWidth == 16 ? 8 : 4;  // divides 16; two sums per row in registers

// kTwinRows rows × kWidth columns of one product of tiles. even, odd: the numbers of a's pairs.
inline void multiply_pairs(const float (*even)[16], const float (*odd)[16], const Bf16* b,
                           float* sums) {
    Vec low[kTwinRows] = {}, high[kTwinRows] = {};
    for (int p = 0; p < 16; ++p) {
        const Words pairs = load_words(b + p * 32);
        const Vec first = reinterpret_cast<Vec>(pairs << 16);
        const Vec second = reinterpret_cast<Vec>(pairs & 0xFFFF0000);
#pragma GCC unroll 8
        for (int i = 0; i < kTwinRows; ++i) {
            low[i] += even[i][p] * first;
            high[i] += odd[i][p] * second;
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kTwinRows; ++i)
        store(sums + i * 32, load(sums + i * 32) + (low[i] + high[i]));
}

void multiply_tiles(const TileBlock& block) {
    const int rows = 16 * block.row_tiles, cols = 16 * block.column_tiles;
    float even[32][16], odd[32][16];
    for (int i = 0; i < 32 * 32 && !block.add; i += kWidth) store(block.sums + i, Vec{});
    for (int t = 0; t < block.steps; ++t) {
        const Bf16* a = block.a + (block.a_at ? block.a_at[t] : block.a_step * t);
        for (int i = 0; i < rows; ++i)
            for (int p = 0; p < 16; p += kWidth) {
                const Words pairs =
                    load_words(a + i / 16 * block.a_half + i % 16 * block.a_row + 2 * p);
                store(even[i] + p, reinterpret_cast<Vec>(pairs << 16));
                store(odd[i] + p, reinterpret_cast<Vec>(pairs & 0xFFFF0000));
            }
        const Bf16* b = block.b + t * block.b_step;
        for (int j = 0; j < cols; j += kWidth)
            for (int i = 0; i < rows; i += kTwinRows)
                multiply_pairs(even + i, odd + i, b + j / 16 * block.b_half + j % 16 * 2,
                               block.sums + i * 32 + j);
    }
}

template <class T>
void store_tiles(const float* sums, const TileRows<T>& out) {
    const bool plain = out.cols == 32 && !(out.accumulate || out.bias || out.relu || out.mask);
    for (int i = 0; i < out.count; ++i, sums += 32) {
        if (!out.rows[i]) continue;
        T* row = out.rows[i] + out.first;
        if (plain) {
            for (int j = 0; j < 32; j += kWidth) store(row + j, load(sums + j));
            continue;
        }
        over_vectors(out.cols, [&](int j, auto n) {
            put(row + j, finished(load(sums + j), row, j, n, out), n);
        });
    }
}

void pair_rows(const Bf16* first, const Bf16* second, int n, Bf16* to, ptrdiff_t step) {
    for (int c = 0; c < n; c += 16) {
        Bf16* out = to + c / 16 * step;
        if (n - c >= 16) {
            for (int j = 0; j < 16; j += kWidth)
                *reinterpret_cast<WordsAnywhere*>(out + 2 * j) =
                    load_halves(first + c + j) | load_halves(second + c + j) << 16;
            continue;
        }
        for (int j = 0; j < 16; ++j) {
            out[2 * j].bits = c + j < n ? first[c + j].bits : 0;
            out[2 * j + 1].bits = c + j < n ? second[c + j].bits : 0;
        }
    }
}

constexpr TileUnit kTileTwin{multiply_tiles, store_tiles<float>, store_tiles<Bf16>, pair_rows};

}  // namespace
}  // namespace convoy
