// tile_pixels.h — the pixels of a batch in one line, so that each 16 of them are rows of a tile.
//
// Output (n,p,q) is place (n·pitch_h + p)·pitch_w + q of the line, and what tap (r,s) reads there
// is `shift` = r·pitch_w + s places on: a tile of any 16 places is 16 rows in a row, whatever the
// width of the images. The zeros after a row are the padding before the next one as well:
//
//     0 x x x x        4x4 pixels under a window of 3x3, pad 1: pitch_w = pitch_h = 5. One place
//     0 x x x x        in five of a row is none of y; what is computed there is dropped, and taken
//     0 x x x x        as 0 where y's side is read (grad_w).
//     0 0 0 0 0 ← of the next image
//
// With a stride each phase of rows and columns is a line of its own (a plane), in which a tap is a
// shift again. Of few channels a tap is a whole filter row, S·C numbers that lie side by side from
// the place's first pixel on: places are then only stride·C numbers apart, and overlap.
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
            const int zeros = first < 0 ? (-first + step - 1) / step : 0;  // before pixels
            const int last = outputs - 1 + (size - 1 - a) / step;          // place that is read
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
    const int depth;     // the same in whole tiles

    explicit TilePixels(const PatchesOf<Bf16>& x)
        : x(x),
          h(x.h0, x.step_h, x.R, x.H, x.P),
          w(x.w0, x.step_w, x.S, x.W, x.Q),
          runs(x.S > 1 && up(x.C) * x.S >= 2 * up(x.S * x.C)),
          channels(runs ? x.S * x.C : x.C),
          depth(up(channels)) {}

    static int up(int n) { return (n + 31) / 32 * 32; }
    int pitch_h() const { return h.pitch; }
    // Even for runs: then no tap is an odd shift (grad_w).
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
    ptrdiff_t reach() const { return shift(taps() - 1); }  // of all taps, the largest shift
    // Numbers from one place to the next, of runs; and places that hold what a tile reads beyond
    // the last: numbers that meet zeros.
    int run_row() const { return x.step_w * x.C; }
    int beyond() const { return runs ? ceil_div(depth, run_row()) : 0; }
    // To the last output.
    int64_t places() const { return (int64_t(x.N - 1) * pitch_h() + x.P - 1) * pitch_w() + x.Q; }

    // f(i, n, row, column, run) for places first + i and on, i < count: a run is of one row.
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
    // Where a row of a plane begins in the image: pixel (0) of its line, or null if there is none.
    const Bf16* line(int n, int pixel) const {
        const bool exists = n < x.N && h.inside(pixel);
        return exists ? x.x + (ptrdiff_t(n) * x.H + pixel) * x.W * x.C : nullptr;
    }
    // The pixels at these places of a plane; `none` for those outside of images. Not of runs.
    void pixels(int plane, int64_t first, int count, const Bf16* none, const Bf16** to) const {
        walk(first, count, [&](int i, int n, int k, int j, int run) {
            const Bf16* from = line(n, h.pixel(plane / w.planes, k));
            for (int at = 0; at < run; ++at) {
                const int column = w.pixel(plane % w.planes, j + at);
                to[i + at] = from && w.inside(column) ? from + ptrdiff_t(column) * x.C : none;
            }
        });
    }
    // The rows of a result, or of y's side, at these places; `none` where there is no output.
    template <class T, class P>
    void outputs(const RowMapOf<T>& y, int64_t first, int count, P none, P* to) const {
        walk(first, count, [&](int i, int n, int p, int q, int run) {
            const bool exists = n < x.N && p < x.P;
            T* row = y.data + n * y.step_n + p * y.step_p;
            for (int at = 0; at < run; ++at)
                to[i + at] = exists && q + at < x.Q ? row + (q + at) * y.step_q : none;
        });
    }

    // Places [first, first + count) of a plane as rows of `depth` numbers, `row` apart, or as runs,
    // run_row() apart; beyond the last image they are 0.
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
