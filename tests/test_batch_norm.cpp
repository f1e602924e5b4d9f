#include "tests/check_ops.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

namespace {

constexpr float kEps = 1e-5f;
constexpr int kSize = 4;  // of gamma, beta and the residual, so that some outputs are above 6

struct Case {
    Shape x;
    std::vector<int> bounds;
};
const Case kCases[] = {
    {{1, 1, 1, 1}, {0, 1}},
    {{3, 2, 5, 3}, {0, 3}},
    {{5, 3, 3, 33}, {0, 2, 5}},
    {{4, 20, 21, 40}, {0, 1, 1, 4}},  // an empty group, and slabs of several blocks
    {{2, 1, 1, 70}, {0, 2}},
    {{3, 9, 11, 64}, {0, 1, 3}},  // packs of channels in half a
                                  // warp
    {{2, 3, 5, 264}, {0, 2}},     // and in several blocks
};

// x̂ is of size ~1 for any x, but with M = 1 it is 0 and rstd is 1/√eps ≈ 316.
double tolerance_of(const Case& c) {
    return sum_tolerance(32, kSize * (c.x.N * c.x.H * c.x.W == 1 ? 4 : 1));
}

// Both passes of batch norm in training, one after the other.
void normalise(Backend& backend, Tensor x, GroupBounds groups, const float* gamma,
               const float* beta, Tensor residual, Activation act, float eps, Tensor y,
               float* mean_rstd, float* sums) {
    backend.moments(x, {groups, eps, mean_rstd, sums});
    backend.batch_norm(x, groups, mean_rstd, gamma, beta, residual, act, y);
}

struct Problem {
    explicit Problem(const Case& c, Precision precision = Precision::kFp32)
        : x(rounded(random_floats(c.x.elems(), 1), precision)),
          gamma(random_floats(c.x.C, 2)),
          beta(random_floats(c.x.C, 3)),
          residual(rounded(random_floats(c.x.elems(), 4), precision)),
          dy(rounded(random_floats(c.x.elems(), 5), precision)) {
        for (auto* part : {&gamma, &beta, &residual})
            for (float& v : *part) v *= kSize;
    }
    std::vector<float> x, gamma, beta, residual, dy;
};

struct Act {
    Activation f;
    bool residual;
};
constexpr Act kActs[] = {{{Activation::kNone}, false},     {{Activation::kNone}, true},
                         {{Activation::kRelu}, false},     {{Activation::kRelu}, true},
                         {{Activation::kRelu6}, false},    {{Activation::kSilu}, false},
                         {{Activation::kHardSwish}, false}};

// dy = 0 where z is so near to a bend of the activation that rounding decides on which side it is.
void leave_out_bends(const std::vector<double>& z, Precision precision, std::vector<float>& dy) {
    const double near = precision == Precision::kBf16 ? 0.05 : 1e-3;
    for (size_t i = 0; i < z.size(); ++i)
        for (const double bend : {-3.0, 0.0, 3.0, 6.0})
            if (std::abs(z[i] - bend) < near) dy[i] = 0;
}

// Output, statistics and sums.
void check_forward(Backend& backend, Precision precision) {
    for (const Case& c : kCases) {
        CAPTURE(c.x.text());
        Problem p(c, precision);
        const int C = c.x.C, G = int(c.bounds.size()) - 1;
        for (const auto& [act, full] : kActs) {
            const auto want =
                reference::batch_norm({c.x, p.x}, c.bounds, p.gamma, p.beta,
                                      full ? p.residual : std::vector<float>{}, act, kEps);
            Guarded y(c.x.elems()), mean_rstd(size_t(2) * G * C), sums(size_t(2) * C, 0.5f);
            normalise(backend, view(p.x, c.x), c.bounds, p.gamma.data(), p.beta.data(),
                      full ? view(p.residual, c.x) : Tensor{}, act, kEps, view(y, c.x),
                      mean_rstd.data(), sums.data());
            check_stored(y.span(), want.y.v, tolerance_of(c), precision, "batch_norm");
            auto want_sums = want.sums;
            for (double& v : want_sums) v += 0.5;
            CHECK_CLOSE(sums.span(), want_sums, sum_tolerance(8, c.x.N));
            for (int g = 0; g < G; ++g) {
                if (c.bounds[g] == c.bounds[g + 1]) continue;
                const float* kept = mean_rstd.data() + size_t(2) * g * C;
                for (int ch = 0; ch < C; ++ch) {
                    CHECK(std::abs(kept[ch] - want.mean[size_t(g) * C + ch]) <= sum_tolerance(4));
                    const double rstd = want.rstd[size_t(g) * C + ch];
                    CHECK(std::abs(kept[C + ch] - rstd) <= sum_tolerance(8, rstd));
                }
            }
        }
    }
}

// And in place of dy.
void check_grad(Backend& backend, Precision precision) {
    for (const Case& c : kCases) {
        CAPTURE(c.x.text());
        Problem p(c, precision);
        const int C = c.x.C, G = int(c.bounds.size()) - 1, image = c.x.H * c.x.W;
        for (const auto& [act, full] : kActs) {
            const auto made =
                reference::batch_norm({c.x, p.x}, c.bounds, p.gamma, p.beta,
                                      full ? p.residual : std::vector<float>{}, act, kEps);
            const std::vector<float> exact(made.y.v.begin(), made.y.v.end());
            std::vector<float> y = rounded(exact, precision);
            std::vector<float> mean_rstd(size_t(2) * G * C);
            std::vector<float> dy = p.dy;
            leave_out_bends(made.z.v, precision, dy);
            std::vector<double> dz(dy.begin(), dy.end()), want(dz.size());
            std::vector<double> want_dgamma(C, 0.25), want_dbeta(C, 0.25);
            for (size_t i = 0; i < dz.size(); ++i)
                dz[i] *= reference::activation_slope(made.z.v[i], act);
            double steepest = 0;
            for (int g = 0; g < G; ++g)
                for (int ch = 0; ch < C; ++ch) {
                    const size_t stat = size_t(g) * C + ch;
                    mean_rstd[size_t(2) * g * C + ch] = float(made.mean[stat]);
                    mean_rstd[size_t(2) * g * C + C + ch] = float(made.rstd[stat]);
                    double sum = 0, dot = 0;
                    const int begin = c.bounds[g] * image, end = c.bounds[g + 1] * image;
                    for (int i = begin; i < end; ++i) {
                        const size_t at = size_t(i) * C + ch;
                        sum += dz[at], dot += dz[at] * made.xhat.v[at];
                    }
                    want_dbeta[ch] += sum, want_dgamma[ch] += dot;
                    const double slope = p.gamma[ch] * made.rstd[stat], M = end - begin;
                    if (M > 0) steepest = std::max(steepest, std::abs(slope));
                    for (int i = begin; i < end; ++i) {
                        const size_t at = size_t(i) * C + ch;
                        want[at] = slope * (dz[at] - sum / M - made.xhat.v[at] * dot / M);
                    }
                }
            const double tolerance = sum_tolerance(32, std::max(1.0, steepest));
            Guarded dx(c.x.elems()), dres(c.x.elems()), dgamma(C, 0.25f), dbeta(C, 0.25f);
            backend.batch_norm_grad(view(p.x, c.x), view(y, c.x), view(dy, c.x), c.bounds,
                                    p.gamma.data(), p.beta.data(), act, mean_rstd.data(),
                                    view(dx, c.x), full ? view(dres, c.x) : Tensor{}, dgamma.data(),
                                    dbeta.data());
            check_stored(dx.span(), want, tolerance, precision, "batch_norm_grad");
            if (full) CHECK_CLOSE(dres.span(), dz, 0.0);
            const double sum_terms = 130 + double(c.x.N) * image / 128;
            CHECK_CLOSE(dgamma.span(), want_dgamma, sum_tolerance(sum_terms, 2));
            CHECK_CLOSE(dbeta.span(), want_dbeta, sum_tolerance(sum_terms));

            // In place, and frozen gamma and beta.
            backend.batch_norm_grad(view(p.x, c.x), view(y, c.x), view(dy, c.x), c.bounds,
                                    p.gamma.data(), p.beta.data(), act, mean_rstd.data(),
                                    view(dy, c.x), full ? view(dres, c.x) : Tensor{}, nullptr,
                                    nullptr);
            CHECK(dy == std::vector<float>(dx));
        }
    }
}

void check_eval(Backend& backend, Precision precision) {
    const Shape shape{3, 9, 7, 21};
    Problem p({shape, {0, 3}}, precision);
    std::vector<float> mean = random_floats(21, 7), var = random_floats(21, 8);
    for (float& v : var) v = std::abs(v) + 0.1f;
    for (const auto& [act, full] : kActs) {
        Guarded y(shape.elems()), dx(shape.elems()), dres(shape.elems());
        backend.batch_norm_eval(view(p.x, shape), p.gamma.data(), p.beta.data(), mean.data(),
                                var.data(), full ? view(p.residual, shape) : Tensor{}, act, kEps,
                                view(y, shape));
        std::vector<double> z(p.x.size()), want, want_dx(p.x.size()), want_dz(p.x.size());
        const auto scale = [&](size_t i) {
            return p.gamma[i % 21] / std::sqrt(double(var[i % 21]) + kEps);
        };
        for (size_t i = 0; i < z.size(); ++i) {
            z[i] = (double(p.x[i]) - mean[i % 21]) * scale(i) + p.beta[i % 21] +
                   (full ? p.residual[i] : 0);
            want.push_back(reference::activated(z[i], act));
        }
        std::vector<float> dy = p.dy;
        leave_out_bends(z, precision, dy);
        for (size_t i = 0; i < z.size(); ++i) {
            want_dz[i] = dy[i] * reference::activation_slope(z[i], act);
            want_dx[i] = want_dz[i] * scale(i);
        }
        backend.batch_norm_eval_grad(view(p.x, shape), view(y, shape), view(dy, shape),
                                     p.gamma.data(), p.beta.data(), mean.data(), var.data(), act,
                                     kEps, view(dx, shape), full ? view(dres, shape) : Tensor{});
        check_stored(y.span(), want, sum_tolerance(8, 7 * kSize), precision,
                     "batch_norm_eval");  // (x − mean)·scale is below 2/√0.1
        check_stored(dx.span(), want_dx, sum_tolerance(8, 4 * kSize), precision,
                     "batch_norm_eval_grad");
        if (full) CHECK_CLOSE(dres.span(), want_dz, 0.0);
    }
}

}  // namespace

