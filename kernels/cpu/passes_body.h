// passes_body.h — loops bound by memory: batch norm, pooling, sums; compiled for each vector width.
namespace convoy {
namespace {

template <bool Relu, bool Residual, class T>
void normalise_rows(const T* x, const T* residual, float most, T* y, int64_t rows, int C,
                    const float* mean, const float* scale, const float* beta) {
    for (; rows > 0; --rows, x += C, y += C) {
        over_vectors(C, [&](int c, auto n) {
            Vec v = (get(x + c, n) - get(mean + c, n)) * get(scale + c, n) + get(beta + c, n);
            if (Residual) v += get(residual + c, n);
            if (Relu) v = v < 0 ? Vec{} : v > most ? Vec{} + most : v;  // a NaN stays a NaN
            put(y + c, v, n);
        });
        if (Residual) residual += C;
    }
}
template <class T>
void normalise(const T* x, const T* residual, float most, T* y, int64_t rows, int C,
               const float* mean, const float* scale, const float* beta) {
    const auto f =
        most > 0 ? (residual ? normalise_rows<true, true, T> : normalise_rows<true, false, T>)
                 : (residual ? normalise_rows<false, true, T> : normalise_rows<false, false, T>);
    f(x, residual, most, y, rows, C, mean, scale, beta);
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

// dy, or 0 where the activation's output y is at one of its ends.
inline Vec masked(Vec dy, Vec y, float most) { return (y <= 0) | (y >= most) ? Vec{} : dy; }

template <bool Relu, class T>
void gradient_sums_of(const T* x, const T* y, float most, const T* dy, int64_t rows, int C,
                      const float* mean, const float* rstd, double* dz, double* dzx) {
    for (int c = 0; c < C; ++c) dz[c] = dzx[c] = 0;
    over_blocks(rows, C, [&](int c, int channels, int64_t row, int count) {
        Sums sums;
        const ptrdiff_t block = row * C + c;
        add_rows(count, channels, sums, [&](int i, int l, auto n, Vec& a, Vec& b) {
            const ptrdiff_t at = block + ptrdiff_t(i) * C + l;
            Vec grad = get(dy + at, n);
            if (Relu) grad = masked(grad, get(y + at, n), most);
            a += grad, b += grad * (get(x + at, n) - get(mean + c + l, n));
        });
        for (int l = 0; l < channels; ++l) {
            dz[c + l] += double(sums.a[l]);
            dzx[c + l] += double(sums.b[l]) * double(rstd[c + l]);
        }
    });
}
template <class T>
void gradient_sums(const T* x, const T* y, float most, const T* dy, int64_t rows, int C,
                   const float* mean, const float* rstd, double* dz, double* dzx) {
    (y ? gradient_sums_of<true, T> : gradient_sums_of<false, T>)(x, y, most, dy, rows, C, mean,
                                                                 rstd, dz, dzx);
}

template <bool Relu, bool Residual, class T>
void gradient_rows_of(const T* x, const T* y, float most, const T* dy, T* dx, T* dresidual,
                      int64_t rows, int C, const float* mean, const float* scale,
                      const float* mean_dz, const float* slope) {
    for (; rows > 0; --rows, x += C, dy += C, dx += C) {
        over_vectors(C, [&](int c, auto n) {
            Vec dz = get(dy + c, n);
            if (Relu) dz = masked(dz, get(y + c, n), most);
            const Vec off = get(x + c, n) - get(mean + c, n);
            put(dx + c, get(scale + c, n) * (dz - get(mean_dz + c, n) - off * get(slope + c, n)),
                n);
            if (Residual) put(dresidual + c, dz, n);
        });
        if (Relu) y += C;
        if (Residual) dresidual += C;
    }
}
template <class T>
void gradient_rows(const T* x, const T* y, float most, const T* dy, T* dx, T* dresidual,
                   int64_t rows, int C, const float* mean, const float* scale, const float* mean_dz,
                   const float* slope) {
    const auto f =
        y ? (dresidual ? gradient_rows_of<true, true, T> : gradient_rows_of<true, false, T>)
          : (dresidual ? gradient_rows_of<false, true, T> : gradient_rows_of<false, false, T>);
    f(x, y, most, dy, dx, dresidual, rows, C, mean, scale, mean_dz, slope);
}

template <class T>
void add_numbers(T* x, const T* y, size_t count) {
    constexpr size_t kSome = 4096;
    for (size_t i = 0; i < count; i += kSome)
        over_vectors(int(count - i < kSome ? count - i : kSome), [&](size_t j, auto n) {
            put(x + i + j, get(x + i + j, n) + get(y + i + j, n), n);
        });
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
constexpr Passes<T> kPasses{statistics<T>,  normalise<T>,       gradient_sums<T>, gradient_rows<T>,
                            add_numbers<T>, copy_rows<T>,       max_pool<T>,      max_pool_grad<T>,
                            depthwise<T>,   depthwise_grad_w<T>};

}  // namespace
}  // namespace convoy
