// Whole networks, forward and backward: against finite differences, against PyTorch, and against
// themselves without fusion and without sharing of memory.
#include <algorithm>
#include <numeric>

#include "src/checkpoint/weights.h"
#include "src/model/model.h"
#include "tests/support.h"

using namespace convoy;

namespace {

// A model with a batch, and what one pass over it gives.
struct Net {
    Net(const std::string& text, int N, ModelOptions options = {}, int max_batch = 0,
        int bn_group = 0)
        : N(N), backend(make_backend("cpu", {.threads = 2})), model(text, options, *backend) {
        model.plan(max_batch ? max_batch : N, true);
        x = random_floats(size_t(N) * model.input().elems(), 11);
        for (int n = 0; n < N; ++n) samples.push_back(1000 + n);
        groups = {0};
        while (groups.back() < N)
            groups.push_back(bn_group ? std::min(N, groups.back() + bn_group) : N);
        if (N == 0) groups = {0, 0};
    }
    Pass pass(bool training = true) const {
        return {.training = training, .draws = {5, 1}, .samples = samples, .groups = groups};
    }
    std::vector<float> forward(bool training = true) {
        const auto [H, W, C] = model.input();
        const Tensor y = model.forward({x.data(), N, H, W, C}, pass(training));
        return {y.floats(), y.floats() + y.elems()};
    }
    // Gradients of Σ coefficients · logits.
    std::vector<std::string> backward() {
        struct Order : GradListener {
            std::vector<std::string> names;
            void ready(const Param& param) override { names.push_back(param.name); }
        } order;
        Tensor dlogits = model.dlogits(N);
        const std::vector<float> c = random_floats(dlogits.elems(), 12);
        std::copy(c.begin(), c.end(), dlogits.floats());
        model.backward(dlogits, pass(), order);
        return order.names;
    }
    double loss() {
        const std::vector<float> y = forward(), c = random_floats(y.size(), 12);
        return std::inner_product(y.begin(), y.end(), c.begin(), 0.0);
    }
    std::vector<float> grad(const std::string& name) {
        const Param* param = model.params().find(name);
        return {param->grad.floats(), param->grad.floats() + param->shape.elems()};
    }

    int N;
    std::unique_ptr<Backend> backend;
    Model model;
    std::vector<float> x;
    std::vector<uint64_t> samples;
    std::vector<int> groups;
};

double norm(const std::vector<float>& x) {
    return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}
// |a − b| / |b|
double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
    std::vector<float> difference(a.size());
    for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
    const double error = norm(difference), scale = norm(b);
    return error == 0 ? 0 : error / scale;
}

// Every kind of layer, each way of fusing, both kinds of shortcut, an odd window.
const char* kAll = R"(input 10
conv2d a out 4 size 3x2 stride 1x2 pad 1x0
relu
conv2d b out 6 size 3 pad 1 bias no
batchnorm bb
relu
maxpool size 2 stride 1
residual r
  conv2d c out 6 size 3 pad 1 bias no
  batchnorm d
  relu
  conv2d e out 6 size 1 bias no
  batchnorm f
end
residual s
  conv2d c out 5 size 3 stride 2 pad 1
  relu
  conv2d d out 5 size 1
shortcut
  conv2d e out 5 size 1 stride 2 bias no
  batchnorm f
end
avgpool 2
flatten
dropout 0.25
linear g out 7
relu
dropout 0.5
linear h out classes
)";

}  // namespace

TEST_CASE("the gradient of a network with every kind of layer matches finite differences") {
    Net net(kAll, 4, {.classes = 3, .seed = 2}, 0, /*bn_group=*/2);
    net.forward();
    net.backward();
    size_t checked = 0, kinks = 0;
    for (Param* param : net.model.params().all()) {
        if (param->running) continue;
        CAPTURE(param->name);
        const std::vector<float> grad = net.grad(param->name);
        for (size_t i = 0; i < grad.size(); i += 1 + grad.size() / 12) {
            float& w = param->value.floats()[i];
            const float start = w;
            const auto slope = [&](float step) {
                w = start + step;
                const double up = net.loss();
                w = start - step;
                const double down = net.loss();
                w = start;
                return (up - down) / (2 * double(step));
            };
            // A relu or a maximum that switches within the step makes the two slopes differ.
            const double wide = slope(4e-3f), narrow = slope(2e-3f);
            const double tolerance = 4e-3 * (1 + std::abs(narrow));
            if (std::abs(wide - narrow) > tolerance) {
                ++kinks;
                continue;
            }
            CAPTURE(i);
            CHECK(std::abs(grad[i] - narrow) <= 2 * tolerance);
            ++checked;
        }
    }
    CHECK(checked > 120);
    CHECK(kinks < checked / 4);
}