TEST_CASE("batch_norm, its evaluation and their gradients match the formula in double") {
    in_both([](Backend& backend, Precision precision) {
        check_forward(backend, precision);
        check_grad(backend, precision);
        check_eval(backend, precision);
    });
}

// x = 1000 + noise of 1/64, in steps that a float holds exactly at 1000 (2⁻¹⁴). The mean itself is
// stored as a float, off by up to 2⁻¹⁵, which moves x̂ by 2⁻¹⁵/σ ≈ 2⁻¹⁵·110; no more than that.
TEST_CASE("batch_norm keeps its digits with a large mean and a tiny variance") {
    auto backend = each_backend(2);
    const Shape shape{4, 30, 30, 5};
    std::vector<float> x = random_floats(shape.elems(), 1), y(x.size());
    for (float& v : x) v = 1000 + std::round(v * 256) / 16384;
    const std::vector<int> bounds{0, 4};
    const std::vector<float> gamma(5, 1.0f), beta(5, 0.0f);
    std::vector<float> mean_rstd(10), sums(10, 0.0f);
    normalise(*backend, view(x, shape), bounds, gamma.data(), beta.data(), nullptr,
              {Activation::kNone}, kEps, view(y, shape), mean_rstd.data(), sums.data());
    const auto want =
        reference::batch_norm({shape, x}, bounds, gamma, beta, {}, {Activation::kNone}, kEps);
    CHECK_CLOSE(y, want.y.v, 0x1p-15 * 110 + 1e-5);
    for (int c = 0; c < 5; ++c)
        CHECK(mean_rstd[5 + c] == doctest::Approx(want.rstd[c]).epsilon(1e-5));
}

