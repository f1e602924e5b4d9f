// elementwise.cu — one number in, one out.   Twin: kernels/cpu/elementwise.cpp
//
//   relu       x = max(0, x)             8 bytes a number
//   relu_grad  dy = y > 0 ? dy : 0       12 bytes
//   add        x += y                    12 bytes
//   dropout    x = keep ? x/(1−p) : 0    8 bytes, and a Philox block for four numbers
//
//   grid    blocks of 256 threads, as many as run at once; each thread takes every
//           (grid·256)-th number, so a warp reads 32 neighbours: one line of 128 bytes.
//   bound   by memory, all of them.
//   order   nothing is summed.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/shapes.h"
#include "src/base/random.h"

namespace convoy::CONVOY_DEVICE {

namespace {

__global__ void relu_kernel(float* x, size_t n) {
    // This way round a NaN stays one, and is noticed.
    for (size_t i = first_index(); i < n; i += grid_width()) x[i] = x[i] < 0 ? 0.0f : x[i];
}

__global__ void relu_grad_kernel(const float* __restrict__ y, float* __restrict__ dy, size_t n) {
    for (size_t i = first_index(); i < n; i += grid_width()) dy[i] = y[i] <= 0 ? 0.0f : dy[i];
}

__global__ void add_kernel(float* x, const float* y, size_t n) {
    for (size_t i = first_index(); i < n; i += grid_width()) x[i] += y[i];
}

// A thread draws one Philox block and applies its four words: elements 4·block … 4·block + 3 of
// image n, with the counter of Random (src/base/random.h).
__global__ void dropout_kernel(float* x, size_t images, size_t row, float p, uint64_t seed,
                               uint32_t epoch, const uint64_t* ids, uint16_t purpose) {
    const size_t blocks = (row + 3) / 4;
    const float scale = 1 / (1 - p);
    for (size_t task = first_index(); task < images * blocks; task += grid_width()) {
        const size_t n = task / blocks, block = task % blocks;
        const uint64_t id = ids[n];
        // A sample has fewer than 2^34 elements, so the block fits.
        const auto words = philox4x32(
            {uint32_t(block), uint32_t(id), epoch, uint32_t(purpose) | uint32_t(id >> 32) << 16},
            {uint32_t(seed), uint32_t(seed >> 32)});
        for (size_t j = 0; j < 4 && 4 * block + j < row; ++j) {
            float& v = x[n * row + 4 * block + j];
            v = float(words[j] >> 8) * 0x1p-24f >= p ? v * scale : 0.0f;
        }
    }
}

}  // namespace

void CudaBackend::relu(Tensor x) {
    if (x.elems() == 0) return;
    relu_kernel<<<blocks_for(x.elems()), kThreads, 0, stream_>>>(x.floats(), x.elems());
    CUDA_LAUNCHED();
}

void CudaBackend::relu_grad(Tensor y, Tensor dy) {
    check_same("y", y, "dy", dy);
    if (dy.elems() == 0) return;
    relu_grad_kernel<<<blocks_for(dy.elems()), kThreads, 0, stream_>>>(y.floats(), dy.floats(),
                                                                       dy.elems());
    CUDA_LAUNCHED();
}

void CudaBackend::add(Tensor x, Tensor y) {
    check_same("x", x, "y", y);
    if (x.elems() == 0) return;
    add_kernel<<<blocks_for(x.elems()), kThreads, 0, stream_>>>(x.floats(), y.floats(), x.elems());
    CUDA_LAUNCHED();
}

void CudaBackend::dropout(Tensor x, float p, uint64_t seed, uint32_t epoch,
                          std::span<const uint64_t> sample_ids, uint16_t purpose) {
    check_dropout(x, p, sample_ids);
    if (x.elems() == 0) return;
    const uint64_t* ids = memory_.pass(sample_ids, stream_);
    const size_t row = x.shape().row_elems();
    dropout_kernel<<<blocks_for(x.N * ((row + 3) / 4)), kThreads, 0, stream_>>>(
        x.floats(), x.N, row, p, seed, epoch, ids, purpose);
    CUDA_LAUNCHED();
}

}  // namespace convoy::CONVOY_DEVICE
