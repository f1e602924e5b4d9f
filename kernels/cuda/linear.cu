// linear.cu — fully connected layers as plain products.   Twin: kernels/cpu/linear.cpp
//
//   linear         y[n,k]   = act(b[k] + Σ_c x[n,c]·w[k,c])      rows n, columns k, depth c
//   linear_grad_x  dx[n,c]  = Σ_k dy[n,k]·w[k,c], masked         rows n, columns c, depth k
//   linear_grad_w  dw[k,c] += Σ_n dy[n,k]·x[n,c]                 rows k, columns c, depth n
//                  db[k]   += Σ_n dy[n,k]                        column_sums.cu
//
// Mapping, bytes and order of the sums: gemm.cuh; in tf32 and bf16 as convolutions, conv2d.cu.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/gemm.cuh"
#include "kernels/shapes.h"

namespace convoy::CONVOY_DEVICE {

// The rows of x as images of one pixel: a linear layer is then a convolution with a window of 1.
static Tensor as_pixels(Tensor x) { return x.as({x.N, 1, 1, int(x.shape().row_elems())}); }

void CudaBackend::linear(Tensor x, Tensor w, const float* b, bool relu, Tensor y) {
    check_linear(x, w, y);
    const int N = x.N, C = w.C, K = w.N;
    if (precision_ != Precision::kFp32)
        return conv2d(as_pixels(x), w, b, Window::square(1), relu, y, nullptr);
    const Epilogue<float> epilogue{y.floats(), b, relu};
    multiply(Matrix<true, float>{x.floats(), N, C}, Matrix<true, float>{w.floats(), K, C}, N, K, C,
             epilogue, memory_);
}

void CudaBackend::linear_grad_x(Tensor dy, Tensor w, Tensor mask, Tensor dx) {
    check_linear(dx, w, dy);
    check_mask(mask, dx);
    const int N = dx.N, C = w.C, K = w.N;
    if (precision_ != Precision::kFp32)
        return conv2d_grad_x(dy, w, Window::square(1), mask, as_pixels(dx), false);
    const Epilogue<float> epilogue{dx.floats(), nullptr, false, mask.floats()};
    multiply(Matrix<true, float>{dy.floats(), N, K}, Matrix<false, float>{w.floats(), C, K}, N, C,
             K, epilogue, memory_);
}

void CudaBackend::linear_grad_w(Tensor x, Tensor dy, Tensor dw, float* db) {
    check_linear(x, dw, dy);
    const int N = x.N, C = dw.C, K = dw.N;
    if (N == 0) return;
    if (precision_ != Precision::kFp32)
        return conv2d_grad_w(as_pixels(x), dy, Window::square(1), dw, db);
    const Epilogue<float> epilogue{dw.floats(), nullptr, false, nullptr, true};
    multiply(Matrix<false, float>{dy.floats(), K, N}, Matrix<false, float>{x.floats(), C, N}, K, C,
             N, epilogue, memory_);
    if (db) add_column_sums(dy, db);
}

}  // namespace convoy::CONVOY_DEVICE
