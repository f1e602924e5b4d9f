// reference.h — the formula of every op, in double. It shares no code with any backend. Tensors are
// vectors of double with a Shape, in NHWC and KRSC.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/backend.h"

namespace convoy {

inline Tensor view(auto& floats, Shape s) { return {floats.data(), s}; }

struct ConvCase {
    Shape x;
    int K;
    Window window;
    bool depthwise = false;  // channel k of y reads only channel k of x
};

}  // namespace convoy

namespace convoy::reference {

struct Array {
    Shape shape;
    std::vector<double> v;

    explicit Array(Shape s) : shape(s), v(s.elems(), 0.0) {}
    Array(Shape s, const std::vector<float>& x) : shape(s), v(x.begin(), x.end()) {}
    size_t index(int n, int h, int w, int c) const {
        return ((size_t(n) * shape.H + h) * shape.W + w) * shape.C + c;
    }
    double& at(int n, int h, int w, int c) { return v[index(n, h, w, c)]; }
    double at(int n, int h, int w, int c) const { return v[index(n, h, w, c)]; }
    bool inside(int h, int w) const { return h >= 0 && w >= 0 && h < shape.H && w < shape.W; }
};

// Calls f(n, p, q, k, h, w, r, s, c) for each product of a convolution with a pixel in the image.
template <class F>
void each_product(const Array& x, const Shape& w, Window window, const Shape& y, F&& f) {
    for (int n = 0; n < y.N; ++n)
        for (int p = 0; p < y.H; ++p)
            for (int q = 0; q < y.W; ++q)
                for (int r = 0; r < w.H; ++r)
                    for (int s = 0; s < w.W; ++s) {
                        const int h = p * window.stride_h + r * window.dilation_h - window.pad_h;
                        const int v = q * window.stride_w + s * window.dilation_w - window.pad_w;
                        if (!x.inside(h, v)) continue;
                        for (int k = 0; k < w.N; ++k)
                            for (int c = 0; c < w.C; ++c) f(n, p, q, k, h, v, r, s, c);
                    }
}

// x as a tensor core rounds it: tf32 to 10 bits, ties away from zero; bf16 to 7 bits, ties to even.
inline float rounded(float x, Precision precision) {
    if (precision == Precision::kFp32) return x;
    int exponent;
    const double mantissa = std::frexp(double(x), &exponent);
    if (precision == Precision::kTf32)
        return float(std::ldexp(std::round(std::ldexp(mantissa, 11)), exponent - 11));
    return float(std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8));
}

inline Shape conv_shape(const Shape& x, const Shape& w, Window window) {
    return {x.N, window.out_h(x.H), window.out_w(x.W), w.N};
}

inline Array conv2d(const Array& x, const Array& w, const std::vector<float>& b, Window window,
                    bool relu) {
    Array y(conv_shape(x.shape, w.shape, window));
    each_product(x, w.shape, window, y.shape,
                 [&](int n, int p, int q, int k, int h, int v, int r, int s, int c) {
                     y.at(n, p, q, k) += x.at(n, h, v, c) * w.at(k, r, s, c);
                 });
    for (size_t i = 0; i < y.v.size(); ++i) {
        if (!b.empty()) y.v[i] += b[i % w.shape.N];
        if (relu) y.v[i] = std::max(0.0, y.v[i]);
    }
    return y;
}

inline void apply_mask(Array& dx, const std::vector<float>& mask) {
    for (size_t i = 0; i < mask.size(); ++i)
        if (mask[i] <= 0) dx.v[i] = 0;
}

inline Array conv2d_grad_x(const Array& dy, const Array& w, Window window, Shape x_shape,
                           const std::vector<float>& mask) {
    Array dx(x_shape);
    each_product(dx, w.shape, window, dy.shape,
                 [&](int n, int p, int q, int k, int h, int v, int r, int s, int c) {
                     dx.at(n, h, v, c) += dy.at(n, p, q, k) * w.at(k, r, s, c);
                 });
    apply_mask(dx, mask);
    return dx;
}