TEST_CASE("params are ready from the back of the arena to the front, each trained one once") {
    Net net(kAll, 2, {.freeze = "bb,r.c"});
    net.forward();
    const std::vector<std::string> order = net.backward();
    std::vector<std::string> expected;
    for (Param* param : net.model.params().all())
        if (!param->running && !param->frozen) expected.insert(expected.begin(), param->name);
    CHECK(order == expected);
}

TEST_CASE("below the first trained layer nothing runs backward") {
    Net net(kAll, 2, {.freeze = "a,b,bb,r.c,r.d"});
    net.forward();
    CHECK(net.backward().back() == "r.e.weight");
    CHECK(net.grad("r.e.weight") != std::vector<float>(36, 0));
}

// A random network of the language: anything after anything, so far as it fits.
static std::string random_layers(Random& random, int depth, int& name, int layers, bool body) {
    std::string text;
    for (int i = 0; i < layers; ++i) {
        const uint64_t kind = random.below(body ? 7 : 9);
        const std::string id = cat("n", name++);
        if (kind < 2) {
            const uint64_t size = 1 + 2 * random.below(2);
            text += cat("conv2d ", id, " out 4 size ", size, " pad ", size / 2,
                        random.below(2) ? " bias no\n" : "\n");
        } else if (kind < 4) {
            text += "relu\n";
        } else if (kind == 4) {
            text += cat("batchnorm ", id, "\n");
        } else if (kind == 5) {
            text += "dropout 0.25\n";
        } else if (kind == 6 && depth < 2) {
            text += cat("residual ", id, "\n",
                        random_layers(random, depth + 1, name, 1 + int(random.below(4)), true));
            if (random.below(2))
                text += "shortcut\n" +
                        random_layers(random, depth + 1, name, 1 + int(random.below(3)), true);
            text += "end\n";
        } else if (kind == 7) {
            text += random.below(2) ? "maxpool size 2\n" : "maxpool size 3 stride 1 pad 1\n";
        } else if (kind == 8) {
            text += random.below(2) ? "avgpool 4\n" : "avgpool 3x5\n";
        }
    }
    return text;
}

TEST_CASE("random networks: fusion, work in place and shared memory change nothing") {
    int nets = 0;
    for (uint64_t seed = 0; seed < 250; ++seed) {
        CAPTURE(seed);
        Random random(seed, 0, 0, kTest);
        int name = 0;
        std::string text = "input 9\n";
        if (random.below(3)) text += "conv2d first out 4 size 3 stride 2 pad 1\n";
        text += random_layers(random, 0, name, 2 + int(random.below(7)), false);
        text += random.below(2) ? "flatten\n" : "avgpool 1\n";
        if (random.below(2)) text += "dropout 0.25\n";
        text += "linear x out 5\n";
        if (random.below(2)) text += "relu\n";
        if (random.below(2)) text += "dropout 0.5\n";
        text += "linear y out classes\n";
        ModelOptions options{.name = "net", .classes = 3, .seed = seed};
        if (random.below(3) == 0) options.freeze = cat(random.below(3));
        ModelOptions plain = options;
        plain.plain = true;
        CAPTURE(text);
        try {
            Net check(text, 1, options);
        } catch (const Error&) {
            continue;  // a pool on an image that has become too small, branches that differ
        }
        ++nets;
        Net fused(text, 3, options, 4, 2), unfused(text, 3, plain, 4, 2);
        CHECK(relative_error(fused.forward(), unfused.forward()) < 1e-4);
        CHECK(fused.backward() == unfused.backward());
        for (Param* param : fused.model.params().all()) {
            CAPTURE(param->name);
            if (!param->frozen)
                CHECK(relative_error(fused.grad(param->name), unfused.grad(param->name)) < 2e-3);
        }
        CHECK(relative_error(fused.forward(false), unfused.forward(false)) < 1e-4);
    }
    CHECK(nets > 80);
}

