// src/mini/mini.cpp: its gradients and its update in this process, its losses as a program.
#include <future>

#include "src/checkpoint/safetensors.h"
#include "tests/data_files.h"
#include "tests/jobs.h"
#include "tests/pictures.h"

#define ASIO_STANDALONE
#define ASIO_SEPARATE_COMPILATION  // net/asio.cpp has its functions
#define main mini_main
#include "src/mini/mini.cpp"
#undef main

// src/mini/mini.cu, as the emulator runs it.
namespace mini::gpu {
struct Shape {
    int N, H, W, C;
};
Floats conv2d(const Floats& x, Shape s, const Floats& filters, int K);
Floats conv2d_grad(const Floats& x, Shape s, const Floats& filters, const Floats& dy, int K,
                   Floats& dfilters);
Floats batch_norm(const Floats& x, Shape s, const Floats& gamma, const Floats& beta,
                  Floats& moments, Floats& variances);
Floats batch_norm_grad(const Floats& x, Shape s, const Floats& gamma, const Floats& moments,
                       const Floats& dy, Floats& dgamma, Floats& dbeta);
Floats relu_max_pool(const Floats& x, Shape s, std::vector<int>& winners);
Floats relu_max_pool_grad(const Floats& y, const Floats& dy, const std::vector<int>& winners);
Floats linear(const Floats& x, Shape s, const Floats& weights, const Floats& bias, int K);
Floats softmax_cross_entropy(const Floats& x, const std::vector<int>& labels, int K,
                             Floats& losses);
void update(Floats& w, Floats& v, const Floats& g, float images, float lr, float decay);
}  // namespace mini::gpu

using namespace convoy;

namespace {

mini::Tensor random_tensor(int N, int H, int W, int C, uint64_t seed) {
    mini::Tensor x{N, H, W, C};
    x.floats = random_floats(x.floats.size(), seed);
    return x;
}

// Checks gradient[i] = ∂loss/∂x[i] by central differences, at some i.
void check_gradient(std::vector<float>& x, const std::vector<float>& gradient,
                    const std::function<double()>& loss, const std::string& what,
                    float reach = 1e-2f) {
    REQUIRE(x.size() == gradient.size());
    for (size_t i = 0; i < x.size(); i += std::max<size_t>(x.size() / 37, 1)) {
        const float at = x[i];
        x[i] = at + reach;
        const double above = loss();
        x[i] = at - reach;
        const double below = loss();
        x[i] = at;
        CAPTURE(what, i);
        CHECK(gradient[i] ==
              doctest::Approx((above - below) / (2.0 * reach)).epsilon(0.01).scale(1));
    }
}

// A loss with the gradient dy: the sum of dy · y.
double product(const mini::Tensor& dy, const mini::Tensor& y) {
    return std::inner_product(y.floats.begin(), y.floats.end(), dy.floats.begin(), 0.0);
}

// 38 photos of three classes, of many sizes; one is a strip.
void write_photos(const std::string& folder) {
    Random random(1, 0, 0, kTest);
    for (int i = 0; i < 38; ++i) {
        const int H = 60 + int(random.below(140)), W = i == 7 ? 900 : 60 + int(random.below(140));
        Image image{H, W, {}};
        const double phase = random.uniform(0, 6), fine = 5 + 4 * (i % 3);
        for (int h = 0; h < H; ++h)
            for (int w = 0; w < W; ++w)
                for (int c = 0; c < 3; ++c)
                    image.pixels.push_back(
                        uint8_t(128 + 90 * std::sin(h / fine + phase) * std::cos(w / (fine + c)) +
                                random.uniform(-20, 20)));
        put(cat(folder, "/class", i % 3, "/", 100 + i, ".jpg"), encoded(image));
    }
}

std::string mini_path() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "mini";
}

// What rank 0 prints.
std::string run_mini(const TempDir& folder, int world, const std::string& words) {
    const uint16_t port = free_port();
    std::vector<std::future<int>> ranks;
    for (int rank = 0; rank < world; ++rank)
        ranks.push_back(std::async(std::launch::async, [=, &folder] {
            const std::string own = rank == 0 ? words : cat("--data ", folder / "photos");
            return shell(cat(mini_path(), " --coord ", at(port), " --world ", world, " --rank ",
                             rank, " ", own, " >", folder / cat("mini", rank), " 2>&1"));
        }));
    for (std::future<int>& rank : ranks) CHECK(rank.get() == 0);
    return read_file(folder / "mini0");
}