// The sum that is added to dw.
inline Array conv2d_grad_w(const Array& x, const Array& dy, Window window, Shape w_shape) {
    Array dw(w_shape);
    each_product(x, w_shape, window, dy.shape,
                 [&](int n, int p, int q, int k, int h, int v, int r, int s, int c) {
                     dw.at(k, r, s, c) += dy.at(n, p, q, k) * x.at(n, h, v, c);
                 });
    return dw;
}

// Σ over all indices except the last.
inline std::vector<double> column_sums(const Array& x) {
    std::vector<double> sums(x.shape.C, 0.0);
    for (size_t i = 0; i < x.v.size(); ++i) sums[i % x.shape.C] += x.v[i];
    return sums;
}

// An activation function and its derivative at x.
inline double activated(double x, Activation f) {
    const double hard = std::clamp(x / 6 + 0.5, 0.0, 1.0), sigmoid = 1 / (1 + std::exp(-x));
    switch (f.kind) {
        case Activation::kNone: return x;
        case Activation::kRelu: return std::max(x, 0.0);
        case Activation::kRelu6: return std::clamp(x, 0.0, 6.0);
        case Activation::kLeakyRelu: return x > 0 ? x : f.slope * x;
        case Activation::kElu: return x > 0 ? x : f.slope * std::expm1(x);
        case Activation::kSigmoid: return sigmoid;
        case Activation::kHardSigmoid: return hard;
        case Activation::kSilu: return x * sigmoid;
        case Activation::kHardSwish: return x * hard;
        case Activation::kGelu: return x * std::erfc(-x / std::sqrt(2)) / 2;
    }
    return 0;
}
inline double activation_slope(double x, Activation f) {
    const double sigmoid = 1 / (1 + std::exp(-x)), off = 1 / (1 + std::exp(x));
    switch (f.kind) {
        case Activation::kNone: return 1;
        case Activation::kRelu: return x > 0;
        case Activation::kRelu6: return x > 0 && x < 6;
        case Activation::kLeakyRelu: return x > 0 ? 1 : f.slope;
        case Activation::kElu: return x > 0 ? 1 : f.slope * std::exp(x);
        case Activation::kSigmoid: return sigmoid * off;
        case Activation::kHardSigmoid: return std::abs(x) < 3 ? 1 / 6.0 : 0.0;
        case Activation::kSilu: return sigmoid * (1 + x * off);
        case Activation::kHardSwish: return x <= -3 ? 0 : x >= 3 ? 1 : x / 3 + 0.5;
        case Activation::kGelu:
            return std::erfc(-x / std::sqrt(2)) / 2 +
                   x * std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
    }
    return 0;
}

struct Normed {
    std::vector<double> mean, rstd;  // [group][channel]
    std::vector<double> sums;        // added to Moments::sums
    Array y, xhat, z;                // z: before the activation
};

inline Normed batch_norm(const Array& x, const std::vector<int>& bounds,
                         const std::vector<float>& gamma, const std::vector<float>& beta,
                         const std::vector<float>& residual, Activation act, double eps) {
    const int C = x.shape.C, image = x.shape.H * x.shape.W, G = int(bounds.size()) - 1;
    Normed out{std::vector<double>(size_t(G) * C),
               std::vector<double>(size_t(G) * C),
               std::vector<double>(2 * C, 0.0),
               Array(x.shape),
               Array(x.shape),
               Array(x.shape)};
    for (int g = 0; g < G; ++g)
        for (int c = 0; c < C; ++c) {
            const int images = bounds[g + 1] - bounds[g];
            if (images == 0) continue;
            const size_t begin = size_t(bounds[g]) * image, end = size_t(bounds[g + 1]) * image;
            const double M = double(end - begin);
            double mean = 0, var = 0;
            for (size_t i = begin; i < end; ++i) mean += x.v[i * C + c] / M;
            for (size_t i = begin; i < end; ++i) var += std::pow(x.v[i * C + c] - mean, 2) / M;
            const double rstd = 1 / std::sqrt(var + eps);
            out.mean[size_t(g) * C + c] = mean, out.rstd[size_t(g) * C + c] = rstd;
            out.sums[c] += images * mean;
            out.sums[C + c] += images * var * M / std::max(1.0, M - 1);
            for (size_t i = begin; i < end; ++i) {
                const size_t at = i * C + c;
                out.xhat.v[at] = (x.v[at] - mean) * rstd;
                double& z = out.z.v[at] = gamma[c] * out.xhat.v[at] + beta[c];
                if (!residual.empty()) z += residual[at];
                out.y.v[at] = activated(z, act);
            }
        }
    return out;
}

