// cublas.h — NVIDIA's matrix library, to compare our products with (gemm_ladder.cu).
//
// It is opened at run time and never linked: the program builds and starts without it. The few
// functions used are declared here as in the library's documentation.
#pragma once

#include <initializer_list>

#include "kernels/backend.h"
#include "kernels/cuda/cuda.h"

namespace convoy::CONVOY_DEVICE {

// The library's functions. Each returns a status; 0 means success.
struct CublasApi {
    int (*create)(void** handle);
    int (*destroy)(void* handle);
    int (*set_stream)(void* handle, void* stream);
    int (*set_workspace)(void* handle, void* memory, size_t bytes);
    // c = alpha·op(a)·op(b) + beta·c, stored by columns; op(a) is m × k, op(b) is k × n.
    int (*gemm)(void* handle, int op_a, int op_b, int m, int n, int k, const void* alpha,
                const void* a, int type_a, int lda, const void* b, int type_b, int ldb,
                const void* beta, void* c, int type_c, int ldc, int compute, int algorithm);
    const char* (*status_text)(int status);
};

// Opens the first of these libraries that can be opened. Throws Error if there is none.
CublasApi open_cublas(std::initializer_list<const char*> names = {"libcublas.so.13",
                                                                  "libcublas.so.12"});

class Cublas {
 public:
    // workspace: kWorkspaceBytes of device memory for the products. It must outlive this object.
    static constexpr size_t kWorkspaceBytes = 32 << 20;  // what NVIDIA recommends for 9.0
    Cublas(const CublasApi& api, cudaStream_t stream, void* workspace);
    ~Cublas();
    Cublas(const Cublas&) = delete;

    // c = a·b, matrices stored by rows: a is I×L (I images of a row of L), b is L×J, c is I×J
    // floats. Both operands are bf16, or both are floats, which are rounded to the precision before
    // the product. Runs in the order of the stream.
    void product(Precision precision, Tensor a, Tensor b, Tensor c);

 private:
    CublasApi api_;
    void* handle_ = nullptr;
};

}  // namespace convoy::CONVOY_DEVICE
