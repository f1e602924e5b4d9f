// Products of bf16 on the CPU (kernels/cpu/tiles.h): the tile unit of x86 where this machine has
// it, and its twin for each width of vectors, give the same bits; VDPBF16PS gives its own. What
// they are: test_bf16.cpp, test_tensor_cores.cpp.
#include "kernels/cpu/cpu_backend.h"
#include "tests/reference.h"
#include "tests/support.h"

using namespace convoy;

namespace {

std::vector<const Micro*> all_micros() {
    std::vector<const Micro*> all{&micro_base()};
#ifdef __x86_64__
    if (&pick_micro() == &micro_base()) return all;  // the others cannot even be asked for here
    all.push_back(&micro_avx512());
    if (&pick_micro(true) != &micro_avx512()) all.push_back(&pick_micro(true));
#endif
    static const bool said = [&] {
        for (const Micro* micro : all) MESSAGE("products of bf16: ", std::string(micro->name));
        return true;
    }();
    (void)said;
    return all;
}

// Whether it adds in the order of the tile unit.
bool is_in_order(const Micro& micro) { return std::string(micro.name) != "AVX-512 with BF16"; }

// Numbers of sizes from `least` to 1.
std::vector<Bf16> random_halves(size_t n, uint64_t seed, double least = 1) {
    std::vector<Bf16> x(n);
    Random random(seed, 0, 0, kTest);
    for (Bf16& v : x)
        v = random.uniform(-1, 1) * float(std::pow(least, double(random.uniform(0, 1))));
    return x;
}

float flushed(float v) { return std::abs(v) < 0x1p-126f ? std::copysign(0.0f, v) : v; }

// The definition of tiles.h.
float product(const Bf16* a, const TileBlock& block, int t, int j, float c) {
    const Bf16* b = block.b + t * block.b_step + j / 16 * block.b_half + j % 16 * 2;
    float sums[2] = {};
    for (int k = 0; k < 32; ++k)
        sums[k % 2] = flushed(std::fma(flushed(a[k]), flushed(b[k / 2 * 32 + k % 2]), sums[k % 2]));
    return flushed(flushed(c) + flushed(sums[0] + sums[1]));
}

// In double precision: the sum, and that of the sizes, of which each rounding is a part.
std::pair<double, double> sum_and_size(const Bf16* a, const TileBlock& block, int t, int j) {
    const Bf16* b = block.b + t * block.b_step + j / 16 * block.b_half + j % 16 * 2;
    double sum = 0, sizes = 0;
    for (int k = 0; k < 32; ++k) {
        const double one = double(float(a[k])) * double(float(b[k / 2 * 32 + k % 2]));
        sum += one, sizes += std::abs(one);
    }
    return {sum, sizes};
}

}  // namespace

TEST_CASE("a block of tiles has the bits of its definition, on every unit") {
    constexpr int kSteps = 3, kRow = 160;
    for (double least : {1.0, 1e-19, 1e-37}) {
        const auto a = random_halves(32 * kRow, 1, least),
                   b = random_halves(kSteps * 1024, 2, least);
        const std::vector<float> start = random_floats(1024, 3);
        const ptrdiff_t at[kSteps] = {64, 0, 128};
        for (const ptrdiff_t* where : {at, (const ptrdiff_t*)nullptr})
            for (int tiles = 0; tiles < 4; ++tiles)
                for (bool add : {false, true})
                    for (const Micro* micro : all_micros()) {
                        CAPTURE(std::string(micro->name));
                        Guarded sums(start);
                        const TileBlock block{kSteps, a.data(),    kRow,          16 * kRow,
                                              32,     where,       b.data(),      1024,
                                              512,    sums.data(), 1 + tiles / 2, 1 + tiles % 2,
                                              add};
                        {
                            const FlushSubnormals mode;
                            const TileRegion region(micro->tiles);
                            micro->tiles.multiply(block);
                        }
                        size_t wrong = 0;
                        for (int i = 0; i < 16 * block.row_tiles; ++i)
                            for (int j = 0; j < 16 * block.column_tiles; ++j) {
                                float want = add ? start[size_t(i * 32 + j)] : 0;
                                double exact = want, sizes = std::abs(want);
                                for (int t = 0; t < kSteps; ++t) {
                                    const Bf16* row =
                                        &a[size_t(i * kRow + (where ? where[t] : t * 32))];
                                    want = product(row, block, t, j, want);
                                    const auto [sum, size] = sum_and_size(row, block, t, j);
                                    exact += sum, sizes += size;
                                }
                                const float got = sums.data()[i * 32 + j];
                                if (is_in_order(*micro))
                                    wrong += got != want;
                                else  // 32 · kSteps roundings
                                    wrong += std::abs(got - exact) > 32 * kSteps * 0x1p-24 * sizes;
                            }
                        CHECK(wrong == 0);
                    }
    }
}

