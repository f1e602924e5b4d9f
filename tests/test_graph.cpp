// Ops recorded and replayed (kernels/cuda/graph.cu), on the CUDA emulator.
#include "src/step/step_graph.h"

#include <functional>

#include "tests/device.h"
#include "tests/support.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

namespace {

// Device memory of simt, and what stands in it.
struct OnDevice {
    std::unique_ptr<Backend> backend = make_backend(kernel_device(), {.threads = 1});

    float* put(const std::vector<float>& values) {
        float* there = backend->alloc(values.size());
        backend->upload(there, values.data(), values.size() * sizeof(float));
        return there;
    }
    std::vector<float> get(const float* there, size_t n) {
        std::vector<float> values(n);
        backend->download(values.data(), there, n * sizeof(float));
        return values;
    }
};

std::unique_ptr<Recording> recorded(Backend& backend, const std::function<void()>& ops) {
    auto recording = backend.record();
    ops();
    recording->end();
    return recording;
}

}  // namespace

TEST_CASE("a replay does what the ops would do now: with other numbers, labels and sample ids") {
    OnDevice device;
    Backend& backend = *device.backend;
    std::vector<uint64_t> ids = {3, 1};
    std::vector<int32_t> labels = {0, 2}, second = {1, 1};
    std::vector<float> parts = {0.75f, 0.5f};
    Draws draws{1, 0};
    const std::vector<float> start = random_floats(6, 1);
    float *x = device.put(start), *sums = device.put({0, 0, 0}), *dx = device.put(start);
    const Tensor X(x, Shape{2, 1, 1, 3});
    const auto ops = [&] {
        backend.fill(sums, 3, 0);
        backend.dropout(X, 0.5f, draws, ids, 7);
        backend.softmax_cross_entropy(X, labels, 0, {dx, X.shape()}, sums, {second, parts});
        backend.copy(dx, x, 2);
    };
    const auto results = [&] {
        std::vector<float> all = device.get(x, 6);
        for (const auto& more : {device.get(sums, 3), device.get(dx, 6)})
            all.insert(all.end(), more.begin(), more.end());
        return all;
    };
    CHECK(backend.can_record());
    ops();
    const std::vector<float> before = results();
    const auto recording = recorded(backend, ops);
    CHECK(results() == before);  // nothing ran
    for (uint64_t id : {5, 8}) {
        ids[1] = id, labels[0] = int32_t(id % 3), draws.epoch = uint32_t(id);
        second[1] = int32_t(id % 3), parts[0] = 1 / float(id);
        const std::vector<float> now = random_floats(6, id);
        backend.upload(x, now.data(), 6 * sizeof(float));
        REQUIRE(recording->replay());
        const std::vector<float> replayed = results();
        backend.upload(x, now.data(), 6 * sizeof(float));
        ops();
        CHECK(replayed == results());
        CHECK(replayed != before);
    }
}

TEST_CASE("a replay takes the moments of a convolution over the groups as they are now") {
    OnDevice device;
    Backend& backend = *device.backend;
    std::vector<int> bounds = {0, 2, 5};
    const Tensor x(device.put(random_floats(5 * 36 * 2, 1)), 5, 6, 6, 2),
        w(device.put(random_floats(6, 2)), 3, 1, 1, 2),
        y(device.put(random_floats(540, 3)), 5, 6, 6, 3);
    float *kept = device.put(std::vector<float>(12)), *sums = device.put(std::vector<float>(6));
    float* one = device.put({1, 1, 1});
    const auto ops = [&] {
        const Moments of_y{bounds, 1e-5f, kept, sums};
        backend.fill(sums, 6, 0);
        backend.conv2d(x, w, nullptr, Window::square(1), false, y, &of_y);
        backend.batch_norm(y, bounds, kept, one, one, {}, {Activation::kNone}, y);
    };
    const auto results = [&] {
        std::vector<float> all = device.get(y.floats(), 540);
        for (const auto& more : {device.get(kept, 12), device.get(sums, 6)})
            all.insert(all.end(), more.begin(), more.end());
        return all;
    };
    ops();
    const std::vector<float> before = results();
    const auto recording = recorded(backend, ops);
    for (int cut : {1, 4}) {
        bounds[1] = cut;
        REQUIRE(recording->replay());
        const std::vector<float> replayed = results();
        ops();
        CHECK(replayed == results());
        CHECK(replayed != before);
    }
}

