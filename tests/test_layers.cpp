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

// No bias where relus would begin at exactly 0. Every kind of layer, each way of fusing, both kinds
// of shortcut, odd windows, branches around, inside and beside of other blocks.
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
branches
|
  conv2d i out 4 size 1x2 pad same dilation 2 bias no
  relu6
  conv2d j out 4 size 3 pad same dilation 2x1 groups 4 bias no
  batchnorm k eps 0.001
  relu
|
  residual t relu no
    conv2d c out 5 size 2 pad same bias no
    elu 0.5
  end
  branches
    maxpool size 2 stride 1 pad same
  |
    conv2d l out 6 size 3 pad 1
  end
end
excite
  avgpool 2x1
  conv2d x1 out 4 size 2x1
  hardswish
  linear x2 out 20
  sigmoid
end
conv2d m out 8 size 3 stride 2 pad 2 dilation 2 groups 4 bias no
leaky_relu 0.25
residual u relu no
  conv2d c out 8 size 1 groups 2 bias no
  batchnorm d
end
residual v relu no
  dropout 0
end
residual w relu no
  conv2d c out 8 size 3 pad 1 groups 8
  layernorm n eps 0.001
  pointwise p out 20
  gelu
  pointwise q out 8 bias no
  scale s start 0.5
end
branches split yes shuffle yes
|
  conv2d y1 out 4 size 3 pad 1 bias no
  batchnorm y2
  relu
end
branches shuffle yes
  conv2d z1 out 6 size 1
|
  conv2d z2 out 6 size 1
  relu
|
  conv2d z3 out 6 size 3 pad 1
  groupnorm z4 groups 3 eps 0.01
end
branches
  avgpool size 2x1 stride 1
  flatten
|
  maxpool size 2x1 ceil yes
  avgpool 2x1
  flatten
end
dropout 0.25
linear g out 7
silu
relu
dropout 0.5
linear h out classes
)";

}  // namespace

