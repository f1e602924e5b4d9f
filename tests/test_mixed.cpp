// Whole networks in --precision bf16, on the CUDA emulator and the CPU: fp32 weights, and a bf16
// copy of them beside that is never stale; activations in half the memory; losses that follow those
// of fp32.
#include <algorithm>
#include <bit>

#include "src/model/model.h"
#include "tests/device.h"
#include "tests/support.h"

using namespace convoy;

TEST_SUITE_BEGIN("device");

namespace {

// Whatever a layer may do, in eights of channels and beside them.
const char* kNet = R"(input 12
conv2d c1 out 8 size 3 pad 1 bias no
batchnorm b1
relu
residual r
  conv2d c2 out 8 size 3 pad 1 bias no
  batchnorm b2
end
maxpool size 2 stride 2
conv2d c3 out 12 size 3 pad 1
relu
avgpool 2
dropout 0.25
flatten
linear fc1 out 20
relu
linear fc out classes
)";
// Ends in no product, so its logits are activations first.
const char* kPooled = R"(input 12
conv2d c1 out 16 size 3 stride 2 pad 1
relu
residual r relu no
  groupnorm g groups 4
  layernorm n
  pointwise p out 24
  gelu
  pointwise q out 16
  scale s start 0.5
end
excite
  avgpool 1
  conv2d e1 out 1 size 1
  conv2d e2 out 16 size 1
end
conv2d c2 out classes size 1
avgpool 1
flatten
)";

struct Net {
    Net(const char* text, Precision precision, bool training = true,
        const std::string& device = kernel_device())
        : backend(make_backend(device, {.threads = 2, .precision = precision})),
          model(text, {"net", 3, 12, 1, ""}, *backend) {
        activation_bytes = model.plan(kImages, training);
        const Shape shape{kImages, 12, 12, 3};
        input = backend->alloc(shape, backend->activations());
        const Tensor floats = backend->alloc(shape, Type::kFloat32);
        const std::vector<float> pixels = random_floats(shape.elems(), 2);
        backend->upload(floats.data, pixels.data(), pixels.size() * sizeof(float));
        backend->copy(input, floats);
        sums = backend->alloc(BatchSums::kFloats);
    }
    Tensor forward(bool training) {
        return model.forward(input, {training, 3, 0, samples, groups});
    }
    std::vector<float> logits(bool training = false) {
        const Tensor y = forward(training);
        std::vector<float> host(y.elems());
        backend->download(host.data(), y.floats(), host.size() * sizeof(float));
        return host;
    }
    // A step of plain gradient descent; returns the mean loss before it.
    double step() {
        Params& params = model.params();
        backend->fill(params.grads, params.grads_size, 0);
        backend->fill(sums, BatchSums::kFloats, 0);
        const Tensor y = forward(true), dlogits = model.dlogits(kImages);
        backend->softmax_cross_entropy(y, labels, 0, dlogits, sums);
        GradListener nobody;
        model.backward(dlogits, {true, 3, 0, samples, groups}, nobody);
        backend->axpby(-0.1f / kImages, params.grads, 1, params.weights, params.trained_size);
        float loss = 0;
        backend->download(&loss, sums, sizeof loss);
        return loss / kImages;
    }
    std::vector<float> weights() {
        std::vector<float> host(model.params().weights_size);
        backend->download(host.data(), model.params().weights, host.size() * sizeof(float));
        return host;
    }
    void set_weights(const std::vector<float>& host) {
        backend->upload(model.params().weights, host.data(), host.size() * sizeof(float));
    }

    static constexpr int kImages = 6;
    std::unique_ptr<Backend> backend;
    Model model;
    size_t activation_bytes = 0;
    Tensor input;
    float* sums = nullptr;
    const std::vector<uint64_t> samples{1, 2, 3, 4, 5, 6};
    const std::vector<int> groups{0, 3, kImages};
    const std::vector<int32_t> labels{0, 1, 2, 1, 0, 2};
};

}  // namespace

// A number that is rounded is off by 2⁻⁸ of its size at most, and about a dozen ops in a row round
// theirs: 12·2⁻⁸ of a loss of about 1, were all errors to add up.
TEST_CASE("in bf16 the losses of training follow those of fp32, with half the activations") {
    for (const bool cpu : {false, true})
        for (const char* text : {kNet, kPooled}) {
            const std::string device = cpu ? "cpu" : kernel_device();
            CAPTURE(device);
            Net exact(text, Precision::kFp32, true, device),
                is_bf16(text, Precision::kBf16, true, device);
            CHECK(is_bf16.activation_bytes < 0.6 * double(exact.activation_bytes));
            double first = 0, last = 0;
            for (int step = 0; step < 3; ++step) {
                last = exact.step();
                if (step == 0) first = last;
                const double loss = is_bf16.step();
                CAPTURE(step);
                CHECK(std::abs(loss - last) <= 12 * 0x1p-8 * last);
                CHECK(loss != last);
            }
            CHECK(last < first);
        }
}

TEST_CASE("in bf16 the weights are floats, and a run goes on from them with the same bits") {
    for (const std::string& device : {std::string("cpu"), kernel_device()}) {
        Net first(kPooled, Precision::kBf16, true, device);
        Net second(kPooled, Precision::kBf16, true, device);
        first.step();
        const std::vector<float> saved = first.weights();
        const auto is_halved = [](float v) { return (std::bit_cast<uint32_t>(v) & 0xFFFF) == 0; };
        CHECK(std::count_if(saved.begin(), saved.end(), is_halved) < ptrdiff_t(saved.size() / 2));
        second.set_weights(saved);
        CHECK(second.step() == first.step());
        CHECK(second.weights() == first.weights());
    }
}

TEST_CASE("in bf16 products read the weights as they are now, whoever changed them") {
    Net net(kNet, Precision::kBf16, /*training=*/false), fresh(kNet, Precision::kBf16, false);
    const std::vector<float> before = net.logits();
    std::vector<float> changed = net.weights();
    for (float& v : changed) v *= 1.25f;
    net.set_weights(changed);
    const std::vector<float> after = net.logits();
    CHECK(after != before);
    fresh.set_weights(changed);
    CHECK(fresh.logits() == after);
}

TEST_CASE("a model in bf16 refuses an input of floats") {
    Net net(kPooled, Precision::kBf16, false);
    const Tensor floats = net.backend->alloc(net.input.shape(), Type::kFloat32);
    CHECK_FAILS(net.model.forward(floats, {false, 0, 0, {}, {}}), "images of fp32");
}

TEST_SUITE_END();
