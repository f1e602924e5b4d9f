// winograd.cpp — blocking of winograd.h: forward and grad_x.
//
// The order of the loops depends on the number of channels:
//   few   V of the block's tiles stays in L2. The outer loop is over panels of columns: M is one
//         panel wide. U is read once per block.
//   many  U and V do not fit in L2 together. The outer loop is over xi: U[xi], V[xi] and M[xi] fit,
//         and a block has so many tiles that reading U takes little time.
#include "kernels/cpu/winograd.h"

namespace convoy {
namespace {

constexpr int kL2Floats = 330'000;  // 1.3 of 2 MB: the rest is for U and pixels
constexpr int kFewTiles = 38;       // with fewer tiles per block, reading U is the limit
constexpr int kManyTiles = 112;

// U[xi] as panels of nr columns: number (c, j) of panel p at xi·xi_stride + (p·depth + c)·nr + j.
struct Filters {
    float* data;
    int depth, panels, nr;
    ptrdiff_t xi_stride;

    float* panel(int xi, int p) const { return data + xi * xi_stride + ptrdiff_t(p) * depth * nr; }
};

template <class T>
Filters transform_filters(Cpu& cpu, const WinogradMethod<T>& method, const RightSideOf<T>& w,
                          int depth, int columns) {
    using Form = std::conditional_t<std::is_same_v<T, Bf16>, Widened, Floats>;
    constexpr int kBlock = 16;  // of the depth at a time: 9·16·32 floats are 18 KB
    const int nr = cpu.micro.nr, panels = ceil_div(columns, nr);
    const ptrdiff_t xi_stride = ptrdiff_t(panels) * depth * nr + kStagger;
    const Filters u{cpu.shared.get(kSlotB, kXi * xi_stride), depth, panels, nr, xi_stride};
    float* const* scratch = cpu.for_threads(size_t(w.taps) * kBlock * nr);
    const int blocks = ceil_div(depth, kBlock);
    cpu.pool.for_each(panels * blocks, [&](int task, int thread) {
        const int p = task / blocks, begin = task % blocks * kBlock;
        const int end = std::min(depth, begin + kBlock);
        float* taps = scratch[thread];
        for (int t = 0; t < w.taps; ++t)
            pack_panels(cpu.micro, Form(), RightSideOf<T>{w.b + w.tap_start[t], w.step_k, w.step_j},
                        depth, begin, end, p * nr, nr, columns, taps + t * kBlock * nr);
        for (int c = begin; c < end; ++c)
            method.filter(taps + (c - begin) * nr, ptrdiff_t(kBlock) * nr, nr,
                          u.panel(0, p) + ptrdiff_t(c) * nr, xi_stride);
    });
    return u;
}

// One thread's work on tiles [first, first + count).
template <class T>
struct BlockConv {
    const Micro& micro;
    const WinogradMethod<T>& method;
    const PatchesOf<T>& x;
    const Tiles& tiles;
    const Filters& u;
    int K, group;
    T* result;
    const EpilogueOf<T>& epilogue;
    float *v, *m;

    void operator()(int first, int count) const {
        const Panels panels(count, micro.mr);
        const int padded = round_up(x.C, kChunk);
        const ptrdiff_t v_stride = ptrdiff_t(count) * padded + kStagger;
        for (int p = 0; p < panels.count; ++p) {
            const int height = panels.height(p);
            for (int i = 0; i < height; ++i) {
                const int begin = panels.begin(p);
                method.input(tiles.input(x, first + begin + i),
                             {v + ptrdiff_t(begin) * padded + i * kChunk, v_stride, kChunk,
                              ptrdiff_t(height) * kChunk});
            }
        }
        const int width = group * u.nr;  // width of a row of M
        const ptrdiff_t m_stride = ptrdiff_t(count) * width + kStagger;
        for (int from = 0; from < u.panels; from += group) {
            const int until = std::min(u.panels, from + group);
            for (int xi = 0; xi < kXi; ++xi)
                for (int panel = from; panel < until; ++panel)
                    multiply(panels, v + xi * v_stride, u.panel(xi, panel),
                             m + xi * m_stride + (panel - from) * u.nr, width);
            write(first, count, from * u.nr, std::min(K, until * u.nr), width, m_stride);
        }
    }

 private:
    void multiply(const Panels& panels, const float* a, const float* b, float* to,
                  int width) const {
        float* rows[16];
        TileOut out{rows, u.nr};
        const int padded = round_up(x.C, kChunk);
        for (int k = 0; k < x.C; k += kDepthBlock) {
            const int depth = std::min(kDepthBlock, x.C - k);
            for (int p = 0; p < panels.count; ++p) {
                const int height = panels.height(p), begin = panels.begin(p);
                for (int i = 0; i < height; ++i) rows[i] = to + ptrdiff_t(begin + i) * width;
                micro.tile_by_chunk[height](depth, a + ptrdiff_t(begin) * padded + k * height,
                                            b + ptrdiff_t(k) * u.nr, out);
            }
            out.accumulate = true;
        }
    }
    void write(int first, int count, int k, int k_end, int width, ptrdiff_t m_stride) const {
        TileOut out{nullptr, 0};
        set_epilogue(out, epilogue, k, result);
        for (int t = 0; t < count; ++t)
            method.output(m + ptrdiff_t(t) * width, m_stride,
                          tiles.output(result, K, first + t, k, k_end), out);
    }
};

}  // namespace

template <class T>
void winograd_conv(Cpu& cpu, const PatchesOf<T>& x, const RightSideOf<T>& filters, int K, T* result,
                   const EpilogueOf<T>& epilogue) {
    const Tiles tiles(x);
    if (tiles.count == 0) return;
    const WinogradMethod<T>& method = method_for(cpu.micro, x);
    const Filters u = transform_filters(cpu, method, filters, x.C, K);
    const int threads = cpu.pool.size(), padded = round_up(x.C, kChunk);
    int most_tiles = kL2Floats / (kXi * (padded + u.nr)), group = 1;  // group: panels in M
    if (most_tiles < kFewTiles) most_tiles = kManyTiles, group = u.panels;
    // Blocks of nearly the same size, the same number for each thread.
    const int each = ceil_div(tiles.count, int64_t(threads) * std::min(most_tiles, kManyTiles));
    const int blocks = std::min(tiles.count, each * threads);
    const int most = ceil_div(tiles.count, blocks);
    const size_t v_elems = kXi * (size_t(most) * padded + kStagger);
    const size_t m_elems = kXi * (size_t(most) * group * u.nr + kStagger);
    float* const* scratch = cpu.for_threads(v_elems + m_elems);
    cpu.pool.for_each(blocks, [&](int task, int thread) {
        const int begin = int(int64_t(tiles.count) * task / blocks);
        const int end = int(int64_t(tiles.count) * (task + 1) / blocks);
        float* v = scratch[thread];
        BlockConv<T>{cpu.micro, method, x, tiles, u, K, group, result, epilogue, v, v + v_elems}(
            begin, end - begin);
    });
}

template void winograd_conv(Cpu&, const PatchesOf<float>&, const RightSideOf<float>&, int, float*,
                            const EpilogueOf<float>&);
template void winograd_conv(Cpu&, const PatchesOf<Bf16>&, const RightSideOf<Bf16>&, int, Bf16*,
                            const EpilogueOf<Bf16>&);

}  // namespace convoy
