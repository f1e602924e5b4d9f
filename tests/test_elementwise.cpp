
#include "tests/check_ops.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

// In packs and alongside them.
static void check_relu_and_add(Backend& backend, Precision precision) {
    for (int n : {0, 1, 7, 77, 100'000}) {
        const std::vector<float> x = rounded(random_floats(n, 1), precision);
        const std::vector<float> y = rounded(random_floats(n, 2), precision);
        Guarded a(x), b(y), c(x);
        std::vector<float> other = y, want_a(n), want_b(n), want_c(n);
        for (int i = 0; i < n; ++i) {
            want_a[i] = x[i] > 0 ? x[i] : 0;
            want_b[i] = want_a[i] > 0 ? y[i] : 0;
            want_c[i] = reference::rounded(x[i] + y[i], precision);
        }
        backend.activate(view(a, {n, 1, 1, 1}));
        backend.activate_grad(view(a, {n, 1, 1, 1}), {b.data(), n, 1, 1, 1});
        backend.add({c.data(), n, 1, 1, 1}, {other.data(), n, 1, 1, 1});
        CHECK(std::vector<float>(a) == want_a);
        CHECK(std::vector<float>(b) == want_b);
        CHECK(std::vector<float>(c) == want_c);
    }
    float nan = NAN;
    backend.activate({&nan, 1, 1, 1, 1});
    CHECK(std::isnan(nan));  // not hidden: it must reach the loss
}

TEST_CASE("relu, relu_grad and add change each number as their formulas say, and round once") {
    in_both(check_relu_and_add);
}

TEST_CASE("activations and their gradients, from the output or the input, match their formulas") {
    const struct {
        Activation f;
        float edge;  // a value of x where the function bends
    } cases[] = {{{Activation::kRelu6}, 6},     {{Activation::kLeakyRelu, 0.3f}, 0},
                 {{Activation::kElu, 0.7f}, 0}, {{Activation::kElu, 0}, 0},
                 {{Activation::kSigmoid}, 0},   {{Activation::kHardSigmoid}, 3},
                 {{Activation::kSilu}, 0},      {{Activation::kHardSwish}, -3},
                 {{Activation::kGelu}, 0}};
    for (int kind = Activation::kRelu + 1; kind <= Activation::kLast; ++kind)
        CHECK(std::ranges::any_of(cases, [&](const auto& one) { return one.f.kind == kind; }));
    for (Precision precision : {Precision::kFp32, Precision::kBf16})
        for (const std::string& device : {kernel_device(), std::string("cpu")}) {
            CAPTURE(device);
            const bool halves = precision == Precision::kBf16;
            ThroughDevice on(make_backend(device, {.precision = precision}));
            for (const auto& [f, edge] : cases)
                for (int n : {1, 77, 5000}) {
                    CAPTURE(int(f.kind));
                    std::vector<float> x = random_floats(size_t(n), 1),
                                       dy = random_floats(size_t(n), 2);
                    for (float& v : x) v = reference::rounded(9 * v, Precision::kBf16);
                    for (float& v : dy) v = reference::rounded(v, Precision::kBf16);
                    x[0] = edge;
                    if (n > 9) x[1] = 200, x[2] = -200, x[3] = 88, x[4] = -88;
                    std::vector<double> y, dx;
                    for (int i = 0; i < n; ++i)
                        y.push_back(reference::activated(x[i], f)),
                            dx.push_back(dy[i] * reference::activation_slope(x[i], f));
                    Guarded a(x), b(dy);
                    const Shape shape{n, 1, 1, 1};
                    on.activate({a.data(), shape}, f);
                    on.activate_grad({f.needs_x() ? x.data() : a.data(), shape}, {b.data(), shape},
                                     f);
                    double worst = 0;  // of both, relative to what is allowed
                    for (int i = 0; i < n; ++i) {
                        const double off_y = std::abs(a.span()[i] - y[i]),
                                     off_dx = std::abs(b.span()[i] - dx[i]);
                        worst = std::max(
                            {worst, off_y / (1 + std::abs(y[i])) / (halves ? 0x1p-8 : 1e-6),
                             off_dx / (1 + std::abs(dx[i])) / (halves ? 0x1p-7 : 1e-6)});
                    }
                    CHECK(worst <= 1);
                    float nan = NAN;
                    on.activate({&nan, 1, 1, 1, 1}, f);
                    CHECK(std::isnan(nan));
                }
        }
}

// Images of several pixels: groups are runs of channels in every pixel. One warp of the CUDA kernel
// takes a group, so groups of less and of more than 32 numbers, and less and more than 8 groups.
static void check_group_norm(Backend& backend, Precision precision) {
    const bool halves = precision == Precision::kBf16;
    const std::pair<Shape, int> cases[] = {
        {{1, 1, 1, 1}, 1},    {{105, 1, 1, 33}, 1},  {{144, 1, 1, 64}, 1}, {{6, 1, 1, 200}, 1},
        {{2, 3, 1, 40}, 1},   {{3, 5, 7, 33}, 1},    {{3, 5, 7, 33}, 11},  {{3, 5, 7, 33}, 3},
        {{2, 5, 3, 33}, 33},  {{2, 1, 1, 6}, 6},     {{9, 1, 1, 64}, 8},   {{2, 9, 8, 64}, 32},
        {{1, 20, 20, 48}, 2}, {{70, 2, 2, 300}, 100}};
    for (const auto& [shape, G] : cases) {
        CAPTURE(shape.text());
        CAPTURE(G);
        const size_t n = shape.elems(), C = size_t(shape.C), row = shape.row_elems();
        const size_t groups = size_t(G), count = size_t(shape.N) * groups;
        const auto group = [&](size_t i) { return i / row * groups + i % C / (C / groups); };
        const double numbers = double(n) / double(count);
        const float eps = 1e-3f;
        std::vector<float> x = rounded(random_floats(n, 1), Precision::kBf16),
                           out = rounded(random_floats(n, 2), Precision::kBf16),
                           dy = rounded(random_floats(n, 3), Precision::kBf16),
                           scale = random_floats(count, 4);
        for (size_t i = 0; i < n; ++i)
            x[i] += float(100 * (group(i) % 2));  // cancels if done badly
        if (halves) x = rounded(x, Precision::kBf16);
        std::vector<double> y(n), dx(n), mean(count), rstd(count), grad(count), slope(count);
        for (size_t i = 0; i < n; ++i)
            mean[group(i)] += x[i] / numbers, grad[group(i)] += dy[i] / numbers,
                slope[group(i)] += double(dy[i]) * out[i] / numbers;
        for (size_t i = 0; i < n; ++i)
            rstd[group(i)] += (x[i] - mean[group(i)]) * (x[i] - mean[group(i)]) / numbers;
        for (double& r : rstd) r = 1 / std::sqrt(r + double(eps));
        for (size_t i = 0; i < n; ++i) {
            const size_t g = group(i);
            y[i] = (x[i] - mean[g]) * rstd[g];
            dx[i] = scale[g] * (dy[i] - grad[g] - out[i] * slope[g]);
        }
        Guarded got_x(x), got_y(n), got_rstd(count), got_dx(dy), got_apart(n);
        const Tensor in_place{got_x.data(), shape}, grad_in_place{got_dx.data(), shape};
        backend.group_norm(view(x, shape), G, eps, {got_y.data(), shape}, nullptr);
        backend.group_norm(in_place, G, eps, in_place, got_rstd.data());
        // A mean near 100 is rounded by up to 2⁻¹⁸, its sum by more; y by rstd times that.
        const double rounding = 5e-6 * (3 + *std::ranges::max_element(rstd));
        CHECK_CLOSE(got_y.span(), y, halves ? 0x1p-7 : rounding);
        CHECK(std::ranges::equal(got_x.span(), got_y.span()));
        CHECK_CLOSE(got_rstd.span(), rstd, rounding);
        backend.group_norm_grad(view(out, shape), G, scale.data(), view(dy, shape),
                                {got_apart.data(), shape});
        backend.group_norm_grad(view(out, shape), G, scale.data(), grad_in_place, grad_in_place);
        CHECK_CLOSE(got_dx.span(), dx, halves ? 0x1p-7 : 1e-5);
        CHECK(std::ranges::equal(got_dx.span(), got_apart.span()));
    }
    backend.group_norm({nullptr, 0, 2, 2, 4}, 2, 1, {nullptr, 0, 2, 2, 4}, nullptr);
    float v[8] = {};
    CHECK_THROWS_AS(backend.group_norm({v, 1, 1, 2, 4}, 1, 1, {v, 1, 1, 1, 8}, v), Error);
    for (const int groups : {-1, 0, 3, 8}) {
        CAPTURE(groups);
        const Tensor x{v, 1, 1, 2, 4};
        CHECK_THROWS_AS(backend.group_norm(x, groups, 1, x, nullptr), Error);
        CHECK_THROWS_AS(backend.group_norm_grad(x, groups, v, x, x), Error);
    }
}

TEST_CASE("group_norm and its gradient match their formulas, also in place") {
    in_both(check_group_norm);
}

TEST_CASE("group_norm has the same bits for any number of threads") {
    const Shape shape{7, 19, 17, 24};
    std::vector<float> x = random_floats(shape.elems(), 1), dy = random_floats(x.size(), 2);
    std::vector<float> want;
    for (const int threads : {1, 2, 5})
        for (const int groups : {1, 4}) {
            auto backend = make_backend("cpu", {.threads = threads});
            std::vector<float> got(2 * x.size()), rstd(size_t(shape.N) * size_t(groups));
            const Tensor y{got.data(), shape}, dx{got.data() + x.size(), shape};
            backend->group_norm(view(x, shape), groups, 1e-5f, y, rstd.data());
            backend->group_norm_grad(y, groups, rstd.data(), view(dy, shape), dx);
            if (threads == 1) want.insert(want.end(), got.begin(), got.end());
            CHECK(std::ranges::equal(
                got, std::span(want).subspan(groups == 1 ? 0 : got.size(), got.size())));
        }
}

static void check_scale_channels(Backend& backend, Precision precision) {
    const bool halves = precision == Precision::kBf16;
    for (const Shape& shape : {Shape{1, 1, 1, 1}, {3, 5, 7, 33}, {2, 9, 8, 64}, {2, 3, 1, 200}}) {
        CAPTURE(shape.text());
        const Shape s_shape{shape.N, 1, 1, shape.C};
        std::vector<float> x = rounded(random_floats(shape.elems(), 1), Precision::kBf16),
                           dy = rounded(random_floats(shape.elems(), 2), Precision::kBf16),
                           s = rounded(random_floats(s_shape.elems(), 3), Precision::kBf16);
        std::vector<double> y(x.size()), dx(x.size()), ds(s.size());
        for (size_t i = 0; i < x.size(); ++i) {
            const size_t at = i / shape.row_elems() * size_t(shape.C) + i % size_t(shape.C);
            y[i] = double(x[i]) * s[at], dx[i] = double(dy[i]) * s[at];
            ds[at] += double(dy[i]) * x[i];
        }
        Guarded got_y(x.size()), got_dx(dy), got_ds(s.size());
        backend.scale_channels(view(x, shape), view(s, s_shape), {got_y.data(), shape});
        const Tensor in_place{got_dx.data(), shape};
        backend.scale_channels_grad(view(x, shape), view(s, s_shape), in_place, in_place,
                                    {got_ds.data(), s_shape});
        CHECK_CLOSE(got_y.span(), y, halves ? 0x1p-8 : 1e-6);
        CHECK_CLOSE(got_dx.span(), dx, halves ? 0x1p-8 : 1e-6);
        CHECK_CLOSE(got_ds.span(), ds, sum_tolerance(shape.H * shape.W) + (halves ? 0.05 : 0));
    }
    backend.scale_channels({nullptr, 0, 2, 2, 4}, {nullptr, 0, 1, 1, 4}, {nullptr, 0, 2, 2, 4});
    float v[8] = {};
    const Tensor x{v, 1, 1, 2, 4};
    CHECK_THROWS_AS(backend.scale_channels(x, {v, 1, 1, 1, 3}, x), Error);
}

TEST_CASE("scale_channels and its gradient match their formulas, and dx may be dy") {
    in_both(check_scale_channels);
}

static void check_copy_channels(Backend& backend, Precision) {
    struct {
        int pixels, wide, narrow, first;
    } cases[] = {{1, 1, 1, 0},    {35, 7, 3, 4}, {64, 40, 8, 32}, {1000, 33, 33, 0},
                 {9, 66, 33, 33}, {5, 12, 4, 2}, {50, 2, 1, 1},   {50, 6, 1, 3}};
    for (const auto& c : cases) {
        const Shape wide_shape{c.pixels, 1, 1, c.wide}, narrow_shape{c.pixels, 1, 1, c.narrow};
        std::vector<float> wide = random_floats(wide_shape.elems(), 1);
        std::vector<float> narrow = random_floats(narrow_shape.elems(), 2);
        for (auto* v : {&wide, &narrow})  // with few bits, so that bf16 stores the sums exactly
            for (float& one : *v) one = std::round(16 * one) / 16;
        std::vector<float> want_wide = wide, want_narrow = narrow;
        for (bool add : {false, true})
            for (int row = 0; row < c.pixels; ++row)
                for (int i = 0; i < c.narrow; ++i) {
                    float& a = want_wide[row * c.wide + c.first + i];
                    float& b = want_narrow[row * c.narrow + i];
                    if (add) a = narrow[row * c.narrow + i] + narrow[row * c.narrow + i];
                    if (add) b = narrow[row * c.narrow + i] + 2 * narrow[row * c.narrow + i];
                }
        Guarded to(wide), out(narrow);
        const auto both = [&](Guarded& v, Shape s) { return Tensor(v.data(), s); };
        // Into the wide one, onto it again, and from there onto the narrow one.
        for (bool add : {false, true})
            backend.copy_channels(both(to, wide_shape), {narrow.data(), narrow_shape}, c.first,
                                  add);
        backend.copy_channels(both(out, narrow_shape), both(to, wide_shape), c.first, true);
        CHECK(std::vector<float>(to) == want_wide);
        CHECK(std::vector<float>(out) == want_narrow);
        Guarded fresh(narrow.size());
        backend.copy_channels(both(fresh, narrow_shape), {wide.data(), wide_shape}, c.first);
        for (int row = 0; row < c.pixels; ++row)
            for (int i = 0; i < c.narrow; ++i)
                CHECK(fresh.span()[row * c.narrow + i] == wide[row * c.wide + c.first + i]);
    }
    backend.copy_channels({nullptr, 0, 2, 2, 4}, {nullptr, 0, 2, 2, 3}, 1);
}

TEST_CASE("copy_channels copies a slice of channels there and back, or adds it") {
    in_both(check_copy_channels);
}

static void check_dropout(Backend& backend, Precision precision) {
    const uint64_t seed = 0x123456789abcdefull;
    const std::vector<uint64_t> ids{7, 3'000'000'000'000ull, 7};
    for (int row : {1, 5, 64, 1003}) {
        const std::vector<float> x = rounded(random_floats(3 * size_t(row), 1), precision);
        std::vector<float> want = x;
        for (int n = 0; n < 3; ++n) {
            Random random(seed, 5, ids[n], kLayer + 2);
            for (int i = 0; i < row; ++i)
                want[n * row + i] *= random.uniform() >= 0.3f ? 1 / (1 - 0.3f) : 0.0f;
        }
        Guarded got(x);
        backend.dropout({got.data(), 3, 1, 1, row}, 0.3f, {seed, 5}, ids, kLayer + 2);
        check_stored(got.span(), want, 0, precision, "dropout");
    }
}

TEST_CASE("dropout keeps exactly what the draws of Random say, for each sample by its number") {
    in_both(check_dropout, 3);
}

TEST_CASE("normalise makes of bytes what the loader makes of pixels, and writes nothing else") {
    const auto backend = make_backend(kernel_device(), {.precision = Precision::kBf16});
    const InputStatistics statistics;
    for (const Shape shape : {Shape{1, 1, 1, 3}, {3, 5, 7, 3}, {2, 5, 7, 1}, {2, 200, 300, 3}}) {
        const size_t n = shape.elems();
        std::vector<uint8_t> pixels(n);
        for (size_t i = 0; i < n; ++i) pixels[i] = uint8_t(i * 37);
        std::vector<float> want(n), got(n + 1);
        for (size_t i = 0; i < n; ++i) {
            const int c = int(i) % shape.C;
            want[i] = float(pixels[i]) * statistics.scale(c) + statistics.bias(c);
        }
        auto* there = reinterpret_cast<uint8_t*>(backend->alloc(n));
        const Tensor x(backend->alloc(n + 1), shape), half = backend->alloc(shape, Type::kBfloat16);
        backend->upload(there, pixels.data(), n);
        backend->normalise(there, statistics, x);
        backend->download(got.data(), x.data, (n + 1) * sizeof(float));
        CHECK(got.back() == 0);
        got.pop_back();
        CHECK_CLOSE(got, want, 1e-6);
        backend->normalise(there, statistics, half);
        backend->copy(x, half);
        backend->download(got.data(), x.data, n * sizeof(float));
        CHECK_CLOSE(got, want, 2.7 / 256);
    }
}

TEST_CASE("elementwise ops refuse shapes that do not fit") {
    auto backend = each_backend();
    float data[8] = {};
    const std::vector<uint64_t> two{1, 2};
    CHECK_FAILS(backend->add({data, 1, 1, 1, 4}, {data, 1, 1, 1, 3}), "x is 1x1x1x4, y is 1x1x1x3");
    CHECK_FAILS(backend->copy_channels({data, 1, 1, 1, 4}, {data, 1, 1, 1, 3}, 2),
                "channels from 2");
    CHECK_THROWS_AS(backend->copy_channels({data, 1, 1, 2, 4}, {data, 1, 2, 1, 2}, 0), Error);
    CHECK_THROWS_AS(backend->activate_grad({data, 1, 1, 1, 4}, {data, 2, 1, 1, 4}), Error);
    CHECK_FAILS(backend->dropout({data, 1, 1, 1, 4}, 0.5f, {1, 0}, two, kLayer),
                "sample_ids has 2");
    CHECK_THROWS_AS(backend->dropout({data, 2, 1, 1, 4}, 1.0f, {1, 0}, two, kLayer), Error);
}

TEST_SUITE_END();

}  // namespace convoy
