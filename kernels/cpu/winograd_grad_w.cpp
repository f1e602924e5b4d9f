// winograd_grad_w.cpp — gradients of filters: dw += Gᵀ [ Σ_tiles (A dy Aᵀ) ⊙ (Bᵀ x B) ] G
//
// For each xi a product Y[xi]ᵀ (K × tiles) · V[xi] (tiles × C), summed over blocks of tiles into
// S[xi] (K × C). If S is small, some ranges of tiles (parts) have their own S; they are added in
// order. The parts and blocks depend only on the shape, and the threads share the work in two ways:
//   many parts  a task is a part; its V and Y stay in the L2 cache of its thread
//   few         all threads transform a block of tiles, then each takes a share of (xi, k)
#include "kernels/cpu/winograd.h"

namespace convoy {
namespace {

constexpr int kSmallSum = 36 * 128 * 128;  // floats, 2.4 MB
constexpr int kL2Floats = 280'000;
constexpr int kLeastTiles = 512;  // for a separate S
constexpr int kManyTiles = 256;   // tiles of a block if S is large: S is then read less often

template <class T>
struct GradW {
    const Micro& micro;
    const WinogradMethod<T>& method;
    const PatchesOf<T>& x;
    const Tiles& tiles;
    const T* dy;
    int K, most;  // most: tiles of a block

    int panels() const { return ceil_div(x.C, micro.nr); }
    int width() const { return panels() * micro.nr; }  // width of a row of S
    int lanes() const { return ceil_div(K, micro.lane); }
    ptrdiff_t v_stride() const { return ptrdiff_t(most) * width() + kStagger; }
    ptrdiff_t y_stride() const { return ptrdiff_t(most) * lanes() * micro.lane + kStagger; }
    ptrdiff_t s_stride() const { return ptrdiff_t(K) * width() + kStagger; }
    size_t block_elems() const { return size_t(kXi) * (v_stride() + y_stride()); }
    size_t sum_elems() const { return size_t(kXi) * s_stride(); }

    // V is stored in panels of nr channels, Y in chunks of `lane` channels, both tile-major.
    void transform(float* block, int first, int begin, int end) const {
        float *v = block, *y = block + kXi * v_stride();
        for (int t = begin; t < end; ++t) {
            method.input(tiles.input(x, first + t),
                         {v + t * micro.nr, v_stride(), micro.nr, ptrdiff_t(most) * micro.nr});
            method.gradient(
                tiles.output(dy, K, first + t, 0, K),
                {y + t * micro.lane, y_stride(), micro.lane, ptrdiff_t(most) * micro.lane});
        }
    }
    // The rows of S[xi] in `chunk` = (or += if add) the sums over the block's `count` tiles.
    void multiply(const float* block, int count, int xi, int chunk, bool add, float* sums) const {
        const float* v = block + xi * v_stride();
        const float* y =
            block + kXi * v_stride() + xi * y_stride() + ptrdiff_t(chunk) * most * micro.lane;
        float* rows[16];
        for (int panel = 0; panel < panels(); ++panel)
            for (int i = 0; i < micro.lane; i += micro.lane_rows) {
                const int k = chunk * micro.lane + i, height = std::min(micro.lane_rows, K - k);
                if (height <= 0) break;
                for (int r = 0; r < height; ++r)
                    rows[r] =
                        sums + xi * s_stride() + ptrdiff_t(k + r) * width() + panel * micro.nr;
                TileOut out{rows, micro.nr};
                out.accumulate = add;
                micro.tile_by_depth[height](count, y + i, v + ptrdiff_t(panel) * most * micro.nr,
                                            micro.nr, out);
            }
    }
};

}  // namespace

template <class T>
void winograd_grad_w(Cpu& cpu, const T* dy, int K, const PatchesOf<T>& x, float* dw) {
    const Tiles tiles(x);
    if (tiles.count == 0) return;
    GradW<T> op{cpu.micro, method_for(cpu.micro, x), x, tiles, dy, K, 0};
    const int row = kXi * (op.width() + op.lanes() * cpu.micro.lane);
    const bool small = kXi * int64_t(K) * op.width() <= kSmallSum;
    const int parts = small ? separate_sums(tiles.count, kLeastTiles, op.sum_elems()) : 1;
    op.most = small ? std::max(64, kL2Floats / row) : kManyTiles;
    op.most = std::min(op.most, ceil_div(tiles.count, parts));
    float* sums = cpu.shared.get(kSlotParts, op.sum_elems() * parts);
    // Calls f(first tile, count, sums, whether to add to them) for the blocks of a part.
    const auto for_blocks = [&](int part, auto&& f) {
        const int begin = int(int64_t(tiles.count) * part / parts);
        const int end = int(int64_t(tiles.count) * (part + 1) / parts);
        for (int first = begin; first < end; first += op.most)
            f(first, std::min(op.most, end - first), sums + part * op.sum_elems(), first > begin);
    };
    if (parts >= 4 * cpu.pool.size() || parts % cpu.pool.size() == 0) {
        float* const* scratch = cpu.for_threads(op.block_elems());
        cpu.pool.for_each(parts, [&](int part, int thread) {
            for_blocks(part, [&](int first, int count, float* own, bool add) {
                op.transform(scratch[thread], first, 0, count);
                for (int xi = 0; xi < kXi; ++xi)
                    for (int chunk = 0; chunk < op.lanes(); ++chunk)
                        op.multiply(scratch[thread], count, xi, chunk, add, own);
            });
        });
    } else {
        float* block = cpu.shared.get(kSlotA, op.block_elems());
        for (int part = 0; part < parts; ++part)
            for_blocks(part, [&](int first, int count, float* own, bool add) {
                cpu.pool.for_each(count, [&](int t, int) { op.transform(block, first, t, t + 1); });
                cpu.pool.for_each(kXi * op.lanes(), [&](int task, int) {
                    op.multiply(block, count, task / op.lanes(), task % op.lanes(), add, own);
                });
            });
    }

    cpu.pool.for_each(K, [&](int k, int) {
        float* row_sums = sums + ptrdiff_t(k) * op.width();
        for (int part = 1; part < parts; ++part)
            for (int xi = 0; xi < kXi; ++xi) {
                float* to = row_sums + xi * op.s_stride();
                const float* from = to + part * op.sum_elems();
                for (int c = 0; c < op.width(); ++c) to[c] += from[c];
            }
        op.method.filter_grad(row_sums, op.s_stride(), x.C, dw + ptrdiff_t(k) * x.depth());
    });
}

template void winograd_grad_w(Cpu&, const float*, int, const PatchesOf<float>&, float*);
template void winograd_grad_w(Cpu&, const Bf16*, int, const PatchesOf<Bf16>&, float*);

}  // namespace convoy