// argmax: the index of the maximum in its window.
inline Array max_pool(const Array& x, Window window, std::vector<int>& argmax) {
    Array y({x.shape.N, window.out_h(x.shape.H), window.out_w(x.shape.W), x.shape.C});
    argmax.assign(y.v.size(), -1);
    for (int n = 0; n < y.shape.N; ++n)
        for (int p = 0; p < y.shape.H; ++p)
            for (int q = 0; q < y.shape.W; ++q)
                for (int c = 0; c < y.shape.C; ++c)
                    for (int r = 0; r < window.size_h; ++r)
                        for (int s = 0; s < window.size_w; ++s) {
                            const int h = p * window.stride_h + r - window.pad_h;
                            const int w = q * window.stride_w + s - window.pad_w;
                            if (!x.inside(h, w)) continue;
                            int& where = argmax[y.index(n, p, q, c)];
                            if (where >= 0 && x.at(n, h, w, c) <= y.at(n, p, q, c)) continue;
                            y.at(n, p, q, c) = x.at(n, h, w, c);
                            where = r * window.size_w + s;
                        }
    return y;
}

inline Array max_pool_grad(const Array& dy, const std::vector<int>& argmax, Window window,
                           Shape x_shape, const std::vector<float>& mask) {
    Array dx(x_shape);
    for (int n = 0; n < dy.shape.N; ++n)
        for (int p = 0; p < dy.shape.H; ++p)
            for (int q = 0; q < dy.shape.W; ++q)
                for (int c = 0; c < dy.shape.C; ++c) {
                    const int where = argmax[dy.index(n, p, q, c)];
                    const int h = p * window.stride_h + where / window.size_w - window.pad_h;
                    const int w = q * window.stride_w + where % window.size_w - window.pad_w;
                    dx.at(n, h, w, c) += dy.at(n, p, q, c);
                }
    apply_mask(dx, mask);
    return dx;
}

// Calls f(n, p, q, h, w, share) for each pixel of each output's area.
template <class F>
void each_area(const Shape& x, const Shape& y, F&& f) {
    for (int n = 0; n < y.N; ++n)
        for (int p = 0; p < y.H; ++p)
            for (int q = 0; q < y.W; ++q) {
                const int h0 = int(std::floor(double(p) * x.H / y.H));
                const int h1 = int(std::ceil(double(p + 1) * x.H / y.H));
                const int w0 = int(std::floor(double(q) * x.W / y.W));
                const int w1 = int(std::ceil(double(q + 1) * x.W / y.W));
                for (int h = h0; h < h1; ++h)
                    for (int w = w0; w < w1; ++w) f(n, p, q, h, w, 1.0 / ((h1 - h0) * (w1 - w0)));
            }
}

inline std::vector<double> softmax(const double* x, int C) {
    std::vector<double> p(C);
    double top = x[0], sum = 0;
    for (int c = 0; c < C; ++c) top = std::max(top, x[c]);
    for (int c = 0; c < C; ++c) sum += p[c] = std::exp(x[c] - top);
    for (double& v : p) v /= sum;
    return p;
}

}  // namespace convoy::reference