std::vector<double> losses(const std::string& printed) {
    std::vector<double> all;
    for (const std::string& line : split(printed, '\n'))
        if (const size_t at = line.find("loss "); at != line.npos)
            all.push_back(std::stod(line.substr(at + 5)));
    return all;
}

}  // namespace

TEST_CASE("mini: gradients of the layers match finite differences") {
    const int K = 5;
    mini::Tensor x = random_tensor(2, 4, 6, 3, 1), dy = random_tensor(2, 4, 6, K, 2);
    SUBCASE("convolution") {
        std::vector<float> w = random_floats(K * 9 * 3, 3), dw(w.size());
        const mini::Tensor dx = mini::conv2d_grad(x, w.data(), dy, dw.data());
        const auto loss = [&] { return product(dy, mini::conv2d(x, w.data(), K)); };
        check_gradient(x.floats, dx.floats, loss, "dx");
        check_gradient(w, dw, loss, "dw");
    }
    SUBCASE("batch norm") {
        mini::Tensor moments;
        mini::Tensor dz = random_tensor(2, 4, 6, 3, 4);
        std::vector<float> gamma = random_floats(3, 5), beta = random_floats(3, 6), sums(6);
        const auto run = [&] {
            return mini::batch_norm(x, gamma.data(), beta.data(), moments, &sums[0], &sums[3]);
        };
        run();
        std::vector<float> dgamma(3), dbeta(3);
        const mini::Tensor dx =
            mini::batch_norm_grad(x, gamma.data(), moments, dz, dgamma.data(), dbeta.data());
        const auto loss = [&] { return product(dz, run()); };
        check_gradient(x.floats, dx.floats, loss, "dx");
        check_gradient(gamma, dgamma, loss, "dgamma");
        check_gradient(beta, dbeta, loss, "dbeta");
    }
    SUBCASE("relu and max pool") {
        std::vector<size_t> winners;
        const mini::Tensor small = random_tensor(2, 2, 3, 3, 7);
        const auto run = [&] {
            mini::Tensor y = x;
            mini::relu(y);
            return std::pair(mini::max_pool(y, winners), y);
        };
        const mini::Tensor y = run().second;
        mini::Tensor dx = mini::max_pool_grad(x, winners, small);
        mini::relu_grad(y, dx);
        check_gradient(
            x.floats, dx.floats, [&] { return product(small, run().first); }, "dx", 1e-4f);
    }
    SUBCASE("mean and linear") {
        const mini::Tensor dz = random_tensor(2, 1, 1, K, 8);
        std::vector<float> w = random_floats(K * 3, 9), b = random_floats(K, 10), dw(w.size()),
                           db(K);
        const mini::Tensor dx = mini::linear_grad(x, w.data(), dz, dw.data(), db.data());
        const auto loss = [&] { return product(dz, mini::linear(x, w.data(), b.data(), K)); };
        check_gradient(x.floats, dx.floats, loss, "dx");
        check_gradient(w, dw, loss, "dw");
        check_gradient(b, db, loss, "db");
    }
    SUBCASE("softmax and cross-entropy") {
        mini::Tensor logits = random_tensor(2, 1, 1, K, 11);
        const std::vector<int> labels = {3, 0};
        float sums[3] = {};
        const mini::Tensor dx = mini::softmax_cross_entropy(logits, labels, sums);
        CHECK(sums[2] == 2);
        const auto loss = [&] {
            float now[3] = {};
            mini::softmax_cross_entropy(logits, labels, now);
            return double(now[0]);
        };
        check_gradient(logits.floats, dx.floats, loss, "dx");
    }
}

TEST_CASE("mini: the gradient of the whole network, in buckets that cover each number once") {
    mini::Network net(3, 1);
    const mini::Tensor x = random_tensor(6, 32, 32, 3, 1);
    const std::vector<int> labels = {0, 1, 2, 1, 0, 2};
    const auto loss = [&] {
        float sums[3] = {};
        mini::softmax_cross_entropy(net.forward(x), labels, sums);
        return double(sums[0]);
    };
    std::vector<int> covered(net.gradients.size());
    const mini::Tensor dy = mini::softmax_cross_entropy(net.forward(x), labels, net.sums());
    net.backward(dy, [&](std::span<float> bucket) {
        for (float& one : bucket) ++covered[size_t(&one - net.gradients.data())];
    });
    CHECK(std::ranges::count(covered, 1) == std::ssize(covered));
    // Along the gradient itself, the loss rises by its square.
    double square = 0;
    const size_t n = net.trainable;
    for (size_t i = 0; i < n; ++i) square += double(net.gradients[i]) * net.gradients[i];
    const std::vector<float> start = net.weights, gradient = net.gradients;
    const double reach = 3e-4 / std::sqrt(square);
    const auto along = [&](double part) {
        for (size_t i = 0; i < n; ++i) net.weights[i] = float(start[i] + part * gradient[i]);
        return loss();
    };
    CHECK((along(reach) - along(-reach)) / (2 * reach) == doctest::Approx(square).epsilon(0.02));
}