TEST_CASE("an evaluation plan gives the logits of a training plan in evaluation") {
    Net net(kAll, 3, {.seed = 9});
    auto backend = make_backend("cpu");
    Model model(kAll, {.seed = 9}, *backend);
    model.plan(5, false);
    const Pass pass = net.pass(false);
    const Tensor y = model.forward({net.x.data(), 3, 10, 10, 3}, pass);
    CHECK_CLOSE((std::vector<float>(y.floats(), y.floats() + y.elems())), net.forward(false), 1e-5);
    CHECK_THROWS_AS(model.forward({net.x.data(), 3, 10, 10, 3}, net.pass(true)), Error);
    CHECK_THROWS_AS(model.forward({net.x.data(), 6, 10, 10, 3}, pass), Error);
}

TEST_CASE("frozen layers keep their params, statistics too, and the others train as before") {
    const char* text =
        "input 6\nconv2d a out 4 size 3\nbatchnorm b\nrelu\nconv2d c out 4 size 3\nrelu\n"
        "avgpool 1\nlinear d out classes\n";
    Net frozen(text, 3, {.seed = 4, .freeze = "2"}), all(text, 3, {.seed = 4});
    std::vector<float> before(frozen.model.params().weights,
                              frozen.model.params().weights + frozen.model.params().weights_size);
    frozen.forward();
    frozen.backward();
    CHECK(std::equal(before.begin(), before.end(), frozen.model.params().weights));
    // Frozen batch norm uses mean 0 and variance 1, its statistics, in training as in evaluation.
    CHECK_CLOSE(frozen.forward(true), all.forward(false), 1e-6);
    for (Param* param : frozen.model.params().all())
        CHECK(param->frozen == (param->name[0] == 'a' || param->name[0] == 'b'));
    CHECK(norm(frozen.grad("c.weight")) > 0);
}

TEST_CASE("batch norm leaves the sums of its statistics where the running params' gradients are") {
    Net net("input 4\nbatchnorm n\navgpool 1\nlinear f out classes\n", 4, {}, 0, 2);
    net.forward();
    for (int c = 0; c < 3; ++c) {
        double sum_mean = 0, sum_var = 0;
        for (int group = 0; group < 2; ++group) {
            double mean = 0, var = 0;
            for (int i = 0; i < 32; ++i) mean += net.x[(group * 32 + i) * 3 + c] / 32.0;
            for (int i = 0; i < 32; ++i)
                var += std::pow(net.x[(group * 32 + i) * 3 + c] - mean, 2) / 31.0;
            sum_mean += 2 * mean, sum_var += 2 * var;
        }
        CHECK(net.grad("n.running_mean")[c] == doctest::Approx(sum_mean).epsilon(1e-4));
        CHECK(net.grad("n.running_var")[c] == doctest::Approx(sum_var).epsilon(1e-4));
    }
}

TEST_CASE("a batch smaller than planned gives what a plan of its own size gives") {
    Net large(kAll, 2, {.seed = 3}, 7), exact(kAll, 2, {.seed = 3});
    CHECK(large.forward() == exact.forward());
    large.backward();
    exact.backward();
    for (Param* param : exact.model.params().all())
        CHECK(relative_error(large.grad(param->name), exact.grad(param->name)) < 1e-6);
}

TEST_CASE("an empty batch adds nothing to any gradient and still reports every param") {
    Net net(kAll, 0, {}, 3), other(kAll, 3, {});
    std::fill_n(net.model.params().grads, net.model.params().updated_size, 0.5f);
    CHECK(net.forward().empty());
    CHECK(net.forward(false).empty());
    other.forward();
    CHECK(net.backward() == other.backward());
    for (Param* param : net.model.params().all())
        CHECK(net.grad(param->name) == std::vector<float>(param->shape.elems(), 0.5f));
}

// ---- against PyTorch -------------------------------------------------------------------------
//
// The same network in torch.nn (torch 2.15, in double precision on the CPU), its tensors filled
// with pattern(name, i) of their flat OIHW order (+1 for scales and variances); logits in
// evaluation and in training, and of each gradient of Σ pattern("c")·logits the norm and the
// product with pattern("g").

static float pattern(const std::string& name, size_t i) {
    return float(double((i * 7919 + hash_bytes(name) % 100003) % 1009) / 1009 - 0.5);
}

const char* kTwin = R"(input 16
conv2d conv1 out 8 size 5x3 stride 2x1 pad 2x1
batchnorm bn1
relu
maxpool size 3 stride 2 pad 1
residual layer1
  conv2d conv1 out 8 size 3 pad 1 bias no
  batchnorm bn1
  relu
  conv2d conv2 out 8 size 3 pad 1 bias no
  batchnorm bn2
