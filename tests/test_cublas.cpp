// The library that gemm_ladder compares with: its calls against a mock that follows the definition
// of BLAS, and the errors if there is no library. The library itself runs in gemm_ladder, on a GPU.
#include "tests/lab/cublas.h"

#include <bit>

#include "tests/reference.h"
#include "tests/support.h"

namespace convoy {

namespace {

int last_compute = 0, handles = 0;

// c = alpha·op(a)·op(b) + beta·c; matrices lie column after column, ld numbers apart.
int slow_gemm(void*, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a,
              int type_a, int lda, const void* b, int type_b, int ldb, const void* beta, void* c,
              int type_c, int ldc, int compute, int) {
    constexpr int kHalf = 14;  // CUDA_R_16BF; 0 is CUDA_R_32F
    if (op_a || op_b || type_a != type_b || (type_a && type_a != kHalf) || type_c || lda < m ||
        ldb < k || ldc < m)
        return 7;
    last_compute = compute;
    const auto number = [&](const void* x, int ld, int row, int column) {
        const size_t at = size_t(column) * ld + row;
        if (!type_a) return double(static_cast<const float*>(x)[at]);
        return double(std::bit_cast<float>(uint32_t(static_cast<const uint16_t*>(x)[at]) << 16));
    };
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            double sum = 0;
            for (int l = 0; l < k; ++l) sum += number(a, lda, i, l) * number(b, ldb, l, j);
            const float by = *static_cast<const float*>(beta);
            float& to = static_cast<float*>(c)[size_t(j) * ldc + i];
            to = float(*static_cast<const float*>(alpha) * sum + (by != 0 ? double(by) * to : 0));
        }
    return 0;
}
const char* status_text(int status) { return status == 7 ? "an argument is wrong" : "no"; }
const simt::CublasApi kSlow{[](void** handle) {
                                *handle = &handles;
                                return ++handles, 0;
                            },
                            [](void*) { return --handles, 0; },
                            [](void*, void*) { return 0; },
                            [](void*, void*, size_t) { return 0; },
                            slow_gemm,
                            status_text};

}  // namespace

TEST_CASE("cuBLAS gets the right matrices, in every precision") {
    const int I = 5, J = 7, L = 12;
    struct {
        Precision precision;
        int compute;  // CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32
    } const cases[] = {{Precision::kFp32, 68}, {Precision::kTf32, 77}, {Precision::kBf16, 68}};
    for (const auto& [precision, compute] : cases) {
        CAPTURE(name_of(precision));
        const bool is_bf16 = precision == Precision::kBf16;
        std::vector<float> a = random_floats(I * L, 1), b = random_floats(L * J, 2);
        std::vector<uint16_t> halves_a, halves_b;
        for (auto [floats, halves] : {std::pair(&a, &halves_a), {&b, &halves_b}})
            for (float& x : *floats) {
                if (is_bf16) x = reference::rounded(x, precision);
                halves->push_back(uint16_t(std::bit_cast<uint32_t>(x) >> 16));
            }
        const Shape as{I, 1, 1, L}, bs{L, 1, 1, J};
        std::vector<double> want(I * J);
        for (int i = 0; i < I; ++i)
            for (int j = 0; j < J; ++j)
                for (int l = 0; l < L; ++l) want[i * J + j] += double(a[i * L + l]) * b[l * J + j];
        Guarded c(I * J);
        {
            simt::Cublas library(kSlow, nullptr, nullptr);
            CHECK(handles == 1);
            library.product(
                precision,
                is_bf16 ? Tensor(halves_a.data(), as, Type::kBfloat16) : Tensor(a.data(), as),
                is_bf16 ? Tensor(halves_b.data(), bs, Type::kBfloat16) : Tensor(b.data(), bs),
                {c.data(), I, 1, 1, J});
        }
        CHECK(handles == 0);
        CHECK(last_compute == compute);
        CHECK_CLOSE(c.span(), want, sum_tolerance(L));
    }
}

TEST_CASE("cuBLAS: its refusals are told, and what is missing of it") {
    float x = 1;
    const Tensor one(&x, 1, 1, 1, 1);
    simt::CublasApi refuses = kSlow;
    refuses.gemm = [](auto...) { return 7; };
    simt::Cublas library(refuses, nullptr, nullptr);
    CHECK_FAILS(library.product(Precision::kFp32, one, one, one), "cublasGemmEx");
    simt::CublasApi none = kSlow;
    none.create = [](void**) { return 7; };
    CHECK_FAILS(simt::Cublas(none, nullptr, nullptr), "cublasCreate");
    CHECK_FAILS(simt::open_cublas({"libconvoy-absent.so.1"}), "libconvoy-absent.so.1");
    CHECK_FAILS(simt::open_cublas({"libconvoy-absent.so.1", "libm.so.6"}), "cublasCreate_v2");
}

}  // namespace convoy