TEST_CASE("mini: the update is that of SGD with momentum and weight decay") {
    mini::Network net(2, 1);
    net.sums()[2] = 4;  // images
    const auto set = [&](const mini::Param& p) {
        net.weights[p.at] = 2, net.gradients[p.at] = 8;
        if (p.at < net.trainable) net.velocities[p.at] = 1;
    };
    for (const mini::Param& p : net.params) set(p);
    mini::update(net, 0.5f);
    for (const mini::Param& p : net.params) {
        CAPTURE(p.name);
        const bool mean = contains(p.name, "running"),
                   decays = contains("conv1.weight fc.weight", p.name);
        const double v = 0.9 + 8 / 4 + (decays ? 5e-4 * 2 : 0);
        if (contains(p.name, "conv") && !decays) continue;
        CHECK(net.weights[p.at] == doctest::Approx(mean ? 0.9 * 2 + 0.1 * 2 : 2 - 0.5 * v));
    }
}

TEST_CASE("mini: the CUDA kernels compute what mini.cpp computes, on the emulator") {
    using mini::Floats;
    namespace gpu = mini::gpu;
    const int N = 3, H = 6, W = 10, C = 5, K = 7;
    const gpu::Shape s{N, H, W, C};
    const mini::Tensor x = random_tensor(N, H, W, C, 1);
    const double tolerance = sum_tolerance(N * H * W * 9, 4);
    SUBCASE("convolution") {
        const Floats w = random_floats(K * 9 * C, 2);
        const mini::Tensor dy = random_tensor(N, H, W, K, 3);
        CHECK_CLOSE(gpu::conv2d(x.floats, s, w, K), mini::conv2d(x, w.data(), K).floats, tolerance);
        Floats dw(w.size(), 1), want(w.size(), 1);
        const mini::Tensor dx = mini::conv2d_grad(x, w.data(), dy, want.data());
        CHECK_CLOSE(gpu::conv2d_grad(x.floats, s, w, dy.floats, K, dw), dx.floats, tolerance);
        CHECK_CLOSE(dw, want, tolerance);
    }
    SUBCASE("batch norm") {
        const Floats gamma = random_floats(C, 4), beta = random_floats(C, 5);
        const mini::Tensor dy = random_tensor(N, H, W, C, 6);
        mini::Tensor both;
        Floats means(C), spreads(C), moments, variances, dgamma(C, 1), dbeta(C, 1);
        Floats want_dgamma(C, 1), want_dbeta(C, 1);
        const mini::Tensor y =
            mini::batch_norm(x, gamma.data(), beta.data(), both, means.data(), spreads.data());
        CHECK_CLOSE(gpu::batch_norm(x.floats, s, gamma, beta, moments, variances), y.floats,
                    tolerance);
        CHECK_CLOSE(moments, both.floats, tolerance);
        for (float& one : variances) one *= N;
        CHECK_CLOSE(variances, spreads, tolerance);
        const mini::Tensor dx =
            mini::batch_norm_grad(x, gamma.data(), both, dy, want_dgamma.data(), want_dbeta.data());
        CHECK_CLOSE(gpu::batch_norm_grad(x.floats, s, gamma, moments, dy.floats, dgamma, dbeta),
                    dx.floats, tolerance);
        CHECK_CLOSE(dgamma, want_dgamma, tolerance);
        CHECK_CLOSE(dbeta, want_dbeta, tolerance);
    }
    SUBCASE("relu and max pool") {
        mini::Tensor z = x;
        mini::relu(z);
        std::vector<size_t> winners;
        std::vector<int> places;
        const mini::Tensor y = mini::max_pool(z, winners), dy = random_tensor(N, 3, 5, C, 7);
        mini::Tensor dx = mini::max_pool_grad(z, winners, dy);
        mini::relu_grad(z, dx);
        CHECK(gpu::relu_max_pool(x.floats, s, places) == y.floats);
        CHECK(gpu::relu_max_pool_grad(y.floats, dy.floats, places) == dx.floats);
    }
    SUBCASE("linear and loss") {
        const Floats w = random_floats(K * C, 8), b = random_floats(K, 9);
        const mini::Tensor y = mini::linear(x, w.data(), b.data(), K);
        CHECK_CLOSE(gpu::linear(x.floats, s, w, b, K), y.floats, tolerance);
        const std::vector<int> labels = {6, 0, 3};
        Floats losses;
        float sums[3] = {};
        const mini::Tensor dx = mini::softmax_cross_entropy(y, labels, sums);
        CHECK_CLOSE(gpu::softmax_cross_entropy(y.floats, labels, K, losses), dx.floats, 1e-6);
        CHECK(losses[0] + losses[1] + losses[2] == doctest::Approx(sums[0]));
    }
    SUBCASE("update") {
        mini::Network net(2, 1);
        const mini::Param& p = net.blocks[1].conv;
        net.gradients = random_floats(net.gradients.size(), 10);
        net.velocities = random_floats(net.trainable, 11);
        net.sums()[2] = 4;
        const auto part = [&](Floats& all) { return Floats(&all[p.at], &all[p.at] + p.size()); };
        Floats w = part(net.weights), v = part(net.velocities);
        gpu::update(w, v, part(net.gradients), 4, 0.1f, 0.0005f);
        mini::update(net, 0.1f);
        CHECK_CLOSE(w, part(net.weights), 1e-6);
        CHECK_CLOSE(v, part(net.velocities), 1e-6);
    }
}

