// linear.cpp — fully connected layers: few rows (the batch), large weights. Forward and grad_x
// read the weights from memory once; grad_w reads and writes dw once.
#include "kernels/cpu/cpu_backend.h"
#include "kernels/shapes.h"

namespace convoy {

void CpuBackend::linear(Tensor x, Tensor w, const float* b, bool relu, Tensor y) {
    check_linear(x, w, y);
    multiply_thin(cpu_, x.data, x.N, w.C, {w.data, 1, w.C}, w.N, y.data, {b, relu, nullptr});
}

void CpuBackend::linear_grad_x(Tensor dy, Tensor w, const float* mask, Tensor dx) {
    check_linear(dx, w, dy);
    multiply_thin(cpu_, dy.data, dy.N, w.N, {w.data, w.C, 1}, w.C, dx.data, {nullptr, false, mask});
}

void CpuBackend::linear_grad_w(Tensor x, Tensor dy, Tensor dw, float* db) {
    check_linear(x, dw, dy);
    // In order: ranks with unequal numbers of threads form the same gradient from factors.
    multiply_rows(cpu_, dy.data, dy.C, Patches::matrix(x.data, x.N, dw.C), dw.data,
                  /*rows_in_order=*/true);
    if (db) add_column_sums(cpu_, dy.data, dy.N, dy.C, db);
}

}  // namespace convoy