namespace {

const ConvCase kTileCases[] = {
    {{2, 13, 11, 40}, 33, Window::square(3, 1, 1)}, {{1, 9, 8, 64}, 70, Window::square(3)},
    {{2, 12, 9, 32}, 16, Window::square(3, 2, 1)},  {{2, 7, 9, 33}, 47, Window::square(5, 1, 2)},
    {{1, 30, 29, 3}, 20, Window::square(7, 2, 3)},  {{3, 8, 8, 64}, 200, Window::square(1)},
    {{2, 9, 7, 96}, 64, Window::square(1, 2)},      {{2, 4, 5, 64}, 130, Window::square(3, 1, 1)},
    {{2, 23, 27, 3}, 40, Window::square(11, 4, 2)}, {{3, 9, 8, 1}, 9, Window::square(5, 1, 2)},
    {{1, 7, 6, 32}, 8, Window{2, 4, 3, 1, 1, 2}},   {{1, 50, 45, 32}, 40, Window::square(3, 1, 1)},
};

// All that a convolution and its gradients give: y, dx, dw.
struct Results {
    std::vector<Bf16> y, dx;
    std::vector<float> dw;
};
Results run(const Micro& micro, int threads, const ConvCase& c, bool linear) {
    CpuBackend backend(
        {.threads = threads, .conv = ConvMethod::kDirect, .precision = Precision::kBf16}, micro);
    const Type half = Type::kBfloat16;
    const Shape xs = linear ? Shape{c.x.N * c.x.H, 1, 1, c.x.C * c.x.W} : c.x;
    const Window window = linear ? Window::square(1) : c.window;
    const Shape ws{c.K, window.size_h, window.size_w, xs.C};
    const Shape ys = reference::conv_shape(xs, ws, window);
    auto x = random_halves(xs.elems(), 1), w = random_halves(ws.elems(), 2);
    auto dy = random_halves(ys.elems(), 3);
    std::vector<float> b = random_floats(size_t(c.K), 4);
    Results r{std::vector<Bf16>(ys.elems()), std::vector<Bf16>(xs.elems()),
              std::vector<float>(ws.elems(), 1)};
    const Tensor X(x.data(), xs, half), W(w.data(), ws, half), DY(dy.data(), ys, half);
    const Tensor Y(r.y.data(), ys, half), DX(r.dx.data(), xs, half), DW(r.dw.data(), ws);
    if (linear) {
        backend.linear(X, W, b.data(), true, Y);
        backend.linear_grad_x(DY, W, X, DX);
        backend.linear_grad_w(X, DY, DW, nullptr);
    } else {
        backend.conv2d(X, W, b.data(), window, true, Y, nullptr);
        backend.conv2d_grad_x(DY, W, window, X, DX);
        backend.conv2d_grad_w(X, DY, window, DW, nullptr);
    }
    return r;
}

bool same(const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](Bf16 x, Bf16 y) { return x.bits == y.bits; });
}

}  // namespace

TEST_CASE("products of bf16 have the same bits on every unit, and with any number of threads") {
    for (bool linear : {false, true})
        for (const ConvCase& c : kTileCases) {
            CAPTURE(c.x.text());
            for (const Micro* micro : all_micros()) {
                const Micro& twin_of = is_in_order(*micro) ? micro_base() : *micro;
                const Results first = run(twin_of, 1, c, linear);
                for (int threads : {1, 2, 5}) {
                    CAPTURE(std::string(micro->name));
                    const Results other = run(*micro, threads, c, linear);
                    CHECK(same(other.y, first.y));
                    CHECK(same(other.dx, first.dx));
                    // Of convolutions each thread may sum its own pixels.
                    const Results twin = linear ? first : run(twin_of, threads, c, linear);
                    CHECK(other.dw == twin.dw);
                }
            }
        }
}

TEST_CASE("batch norm and pooling in bf16 have the same bits on every unit") {
    const Type half = Type::kBfloat16;
    for (int C : {64, 300, 37}) {
        const Shape xs{3, 13, 11, C}, ys{3, 6, 5, C};
        const Window window = Window::square(3, 2);
        const auto run = [&](const Micro& micro) {
            CpuBackend backend({.threads = 2, .precision = Precision::kBf16}, micro);
            auto x = random_halves(xs.elems(), 1, 1e-3), dy = random_halves(xs.elems(), 2, 1e-39);
            std::vector<Bf16> all[] = {x, x, x, x, std::vector<Bf16>(ys.elems())};
            std::vector<float> sums(size_t(2 * C), 0), gamma = random_floats(size_t(C), 3);
            std::vector<float> mean_rstd(size_t(2 * C)), dgamma(size_t(2 * C), 0);
            std::vector<uint8_t> argmax(ys.elems());
            const std::vector<int> groups{0, 3};
            const auto tensor = [&](auto& v, Shape s) { return Tensor(v.data(), s, half); };
            const Tensor X = tensor(x, xs), Y = tensor(all[0], xs), DY = tensor(dy, xs);
            const Tensor pooled = tensor(all[4], ys);
            backend.moments(X, {groups, 1e-5f, mean_rstd.data(), sums.data()});
            backend.batch_norm(X, groups, mean_rstd.data(), gamma.data(), sums.data(), DY, true, Y);
            backend.batch_norm_grad(X, Y, DY, groups, gamma.data(), true, mean_rstd.data(),
                                    tensor(all[1], xs), tensor(all[2], xs), dgamma.data(),
                                    dgamma.data() + C);
            backend.max_pool(Y, window, pooled, argmax.data());
            backend.max_pool_grad(pooled, argmax.data(), window, Y, tensor(all[3], xs));
            std::vector<float> floats = mean_rstd;
            floats.insert(floats.end(), dgamma.begin(), dgamma.end());
            for (const auto& part : all) floats.insert(floats.end(), part.begin(), part.end());
            return floats;
        };
        const std::vector<float> first = run(micro_base());
        CHECK(std::count(first.begin(), first.end(), 0.0f) < std::ptrdiff_t(first.size() * 3 / 4));
        for (const Micro* micro : all_micros()) {
            CAPTURE(std::string(micro->name));
            CHECK(run(*micro) == first);
        }
    }
}
