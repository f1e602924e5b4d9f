// The ops at the sizes of real layers: in bf16, on tensor cores, against the plain kernels in fp32.
//
// CONVOY_TEST_SIZES="resnet50:256 vgg16:256" names models and batches, for a GPU; without it a
// small model. A line for each op: "real: resnet50 conv2d 256x56x56x64 to 64, 3x3 pad 1 off by
// 1650e-6".
#include <bit>
#include <cstdio>
#include <functional>
#include <set>

#include "src/base/text.h"
#include "src/model/model.h"
#include "src/model/model_text.h"
#include "tests/device.h"
#include "tests/support.h"

namespace convoy {

namespace {

// The same numbers twice.
struct Twin {
    Tensor half, full;
};

class RealSizes {
 public:
    explicit RealSizes(std::string model)
        : model_(std::move(model)),
          half_(make_backend(kernel_device(), {.threads = 2, .precision = Precision::kBf16})),
          full_(make_backend(kernel_device(), {.threads = 2})) {}

    Shape layers(const std::vector<LayerText>& texts, Shape x) {
        for (const LayerText& text : texts) {
            const size_t blocks = full_->blocks();
            x = layer(text, x);
            full_->release_after(blocks);
        }
        return x;
    }
    int ops() const { return int(seen_.size()); }

 private:
    Shape layer(const LayerText& text, Shape x) {
        const Window window = window_of(text, x);
        if (text.kind == "conv2d") return conv2d(window, text.out, text.groups, x);
        if (text.kind == "batchnorm") return batch_norm(x);
        if (text.kind == "maxpool") return max_pool(window, x);
        if (text.kind == "avgpool") return avg_pool({x.N, text.rows, text.columns, x.C}, x);
        if (text.kind == "flatten") return {x.N, 1, 1, int(x.row_elems())};
        if (text.kind == "linear") return {x.N, 1, 1, text.out};
        Shape y = x;
        for (const auto& branch : text.branches) y = layers(branch, x);
        return y;
    }
    bool begin(const std::string& op, const std::string& shapes) {
        name_ = cat(model_, " ", op, " ", shapes);
        return seen_.insert(name_).second;
    }