TEST_CASE("nothing is replayed once memory that it works in had to grow") {
    OnDevice device;
    Backend& backend = *device.backend;
    const std::vector<float> values(20'000, 1);
    float *x = device.put(values), *y = device.put(values);
    const std::vector<int32_t> one(1), many(1000);
    const auto loss = [&](const std::vector<int32_t>& labels) {
        backend.softmax_cross_entropy({x, Shape{int(labels.size()), 1, 1, 2}}, labels, 0, {}, y);
    };
    loss(one);
    auto recording = recorded(backend, [&] { loss(one); });
    CHECK(recording->replay());
    loss(many);
    CHECK(!recording->replay());
    recording = recorded(backend, [&] { loss(one); });
    CHECK(recording->replay());
}

TEST_CASE("several recordings of a backend do not mix, and one that ended leaves its memory") {
    OnDevice device;
    Backend& backend = *device.backend;
    float *x = device.put({1, 2, 3}), *sums = device.put({0, 0, 0});
    const std::vector<int32_t> first(1, 0), last(1, 2);
    const auto record = [&](const std::vector<int32_t>& labels) {
        return recorded(backend, [&] {
            backend.fill(sums, 3, 0);
            backend.softmax_cross_entropy({x, 1, 1, 1, 3}, labels, 0, {}, sums);
        });
    };
    const auto loss = [&](Recording& recording) {
        REQUIRE(recording.replay());
        return device.get(sums, 1)[0];
    };
    backend.softmax_cross_entropy({x, 1, 1, 1, 3}, first, 0, {}, sums);
    auto a = record(first);
    const auto b = record(last);
    const float of_first = loss(*a), of_last = loss(*b);
    CHECK(of_first == doctest::Approx(of_last + 2));  // the logits are 1, 2, 3
    CHECK(loss(*a) == of_first);
    const size_t bytes = backend.device_bytes();
    a = nullptr;
    a = record(first);
    CHECK(backend.device_bytes() == bytes);
    CHECK(loss(*a) == of_first);
    CHECK(loss(*b) == of_last);
    CHECK_FAILS((void)make_backend("cpu", {.threads = 1})->record(), "device cpu cannot record");
}

TEST_CASE("recording refuses ops that wait, or need memory, and the backend goes on after it") {
    OnDevice device;
    Backend& backend = *device.backend;
    float* x = device.put({1, 2, 3});
    CHECK_THROWS_AS((void)recorded(backend, [&] { device.get(x, 3); }), Error);
    const std::vector<int32_t> labels(1);
    CHECK_FAILS((void)recorded(backend,
                               [&] {
                                   backend.softmax_cross_entropy({x, 1, 1, 1, 3}, labels, 0, {}, x);
                               }),
                "grows from 0 to");
    backend.fill(x, 2, 7);
    CHECK(device.get(x, 3) == std::vector<float>{7, 7, 3});
}

TEST_CASE("a step goes on op by op where a step cannot be recorded, CONVOY_GRAPH=on says so") {
    OnDevice device;
    float* x = device.put({1, 2, 3});
    const Pass pass{};
    const Tensor input{x, Shape{3}};
    const auto step = [&](StepGraph& graph) {
        graph.run(pass, input, [&] {
            device.backend->fill(x, 1, 5);
            device.get(x, 3);
        });
    };
    StepGraph cautious(*device.backend, GraphMode::kAuto), strict(*device.backend, GraphMode::kOn);
    for (int i = 0; i < 4; ++i) {
        device.backend->fill(x, 1, 0);
        step(cautious);
        CHECK(device.get(x, 1) == std::vector<float>{5});
        const std::string why = cautious.take_failure();
        CHECK((why.find("CUDA graph") == 0) == (i == 1));
    }
    step(strict);
    CHECK_FAILS(step(strict), "CONVOY_GRAPH=on");
    CHECK(contains(why_no_graph(*make_backend("cpu", {.threads = 1}), 1), "cpu"));
    CHECK(why_no_graph(*device.backend, 1) == "");
    CHECK(contains(why_no_graph(*device.backend, 2), "other ranks"));
    device.backend->fill(x, 1, 7);  // the stream was given back
    CHECK(device.get(x, 1) == std::vector<float>{7});
}

TEST_SUITE_END();

}  // namespace convoy