end
residual layer2
  conv2d conv1 out 12 size 3 stride 2 pad 1 bias no
  batchnorm bn1
  relu
  conv2d conv2 out 12 size 3 pad 1 bias no
  batchnorm bn2
shortcut
  conv2d downsample.0 out 12 size 1 stride 2 bias no
  batchnorm downsample.1
end
avgpool 2x3
flatten
linear fc1 out 10
relu
linear fc2 out classes
)";

struct GoldenGrad {
    const char* name;
    double norm, product;
};
const std::vector<float> kEval = {1.595714,  -3.445143, 0.813398,   -4.227459,
                                  1.163483,  -8.223225, -0.2825403, -9.669248,
                                  0.7533421, -7.932599, -0.5147707, -9.200712};
const std::vector<float> kTrain = {-0.1369614, -0.8629046, -0.6375365, -1.36348,
                                   -0.6732596, -1.043394,  -1.350423,  -1.720558,
                                   0.1709009,  -1.035718,  -0.2911851, -1.497804};
const GoldenGrad kGrads[] = {
    {"conv1.weight", 7.075632, 1.242325},
    {"conv1.bias", 3.634815e-16, 3.694325e-17},
    {"bn1.weight", 0.9721385, -0.09475261},
    {"bn1.bias", 0.5862957, 0.03096558},
    {"layer1.conv1.weight", 5.157201, 1.194917},
    {"layer1.bn1.weight", 0.2465298, 0.01782674},
    {"layer1.bn1.bias", 0.3686562, -0.01632461},
    {"layer1.conv2.weight", 3.885647, -0.4239161},
    {"layer1.bn2.weight", 0.9745146, 0.4326467},
    {"layer1.bn2.bias", 0.4729649, 0.02593464},
    {"layer2.conv1.weight", 3.331525, -0.141399},
    {"layer2.bn1.weight", 0.3779816, 0.05225506},
    {"layer2.bn1.bias", 0.5460482, 0.1560339},
    {"layer2.conv2.weight", 2.938375, 0.1159478},
    {"layer2.bn2.weight", 0.6932374, -0.1140449},
    {"layer2.bn2.bias", 0.5470821, -0.1797199},
    {"layer2.downsample.0.weight", 3.011068, 0.9568484},
    {"layer2.downsample.1.weight", 0.5457081, -0.08317509},
    {"layer2.downsample.1.bias", 0.5470821, -0.1797199},
    {"fc1.weight", 3.233224, -0.9303731},
    {"fc1.bias", 0.323114, 0.01221973},
    {"fc2.weight", 3.339423, -0.1304182},
    {"fc2.bias", 0.6537037, 0.1557322},
};

TEST_CASE("logits and gradients of a residual network equal PyTorch's") {
    Net net(kTwin, 3, {.classes = 4});
    for (size_t i = 0; i < net.x.size(); ++i) net.x[i] = 4 * pattern("x", i);
    SafeTensors weights = export_weights(net.model, *net.backend);
    for (auto& [name, tensor] : weights.tensors) {
        const bool norm =
            name.find("bn") != std::string::npos || name.find("downsample.1") != std::string::npos;
        const bool one = norm && (name.ends_with(".weight") || name.ends_with(".running_var"));
        for (size_t i = 0; i < tensor.values.size(); ++i)
            tensor.values[i] = pattern(name, i) + float(one);
    }
    import_weights(weights, net.model, *net.backend, /*partial=*/false);
    CHECK_CLOSE(net.forward(false), kEval, 2e-5);  // logits up to 8
    CHECK_CLOSE(net.forward(true), kTrain, 1e-5);

    Tensor dlogits = net.model.dlogits(3);
    for (size_t i = 0; i < dlogits.elems(); ++i) dlogits.floats()[i] = pattern("c", i);
    GradListener nobody;
    net.model.backward(dlogits, net.pass(), nobody);
    // Export turns gradients into PyTorch's layout as it does weights.
    for (Param* param : net.model.params().all())
        if (!param->running) std::swap(param->value, param->grad);
    const SafeTensors grads = export_weights(net.model, *net.backend);
    for (auto& [name, golden_norm, golden_product] : kGrads) {
        CAPTURE(name);
        const std::vector<float>& grad = grads.tensors.at(name).values;
        double product = 0;
        for (size_t i = 0; i < grad.size(); ++i) product += grad[i] * pattern("g", i);
        CHECK(std::abs(norm(grad) - golden_norm) < 1e-5 * (1 + golden_norm));
        CHECK(std::abs(product - golden_product) < 2e-5 * (1 + golden_norm));
    }
}