    Twin random(Shape s) {
        // Not a multiple of the channels, so that numbers repeat at another channel.
        static const std::vector<float> numbers = random_floats(65'521, 7);
        const Twin twin = empty(s);
        const size_t n = s.elems(), first = std::min(n, numbers.size());
        float* x = twin.full.floats();
        full_->upload(x, numbers.data(), first * sizeof(float));
        for (size_t at = first; at < n; at *= 2) full_->copy(x + at, x, std::min(at, n - at));
        full_->copy(twin.half, twin.full);
        full_->copy(twin.full, twin.half);  // rounded as well
        return twin;
    }
    // For outputs: full of NaN, also if read as bf16.
    Twin empty(Shape s) {
        Twin twin{full_->alloc(s, Type::kBfloat16), full_->alloc(s, Type::kFloat32)};
        full_->fill(static_cast<float*>(twin.half.data), (s.elems() + 1) / 2, kNaNs);
        full_->fill(twin.full.floats(), s.elems(), kNaNs);
        return twin;
    }
    // Floats in both: of outputs that ops add to, of weights of batch norm, and of statistics.
    Twin floats(size_t n, float value) {
        const Shape s{1, 1, 1, int(n)};
        Twin twin{full_->alloc(s, Type::kFloat32), full_->alloc(s, Type::kFloat32)};
        for (const Tensor& x : {twin.half, twin.full}) full_->fill(x.floats(), n, value);
        return twin;
    }

    // Runs the op in both precisions; the relative L2 error of what it wrote.
    using Run = std::function<void(Backend&, Tensor Twin::*)>;
    void compare(const Run& run, std::initializer_list<Twin> outputs) {
        full_->synchronize();
        run(*half_, &Twin::half);
        run(*full_, &Twin::full);
        half_->synchronize();
        double worst = 0;
        for (const Twin& y : outputs) {
            const size_t n = y.full.elems();
            const Tensor off = full_->alloc(y.full.shape(), Type::kFloat32);
            full_->copy(off, y.half);
            full_->axpby(-1, y.full.floats(), 1, off.floats(), n);
            const double error = std::sqrt(squares(off.floats(), n) / squares(y.full.floats(), n));
            if (!(error <= worst)) worst = error;  // a NaN stays
        }
        std::printf("real: %s off by %.0fe-6\n", name_.c_str(), 1e6 * worst);
        CAPTURE(name_);
        CHECK(worst < 1e-2);
    }
    double squares(const float* x, size_t n) {
        float* there = full_->alloc(1);
        full_->sum_squares(x, n, there);
        float sum = NAN;
        full_->download(&sum, there, sizeof sum);
        return sum;
    }
    Moments moments_of(const Twin& mean_rstd, const Twin& sums, Tensor Twin::*in) const {
        return {groups_, 1e-5f, (mean_rstd.*in).floats(), (sums.*in).floats()};
    }

    Shape conv2d(Window window, int K, int groups, Shape xs) {
        const Shape ys{xs.N, window.out_h(xs.H), window.out_w(xs.W), K};
        const Shape ws{K, window.size_h, window.size_w, xs.C / groups};
        const std::string shapes = cat(xs.text(), " to ", K, ", ", window_text(window));
        if (!begin("conv2d", shapes)) return ys;
        set_groups(xs.N);
        const Twin x = random(xs), w = random(ws), y = empty(ys), dx = empty(xs);
        const Twin mean_rstd = floats(2 * size_t(K) * groups_.size(), 0);
        const Twin sums = floats(2 * size_t(K), 0), dw = floats(ws.elems(), 0);
        compare(
            [&](Backend& on, Tensor Twin::*in) {
                const Moments of_y = moments_of(mean_rstd, sums, in);
                on.conv2d(x.*in, w.*in, nullptr, window, false, y.*in, &of_y);
            },
            {y, mean_rstd});
        const Twin dy = random(ys);
        if (xs.C > 3 && begin("conv2d_grad_x", shapes))
            compare(
                [&](Backend& on, Tensor Twin::*in) {
                    on.conv2d_grad_x(dy.*in, w.*in, window, nullptr, dx.*in);
                },
                {dx});
        if (begin("conv2d_grad_w", shapes))
            compare(
                [&](Backend& on, Tensor Twin::*in) {
                    on.conv2d_grad_w(x.*in, dy.*in, window, (dw.*in).as(ws), nullptr);
                },
                {dw});
        return ys;
    }
    Shape batch_norm(Shape s) {
        if (!begin("batch_norm", s.text())) return s;
        set_groups(s.N);
        const size_t C = size_t(s.C);
        const Twin x = random(s), dy = random(s), y = empty(s), dx = empty(s);
        const Twin mean_rstd = floats(2 * C * groups_.size(), 0), sums = floats(2 * C, 0);
        const Twin gamma = floats(C, 1.5f), beta = floats(C, 0.25f), grads = floats(2 * C, 0);
        compare(
            [&](Backend& on, Tensor Twin::*in) {
                on.moments(x.*in, moments_of(mean_rstd, sums, in));
                on.batch_norm(x.*in, groups_, (mean_rstd.*in).floats(), (gamma.*in).floats(),
                              (beta.*in).floats(), nullptr, {}, y.*in);
            },
            {y, mean_rstd});
        begin("batch_norm_grad", s.text());
        compare(
            [&](Backend& on, Tensor Twin::*in) {
                float* dgamma = (grads.*in).floats();
                on.batch_norm_grad(x.*in, y.*in, dy.*in, groups_, (gamma.*in).floats(),
                                   (beta.*in).floats(), {}, (mean_rstd.*in).floats(), dx.*in,
                                   nullptr, dgamma, dgamma + C);
            },
            {dx, grads});
        return s;
    }
    Shape max_pool(Window window, Shape xs) {
        const Shape ys{xs.N, window.out_h(xs.H), window.out_w(xs.W), xs.C};
        const std::string shapes = cat(xs.text(), ", ", window_text(window));
        if (!begin("max_pool", shapes)) return ys;
        const Twin x = random(xs), dy = random(ys), y = empty(ys), dx = empty(xs);
        const Twin places = floats(ys.elems() / 4 + 1, 0);
        const auto argmax = [&](Tensor Twin::*in) {
            return static_cast<uint8_t*>((places.*in).data);
        };
        compare(
            [&](Backend& on, Tensor Twin::*in) { on.max_pool(x.*in, window, y.*in, argmax(in)); },
            {y});
        begin("max_pool_grad", shapes);
        compare(
            [&](Backend& on, Tensor Twin::*in) {
                on.max_pool_grad(dy.*in, argmax(in), window, nullptr, dx.*in);
            },
            {dx});
        return ys;
    }
    Shape avg_pool(Shape ys, Shape xs) {
        const std::string shapes = cat(xs.text(), " to ", ys.H, "x", ys.W);
        if (!begin("avg_pool", shapes)) return ys;
        const Twin x = random(xs), dy = random(ys), y = empty(ys), dx = empty(xs);
        compare([&](Backend& on, Tensor Twin::*in) { on.avg_pool(x.*in, y.*in); }, {y});
        begin("avg_pool_grad", shapes);
        compare([&](Backend& on, Tensor Twin::*in) { on.avg_pool_grad(dy.*in, dx.*in); }, {dx});
        return ys;
    }
    void set_groups(int N) {
        groups_ = {0};
        while (groups_.back() < N) groups_.push_back(std::min(N, groups_.back() + 32));
    }

    static constexpr float kNaNs = std::bit_cast<float>(0x7FC07FC0u);
    const std::string model_;
    const std::unique_ptr<Backend> half_, full_;
    std::set<std::string> seen_;
    std::string name_;
    std::vector<int> groups_;
};

}  // namespace

TEST_CASE("real sizes: ops of whole models in bf16 are as in fp32, to 0.01 in L2" *
          doctest::test_suite("device")) {
    const char* given = std::getenv("CONVOY_TEST_SIZES");
    for (const std::string& what : split(given ? given : "tiny:2", ' ')) {
        const auto words = split(what, ':');
        REQUIRE(words.size() == 2);
        const ModelText text = parse_model(model_text(words[0]), words[0]);
        RealSizes sizes(words[0]);
        sizes.layers(text.layers, {std::stoi(words[1]), text.input.H, text.input.W, 3});
        CHECK(sizes.ops() > 8);
    }
}

}  // namespace convoy
