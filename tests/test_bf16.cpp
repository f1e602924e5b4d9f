// --precision bf16: activations and their gradients lie in memory as bf16. Each op against the
// formula in double of what its inputs were rounded to; a result may then be off by the fp32
// arithmetic, and by half a unit of the last of the 8 bits that are stored: 2⁻⁸ of its size at
// most. Convolutions and linear layers: test_tensor_cores.cpp. Steps of training: test_mixed.cpp.
#include "kernels/simt/emulator.h"
#include "tests/device.h"
#include "tests/reference.h"
#include "tests/through_device.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

namespace {

std::vector<float> random_halves(size_t n, uint64_t seed) {
    std::vector<float> x = random_floats(n, seed);
    for (float& v : x) v = reference::rounded(v, Precision::kBf16);
    return x;
}

// arithmetic: what the op's own sums may be off by.
template <class Got, class Want>
void check_stored(const Got& got, const Want& want, double arithmetic, const char* what) {
    REQUIRE(std::size(got) == std::size(want));
    std::vector<double> off(std::size(want));
    for (size_t i = 0; i < off.size(); ++i) {
        const double allowed = arithmetic + 0x1p-8 * std::abs(double(want[i]));
        // Of an error that is allowed, nothing is left.
        const double error = std::abs(double(got[i]) - double(want[i]));
        off[i] = error <= allowed ? 0 : error;
    }
    check_close(off, std::vector<double>(off.size()), 0.0, what);
}

void check_pools(Backend& backend, int C) {
    const Shape xs{2, 7, 9, C};
    const Window window = Window::square(3, 2, 1);
    std::vector<float> x = random_halves(xs.elems(), 1);
    std::vector<int> where;
    const auto want = reference::max_pool({xs, x}, window, where);
    const Shape ys = want.shape;
    std::vector<float> dy = random_halves(ys.elems(), 2);
    Guarded y(ys.elems()), dx(xs.elems());
    std::vector<uint8_t> argmax(ys.elems());
    backend.max_pool(view(x, xs), window, view(y, ys), argmax.data());
    CHECK_CLOSE(y.span(), want.v, 0.0);  // one of the inputs
    backend.max_pool_grad(view(dy, ys), argmax.data(), window, view(x, xs), view(dx, xs));
    check_stored(dx.span(), reference::max_pool_grad({ys, dy}, where, window, xs, x).v,
                 sum_tolerance(4), "max_pool_grad");

    const Shape as{2, 3, 2, C};
    reference::Array mean(as), dmean(xs);
    std::vector<float> da = random_halves(as.elems(), 3);
    reference::each_area(xs, as, [&](int n, int p, int q, int h, int w, double share) {
        for (int c = 0; c < xs.C; ++c) {
            mean.at(n, p, q, c) += x[dmean.index(n, h, w, c)] * share;
            dmean.at(n, h, w, c) += da[mean.index(n, p, q, c)] * share;
        }
    });
    Guarded a(as.elems()), dxa(xs.elems());
    backend.avg_pool(view(x, xs), view(a, as));
    check_stored(a.span(), mean.v, sum_tolerance(20), "avg_pool");
    backend.avg_pool_grad(view(da, as), view(dxa, xs));
    check_stored(dxa.span(), dmean.v, sum_tolerance(4), "avg_pool_grad");
}

void check_batch_norm_passes(Backend& backend, int C) {
    const Shape xs{5, 6, 7, C};
    const int image = 42;
    const std::vector<int> bounds{0, 2, 5};
    std::vector<float> x = random_halves(xs.elems(), 1), residual = random_halves(xs.elems(), 2);
    std::vector<float> dy = random_halves(xs.elems(), 3);
    const std::vector<float> gamma = random_floats(C, 4), beta = random_floats(C, 5);
    const auto want = reference::batch_norm({xs, x}, bounds, gamma, beta, residual, true, 1e-5);
    Guarded y(xs.elems()), kept(size_t(4) * C), sums(size_t(2) * C, 0.0f);
    backend.moments(view(x, xs), {bounds, 1e-5f, kept.data(), sums.data()});
    backend.batch_norm(view(x, xs), bounds, kept.data(), gamma.data(), beta.data(),
                       view(residual, xs), true, view(y, xs));
    CHECK_CLOSE(sums.span(), want.sums, sum_tolerance(8, xs.N));
    check_stored(y.span(), want.y.v, sum_tolerance(32), "batch_norm");

    std::vector<float> out = y;
    std::vector<double> want_dx(x.size()), dz(x.size()), dgamma(C), dbeta(C);
    for (size_t i = 0; i < x.size(); ++i) dz[i] = out[i] > 0 ? dy[i] : 0;
    for (int g = 0; g < 2; ++g)
        for (int c = 0; c < C; ++c) {
            const double M = (bounds[g + 1] - bounds[g]) * image;
            double sum = 0, dot = 0;
            const auto each = [&](auto&& f) {
                for (int i = bounds[g] * image; i < bounds[g + 1] * image; ++i)
                    f(size_t(i) * C + c);
            };
            each([&](size_t i) { sum += dz[i], dot += dz[i] * want.xhat.v[i]; });
            dbeta[c] += sum, dgamma[c] += dot;
            each([&](size_t i) {
                want_dx[i] = gamma[c] * want.rstd[size_t(g) * C + c] *
                             (dz[i] - sum / M - want.xhat.v[i] * dot / M);
            });
        }
    Guarded dx(x.size()), dresidual(x.size()), got_dgamma(size_t(C), 0.0f),
        got_dbeta(size_t(C), 0.0f);
    backend.batch_norm_grad(view(x, xs), view(out, xs), view(dy, xs), bounds, gamma.data(), true,
                            kept.data(), view(dx, xs), view(dresidual, xs), got_dgamma.data(),
                            got_dbeta.data());
    check_stored(dx.span(), want_dx, sum_tolerance(64), "batch_norm_grad");
    CHECK_CLOSE(dresidual.span(), dz, 0.0);
    CHECK_CLOSE(got_dgamma.span(), dgamma, sum_tolerance(130, 2));
    CHECK_CLOSE(got_dbeta.span(), dbeta, sum_tolerance(130, 2));

    const std::vector<float> mean = random_floats(C, 6), var(C, 0.5f);
    std::vector<double> eval(x.size()), eval_dx(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
        const size_t c = i % size_t(C);
        const double scale = gamma[c] / std::sqrt(0.5 + 1e-5);
        eval[i] = std::max(0.0, (x[i] - mean[c]) * scale + beta[c] + residual[i]);
        eval_dx[i] = dz[i] * scale;
    }
    Guarded z(x.size()), dxe(x.size());
    backend.batch_norm_eval(view(x, xs), gamma.data(), beta.data(), mean.data(), var.data(),
                            view(residual, xs), true, 1e-5f, view(z, xs));
    check_stored(z.span(), eval, sum_tolerance(8), "batch_norm_eval");
    backend.batch_norm_eval_grad(view(out, xs), view(dy, xs), gamma.data(), var.data(), true, 1e-5f,
                                 view(dxe, xs), nullptr);
    check_stored(dxe.span(), eval_dx, sum_tolerance(4), "batch_norm_eval_grad");
}

}  // namespace

