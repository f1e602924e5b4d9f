// passes_body.h — loops bound by memory: batch norm, pooling, sums; compiled for each vector width.
#include "kernels/cpu/winograd_body.h"
#include "kernels/kinds.h"

namespace convoy {
namespace {

// ---- activation functions ----------------------------------------------------------------------

// eˣ. With n the integer next to x/ln 2, eˣ = 2ⁿ·eʳ and |r| <= ln 2 / 2, where Taylor's polynomial
// of degree 7 has the precision of a float. ln 2 is the sum of two floats, the first with few
// digits, so that n·ln 2 is exact.
inline Vec exponential(Vec x) {
    const Vec z = x > 87 ? Vec{} + 87 : x < -87 ? Vec{} - 87 : x;  // a NaN stays
    const Vec shifted = z * 1.44269504f + 0x1.8p23f;               // n in the last bits
    const Vec n = shifted - 0x1.8p23f;
    const Vec r = (z - n * 0.693359375f) + n * 2.12194440e-4f;
    Vec e = Vec{} + 1 / 5040.0f;
    for (const float term : {720.0f, 120.0f, 24.0f, 6.0f, 2.0f, 1.0f, 1.0f}) e = e * r + 1 / term;
    return e * (Vec)(((Ints)shifted << 23) + 0x3F800000);
}
inline Vec sigmoid(Vec x) { return 1 / (1 + exponential(-x)); }
inline Vec elu(Vec x, float slope) {
    for (int i = 0; i < kWidth; ++i) x[i] = x[i] < 0 ? slope * __builtin_expm1f(x[i]) : x[i];
    return x;
}
// The standard normal distribution: x times its density at x, and the probability of a value below
// x. Before rounding, the probability is off by at most 7.5·10⁻⁸. Formula 26.2.17 of Abramowitz,
// Stegun, "Handbook of Mathematical Functions" (1964).
inline Vec normal_density(Vec x) { return 0.398942280f * exponential(-0.5f * x * x); }
inline Vec normal_slope(Vec x) { return x * normal_density(x); }
inline Vec normal_below(Vec x) {
    const Vec t = 1 / (1 + 0.2316419f * (x < 0 ? -x : x));
    Vec sum = Vec{} + 1.330274429f;
    for (const float term : {-1.821255978f, 1.781477937f, -0.356563782f, 0.319381530f})
        sum = sum * t + term;
    const Vec tail = normal_density(x) * sum * t;
    return x < 0 ? tail : 1 - tail;
}
// min(most, max(0, x)) in a form in which a NaN stays a NaN.
inline Vec clamped(Vec x, float most) { return x < 0 ? Vec{} : x > most ? Vec{} + most : x; }

#define FORMULA inline
#include "kernels/activation_body.h"
#undef FORMULA

template <class T>
void activate(T* x, size_t count, Activation act) {
    with_any_kind(act, [&](auto kind) {
        over_vectors(count, [&](size_t i, auto n) {
            put(x + i, activated<kind()>(get(x + i, n), act.slope), n);
        });
    });
}
template <class T>
void activate_grad(const T* of, T* dy, size_t count, Activation act) {
    with_any_kind(act, [&](auto kind) {
        over_vectors(count, [&](size_t i, auto n) {
            put(dy + i, activated_grad<kind()>(get(of + i, n), get(dy + i, n), act.slope), n);
        });
    });
}

// ---- batch norm --------------------------------------------------------------------------------

// Without the residual and the activation.
template <class T, class N>
inline Vec normalised(const T* x, const Norm& norm, int c, N n) {
    return (get(x, n) - get(norm.mean + c, n)) * get(norm.scale + c, n) + get(norm.beta + c, n);
}
template <class T>
void normalise(const T* x, const T* residual, const Norm& norm, T* y, int64_t rows, int C) {
    const auto run = [&](auto kind, auto has_residual) {
        for (int64_t at = 0; at < rows * C; at += C)
            over_vectors(C, [&](int c, auto n) {
                Vec v = normalised(x + at + c, norm, c, n);
                if (has_residual) v += get(residual + at + c, n);
                put(y + at + c, activated<kind()>(v), n);
            });
    };
    with_norm_kind(norm.act, residual, run);
}

// Blocks of rows × channels are summed in floats, then the sums of blocks in double.
constexpr int kSumRows = 128, kSumChannels = 256;
struct Sums {
    alignas(64) float a[kSumChannels] = {}, b[kSumChannels] = {};
};
// Calls f(first channel, channels, first row, rows) for each block.
template <class F>
inline void over_blocks(int64_t rows, int C, F&& f) {
    for (int64_t row = 0; row < rows; row += kSumRows)
        for (int c = 0; c < C; c += kSumChannels)
            f(c, C - c < kSumChannels ? C - c : kSumChannels, row,
              rows - row < kSumRows ? int(rows - row) : kSumRows);
}
// f(row, channel, count, a, b) adds to the sums, which are loaded once for four rows.
template <class F>
inline void add_rows(int rows, int channels, Sums& sums, F&& f) {
    int i = 0;
    for (; i + 4 <= rows; i += 4)
        over_vectors(channels, [&](int c, auto n) {
            Vec a = load(sums.a + c), b = load(sums.b + c);
#pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) f(i + r, c, n, a, b);
            store(sums.a + c, a), store(sums.b + c, b);
        });
    for (; i < rows; ++i)
        over_vectors(channels, [&](int c, auto n) {
            Vec a = load(sums.a + c), b = load(sums.b + c);
            f(i, c, n, a, b);
            store(sums.a + c, a), store(sums.b + c, b);
        });
}

// Deviations are taken from the mean so far (at first of the first 16 rows). Subtracting a nearby
// mean first avoids cancellation when the mean is large and the variance tiny.
template <class T>
void statistics(const T* x, int64_t rows, int C, double* mean, double* square) {
    for (int c = 0; c < C; ++c) mean[c] = square[c] = 0;
    over_blocks(rows, C, [&](int c, int channels, int64_t row, int count) {
        Sums sums, first;
        float center[kSumChannels];
        const T* block = x + row * C + c;
        const int few = count < 16 ? count : 16;
        if (row == 0)
            add_rows(few, channels, first, [&](int i, int l, auto n, Vec& a, Vec&) {
                a += get(block + ptrdiff_t(i) * C + l, n);
            });
        const double share = double(count) / double(row + count), part = 1.0 / count;
        for (int l = 0; l < channels; ++l)
            center[l] = row == 0 ? first.a[l] / float(few) : float(mean[c + l]);
        add_rows(count, channels, sums, [&](int i, int l, auto n, Vec& a, Vec& b) {
            const Vec d = get(block + ptrdiff_t(i) * C + l, n) - load(center + l);
            a += d, b += d * d;
        });
        for (int l = 0; l < channels; ++l) {
            const double off = double(sums.a[l]) * part;
            const double block_square = double(sums.b[l]) - off * off * count;
            const double delta = double(center[l]) + off - mean[c + l];
            mean[c + l] += delta * share;
            square[c + l] += block_square + delta * delta * share * double(row);
        }
    });
}

template <class T>
void gradient_sums(const T* x, const T* y, const T* dy, const Norm& norm, int64_t rows, int C,
                   T* dresidual, double* dz, double* dzx) {
    for (int c = 0; c < C; ++c) dz[c] = dzx[c] = 0;
    const auto run = [&](auto kind, auto has_residual) {
        over_blocks(rows, C, [&](int c, int channels, int64_t row, int count) {
            Sums sums;
            const ptrdiff_t block = row * C + c;
            add_rows(count, channels, sums, [&](int i, int l, auto n, Vec& a, Vec& b) {
                const ptrdiff_t at = block + ptrdiff_t(i) * C + l;
                Vec grad = get(dy + at, n);
                if constexpr (has_residual() && kind() != Kind::kNone)
                    grad = activated_grad<kind()>(get(y + at, n), grad);
                else
                    grad = activated_grad<kind()>(normalised(x + at, norm, c + l, n), grad);
                if (has_residual) put(dresidual + at, grad, n);
                a += grad, b += grad * (get(x + at, n) - get(norm.mean + c + l, n));
            });
            for (int l = 0; l < channels; ++l) {
                dz[c + l] += double(sums.a[l]);
                dzx[c + l] += double(sums.b[l]) * double(norm.mean[C + c + l]);
            }
        });
    };
    with_norm_kind(norm.act, dresidual, run);
}

template <class T>
void gradient_rows(const T* x, const T* dy, const Norm& norm, int64_t rows, int C, T* dx) {
    const float *mean_dz = norm.scale + C, *slope = mean_dz + C;
    with_norm_kind(norm.act, false, [&](auto kind, auto) {
        for (int64_t at = 0; at < rows * C; at += C)
            over_vectors(C, [&](int c, auto n) {
                const Vec z = normalised(x + at + c, norm, c, n);
                const Vec dz = activated_grad<kind()>(z, get(dy + at + c, n));
                const Vec off = get(x + at + c, n) - get(norm.mean + c, n);
                put(dx + at + c,
                    get(norm.scale + c, n) * (dz - get(mean_dz + c, n) - off * get(slope + c, n)),
                    n);
            });
    });
}

template <class T>
void add_numbers(T* x, const T* y, size_t count) {
    over_vectors(count, [&](size_t i, auto n) { put(x + i, get(x + i, n) + get(y + i, n), n); });
}

template <class T>
void max_pool(const T* x, const PoolWindow& w, int channels, T* y, unsigned char* argmax) {
    over_vectors(channels, [&](int c, auto n) {
        const auto at = [&](int r, int s) { return get(x + r * w.line + s * w.pixel + c, n); };
        Vec best = at(w.row_begin, w.col_begin);
        Ints where = Ints{} + (w.row_begin * w.size_w + w.col_begin);
        for (int r = w.row_begin; r < w.row_end; ++r)
            for (int s = w.col_begin; s < w.col_end; ++s) {
                const Vec v = at(r, s);
                const Ints better = (v > best) | (v != v);  // a NaN is taken as the maximum
                best = better ? v : best;
                where = better ? Ints{} + (r * w.size_w + s) : where;
            }
        const Bytes places = __builtin_convertvector(where, Bytes);
        put(y + c, best, n);
        if (n == kWidth)
            *reinterpret_cast<BytesAnywhere*>(argmax + c) = places;
        else
            for (int i = 0; i < n; ++i) argmax[c + i] = places[i];
    });
}

template <class T>
void max_pool_grad(const T* dy, const unsigned char* argmax, const PoolGrad& w, int channels,
                   const T* mask, T* dx) {
    over_vectors(channels, [&](int c, auto n) {
        Vec sum = {};
        for (int p = w.row_begin; p < w.row_end; ++p)
            for (int q = w.col_begin; q < w.col_end; ++q) {
                const ptrdiff_t at = p * w.line + q * w.pixel + c;
                Ints places = {};
                if (n == kWidth)
                    places = load_bytes(argmax + at);
                else
                    for (int i = 0; i < n; ++i) places[i] = argmax[at + i];
                const Ints here = places == w.place - p * w.place_row - q * w.place_col;
                sum += here ? get(dy + at, n) : Vec{};
            }
        if (mask) sum = get(mask + c, n) <= 0 ? Vec{} : sum;
        put(dx + c, sum, n);
    });
}

template <class T>
void copy_rows(T* to, ptrdiff_t to_step, const T* from, ptrdiff_t from_step, int64_t rows,
               int channels, bool add) {
    for (; rows > 0; --rows, to += to_step, from += from_step)
        over_vectors(channels, [&](int c, auto n) {
            const Vec v = get(from + c, n);
            put(to + c, add ? get(to + c, n) + v : v, n);
        });
}

// Calls f(kPixels, first pixel, first channel, channels) for all pixels and channels. Four pixels
// at a time share the loads of the filter, except for the last channels (fewer than a vector).
template <class T, class F>
inline void over_pixels(const DepthwiseRun<T>& run, F&& f) {
    const int whole = run.channels / kWidth * kWidth;
    int i = 0;
    for (; i + 4 <= run.pixels; i += 4)
        for (int c = 0; c < whole; c += kWidth) f(std::integral_constant<int, 4>(), i, c, All());
    for (; i < run.pixels; ++i)
        for (int c = 0; c < whole; c += kWidth) f(std::integral_constant<int, 1>(), i, c, All());
    for (i = 0; i < run.pixels && whole < run.channels; ++i)
        f(std::integral_constant<int, 1>(), i, whole, run.channels - whole);
}

template <class T>
void depthwise(const DepthwiseRun<T>& run, const float* filter, const float* bias, bool relu,
               const T* mask, T* y) {
    const DepthwiseTap* const taps_end = run.taps + run.tap_count;
    const ptrdiff_t step = run.x_step;
    over_pixels(run, [&](auto pixels, int first, int c, auto n) {
        constexpr int kPixels = decltype(pixels)::value;
        Vec sums[kPixels];
        for (Vec& sum : sums) sum = bias ? get(bias + c, n) : Vec{};
        const T* x = run.x + first * step + c;
        for (const DepthwiseTap* tap = run.taps; tap != taps_end; ++tap) {
            const Vec w = get(filter + tap->w + c, n);
#pragma GCC unroll 4
            for (int i = 0; i < kPixels; ++i) sums[i] += get(x + tap->x + i * step, n) * w;
        }
#pragma GCC unroll 4
        for (int i = 0; i < kPixels; ++i) {
            const ptrdiff_t at = (first + i) * run.y_step + c;
            Vec sum = sums[i];
            if (relu) sum = sum < 0 ? Vec{} : sum;  // in this form a NaN stays a NaN
            if (mask) sum = get(mask + at, n) <= 0 ? Vec{} : sum;
            put(y + at, sum, n);
        }
    });
}

template <class T>
void depthwise_grad_w(const DepthwiseRun<T>& run, const T* dy, float* dw) {
    const DepthwiseTap* const taps_end = run.taps + run.tap_count;
    const ptrdiff_t step = run.x_step;
    over_pixels(run, [&](auto pixels, int first, int c, auto n) {
        constexpr int kPixels = decltype(pixels)::value;
        Vec d[kPixels];
        for (int i = 0; i < kPixels; ++i) d[i] = get(dy + (first + i) * run.y_step + c, n);
        const T* x = run.x + first * step + c;
        for (const DepthwiseTap* tap = run.taps; tap != taps_end; ++tap) {
            Vec sum = get(dw + tap->w + c, n);
#pragma GCC unroll 4
            for (int i = 0; i < kPixels; ++i) sum += get(x + tap->x + i * step, n) * d[i];
            put(dw + tap->w + c, sum, n);
        }
    });
}

template <class T>
constexpr Passes<T> kPasses{statistics<T>, normalise<T>,     gradient_sums<T>, gradient_rows<T>,
                            activate<T>,   activate_grad<T>, add_numbers<T>,   copy_rows<T>,
                            max_pool<T>,   max_pool_grad<T>, depthwise<T>,     depthwise_grad_w<T>,
                            kWinograd3<T>, kWinograd5<T>};

}  // namespace
}  // namespace convoy