TEST_CASE("the gradient of a network with every kind of layer matches finite differences") {
    Net net(kAll, 4, {.classes = 3, .seed = 3}, 0, /*bn_group=*/2);
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

TEST_CASE("--freeze batchnorm freezes the layers of this kind, which keep their statistics") {
    const char* text =
        "input 4\nconv2d a out 3 size 3\nbatchnorm b\nconv2d c out 3 size 1\nbatchnorm "
        "batchnormal\n"
        "avgpool 1\nlinear fc out classes\n";
    Net net(text, 2, {.freeze = "batchnorm,c"});
    for (const Param* p : net.model.params().all())
        CHECK(p->frozen == !(p->name.starts_with("a.") || p->name.starts_with("fc.")));
    CHECK_NOTHROW(Net("input 4\nflatten\nlinear fc out classes\n", 2, {.freeze = "batchnorm"}));
}

TEST_CASE(
    "of branches only those with something to train run backward, if nothing below needs dx") {
    const char* text =
        "input 6\nconv2d a out 4 size 3\nbranches\nconv2d b out 4 size 1\n|\n|\n"
        "conv2d c out 3 size 1\nend\navgpool 1\nlinear d out classes\n";
    Net some(text, 2, {.seed = 3, .freeze = "a,b"}), all(text, 2, {.seed = 3});
    some.forward(), all.forward();
    CHECK(some.backward() == std::vector<std::string>{"d.bias", "d.weight", "c.bias", "c.weight"});
    all.backward();
    CHECK(some.grad("c.weight") == all.grad("c.weight"));
}

// A random network of the language: anything after anything, so far as it fits.
static std::string random_layers(Random& random, int depth, int& name, int layers, bool body) {
    std::string text;
    for (int i = 0; i < layers; ++i) {
        const uint64_t kind = random.below(body ? 9 : 13);
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
            text += random.below(3) ? "dropout 0.25\n" : "dropout 0\n";
        } else if (kind == 6 && depth < 2) {
            text += cat("residual ", id, random.below(2) ? "\n" : " relu no\n",
                        random_layers(random, depth + 1, name, 1 + int(random.below(4)), true));
            if (random.below(2))
                text += "shortcut\n" +
                        random_layers(random, depth + 1, name, 1 + int(random.below(3)), true);
            text += "end\n";
        } else if (kind == 7) {
            const std::string some[] = {"relu6\n",
                                        "leaky_relu 0.3\n",
                                        "elu 0.5\n",
                                        "silu\n",
                                        "sigmoid\n",
                                        "hardswish\n",
                                        "hardsigmoid\n",
                                        "maxpool size 3 stride 1 pad same\n",
                                        "gelu\n",
                                        "layernorm " + id + "\n",
                                        "groupnorm " + id + " groups 2\n",
                                        "scale " + id + " start 0.5\n",
                                        "pointwise " + id + " out 4\n"};
            text += some[random.below(std::size(some))];
        } else if (kind == 12 && depth < 2) {
            text +=
                cat("excite\n", random_layers(random, depth + 1, name, int(random.below(2)), true),
                    "avgpool 1\nconv2d ", id, " out 4 size 1\n",
                    random.below(2) ? "silu\n" : "sigmoid\n", "end\n");
        } else if (kind == 8 && depth < 2 && random.below(3) == 0) {
            const int part = 2 << random.below(2);
            text += cat("conv2d ", id, " out 4 size 1\nbranches split ", part == 2 ? "yes" : "no",
                        " shuffle ", random.below(2) ? "yes\n" : "no\n");
            if (random.below(2))
                text += random_layers(random, depth + 1, name, int(random.below(3)), true) +
                        cat("conv2d ", id, "a out ", part, " size 1\n");
            text += cat("|\n", random_layers(random, depth + 1, name, int(random.below(3)), true),
                        "conv2d ", id, "b out ", part, " size 1\n", random.below(2) ? "relu\n" : "",
                        "end\n");
        } else if (kind == 8 && depth < 2) {
            text += "branches\n";
            for (uint64_t more = 1 + random.below(2); more > 0; --more)
                text += random_layers(random, depth + 1, name, int(random.below(4)), true) + "|\n";
            text += random_layers(random, depth + 1, name, int(random.below(4)), true) + "end\n";
            if (random.below(2))  // or it can be added to nothing
                text += cat("conv2d ", id, " out 4 size 1\n");
        } else if (kind == 9) {
            text += random.below(2) ? "maxpool size 2\n" : "maxpool size 3 stride 1 pad 1\n";
        } else if (kind == 10) {
            text += random.below(2) ? "avgpool 4\n" : "avgpool 3x5\n";
        } else if (kind == 11) {
            text += cat("conv2d ", id, " out 4 size 3 pad same groups ", 1 << random.below(3),
                        random.below(2) ? " dilation 2\n" : "\n");
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
        double largest = 0;  // a bias before a batch norm has a gradient of rounding errors alone
        for (Param* param : unfused.model.params().all())
            if (!param->frozen) largest = std::max(largest, norm(unfused.grad(param->name)));
        for (Param* param : fused.model.params().all()) {
            CAPTURE(param->name);
            if (param->frozen) continue;
            const auto want = unfused.grad(param->name);
            CHECK(relative_error(fused.grad(param->name), want) * norm(want) <=
                  2e-3 * norm(want) + 1e-6 * largest);
        }
        CHECK(relative_error(fused.forward(false), unfused.forward(false)) < 1e-4);
    }
    CHECK(nets > 80);
}

// The filters of the sparse network have zeros between the taps, so its windows are larger.
TEST_CASE("a dilated convolution is one whose filters have zeros between their taps") {
    struct {
        const char *dilated, *sparse;
        int R, S, rows_apart, columns_apart, groups;
    } cases[] = {
        {"size 3 dilation 2", "size 5", 3, 3, 2, 2, 1},
        {"size 3x2 dilation 2x3", "size 5x4", 3, 2, 2, 3, 1},
        {"size 3 dilation 3 stride 2", "size 7 stride 2", 3, 3, 3, 3, 2},
        {"size 2x3 dilation 4x2 stride 2x3", "size 5 stride 2x3", 2, 3, 4, 2, 4},
        {"size 3 dilation 64", "size 129", 3, 3, 64, 64, 4},
    };
    for (const auto& c : cases) {
        CAPTURE(c.dilated);
        const auto text = [&](const char* window) {
            return cat("input 11x9\nconv2d a out 4 size 1\nrelu\nconv2d b out 4 ", window,
                       " pad same groups ", c.groups, "\navgpool 4x3\nflatten\n",
                       "linear d out classes\n");
        };
        Net dilated(text(c.dilated), 3, {.seed = 3}), sparse(text(c.sparse), 3, {.seed = 3});
        const auto of = [](Net& net, const char* name) { return net.model.params().find(name); };
        for (const char* name : {"a.weight", "a.bias", "b.bias", "d.weight", "d.bias"})
            std::copy_n(of(dilated, name)->value.floats(), of(dilated, name)->shape.elems(),
                        of(sparse, name)->value.floats());
        Param *few = of(dilated, "b.weight"), *many = of(sparse, "b.weight");
        const int W = many->shape.W, H = many->shape.H, C = many->shape.C;
        std::vector<size_t> places;  // of the taps of `few` in `many`
        for (int k = 0; k < 4; ++k)
            for (int r = 0; r < c.R; ++r)
                for (int s = 0; s < c.S; ++s)
                    for (int i = 0; i < C; ++i)
                        places.push_back(
                            ((size_t(k) * H + r * c.rows_apart) * W + s * c.columns_apart) * C + i);
        REQUIRE(places.size() == few->shape.elems());
        std::fill_n(many->value.floats(), many->shape.elems(), 0.0f);
        for (size_t i = 0; i < places.size(); ++i)
            many->value.floats()[places[i]] = few->value.floats()[i];
        CHECK_CLOSE(dilated.forward(), sparse.forward(), 1e-5);
        dilated.backward(), sparse.backward();
        for (const char* name : {"a.weight", "a.bias", "b.bias", "d.weight", "d.bias"})
            CHECK(relative_error(dilated.grad(name), sparse.grad(name)) < 1e-5);
        std::vector<float> want, all = sparse.grad("b.weight");
        for (const size_t place : places) want.push_back(all[place]);
        CHECK(relative_error(dilated.grad("b.weight"), want) < 1e-5);
        const auto flops = [](const Net& net) {
            return std::ranges::find(net.model.lines(), "b", &LayerLine::name)->flops;
        };
        CHECK(flops(dilated) * H * W == flops(sparse) * c.R * c.S);
    }
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

TEST_CASE("a batch smaller than planned gives what a plan of its own size gives") {
    Net large(kAll, 2, {.seed = 3}, 7), exact(kAll, 2, {.seed = 3});
    CHECK(large.forward() == exact.forward());
    large.backward();
    exact.backward();
    for (Param* param : exact.model.params().all())
        CHECK(relative_error(large.grad(param->name), exact.grad(param->name)) < 1e-6);
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

// Of Σ pattern("c")·logits. Export turns gradients into PyTorch's layout as it does weights.
static SafeTensors gradients(Net& net) {
    Tensor dlogits = net.model.dlogits(net.N);
    for (size_t i = 0; i < dlogits.elems(); ++i) dlogits.floats()[i] = pattern("c", i);
    GradListener nobody;
    net.model.backward(dlogits, net.pass(), nobody);
    for (Param* param : net.model.params().all())
        if (!param->running) std::swap(param->value, param->grad);
    return export_weights(net.model, *net.backend);
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
        const bool norm = contains(name, "bn") || contains(name, "downsample.1");
        const bool one = norm && (name.ends_with(".weight") || name.ends_with(".running_var"));
        for (size_t i = 0; i < tensor.values.size(); ++i)
            tensor.values[i] = pattern(name, i) + float(one);
    }
    import_weights(weights, net.model, *net.backend, /*partial=*/false);
    CHECK_CLOSE(net.forward(false), kEval, 2e-5);  // logits up to 8
    CHECK_CLOSE(net.forward(true), kTrain, 1e-5);

    const SafeTensors grads = gradients(net);
    for (auto& [name, golden_norm, golden_product] : kGrads) {
        CAPTURE(name);
        const std::vector<float>& grad = grads.tensors.at(name).values;
        double product = 0;
        for (size_t i = 0; i < grad.size(); ++i) product += grad[i] * pattern("g", i);
        CHECK(std::abs(norm(grad) - golden_norm) < 1e-5 * (1 + golden_norm));
        CHECK(std::abs(product - golden_product) < 2e-5 * (1 + golden_norm));
    }
}

// The same of every other kind of layer, and of whole networks of torchvision (0.29, at 64x64,
// without dropout). Weights with n inputs are √(24/n) times their pattern, so that signals keep
// their size. Of all gradients together the norm and the sum of the products with pattern("g" +
// name). In train mode the deep networks multiply rounding errors by a thousand, and relus that
// switch change their gradients by up to 4 %, PyTorch's in fp32 too: there these only tell that
// every layer takes part.
struct Golden {
    const char* name;
    std::vector<float> eval, train;
    struct {
        double norm, product;
    } grads;
};

static void check_golden(const Golden& golden, std::string text, int N, ModelOptions options,
                         bool is_deep = false) {
    CAPTURE(golden.name);
    for (size_t at; (at = text.find("dropout")) != std::string::npos;)
        text.erase(at, text.find('\n', at) + 1 - at);
    Net net(text, N, options);
    for (size_t i = 0; i < net.x.size(); ++i) net.x[i] = 4 * pattern("x", i);
    SafeTensors weights = export_weights(net.model, *net.backend);
    for (auto& [name, tensor] : weights.tensors) {
        const size_t dims = tensor.shape.size(), n = tensor.values.size();
        const float scale = dims > 1 ? std::sqrt(24 / (float(n) / float(tensor.shape[0]))) : 1;
        const bool one = dims == 1 && (name.ends_with(".weight") || name.ends_with("_var"));
        for (size_t i = 0; i < n; ++i) tensor.values[i] = pattern(name, i) * scale + float(one);
    }
    import_weights(weights, net.model, *net.backend, /*partial=*/false);
    CHECK(relative_error(net.forward(false), golden.eval) < 1e-5);
    CHECK(relative_error(net.forward(true), golden.train) < (is_deep ? 1e-3 : 2e-5));

    const SafeTensors grads = gradients(net);
    double square = 0, product = 0;
    for (Param* param : net.model.params().all()) {
        const std::vector<float>& grad = grads.tensors.at(param->name).values;
        for (size_t i = 0; i < grad.size() && !param->running; ++i) {
            square += double(grad[i]) * grad[i];
            product += double(grad[i]) * pattern("g" + param->name, i);
        }
    }
    const double tolerance = is_deep ? 0.1 : 2e-5;
    CHECK(std::sqrt(square) == doctest::Approx(golden.grads.norm).epsilon(tolerance));
    CHECK(std::abs(product - golden.grads.product) < tolerance * golden.grads.norm);
}

TEST_CASE("branches, groups, rectifiers and uneven windows give PyTorch's logits and gradients") {
    const char* text = R"(input 16x14
conv2d a out 8 size 4x3 pad same
leaky_relu 0.3
conv2d b out 8 size 3 stride 2 pad 1 groups 8 bias no
batchnorm bn eps 0.001
relu6
branches
  conv2d c out 6 size 1 groups 2
  elu 0.7
|
|
  maxpool size 3 stride 1 pad 1
  conv2d d out 4 size 3 pad 1
  relu
  branches
    conv2d e out 4 size 1
  |
    avgpool size 3 stride 1 pad 1
  end
end
residual r relu no
  conv2d f out 22 size 1x3 pad 0x1 groups 2
end
maxpool size 2x3 stride 2 ceil yes
branches
  conv2d h out 11 size 3 pad 1 groups 11
  avgpool size 2x3 stride 1x2
  flatten
|
  avgpool 1
end
linear fc1 out 5
leaky_relu 0.2
linear fc2 out classes
)";
    check_golden({"layers",
                  {0.09957146, 0.06264159, -0.3244625, -0.01521411, 0.1016313, 0.1457708,
                   -0.1574212, 0.04747495, 0.1174185, 0.05324375, -0.1843935, -0.1098972},
                  {0.2033209, 0.9317805, -0.6268616, 0.7651513, 0.1862087, 0.9685514, -0.4017762,
                   0.8743139, 0.2330798, 0.9894959, -0.5001691, 0.6876476},
                  {7.081904, -0.7371272}},
                 text, 3, {.classes = 4});
}

TEST_CASE(
    "group norm gives PyTorch's logits and gradients: some groups, one, as many as channels") {
    const char* text = R"(input 10x9
conv2d a out 12 size 3 pad 1 bias no
groupnorm g1 groups 4 eps 0.001
relu
residual r
  conv2d b out 12 size 3 pad 1 bias no
  groupnorm n groups 12
  relu
  conv2d c out 12 size 1 bias no
  groupnorm m groups 1
end
conv2d d out 15 size 3 stride 2 bias no
groupnorm g2 groups 5
silu
avgpool 1
linear fc out classes
)";
    const std::vector<float> logits = {-1.017503,  0.5612621, 1.340813, -0.2402146,
                                       -1.113943,  0.6237879, 1.338457, -0.1410936,
                                       -0.8957352, 0.2983657, 1.312294, -0.1263583};
    check_golden({"groupnorm", logits, logits, {4.248985, -0.4402856}}, text, 3, {.classes = 4});
}

