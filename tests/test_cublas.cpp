// --gemm cublas: calls of the library against a mock that follows the definition of BLAS, the
// library itself on a GPU, and the errors where there is none.
#include "kernels/cuda/cublas.h"

#include <bit>

#include "kernels/cuda/cuda_backend.h"
#include "tests/reference.h"
#include "tests/through_device.h"

namespace convoy {

namespace {

int last_compute = 0, handles = 0;
bool has_workspace = false;

// c = alpha·op(a)·op(b) + beta·c; matrices lie column after column, ld numbers apart.
int slow_gemm(void*, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a,
              int type_a, int lda, const void* b, int type_b, int ldb, const void* beta, void* c,
              int type_c, int ldc, int compute, int) {
    constexpr int kHalf = 14;  // CUDA_R_16BF; 0 is CUDA_R_32F
    if (type_a != type_b || (type_a && type_a != kHalf) || (type_c && type_c != kHalf) ||
        lda < (op_a ? k : m) || ldb < (op_b ? n : k) || ldc < m)
        return 7;
    last_compute = compute;
    a = simt::kernel_address(a), b = simt::kernel_address(b), c = simt::kernel_address(c);
    const auto number = [&](const void* x, int ld, int row, int column) {
        const size_t at = size_t(column) * ld + row;
        if (!type_a) return double(static_cast<const float*>(x)[at]);
        return double(std::bit_cast<float>(uint32_t(static_cast<const uint16_t*>(x)[at]) << 16));
    };
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            double sum = 0;
            for (int l = 0; l < k; ++l)
                sum += (op_a ? number(a, lda, l, i) : number(a, lda, i, l)) *
                       (op_b ? number(b, ldb, j, l) : number(b, ldb, l, j));
            const float by = *static_cast<const float*>(beta);
            if (type_c) {  // halves are never added to
                const float rounded = reference::rounded(float(sum), Precision::kBf16);
                static_cast<uint16_t*>(c)[size_t(j) * ldc + i] =
                    uint16_t(std::bit_cast<uint32_t>(rounded) >> 16);
                continue;
            }
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
                            [](void*, void*) { return has_workspace = false, 0; },
                            [](void*, void* memory, size_t bytes) {
                                has_workspace = simt::is_device_memory(memory, bytes);
                                return 0;
                            },
                            slow_gemm,
                            status_text};

std::unique_ptr<Backend> slow_backend(Precision precision) {
    const BackendOptions options{.threads = 1, .precision = precision};
    auto backend = std::make_unique<simt::CudaBackend>(0, options);
    backend->use_cublas([] { return kSlow; });
    return backend;
}

}  // namespace

TEST_CASE("linear and its gradients tell cuBLAS the right matrices, and finish what it gives") {
    const int N = 5, C = 12, K = 7;
    const Shape xs{N, 2, 3, 2}, rows{N, 1, 1, C}, ws{K, 1, 1, C}, ys{N, 1, 1, K};
    const Window point = Window::square(1);
    std::vector<float> x = random_floats(xs.elems(), 1), w = random_floats(ws.elems(), 2);
    std::vector<float> b = random_floats(K, 3), dy = random_floats(ys.elems(), 4);
    const reference::Array X(rows, x), W(ws, w), DY(ys, dy);
    {
        ThroughDevice backend(slow_backend(Precision::kFp32));
        for (bool relu : {false, true}) {
            Guarded y(ys.elems());
            backend.linear({x.data(), xs}, {w.data(), ws}, relu ? b.data() : nullptr, relu,
                           {y.data(), ys});
            const auto want =
                reference::conv2d(X, W, relu ? b : std::vector<float>(K), point, relu);
            CHECK_CLOSE(y.span(), want.v, sum_tolerance(C + 1));
        }
        CHECK(last_compute == 68);  // CUBLAS_COMPUTE_32F
        Guarded dx(xs.elems()), dw(w), db(b);
        backend.linear_grad_x({dy.data(), ys}, {w.data(), ws}, {x.data(), xs}, {dx.data(), xs});
        CHECK_CLOSE(dx.span(), reference::conv2d_grad_x(DY, W, point, rows, x).v, sum_tolerance(K));
        backend.linear_grad_w({x.data(), xs}, {dy.data(), ys}, {dw.data(), ws}, db.data());
        auto want = reference::conv2d_grad_w(X, DY, point, ws);
        for (size_t i = 0; i < w.size(); ++i) want.v[i] += w[i];
        CHECK_CLOSE(dw.span(), want.v, sum_tolerance(N + 1));
        auto want_db = reference::column_sums({ys, dy});
        for (int k = 0; k < K; ++k) want_db[k] += b[k];
        CHECK_CLOSE(db.span(), want_db, sum_tolerance(N + 1));
        CHECK(backend.description().find("linear layers by cuBLAS") != std::string::npos);
        CHECK(handles == 1);
        CHECK(has_workspace);  // so that a recorded step allocates nothing
    }
    CHECK(handles == 0);
}

TEST_CASE("in bf16 cuBLAS gets halves, and what it gives is finished before it is rounded") {
    const int N = 5, C = 12, K = 7;
    const Shape xs{N, 1, 1, C}, ws{K, 1, 1, C}, ys{N, 1, 1, K};
    const Window point = Window::square(1);
    const auto halves = [](size_t n, uint64_t seed) {
        std::vector<float> x = random_floats(n, seed);
        for (float& v : x) v = reference::rounded(v, Precision::kBf16);
        return x;
    };
    std::vector<float> x = halves(xs.elems(), 1), w = halves(ws.elems(), 2);
    std::vector<float> b = random_floats(K, 3), dy = halves(ys.elems(), 4);
    const reference::Array X(xs, x), W(ws, w), DY(ys, dy);
    ThroughDevice backend(slow_backend(Precision::kBf16));
    const auto nearest = [](const reference::Array& want) {  // but for ties after other roundings
        double largest = 0;
        for (double v : want.v) largest = std::max(largest, std::abs(v));
        return largest * 0x1p-8 + sum_tolerance(C + 1);
    };
    for (bool relu : {false, true}) {
        Guarded y(ys.elems());
        backend.linear({x.data(), xs}, {w.data(), ws}, relu ? b.data() : nullptr, relu,
                       {y.data(), ys});
        const auto want = reference::conv2d(X, W, relu ? b : std::vector<float>(K), point, relu);
        CHECK_CLOSE(y.span(), want.v, nearest(want));
    }
    CHECK(last_compute == 68);  // CUBLAS_COMPUTE_32F
    Guarded dx(xs.elems()), dw(w);
    backend.linear_grad_x({dy.data(), ys}, {w.data(), ws}, {x.data(), xs}, {dx.data(), xs});
    const auto want_dx = reference::conv2d_grad_x(DY, W, point, xs, x);
    CHECK_CLOSE(dx.span(), want_dx.v, nearest(want_dx));
    backend.linear_grad_w({x.data(), xs}, {dy.data(), ys}, {dw.data(), ws}, nullptr);
    auto want = reference::conv2d_grad_w(X, DY, point, ws);
    for (size_t i = 0; i < w.size(); ++i) want.v[i] += w[i];
    CHECK_CLOSE(dw.span(), want.v, sum_tolerance(N + 1));
}

TEST_CASE(
    "cuBLAS is asked for the precision, is not asked for nothing, and its refusals are told") {
    ThroughDevice backend(slow_backend(Precision::kTf32));
    float x = 2, w = 3, y = NAN;
    backend.linear({&x, 1, 1, 1, 1}, {&w, 1, 1, 1, 1}, nullptr, false, {&y, 1, 1, 1, 1});
    CHECK(y == 6);
    CHECK(last_compute == 77);  // CUBLAS_COMPUTE_32F_FAST_TF32
    last_compute = 0;
    backend.linear({nullptr, 0, 1, 1, 1}, {&w, 1, 1, 1, 1}, &x, true, {nullptr, 0, 1, 1, 1});
    backend.linear_grad_w({nullptr, 0, 1, 1, 1}, {nullptr, 0, 1, 1, 1}, {&w, 1, 1, 1, 1}, nullptr);
    CHECK(last_compute == 0);
    CHECK(w == 3);
    simt::Cublas library(kSlow, nullptr, nullptr);
    CHECK_THROWS_WITH_AS(
        library.product(Precision::kFp32, {{&x, 1, 1, 1, 1}, true, 1}, {{&w, 1, 1, 1, 1}, true, 1},
                        1, 1, 2, false, {&y, 1, 1, 1, 1}),
        "cuBLAS: cublasGemmEx: an argument is wrong", Error);
}

TEST_CASE("linear layers by the installed cuBLAS match the formula in double" *
          doctest::test_suite("device")) {
    if (!on_gpu()) return;  // the library needs a GPU
    const int N = 37, C = 100, K = 67;
    const Shape xs{N, 1, 1, C}, ws{K, 1, 1, C}, ys{N, 1, 1, K};
    const Window point = Window::square(1);
    for (Precision precision : {Precision::kFp32, Precision::kTf32, Precision::kBf16}) {
        ThroughDevice backend(
            make_backend(kernel_device(), {.precision = precision, .gemm = Gemm::kCublas}));
        CAPTURE(int(precision));
        // Eighths are exact in every precision.
        const auto eighths = [](size_t n, uint64_t seed) {
            std::vector<float> x = random_floats(n, seed);
            for (float& v : x) v = std::round(v * 8) / 8;
            return x;
        };
        std::vector<float> x = eighths(xs.elems(), 1), w = eighths(ws.elems(), 2);
        std::vector<float> b = eighths(K, 3), dy = eighths(ys.elems(), 4);
        const reference::Array X(xs, x), W(ws, w), DY(ys, dy);
        const auto near = [&](const std::vector<double>& want, double terms) {
            double largest = 0;
            for (double v : want) largest = std::max(largest, std::abs(v));
            return sum_tolerance(terms) + (precision == Precision::kBf16 ? largest * 0x1p-8 : 0);
        };
        Guarded y(ys.elems()), dx(xs.elems()), dw(w), db(b);
        backend.linear({x.data(), xs}, {w.data(), ws}, b.data(), true, {y.data(), ys});
        const auto want_y = reference::conv2d(X, W, b, point, true).v;
        CHECK_CLOSE(y.span(), want_y, near(want_y, C + 1));
        backend.linear_grad_x({dy.data(), ys}, {w.data(), ws}, {x.data(), xs}, {dx.data(), xs});
        const auto want_dx = reference::conv2d_grad_x(DY, W, point, xs, x).v;
        CHECK_CLOSE(dx.span(), want_dx, near(want_dx, K));
        backend.linear_grad_w({x.data(), xs}, {dy.data(), ys}, {dw.data(), ws}, db.data());
        auto want_dw = reference::conv2d_grad_w(X, DY, point, ws);
        for (size_t i = 0; i < w.size(); ++i) want_dw.v[i] += w[i];
        CHECK_CLOSE(dw.span(), want_dw.v, sum_tolerance(N + 1));
    }
}

TEST_CASE("--gemm cublas says what is missing: the library, a function of it, or a GPU") {
    simt::CudaBackend backend(0, {.threads = 1});
    CHECK_THROWS_WITH_AS(
        backend.use_cublas([] { return simt::open_cublas({"libconvoy-absent.so.1"}); }),
        doctest::Contains("--gemm cublas: cuBLAS cannot be opened: libconvoy-absent.so.1: cannot "
                          "open shared object"),
        Error);
    CHECK_THROWS_WITH_AS(backend.use_cublas([] {
        simt::CublasApi api = kSlow;
        api.create = [](void**) { return 7; };
        return api;
    }),
                         "--gemm cublas: cuBLAS: cublasCreate: an argument is wrong", Error);
    CHECK_THROWS_WITH_AS(simt::open_cublas({"libconvoy-absent.so.1", "libm.so.6"}),
                         "cuBLAS has no function cublasCreate_v2", Error);
    CHECK_THROWS_WITH_AS(make_backend("cpu", {.gemm = Gemm::kCublas}),
                         doctest::Contains("--gemm cublas"), Error);
    CHECK_THROWS_WITH_AS(make_backend("simt", {.gemm = Gemm::kCublas}),
                         doctest::Contains("--gemm cublas"), Error);
}

}  // namespace convoy
