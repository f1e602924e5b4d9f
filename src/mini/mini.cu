// mini.cu — the layers of mini.cpp (chapter 4) and its update (chapter 8) as plain CUDA kernels.
//
// A GPU runs thousands of threads. A kernel is what one thread does, so the outer loops of mini.cpp
// become the number of a thread:
//
//     for n, h, w, k:  y[n,h,w,k] = Σ …     ──►     thread i = ((n·H + h)·W + w)·K + k:  y[i] = Σ …
//
// Every kernel here gathers: a thread computes one number of the output, and nobody else writes it.
// So no two threads write the same place, and sums have a fixed order. Only batch norm needs
// threads that work together. Neighbouring threads take neighbouring channels, so that the 32
// threads of a warp read memory that lies side by side.
//
// These kernels read each number from memory again and again. tests/lab/gemm_ladder.cu shows in six
// steps how products become fast. tests/test_mini.cpp compares each function with that of mini.cpp,
// on the emulator: without nvcc, g++ compiles this file for the CPU.
#ifndef __CUDACC__
#include "kernels/simt/emulator.h"
#include "kernels/simt/runtime.h"
using namespace convoy::simt;
#endif

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

namespace mini::gpu {

using Floats = std::vector<float>;

struct Shape {  // as of a Tensor in mini.cpp
    int N, H, W, C;
};

void check(cudaError_t error) {
    if (error != cudaSuccess)
        throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
}

// An array in the memory of the GPU.
template <class T>
struct Array {
    T* data = nullptr;
    size_t size;
    explicit Array(size_t n) : size(n) {  // of zeros
        check(cudaMalloc(&data, size * sizeof(T)));
        check(cudaMemsetAsync(data, 0, size * sizeof(T)));
    }
    explicit Array(const std::vector<T>& from) : Array(from.size()) {
        check(cudaMemcpyAsync(data, from.data(), size * sizeof(T), cudaMemcpyHostToDevice));
    }
    Array(const Array&) = delete;
    ~Array() { (void)cudaFree(data); }
    std::vector<T> host() const {
        std::vector<T> to(size);
        check(cudaMemcpyAsync(to.data(), data, size * sizeof(T), cudaMemcpyDeviceToHost));
        check(cudaDeviceSynchronize());  // waits for the kernels, too
        return to;
    }
};

// The number of this thread among all. Kernels begin with: if (i >= count) return; because the last
// block has more threads than are needed.
__device__ size_t thread_number() { return size_t(blockIdx.x) * blockDim.x + threadIdx.x; }
constexpr int kThreads = 256;  // per block
int blocks(size_t threads) { return int((threads + kThreads - 1) / kThreads); }

// ---- convolution --------------------------------------------------------------------------------

__global__ void conv2d_kernel(const float* x, const float* filters, float* y, Shape s, int K) {
    const size_t i = thread_number();
    if (i >= size_t(s.N) * s.H * s.W * K) return;
    const int k = int(i % K), w = int(i / K % s.W), h = int(i / K / s.W % s.H);
    const size_t image = i / K / s.W / s.H * s.H;  // the first row of image n
    float sum = 0;
    for (int r = 0; r < 3; ++r)
        for (int t = 0; t < 3; ++t) {
            const int from_h = h + r - 1, from_w = w + t - 1;
            if (from_h < 0 || from_h >= s.H || from_w < 0 || from_w >= s.W) continue;
            const float* in = x + ((image + from_h) * s.W + from_w) * s.C;
            const float* filter = filters + ((k * 3 + r) * 3 + t) * s.C;
            for (int c = 0; c < s.C; ++c) sum += in[c] * filter[c];
        }
    y[i] = sum;
}

// dx[n,h,w,c] gathers from all outputs whose window holds it: y[n, h-r+1, w-t+1, k].
__global__ void conv2d_grad_x_kernel(const float* dy, const float* filters, float* dx, Shape s,
                                     int K) {
    const size_t i = thread_number();
    if (i >= size_t(s.N) * s.H * s.W * s.C) return;
    const int c = int(i % s.C), w = int(i / s.C % s.W), h = int(i / s.C / s.W % s.H);
    const size_t image = i / s.C / s.W / s.H * s.H;
    float sum = 0;
    for (int r = 0; r < 3; ++r)
        for (int t = 0; t < 3; ++t) {
            const int to_h = h - r + 1, to_w = w - t + 1;
            if (to_h < 0 || to_h >= s.H || to_w < 0 || to_w >= s.W) continue;
            const float* dout = dy + ((image + to_h) * s.W + to_w) * K;
            for (int k = 0; k < K; ++k) sum += dout[k] * filters[((k * 3 + r) * 3 + t) * s.C + c];
        }
    dx[i] = sum;
}

// dfilters[k,r,t,c] gathers from all pixels of all images.
__global__ void conv2d_grad_w_kernel(const float* x, const float* dy, float* dfilters, Shape s,
                                     int K) {
    const size_t i = thread_number();
    if (i >= size_t(K) * 9 * s.C) return;
    const int c = int(i % s.C), t = int(i / s.C % 3), r = int(i / s.C / 3 % 3);
    const int k = int(i / s.C / 9);
    float sum = 0;
    for (int row = 0; row < s.N * s.H; ++row)
        for (int w = 0; w < s.W; ++w) {
            const int h = row % s.H, from_h = h + r - 1, from_w = w + t - 1;
            if (from_h < 0 || from_h >= s.H || from_w < 0 || from_w >= s.W) continue;
            sum += dy[(size_t(row) * s.W + w) * K + k] *
                   x[(size_t(row + r - 1) * s.W + from_w) * s.C + c];
        }
    dfilters[i] += sum;
}

Floats conv2d(const Floats& x, Shape s, const Floats& filters, int K) {
    Array<float> in(x), weights(filters), y(size_t(s.N) * s.H * s.W * K);
    conv2d_kernel<<<blocks(y.size), kThreads>>>(in.data, weights.data, y.data, s, K);
    return y.host();
}
Floats conv2d_grad(const Floats& x, Shape s, const Floats& filters, const Floats& dy, int K,
                   Floats& dfilters) {
    Array<float> in(x), weights(filters), dout(dy), dx(x.size()), dw(dfilters);
    conv2d_grad_x_kernel<<<blocks(dx.size), kThreads>>>(dout.data, weights.data, dx.data, s, K);
    conv2d_grad_w_kernel<<<blocks(dw.size), kThreads>>>(in.data, dout.data, dw.data, s, K);
    dfilters = dw.host();
    return dx.host();
}

// ---- batch norm ---------------------------------------------------------------------------------
//
// One block per channel. Its threads sum every 256th pixel each, and then add their sums in pairs,
// in memory that the block shares:
//
//     256 sums ──► 128 ──► 64 ──► … ──► 1        __syncthreads(): all wait until all are there

__device__ float sum_of_block(float own, float* shared) {
    shared[threadIdx.x] = own;
    __syncthreads();  // all sums are there
    for (int half = kThreads / 2; half > 0; half /= 2) {
        if (int(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();  // this half is complete before it is read
    }
    const float sum = shared[0];
    __syncthreads();  // all have read it before the memory is used again
    return sum;
}

// moments: C means, then C values of rstd.
__global__ void batch_norm_kernel(const float* x, int pixels, int C, const float* gamma,
                                  const float* beta, float* y, float* moments, float* variances) {
    __shared__ float shared[kThreads];
    const int c = int(blockIdx.x);
    float sum = 0, squares = 0;
    for (int i = int(threadIdx.x); i < pixels; i += kThreads) sum += x[size_t(i) * C + c];
    const float mean = sum_of_block(sum, shared) / float(pixels);
    for (int i = int(threadIdx.x); i < pixels; i += kThreads) {
        const float off = x[size_t(i) * C + c] - mean;
        squares += off * off;
    }
    squares = sum_of_block(squares, shared);
    const float rstd = 1 / sqrtf(squares / float(pixels) + 1e-5f);
    for (int i = int(threadIdx.x); i < pixels; i += kThreads) {
        const size_t at = size_t(i) * C + c;
        y[at] = gamma[c] * rstd * (x[at] - mean) + beta[c];
    }
    if (threadIdx.x > 0) return;
    moments[c] = mean, moments[C + c] = rstd;
    variances[c] = squares / float(pixels > 1 ? pixels - 1 : 1);
}

__global__ void batch_norm_grad_kernel(const float* x, int pixels, int C, const float* gamma,
                                       const float* moments, const float* dy, float* dx,
                                       float* dgamma, float* dbeta) {
    __shared__ float shared[kThreads];
    const int c = int(blockIdx.x);
    const float mean = moments[c], rstd = moments[C + c];
    float sum = 0, product = 0;
    for (int i = int(threadIdx.x); i < pixels; i += kThreads) {
        const size_t at = size_t(i) * C + c;
        sum += dy[at], product += dy[at] * (x[at] - mean) * rstd;
    }
    sum = sum_of_block(sum, shared), product = sum_of_block(product, shared);
    const float shift = sum / float(pixels), slope = product / float(pixels);
    for (int i = int(threadIdx.x); i < pixels; i += kThreads) {
        const size_t at = size_t(i) * C + c;
        dx[at] = gamma[c] * rstd * (dy[at] - shift - (x[at] - mean) * rstd * slope);
    }
    if (threadIdx.x == 0) dgamma[c] += product, dbeta[c] += sum;
}

Floats batch_norm(const Floats& x, Shape s, const Floats& gamma, const Floats& beta,
                  Floats& moments, Floats& variances) {
    Array<float> in(x), scale(gamma), offset(beta), y(x.size()), both(2 * gamma.size()),
        variance(gamma.size());
    batch_norm_kernel<<<s.C, kThreads>>>(in.data, s.N * s.H * s.W, s.C, scale.data, offset.data,
                                         y.data, both.data, variance.data);
    moments = both.host(), variances = variance.host();
    return y.host();
}
Floats batch_norm_grad(const Floats& x, Shape s, const Floats& gamma, const Floats& moments,
                       const Floats& dy, Floats& dgamma, Floats& dbeta) {
    Array<float> in(x), scale(gamma), both(moments), dout(dy), dx(x.size()), dscale(dgamma),
        doffset(dbeta);
    batch_norm_grad_kernel<<<s.C, kThreads>>>(in.data, s.N * s.H * s.W, s.C, scale.data, both.data,
                                              dout.data, dx.data, dscale.data, doffset.data);
    dgamma = dscale.host(), dbeta = doffset.host();
    return dx.host();
}

// ---- relu and max pool --------------------------------------------------------------------------

// y = max(0, x), and the largest of each 2 x 2 pixels with its place in x.
__global__ void relu_max_pool_kernel(const float* x, float* y, int* winners, Shape s) {
    const size_t i = thread_number();
    if (i >= size_t(s.N) * (s.H / 2) * (s.W / 2) * s.C) return;
    const int c = int(i % s.C), w = int(i / s.C % (s.W / 2));
    const size_t row = i / s.C / (s.W / 2);  // of all images, which lie one below the other
    size_t best = ((2 * row) * s.W + 2 * w) * s.C + c;
    for (int other = 1; other < 4; ++other) {
        const size_t at = ((2 * row + other / 2) * s.W + 2 * w + other % 2) * s.C + c;
        if (x[at] > x[best]) best = at;
    }
    y[i] = x[best] > 0 ? x[best] : 0;
    winners[i] = int(best);
}
// Windows do not overlap, so no two threads write the same dx. All others stay 0.
__global__ void relu_max_pool_grad_kernel(const float* y, const float* dy, const int* winners,
                                          float* dx, size_t count) {
    const size_t i = thread_number();
    if (i < count && y[i] > 0) dx[winners[i]] = dy[i];
}

// Returns y. Backward, dx from dy.
Floats relu_max_pool(const Floats& x, Shape s, std::vector<int>& winners) {
    Array<float> in(x), y(x.size() / 4);
    Array<int> places(y.size);
    relu_max_pool_kernel<<<blocks(y.size), kThreads>>>(in.data, y.data, places.data, s);
    winners = places.host();
    return y.host();
}
Floats relu_max_pool_grad(const Floats& y, const Floats& dy, const std::vector<int>& winners) {
    Array<float> out(y), dout(dy), dx(4 * y.size());
    Array<int> places(winners);
    relu_max_pool_grad_kernel<<<blocks(y.size()), kThreads>>>(out.data, dout.data, places.data,
                                                              dx.data, y.size());
    return dx.host();
}

// ---- the last layer and the loss ----------------------------------------------------------------

// A thread per image and class: y[n,k] = bias[k] + Σ_hwc x[n,h,w,c] · weights[k,c] / pixels
__global__ void linear_kernel(const float* x, const float* weights, const float* bias, float* y,
                              Shape s, int K) {
    const size_t i = thread_number();
    if (i >= size_t(s.N) * K) return;
    const int k = int(i % K), pixels = s.H * s.W;
    const float* in = x + i / K * pixels * s.C;
    float sum = 0;
    for (int j = 0; j < pixels * s.C; ++j) sum += in[j] * weights[k * s.C + j % s.C];
    y[i] = bias[k] + sum / float(pixels);
}

// A thread per image: the loss and dx = softmax(x) - onehot(label).
__global__ void softmax_cross_entropy_kernel(const float* x, const int* labels, float* dx,
                                             float* losses, int N, int K) {
    const int n = int(thread_number());
    if (n >= N) return;
    const float* in = x + size_t(n) * K;
    float best = in[0], sum = 0;
    for (int k = 1; k < K; ++k) best = in[k] > best ? in[k] : best;
    for (int k = 0; k < K; ++k) sum += expf(in[k] - best);
    for (int k = 0; k < K; ++k)
        dx[size_t(n) * K + k] = expf(in[k] - best) / sum - (k == labels[n] ? 1.0f : 0.0f);
    losses[n] = logf(sum) + best - in[labels[n]];
}

Floats linear(const Floats& x, Shape s, const Floats& weights, const Floats& bias, int K) {
    Array<float> in(x), w(weights), b(bias), y(size_t(s.N) * K);
    linear_kernel<<<blocks(y.size), kThreads>>>(in.data, w.data, b.data, y.data, s, K);
    return y.host();
}
Floats softmax_cross_entropy(const Floats& x, const std::vector<int>& labels, int K,
                             Floats& losses) {
    Array<float> in(x), dx(x.size()), each(labels.size());
    Array<int> right(labels);
    softmax_cross_entropy_kernel<<<blocks(labels.size()), kThreads>>>(
        in.data, right.data, dx.data, each.data, int(labels.size()), K);
    losses = each.host();
    return dx.host();
}

// ---- the update ---------------------------------------------------------------------------------

// A thread per weight: v = 0.9 · v + g / images + decay · w, w = w - lr · v
__global__ void update_kernel(float* w, float* v, const float* g, size_t count, float images,
                              float lr, float decay) {
    const size_t i = thread_number();
    if (i >= count) return;
    v[i] = 0.9f * v[i] + g[i] / images + decay * w[i];
    w[i] -= lr * v[i];
}

void update(Floats& w, Floats& v, const Floats& g, float images, float lr, float decay) {
    Array<float> weights(w), velocities(v), gradients(g);
    update_kernel<<<blocks(w.size()), kThreads>>>(weights.data, velocities.data, gradients.data,
                                                  w.size(), images, lr, decay);
    w = weights.host(), v = velocities.host();
}

}  // namespace mini::gpu
