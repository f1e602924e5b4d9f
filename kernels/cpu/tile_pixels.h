// tile_pixels.h — the pixels of a batch as one line of places; any 16 places are rows of a tile.
//
// Output (n,p,q) is at place (n·pitch_h + p)·pitch_w + q of the line. Its tap (r,s) reads the place
// `shift` = r·pitch_w + s further on. So the 16 rows of a tile follow each other in memory,
// whatever the width of the images. The zeros after a row are also the padding before the next row:
//
//     0 x x x x        4x4 pixels under a window of 3x3, pad 1: pitch_w = pitch_h = 5. One of five
//     0 x x x x        places in a row is no output: results there are dropped, and grad_w reads
//     0 x x x x        dy as 0 there.
//     0 0 0 0 0 ← of the next image
//
// With a stride, each phase of rows and columns is a separate line (a plane), in which a tap is
// again a shift. With few channels a tap is a whole filter row (a run): S·C contiguous numbers from
// the place's first pixel on. Then places are only stride·C numbers apart, and overlap.
#pragma once

#include "kernels/cpu/pack.h"

namespace convoy {

// One axis, H or W.
struct TileAxis {
    int start, step, size, length, outputs;
    int planes, pitch;

    TileAxis(int start, int step, int size, int length, int outputs)
        : start(start),
          step(step),
          size(size),
          length(length),
          outputs(outputs),
          planes(std::min(step, size)),
          pitch(outputs) {
        for (int a = 0; a < planes; ++a) {
            const int first = start + a;                                   // pixel at place 0
            const int zeros = first < 0 ? (-first + step - 1) / step : 0;  // before the pixels
            const int last = outputs - 1 + (size - 1 - a) / step;  // last place that is read
            const int real = first < length ? (length - 1 - first) / step : -1;
            pitch = std::max({pitch, std::min(last, real) + 1, last + 1 - zeros});
        }
    }
    int pixel(int plane, int place) const { return start + plane + place * step; }
    bool inside(int pixel) const { return pixel >= 0 && pixel < length; }
};

struct TilePixels {
    const PatchesOf<Bf16>& x;
    const TileAxis h, w;
    const bool runs;     // a tap is a filter row
    const int channels;  // of a tap
    const int depth;     // `channels` rounded up to whole tiles

    explicit TilePixels(const PatchesOf<Bf16>& x)
        : x(x),
          h(x.h0, x.step_h, x.R, x.H, x.P),
          w(x.w0, x.step_w, x.S, x.W, x.Q),
          runs(x.S > 1 && up(x.C) * x.S >= 2 * up(x.S * x.C)),
          channels(runs ? x.S * x.C : x.C),
          depth(up(channels)) {}

    static int up(int n) { return (n + 31) / 32 * 32; }
    int pitch_h() const { return h.pitch; }
    // Even for runs, so that every tap is an even shift (grad_w).
    int pitch_w() const { return runs ? (x.Q + (x.S + x.step_w - 1) / x.step_w) / 2 * 2 : w.pitch; }
    int planes() const { return runs ? h.planes : h.planes * w.planes; }
    int taps() const { return runs ? x.R : x.R * x.S; }
    int plane(int tap) const {
        return runs ? tap % x.step_h : tap / x.S % x.step_h * w.planes + tap % x.S % x.step_w;
    }
    ptrdiff_t shift(int tap) const {
        return runs ? ptrdiff_t(tap / x.step_h) * pitch_w()
                    : ptrdiff_t(tap / x.S / x.step_h) * w.pitch + tap % x.S / x.step_w;
    }
    ptrdiff_t reach() const { return shift(taps() - 1); }  // the largest shift
    // For runs: the stride of places, and the places that a tile reads beyond the last one.
    int run_row() const { return x.step_w * x.C; }
    int beyond() const { return runs ? ceil_div(depth, run_row()) : 0; }
    // Up to the last output.
    int64_t places() const { return (int64_t(x.N - 1) * pitch_h() + x.P - 1) * pitch_w() + x.Q; }

    // Calls f(i, n, row, column, run) for places [first, first + count) in runs of one row.
    template <class F>
    void walk(int64_t first, int count, F&& f) const {
        const int64_t row = first / pitch_w();
        int j = int(first % pitch_w()), k = int(row % pitch_h()), n = int(row / pitch_h());
        for (int i = 0, run; i < count; i += run, j = 0) {
            run = std::min(pitch_w() - j, count - i);
            f(i, n, k, j, run);
            if (++k == pitch_h()) k = 0, ++n;
        }
    }
    // The start of the image row that contains row `pixel`; null if it is padding.
    const Bf16* line(int n, int pixel) const {
        const bool exists = n < x.N && h.inside(pixel);
        return exists ? x.x + (ptrdiff_t(n) * x.H + pixel) * x.W * x.C : nullptr;
    }
    // The pixels at these places of a plane; `none` for places outside of images. Not for runs.
    void pixels(int plane, int64_t first, int count, const Bf16* none, const Bf16** to) const {
        walk(first, count, [&](int i, int n, int k, int j, int run) {
            const Bf16* from = line(n, h.pixel(plane / w.planes, k));
            for (int at = 0; at < run; ++at) {
                const int column = w.pixel(plane % w.planes, j + at);
                to[i + at] = from && w.inside(column) ? from + ptrdiff_t(column) * x.C : none;
            }
        });
    }
    // The rows of y or dy at these places; `none` for places without an output.
    template <class T, class P>
    void outputs(const RowMapOf<T>& y, int64_t first, int count, P none, P* to) const {
        walk(first, count, [&](int i, int n, int p, int q, int run) {
            const bool exists = n < x.N && p < x.P;
            T* row = y.data + n * y.step_n + p * y.step_p;
            for (int at = 0; at < run; ++at)
                to[i + at] = exists && q + at < x.Q ? row + (q + at) * y.step_q : none;
        });
    }

    // Copies places [first, first + count) of a plane as rows of `depth` numbers with stride `row`,
    // or as runs with stride run_row(). Places beyond the last image are 0.
    void copy(int plane, int64_t first, int count, Bf16* to, ptrdiff_t row) const {
        if (runs) return copy_runs(plane, first, count, to);
        constexpr int kSome = 64;
        const Bf16* from[kSome];
        for (int done = 0; done < count; done += kSome) {
            const int some = std::min(kSome, count - done);
            pixels(plane, first + done, some, nullptr, from);
            for (int i = 0; i < some; ++i, to += row) {
                const int real = from[i] ? channels : 0;
                int c = 0;
                for (; c + 32 <= real; c += 32) std::memcpy(to + c, from[i] + c, 64);  // two moves
                for (; c < real; ++c) to[c] = from[i][c];
                for (; c < depth; ++c) to[c].bits = 0;
            }
        }
    }

 private:
    void copy_runs(int plane, int64_t first, int count, Bf16* to) const {
        walk(first, count, [&](int, int n, int k, int j, int run) {
            const Bf16* from = line(n, h.pixel(plane, k));
            const int all = run * run_row(), at = x.C * (w.start + j * x.step_w);
            const int a = from ? std::clamp(-at, 0, all) : all;
            const int b = from ? std::clamp(x.W * x.C - at, a, all) : all;
            std::fill(to, to + a, Bf16());
            if (b > a) std::memcpy(to + a, from + at + a, size_t(b - a) * sizeof(Bf16));
            std::fill(to + b, to + all, Bf16());
            to += all;
        });
    }
};

}  // namespace convoy
