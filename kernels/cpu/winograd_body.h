// winograd_body.h — the transforms of Winograd's F(4x4, 3x3) and F(2x2, 5x5) (winograd.h), with
// vectors along the channels. Compiled for each vector width.
//
// Each 2-D transform is a 1-D transform of the columns, then of the rows. Both methods use the
// points 0, ±1, ±2, ∞, so Bᵀ is the same. The general construction is by Toom and Cook: Winograd,
// "Arithmetic Complexity of Computations" (1980). G has rows (1, a, a², …) / N(a), Aᵀ columns:
//
//        4  0 -5  0  1  0         a   N(a)   G for 3x3          G for 5x5
//        0 -4 -4  1  1  0         0     4    1  0  0            1  0  0  0  0
//   Bᵀ = 0  4 -4 -1  1  0         1    -6    1  1  1            1  1  1  1  1
//        0 -2 -1  2  1  0        -1    -6    1 -1  1            1 -1  1 -1  1
//        0  2 -1 -2  1  0         2    24    1  2  4            1  2  4  8 16
//        0  4  0 -5  0  1        -2    24    1 -2  4            1 -2  4 -8 16
//                                 ∞     1    0  0  1            0  0  0  0  1
//
//                1  1  1  1  1  0
//   Aᵀ for 4x4 = 0  1 -1  2 -2  0        Aᵀ for 2x2 = 1  1  1  1  1  0
//                0  1  1  4  4  0                     0  1 -1  2 -2  1
//                0  1 -1  8 -8  1
namespace convoy {
namespace {

// Bᵀ: 6 → 6
inline void input_transform(const Vec (&d)[6], Vec (&t)[6]) {
    const Vec even = d[4] - 4 * d[2], odd = d[3] - 4 * d[1];
    const Vec even2 = d[4] - d[2], odd2 = 2 * (d[3] - d[1]);
    t[0] = 4 * d[0] - 5 * d[2] + d[4];
    t[1] = even + odd, t[2] = even - odd;
    t[3] = even2 + odd2, t[4] = even2 - odd2;
    t[5] = 4 * d[1] - 5 * d[3] + d[5];
}

// A: 4 → 6
inline void gradient_4(const Vec (&y)[4], Vec (&t)[6]) {
    const Vec even = y[0] + y[2], odd = y[1] + y[3];
    const Vec even2 = y[0] + 4 * y[2], odd2 = 2 * y[1] + 8 * y[3];
    t[0] = y[0];
    t[1] = even + odd, t[2] = even - odd;
    t[3] = even2 + odd2, t[4] = even2 - odd2;
    t[5] = y[3];
}

// A: 2 → 6
inline void gradient_2(const Vec (&y)[2], Vec (&t)[6]) {
    const Vec twice = 2 * y[1];
    t[0] = y[0];
    t[1] = y[0] + y[1], t[2] = y[0] - y[1];
    t[3] = y[0] + twice, t[4] = y[0] - twice;
    t[5] = y[1];
}

// G: 3 → 6
inline void filter_3(const Vec (&g)[3], Vec (&t)[6]) {
    const Vec even = (-1.0f / 6) * (g[0] + g[2]), odd = (-1.0f / 6) * g[1];
    const Vec even2 = (1.0f / 24) * g[0] + (1.0f / 6) * g[2], odd2 = (1.0f / 12) * g[1];
    t[0] = 0.25f * g[0];
    t[1] = even + odd, t[2] = even - odd;
    t[3] = even2 + odd2, t[4] = even2 - odd2;
    t[5] = g[2];
}

// G: 5 → 6
inline void filter_5(const Vec (&g)[5], Vec (&t)[6]) {
    const Vec even = (-1.0f / 6) * (g[0] + g[2] + g[4]), odd = (-1.0f / 6) * (g[1] + g[3]);
    const Vec even2 = (1.0f / 24) * g[0] + (1.0f / 6) * g[2] + (2.0f / 3) * g[4];
    const Vec odd2 = (1.0f / 12) * g[1] + (1.0f / 3) * g[3];
    t[0] = 0.25f * g[0];
    t[1] = even + odd, t[2] = even - odd;
    t[3] = even2 + odd2, t[4] = even2 - odd2;
    t[5] = g[4];
}

// Aᵀ: 6 → 4
inline void output_4(const Vec (&m)[6], Vec (&y)[4]) {
    const Vec sum = m[1] + m[2], diff = m[1] - m[2];
    const Vec sum2 = m[3] + m[4], diff2 = m[3] - m[4];
    y[0] = m[0] + sum + sum2;
    y[1] = diff + 2 * diff2;
    y[2] = sum + 4 * sum2;
    y[3] = diff + 8 * diff2 + m[5];
}

// Aᵀ: 6 → 2
inline void output_2(const Vec (&m)[6], Vec (&y)[2]) {
    y[0] = m[0] + (m[1] + m[2]) + (m[3] + m[4]);
    y[1] = (m[1] - m[2]) + 2 * (m[3] - m[4]) + m[5];
}

// Gᵀ: 6 → 3
inline void filter_grad_3(const Vec (&m)[6], Vec (&g)[3]) {
    const Vec sum = (-1.0f / 6) * (m[1] + m[2]), sum2 = m[3] + m[4];
    g[0] = 0.25f * m[0] + sum + (1.0f / 24) * sum2;
    g[1] = (1.0f / 6) * (m[2] - m[1]) + (1.0f / 12) * (m[3] - m[4]);
    g[2] = sum + (1.0f / 6) * sum2 + m[5];
}

// Gᵀ: 6 → 5
inline void filter_grad_5(const Vec (&m)[6], Vec (&g)[5]) {
    const Vec sum = (-1.0f / 6) * (m[1] + m[2]), sum2 = m[3] + m[4];
    const Vec diff = (1.0f / 6) * (m[2] - m[1]), diff2 = m[3] - m[4];
    g[0] = 0.25f * m[0] + sum + (1.0f / 24) * sum2;
    g[1] = diff + (1.0f / 12) * diff2;
    g[2] = sum + (1.0f / 6) * sum2;
    g[3] = diff + (1.0f / 3) * diff2;
    g[4] = sum + (2.0f / 3) * sum2 + m[5];
}

// The sizes of a one-dimensional transform: kIn vectors become kOut.
template <auto apply>
struct Size;
template <size_t In, size_t Out, void (*apply)(const Vec (&)[In], Vec (&)[Out])>
struct Size<apply> {
    static constexpr int kIn = In, kOut = Out;
};

// T·X·Tᵀ of a kIn × kIn block: `apply` is T, fetch(i, j) reads X, put(i, j, v) writes the result.
template <auto apply, class Fetch, class Put>
inline void transform(Fetch&& fetch, Put&& put) {
    using T = Size<apply>;
    Vec half[T::kOut][T::kIn];
#pragma GCC unroll 6
    for (int j = 0; j < T::kIn; ++j) {
        Vec in[T::kIn], out[T::kOut];
#pragma GCC unroll 6
        for (int i = 0; i < T::kIn; ++i) in[i] = fetch(i, j);
        apply(in, out);
#pragma GCC unroll 6
        for (int i = 0; i < T::kOut; ++i) half[i][j] = out[i];
    }
#pragma GCC unroll 6
    for (int i = 0; i < T::kOut; ++i) {
        Vec out[T::kOut];
        apply(half[i], out);
#pragma GCC unroll 6
        for (int j = 0; j < T::kOut; ++j) put(i, j, out[j]);
    }
}

// Transforms the pixels of a block to 36 numbers. Channels are written up to a full chunk.
template <auto T, class Element>
void transform_pixels(const WinogradBlock<Element>& in, const WinogradChunks& out) {
    constexpr int kIn = Size<T>::kIn;
    const int padded = (in.channels + out.chunk - 1) / out.chunk * out.chunk;
    const bool inner =
        in.row_begin == 0 && in.row_end == kIn && in.col_begin == 0 && in.col_end == kIn;
    // The pixels of the next block, usually four further: rows are too short for the hardware.
    for (int i = in.row_begin; i < in.row_end; ++i)
        for (ptrdiff_t at = 0; at < 4 * in.pixel; at += 64 / ptrdiff_t(sizeof(Element)))
            __builtin_prefetch(in.data + i * in.line + kIn * in.pixel + at);
    // Pixels outside of the image are read from `zeros`, without a branch for each. The last
    // channels, fewer than a vector, are copied first.
    const Element zeros[kWidth] = {};
    Element few[kIn][kIn][kWidth];
    const Element* pixels[kIn][kIn] = {};
    ptrdiff_t moves[kIn][kIn] = {};  // all bits if the pixel is inside: its channels follow
    for (int c = 0; c < padded; c += kWidth) {
        float* to = out.data + c / out.chunk * out.chunk_stride + c % out.chunk;
        const auto put = [&](int i, int j, Vec v) { store(to + (i * 6 + j) * out.xi_stride, v); };
        const Element* from = in.data + c;
        const int count = in.channels - c;
        if (inner && count >= kWidth) {
            transform<T>([&](int i, int j) { return load(from + i * in.line + j * in.pixel); },
                         put);
            continue;
        }
        for (int i = 0; i < kIn && (c == 0 || count < kWidth); ++i)
            for (int j = 0; j < kIn; ++j) {
                const bool inside = (i >= in.row_begin) & (i < in.row_end) & (j >= in.col_begin) &
                                    (j < in.col_end) & (count > 0);
                const bool whole = count >= kWidth;
                pixels[i][j] = inside ? in.data + i * in.line + j * in.pixel : zeros;
                moves[i][j] = -ptrdiff_t(inside & whole);
                if (!inside || whole) continue;
                store(few[i][j], load_few(pixels[i][j] + c, count));
                pixels[i][j] = few[i][j];
            }
        transform<T>([&](int i, int j) { return load(pixels[i][j] + (c & moves[i][j])); }, put);
    }
}

template <auto T>
void winograd_filter(const float* g, ptrdiff_t tap_stride, int columns, float* u,
                     ptrdiff_t xi_stride) {
    for (int c = 0; c < columns; c += kWidth)
        transform<T>(
            [&](int i, int j) { return load(g + (i * Size<T>::kIn + j) * tap_stride + c); },
            [&](int i, int j, Vec v) { store(u + (i * 6 + j) * xi_stride + c, v); });
}

template <auto T, class Element>
void winograd_output(const float* m, ptrdiff_t xi_stride, const WinogradBlock<Element>& out,
                     const TileOut& epilogue) {
    Element* base = const_cast<Element*>(out.data);
    for (int c = 0; c < out.channels; c += kWidth) {
        const int count = out.channels - c;
        const auto fetch = [&](int i, int j) { return load(m + (i * 6 + j) * xi_stride + c); };
        const auto finish = [&](Element* to, Vec v, auto n) {
            put(to, finished(v, to - c, c, n, epilogue), n);
        };
        transform<T>(fetch, [&](int i, int j, Vec v) {
            if (i >= out.row_end || j >= out.col_end) return;
            Element* to = base + i * out.line + j * out.pixel + c;
            count >= kWidth ? finish(to, v, All()) : finish(to, v, count);
        });
    }
}

template <auto T>
void winograd_filter_grad(const float* sums, ptrdiff_t xi_stride, int channels, float* dw) {
    for (int c = 0; c < channels; c += kWidth) {
        const int count = channels - c;
        transform<T>([&](int i, int j) { return load(sums + (i * 6 + j) * xi_stride + c); },
                     [&](int i, int j, Vec v) {
                         float* to = dw + (i * Size<T>::kOut + j) * ptrdiff_t(channels) + c;
                         if (count >= kWidth)
                             store(to, load(to) + v);
                         else
                             store_few(to, load_few(to, count) + v, count);
                     });
    }
}

template <class T, auto gradient, auto filter, auto output, auto filter_grad>
constexpr WinogradMethod<T> kMethod{transform_pixels<input_transform, T>,
                                    transform_pixels<gradient, T>, winograd_filter<filter>,
                                    winograd_output<output, T>, winograd_filter_grad<filter_grad>};
template <class T>
constexpr auto kWinograd3 = kMethod<T, gradient_4, filter_3, output_4, filter_grad_3>;
template <class T>
constexpr auto kWinograd5 = kMethod<T, gradient_2, filter_5, output_2, filter_grad_5>;

}  // namespace
}  // namespace convoy