TEST_CASE("bf16: elementwise ops round once what their formulas say, in packs and beside them") {
    auto backend = each_backend(2, Precision::kBf16);
    for (int n : {0, 1, 7, 77, 5000}) {
        const std::vector<float> x = random_halves(n, 1), y = random_halves(n, 2);
        Guarded a(x), b(y), c(x);
        std::vector<float> other = y, want_a(n), want_b(n), want_c(n);
        for (int i = 0; i < n; ++i) {
            want_a[i] = x[i] > 0 ? x[i] : 0;
            want_b[i] = want_a[i] > 0 ? y[i] : 0;
            want_c[i] = reference::rounded(x[i] + y[i], Precision::kBf16);
        }
        const Shape shape{n, 1, 1, 1};
        backend->relu(view(a, shape));
        backend->relu_grad(view(a, shape), view(b, shape));
        backend->add(view(c, shape), view(other, shape));
        CHECK(std::vector<float>(a) == want_a);
        CHECK(std::vector<float>(b) == want_b);
        CHECK(std::vector<float>(c) == want_c);
    }
    float nan = NAN;
    backend->relu({&nan, 1, 1, 1, 1});
    CHECK(std::isnan(nan));
}

TEST_CASE("copy between tensors of floats and bf16 rounds to the nearest, ties to even") {
    auto backend = each_backend(1, Precision::kBf16);
    for (int n : {1, 4, 1003}) {
        std::vector<float> x = random_floats(size_t(n), 1), back(x.size(), NAN);
        x[0] = 1 + 0x1p-8f;  // halfway, and the lower neighbour is even
        std::vector<uint16_t> halves(x.size(), 0x7FFF);
        const Shape shape{1, 1, 1, n};
        backend->copy({halves.data(), shape, Type::kBfloat16}, view(x, shape));
        backend->copy(view(back, shape), {halves.data(), shape, Type::kBfloat16});
        for (int i = 0; i < n; ++i) {
            CHECK(back[i] == reference::rounded(x[i], Precision::kBf16));
            CHECK(std::bit_cast<float>(uint32_t(halves[i]) << 16) == back[i]);
        }
    }
}

