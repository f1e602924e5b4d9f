// cublas.cu — see cublas.h.
//
// The library stores matrices by columns. A matrix by rows is its own transpose by columns, so the
// library computes cᵀ = bᵀ·aᵀ, and nothing is moved.
#include "tests/lab/cublas.h"

#include <dlfcn.h>

namespace convoy::CONVOY_DEVICE {

namespace {

// Numbers of the library's interface.
constexpr int kAsItIs = 0, kBestAlgorithm = -1;
constexpr int kCompute[] = {68, 77, 68};  // by Precision; sums in fp32, tf32 is of floats
int type_of(Tensor x) { return x.type == Type::kBfloat16 ? 14 : 0; }

void check(const CublasApi& api, int status, const char* what) {
    if (status != 0) fail("cuBLAS: ", what, ": ", api.status_text(status));
}

template <class F>
void find(void* library, const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(library, name));
    if (!function) fail("cuBLAS has no function ", name);
}

}  // namespace

CublasApi open_cublas(std::initializer_list<const char*> names) {
    void* library = nullptr;
    std::string why;
    for (const char* name : names) {
        library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (library) break;
        if (why.empty()) why = dlerror();
    }
    if (!library)
        fail("cuBLAS cannot be opened: ", why,
             "; it comes with the CUDA toolkit, and LD_LIBRARY_PATH can name its folder");
    // The library is never closed, because it keeps threads and handlers.
    CublasApi api;
    find(library, "cublasCreate_v2", api.create);
    find(library, "cublasDestroy_v2", api.destroy);
    find(library, "cublasSetStream_v2", api.set_stream);
    find(library, "cublasSetWorkspace_v2", api.set_workspace);
    find(library, "cublasGemmEx", api.gemm);
    find(library, "cublasGetStatusString", api.status_text);
    return api;
}

Cublas::Cublas(const CublasApi& api, cudaStream_t stream, void* workspace) : api_(api) {
    check(api_, api_.create(&handle_), "cublasCreate");
    int status = api_.set_stream(handle_, stream);  // this resets the workspace
    if (status == 0) status = api_.set_workspace(handle_, workspace, kWorkspaceBytes);
    if (status == 0) return;
    (void)api_.destroy(handle_);  // the first failure is the one to report
    check(api_, status, "cublasSetStream or cublasSetWorkspace");
}

Cublas::~Cublas() { (void)api_.destroy(handle_); }  // who needs results has waited for them

void Cublas::product(Precision precision, Tensor a, Tensor b, Tensor c) {
    const int I = a.N, L = a.C, J = b.C;
    ENSURE(b.N == L && c.N == I && c.C == J && c.type == Type::kFloat32, "a ", I, "x", L, ", b ",
           b.N, "x", J, ", c ", c.N, "x", c.C);
    ENSURE(a.type == b.type && (a.type == Type::kBfloat16) == (precision == Precision::kBf16),
           name_of(a.type), " times ", name_of(b.type), " in another precision");
    const float one = 1, zero = 0;
    check(api_,
          api_.gemm(handle_, kAsItIs, kAsItIs, J, I, L, &one, b.data, type_of(b), J, a.data,
                    type_of(a), L, &zero, c.data, type_of(c), J, kCompute[int(precision)],
                    kBestAlgorithm),
          "cublasGemmEx");
}

}  // namespace convoy::CONVOY_DEVICE