TEST_CASE("mini: 20 steps have the losses of the trainer; each reads the other's checkpoint") {
    if (!std::filesystem::exists(mini_path())) {
        MESSAGE("left out, as there is no mini beside these tests: make mini");
        return;
    }
    TempDir folder;
    write_photos(folder / "photos");
    const std::string how =
        cat("--data ", folder / "photos", " --batch 8 --epochs 4 --lr 0.0005 --out ");
    for (int world : {1, 2, 3}) {
        CAPTURE(world);
        const std::string run = folder / cat("run", world),
                          own = folder / cat("mini", world, "run");
        const Words words = typed(how + run +
                                  " --device cpu --threads 1 --bn-group 0 --schedule constant "
                                  "--warmup 0 --log-every 1 --keep 9");
        if (world == 1)
            output_of(words);
        else
            Cluster(folder, world, words,
                    typed(cat("--device cpu --threads 1 --data ", folder / "photos")))
                .end();
        const std::vector<double> want = losses_of(run, {"step"});
        REQUIRE(want.size() == 20);
        check_close(losses(run_mini(folder, world, how + own)), want, 1e-4, "losses");
        // From the trainer's checkpoint mini goes on as if it were its own.
        const std::string from = cat(" --resume ", run, "/step-00000010");
        check_close(losses(run_mini(folder, world, how + own + from)),
                    std::vector(want.begin() + 10, want.end()), 1e-4, "resumed");
        for (const std::string file : {"model", "optim"}) {
            const auto mine = read_safetensors(cat(own, "/step-00000020/", file, ".safetensors"));
            const auto theirs = read_safetensors(cat(run, "/step-00000020/", file, ".safetensors"));
            REQUIRE(mine.tensors.size() == theirs.tensors.size());
            for (const auto& [name, tensor] : theirs.tensors) {
                if (file == "model" || tensor.shape[1] > 1)  // else 1x1 is left out
                    CHECK(mine.tensors.at(name).shape == tensor.shape);
                if (file == "model")
                    check_close(mine.tensors.at(name).values, tensor.values, 1e-3, name);
            }
        }
        const Words eval = {"eval", "--data", folder / "photos", "--device",
                            "cpu",  "--json", "--from"};
        const double loss = json_lines(output_of(eval + Words{run})).at(0)["loss"];
        CHECK(json_lines(output_of(eval + Words{own + "/step-00000020"})).at(0)["loss"] ==
              doctest::Approx(loss).epsilon(1e-3));
    }
    const auto refusal = [&](const std::string& words) {
        const std::string all = cat(mini_path(), " --data ", words, " >", folder / "err");
        CHECK(WEXITSTATUS(shell(all + " 2>&1")) == 1);
        return read_file(folder / "err");
    };
    CHECK(contains(refusal(folder / "none"), "/none"));
    CHECK(contains(refusal("''"), "--data"));
    const std::string photos = folder / "photos";
    CHECK(contains(refusal(photos + " --batch 0"), "--batch"));
    CHECK(contains(refusal(photos + " --epochs abc"), "--epochs"));
    CHECK(contains(refusal(photos + " --world 2 --rank 2"), "--rank"));
    // Another seed, batch or set of photos is another job.
    const std::string resume = cat(" --resume ", folder / "mini1run/step-00000020");
    CHECK(contains(refusal(photos + " --batch 8 --seed 2" + resume), "seed 2"));
    CHECK(contains(refusal(photos + " --batch 9" + resume), "batch 9"));
    CHECK(contains(refusal(photos + " --batch 8 --epochs 4" + resume), "--epochs"));  // done
    std::filesystem::create_directory(folder / "photos/empty");
    CHECK(contains(refusal(photos + " --batch 8" + resume), "empty"));
    CHECK(contains(refusal(cat(photos, " --batch 8 --resume ", folder / "run1/step-00000020")),
                   "empty"));
    std::filesystem::remove(folder / "photos/empty");
    const std::string damaged = folder / "photos/class1/101.jpg";
    std::filesystem::resize_file(damaged, std::filesystem::file_size(damaged) / 2);
    CHECK(
        contains(refusal(photos + " --batch 38 --epochs 1 --out " + std::string(folder / "broken")),
                 damaged));
}

