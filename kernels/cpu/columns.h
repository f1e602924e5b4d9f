// columns.h — helpers for ops on rows × C numbers (pixels × channels). Twin: cuda/moments.cuh
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/gemm.h"

namespace convoy {

constexpr int kLanes = 32;  // channels handled together

// Calls f(first channel, lanes) for all channels. `lanes` is a constant except in the last call, so
// that sums in arrays of kLanes stay in registers.
template <class F>
void over_channels(int C, F&& f) {
    int c = 0;
    for (; c + kLanes <= C; c += kLanes) f(c, std::integral_constant<int, kLanes>());
    if (c < C) f(c, C - c);
}

// A range of rows (pixels) of one group of images, summed separately. Slabs depend only on shapes
// and are merged in order, so the bits do not depend on the number of threads.
struct Slab {
    int group;
    int64_t begin, end;
};

// About 64 slabs in total; at least one for each group that has images.
inline std::vector<Slab> cut_slabs(GroupBounds groups, int64_t image_rows) {
    std::vector<Slab> slabs;
    const int64_t all = groups.back() * image_rows;
    for (int g = 0; g + 1 < int(groups.size()); ++g) {
        const int64_t begin = groups[g] * image_rows, rows = groups[g + 1] * image_rows - begin;
        if (rows == 0) continue;
        const int64_t parts = std::clamp<int64_t>(64 * rows / all, 1, (rows + 127) / 128);
        for (int64_t i = 0; i < parts; ++i)
            slabs.push_back({g, begin + rows * i / parts, begin + rows * (i + 1) / parts});
    }
    return slabs;
}

// The numbers of x from number `at` on; null if there is no tensor.
template <class T>
T* numbers_from(Tensor x, ptrdiff_t at) {
    return x ? elements<T>(x) + at : nullptr;
}
// Calls f(T(), slab, number of the slab, its first number in x) for all slabs of x.
template <class F>
void for_slabs(Cpu& cpu, Tensor x, GroupBounds groups, F&& f) {
    const std::vector<Slab> slabs = cut_slabs(groups, int64_t(x.H) * x.W);
    with_type(x.type, [&](auto type) {
        cpu.pool.for_each(int(slabs.size()), [&](int s, int) {
            f(type, slabs[s], s, ptrdiff_t(slabs[s].begin * x.C));
        });
    });
}

}  // namespace convoy
