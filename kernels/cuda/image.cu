// image.cu — pixels become the network's input.   Twin: kernels/cpu/image.cpp
//
//   across[h,q,c] = (½ + Σ_k column_q[k] · pixels[h, first_q + k, c]) / 2^22     a byte again
//   down[p,q,c]   = (½ + Σ_k row_p[k] · across[first_p + k, q, c]) / 2^22        a byte again
//   y[n,p,q,c]    = values[c][down[p,q,c]]
//
//   grid    a thread for each output pixel, whose channels share their weights. Neighbouring
//           threads have neighbouring q: a warp reads a few hundred bytes of each input row, and
//           writes one run of 384. Loops as wide as the grid.
//   across  is made by each thread that needs it, and never stored. An input row counts for
//           about two output rows, so most of it is made twice: that saves a second pass over
//           memory, a barrier, and room for images of any height.
//   bytes   (of RGB) the pixels, and tables of a few KB an image, read (again and again from the
//   cache);
//           12·P·Q written (6·P·Q of bf16). From 250x250 to 224x224 a place takes 2 to 3 others of
//           each axis: about 8 multiply-adds a number, for 5 bytes. Not measured on a GPU.
//   exact   integers, then a table: the same bits as data/resize.cpp, in any order; as bf16
//   rounded.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/numbers.h"
#include "kernels/shapes.h"

namespace convoy::CONVOY_DEVICE {

namespace {

// A weighted sum of bytes, before it is rounded to a byte.
struct Sum {
    // Weights sum to about 2^22, and bytes have 8 bits, so this fits.
    uint32_t sum = 1u << (Picture::kWeightBits - 1);

    __device__ void add(uint32_t weight, uint32_t byte) { sum += weight * byte; }
    __device__ uint32_t byte() const { return min(sum >> Picture::kWeightBits, 255u); }
};

template <int kC>
__global__ void resize_kernel(const uint8_t* __restrict__ packed, const Picture* pictures,
                              const float* __restrict__ values, int P, int Q, size_t pixels,
                              Numbers y) {
    for (size_t i = first_index(); i < pixels; i += grid_width()) {
        const int q = int(i % Q), p = int(i / Q % P);
        const Picture& picture = pictures[i / (size_t(P) * Q)];
        const auto table_row = [&](int64_t table, int taps, int place) {
            return reinterpret_cast<const int32_t*>(packed + table) + size_t(place) * (2 + taps);
        };
        const int32_t* column = table_row(picture.columns, picture.column_taps, q);
        const int32_t* row = table_row(picture.rows, picture.row_taps, p);
        const int column_first = column[0], column_count = column[1];
        const int row_first = row[0], row_count = row[1];

        Sum down[kC];
        for (int r = 0; r < row_count; ++r) {
            const size_t h = size_t(row_first + r);
            const uint8_t* from = packed + picture.pixels + (h * picture.W + column_first) * kC;
            Sum across[kC];
            for (int k = 0; k < column_count; ++k, from += kC)
                for (int c = 0; c < kC; ++c) across[c].add(column[2 + k], from[c]);
            for (int c = 0; c < kC; ++c) down[c].add(row[2 + r], across[c].byte());
        }
        for (int c = 0; c < kC; ++c) y.set(i * kC + c, values[c * 256 + down[c].byte()]);
    }
}

}  // namespace

void CudaBackend::resize(std::span<const uint8_t> packed, std::span<const Picture> pictures,
                         const float* values, Tensor y) {
    check_resize(packed.size(), pictures, y);
    const Picture* pictures_there = memory_.pass(pictures, stream_);
    const float* values_there = memory_.pass(std::span(values, size_t(y.C) * 256), stream_);
    const size_t pixels = size_t(y.N) * y.H * y.W;
    const auto kernel = y.C == 1 ? resize_kernel<1> : resize_kernel<3>;
    kernel<<<blocks_for(pixels), kThreads, 0, stream_>>>(packed.data(), pictures_there,
                                                         values_there, y.H, y.W, pixels, y);
    CUDA_LAUNCHED();
}

}  // namespace convoy::CONVOY_DEVICE