TEST_CASE("bf16: dropout keeps what the draws of Random say") {
    auto backend = each_backend(2, Precision::kBf16);
    const std::vector<uint64_t> ids{7, 3'000'000'000'000ull};
    const int row = 103;
    const std::vector<float> x = random_halves(2 * row, 1);
    std::vector<float> want = x;
    for (int n = 0; n < 2; ++n) {
        Random random(5, 1, ids[n], kLayer);
        for (int i = 0; i < row; ++i)
            want[n * row + i] *= random.uniform() >= 0.3f ? 1 / (1 - 0.3f) : 0.0f;
    }
    Guarded got(x);
    backend->dropout({got.data(), 2, 1, 1, row}, 0.3f, {5, 1}, ids, kLayer);
    check_stored(got.span(), want, 0, "dropout");
}

TEST_CASE("bf16: pools and their gradients") {
    auto backend = each_backend(2, Precision::kBf16);
    for (int C : {33, 36, 40}) check_pools(*backend, C);
}

TEST_CASE("bf16: batch norm takes its statistics in fp32, and stores its output once rounded") {
    auto backend = each_backend(2, Precision::kBf16);
    for (int C : {33, 36, 64, 264}) check_batch_norm_passes(*backend, C);
}

TEST_CASE("bf16: the loss is that of the logits in fp32, its gradient is rounded") {
    auto backend = each_backend(1, Precision::kBf16);
    const int N = 5, C = 37;
    std::vector<float> x = random_floats(size_t(N) * C, 1);
    for (float& v : x) v *= 8;
    const std::vector<int32_t> labels{0, 5, 9, 36, 1};
    std::vector<double> want(x.size());
    double loss = 0;
    for (int n = 0; n < N; ++n) {
        const std::vector<double> row(x.begin() + n * C, x.begin() + (n + 1) * C);
        const auto p = reference::softmax(row.data(), C);
        loss -= std::log(p[labels[n]]);
        for (int c = 0; c < C; ++c) want[n * C + c] = p[c] - (c == labels[n]);
    }
    Guarded dlogits(x.size()), sums(3, 0.0f);
    const Shape shape{N, 1, 1, C};
    backend->softmax_cross_entropy(view(x, shape), labels, 0, view(dlogits, shape), sums.data());
    check_stored(dlogits.span(), want, sum_tolerance(1), "dlogits");
    CHECK(sums.data()[0] == doctest::Approx(loss).epsilon(1e-6));
}

TEST_CASE("an op refuses tensors that hold another type than it can work with") {
    float x[8] = {}, y[8] = {};
    const Shape shape{1, 1, 1, 4};
    const Tensor halves(x, shape, Type::kBfloat16), floats(y, shape);
    const Tensor w(x, {4, 1, 1, 4});
    CHECK_THROWS_WITH_AS(make_backend("cpu")->linear(halves, w, nullptr, false, floats),
                         doctest::Contains("tensor 1x1x1x4 is bf16"), Error);
    for (const std::string& device : {std::string("cpu"), kernel_device()}) {
        auto model = make_backend(device, {.threads = 1, .precision = Precision::kBf16});
        CHECK_THROWS_WITH_AS(model->add(halves, floats), doctest::Contains("x holds bf16, y fp32"),
                             Error);
        CHECK_THROWS_WITH_AS(model->linear(floats, w, nullptr, false, floats),
                             doctest::Contains("fp32"), Error);
        CHECK_THROWS_WITH_AS(model->linear(halves, w, nullptr, false, halves),
                             doctest::Contains("a tensor 4x1x1x4 of fp32 among others of bf16"),
                             Error);
    }
}

}  // namespace convoy