TEST_CASE("networks of torchvision give its logits and gradients from the same weights") {
    const Golden goldens[] = {
        {"mobilenet_v2",
         {-10.17661, -8.591688, -5.235989, -9.859152, -8.148655, -5.049541},
         {-4.595702, -5.574566, -4.935332, -4.52553, -5.24095, -4.519656},
         {5438.997, 155.8517}},
        {"mobilenet_v3_small",
         {1.624331, 4.046428, -4.826096, 1.61615, 3.841516, -4.78511},
         {-0.3828761, 4.069241, -2.765436, -0.512279, 4.540018, -2.326663},
         {38.9498, -17.99346}},
        {"mobilenet_v3_large",
         {-20.51539, -22.90834, 10.4858, -18.84413, -20.24645, 9.453045},
         {-1.943099, 2.365115, 3.642296, -1.675409, 2.956533, 4.007875},
         {1070.502, -255.314}},
        {"efficientnet_b0",
         {207.8067, 33.1613, -88.72069, 156.0888, 28.49157, -64.96066},
         {-1.009217, -3.398552, -4.84858, -0.7509285, -4.137881, -5.9846},
         {1210.558, -265.9581}},
        {"regnet_y_400mf",
         {-40.31816, -24.15675, 28.05135, -34.81671, -18.99021, 21.92364},
         {-2.590826, 1.446341, -0.008946356, -2.266567, 2.187563, -1.254117},
         {3642.396, 657.8569}},
        {"squeezenet1_1",
         {1.284637, 0, 2.269489, 1.289888, 0, 2.224257},
         {1.284637, 0, 2.269489, 1.289888, 0, 2.224257},
         {11.85948, -1.55111}},
        {"densenet121",
         {10.212, 74.79138, -48.00488, 10.19927, 70.52204, -45.54495},
         {4.225619, 3.085243, -3.535453, 3.105088, 2.536372, -3.8963},
         {514.4426, -14.81576}},
        {"convnext_tiny",
         {-4.905519, -0.8164516, -3.494042, -4.905351, -0.8186275, -3.489204},
         {-4.905519, -0.8164516, -3.494042, -4.905351, -0.8186275, -3.489204},
         {64.12994, -16.30009}},
        {"shufflenet_v2_x1_0",
         {6.078715, 18.22195, -12.15141, 6.663466, 21.51667, -13.57385},
         {1.257245, 6.538567, -3.669548, 1.365264, 6.787826, -3.945695},
         {391.191, 18.5943}},
        {"googlenet",
         {-191.2083, -639.8595, -919.0771, -129.1757, -716.9176, -1044.748},
         {-0.5555313, -1.556772, 1.016729, 0.1696051, -2.308628, 0.5033253},
         {2064.233, 797.036}},
    };
    for (const Golden& golden : goldens) {
        const bool is_deep = golden.eval != golden.train;  // without batch norm they are equal
        check_golden(golden, model_text(golden.name), 2,
                     {.name = golden.name, .classes = 3, .size = 64}, is_deep);
    }
}