TEST_CASE("mini: ranks compare the names of classes and photos, below --data") {
    TempDir folder;
    for (const char* set : {"a", "b"})
        for (const char* file : {"/hat/1.jpg", "/hat/2.JPG", "/shoe/3.jpeg", "/shoe/no.txt"})
            put(cat(std::string(folder / set), file), "");
    const auto names = [&](const std::string& set) {
        return mini::open_folder(folder / set).names;
    };
    CHECK(mini::open_folder(folder / "a").photos.size() == 3);
    CHECK(names("a") == names("b"));
    CHECK(names("a") == names("b/"));
    std::filesystem::create_directory(folder / "b/coat");
    CHECK(names("a") != names("b"));
    std::filesystem::remove(folder / "b/coat");
    std::filesystem::rename(folder / "b/hat/1.jpg", folder / "b/hat/4.jpg");
    CHECK(names("a") != names("b"));
}

TEST_CASE("mini: rank 0 does not wait for ever for ranks, nor for a silent stranger") {
    const TempDir folder;
    write_photos(folder / "photos");
    for (const bool is_called : {false, true}) {
        CAPTURE(is_called);
        const uint16_t port = free_port();
        std::future<int> rank = std::async(std::launch::async, [&] {
            return shell(cat(mini_path(), " --wait 2 --world 2 --coord ", at(port), " --data ",
                             folder / "photos", " >", folder / "mini0 2>&1"));
        });
        asio::io_context io;
        mini::tcp::socket stranger(io);
        if (is_called)
            stranger = mini::call(io, {asio::ip::address_v4::loopback(), port}, /*limit=*/20);
        CHECK(WEXITSTATUS(rank.get()) == 1);
        const std::string said = read_file(folder / "mini0");
        CHECK((contains(said, "--wait") && contains(said, "--coord")));
        CHECK(contains(said, "127.0.0.1:") == is_called);
    }
}

TEST_CASE("mini: ranks that lose a neighbour, or wait for it in vain, name it, and the step") {
    std::string signal = "KILL";
    int wait = 120;
    SUBCASE("killed") {}
    SUBCASE("stopped") { signal = "STOP", wait = 5; }
    const TempDir folder;
    write_photos(folder / "photos");
    const auto start = [&, port = free_port()](int rank, const char* pid) {
        return cat(mini_path(), " --data ", folder / "photos", " --batch 8 --epochs 100000 --wait ",
                   wait, " --out ", folder / "run", " --coord ", at(port), " --world 3 --rank ",
                   rank, " >", folder / cat("mini", rank), " 2>&1 & ", pid, "=$!; ");
    };
    shell(cat(start(0, "first"), start(1, "victim"), start(2, "last"),
              "for i in $(seq 600); do grep -q 'step 3' ", folder / "mini0",
              " && break; sleep 0.1; done; kill -", signal,
              " $victim; wait $first; one=$?; wait $last; echo $one $? >", folder / "ended",
              "; kill -9 $victim 2>/dev/null"));
    CHECK(read_file(folder / "ended") == "1 1\n");
    // The survivor that ends first has lost rank 1. The other one may lose that survivor.
    const std::string first = read_file(folder / "mini0"), last = read_file(folder / "mini2");
    CAPTURE(cat(first, last));
    CHECK((contains(first, "rank 1, a neighbour") || contains(last, "rank 1, a neighbour")));
    for (const std::string& said : {first, last})
        CHECK((contains(said, "error: step ") && contains(said, "a neighbour, is lost")));
    CHECK(contains(first + last, "--wait") == (signal == "STOP"));
}