// Central differences of L = Σ y·dy with step 2⁻⁶ on values of size 1: truncation about h²·y''' ,
// measured at 6e-4 in double; the rounding of y adds 1e-5.
TEST_CASE("batch_norm_grad matches finite differences") {
    auto backend = each_backend(1);
    for (const Activation act : {Activation{Activation::kNone}, Activation{Activation::kSilu}}) {
        const Shape shape{4, 2, 3, 2};
        const std::vector<int> bounds{0, 2, 4};
        Problem p({shape, bounds});
        std::vector<float> y(p.x.size()), mean_rstd(8), sums(4), dx(p.x.size());
        const auto loss = [&] {
            normalise(*backend, view(p.x, shape), bounds, p.gamma.data(), p.beta.data(), nullptr,
                      act, kEps, view(y, shape), mean_rstd.data(), sums.data());
            double sum = 0;
            for (size_t i = 0; i < y.size(); ++i) sum += double(y[i]) * p.dy[i];
            return sum;
        };
        loss();
        backend->batch_norm_grad(view(p.x, shape), view(y, shape), view(p.dy, shape), bounds,
                                 p.gamma.data(), p.beta.data(), act, mean_rstd.data(),
                                 view(dx, shape), nullptr, nullptr, nullptr);
        std::vector<double> want;
        for (float& v : p.x) {
            const float before = v;
            v = before + 0x1p-6f;
            const double up = loss();
            v = before - 0x1p-6f;
            want.push_back((up - loss()) * 0x1p5);
            v = before;
        }
        CHECK_CLOSE(dx, want, 3e-3);
    }
}

TEST_CASE("batch_norm gives the same bits on 1, 2 and 3 threads") {
    const Case c{{5, 17, 19, 33}, {0, 2, 5}};
    Problem p(c);
    std::vector<float> want;
    for (int threads : {1, 2, 3}) {
        auto backend = make_backend("cpu", {.threads = threads});
        std::vector<float> y(p.x.size()), mean_rstd(4 * 33), sums(2 * 33, 0.0f), dx(p.x.size());
        std::vector<float> dgamma(33, 0.0f), dbeta(33, 0.0f);
        normalise(*backend, view(p.x, c.x), c.bounds, p.gamma.data(), p.beta.data(), nullptr, {},
                  kEps, view(y, c.x), mean_rstd.data(), sums.data());
        backend->batch_norm_grad(view(p.x, c.x), view(y, c.x), view(p.dy, c.x), c.bounds,
                                 p.gamma.data(), p.beta.data(), {}, mean_rstd.data(), view(dx, c.x),
                                 nullptr, dgamma.data(), dbeta.data());
        for (const auto* more : {&mean_rstd, &sums, &dx, &dgamma, &dbeta})
            y.insert(y.end(), more->begin(), more->end());
        if (want.empty()) want = y;
        CHECK(y == want);
    }
}

TEST_CASE("batch_norm of no images leaves the sums; groups that do not fit are refused") {
    auto backend = each_backend();
    const std::vector<int> none{0, 0}, wrong{0, 1};
    float one[1] = {1}, kept[2];
    Guarded sums(std::vector<float>{3, 4}), dgamma(std::vector<float>{5});
    normalise(*backend, {nullptr, 0, 2, 2, 1}, none, one, one, nullptr, {}, kEps,
              {nullptr, 0, 2, 2, 1}, kept, sums.data());
    backend->batch_norm_grad({nullptr, 0, 2, 2, 1}, {nullptr, 0, 2, 2, 1}, {nullptr, 0, 2, 2, 1},
                             none, one, one, {}, kept, {nullptr, 0, 2, 2, 1}, nullptr,
                             dgamma.data(), nullptr);
    CHECK(std::vector<float>(sums) == std::vector<float>{3, 4});
    CHECK(dgamma.data()[0] == 5);
    float x[8] = {};
    CHECK_FAILS(normalise(*backend, {x, 2, 2, 2, 1}, wrong, one, one, nullptr, {}, kEps,
                          {x, 2, 2, 2, 1}, kept, sums.data()),
                "x has 2 images, the bounds of the groups end at 1");
    CHECK_THROWS_AS(backend->batch_norm_eval({x, 2, 2, 2, 1}, one, one, one, one, nullptr,
                                             {Activation::kNone}, kEps, {x, 1, 2, 2, 1}),
                    Error);
}

TEST_SUITE_END();

}  // namespace convoy
