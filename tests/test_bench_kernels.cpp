#include <nlohmann/json.hpp>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/micro.h"
#include "src/base/text.h"
#include "src/bench/bench_kernels.h"
#include "tests/device.h"
#include "tests/support.h"

namespace convoy {

namespace {

// Stands for a GPU: fast, and its memory out of reach. Counts what it multiplies as cuBLAS.
struct FakeGpu final : CpuBackend {
    FakeGpu(const Config& config, double* flops)
        : CpuBackend({.threads = 1}, pick_micro()), flops(flops), cublas(config.gemm) {}
    bool host_visible() const override { return false; }
    void linear(Tensor x, Tensor w, const float* b, bool relu, Tensor y) override {
        if (cublas == Gemm::kCublas) *flops = 2.0 * x.N * w.N * w.C;
        CpuBackend::linear(x, w, b, relu, y);
    }
    double* flops;
    Gemm cublas;
};

// The lines of a bench, as fast as it goes.
template <class... Make>
std::vector<std::string> rows_of(const Config& config, int batch = 0, const Make&... make) {
    std::FILE* file = std::tmpfile();
    const int rows = bench_kernels(config, batch, 0, file, make...);
    std::rewind(file);
    std::string text;
    for (int c; (c = std::fgetc(file)) != EOF;) text += char(c);
    std::fclose(file);
    std::vector<std::string> lines = split(text, '\n');
    lines.pop_back();
    if (config.json) CHECK(int(lines.size()) == rows);
    return lines;
}
Config json_of(const std::string& device, const char* filter) {
    Config config;
    config.device = device, config.filter = filter, config.threads = 1, config.json = true;
    return config;
}

}  // namespace

TEST_CASE("bench_kernels on a GPU has cuBLAS do the same products beside it, or says why not") {
    double flops = 0;
    const MakeBackend make = [&](const Config& config) {
        return std::make_unique<FakeGpu>(config, &flops);
    };
    for (const char* filter : {"tiny conv2d 64x4x4x64", "tiny linear 64x1"}) {
        const auto lines = rows_of(json_of("cuda", filter), 0, make);
        REQUIRE(lines.size() == 1);
        const auto row = nlohmann::json::parse(lines[0]);
        CHECK(row["cublas_milliseconds"].get<double>() > 0);
        CHECK(row["rate"].get<double>() * row["milliseconds"].get<double>() * 1e6 ==
              doctest::Approx(flops));
    }
    for (const char* filter : {"tiny conv2d_grad_x 64x4x4", "tiny conv2d_grad_w 64x4x4"}) {
        const auto lines = rows_of(json_of("cuda", filter), 0, make);
        REQUIRE(lines.size() >= 1);
        CHECK(lines[0].find("percent_of_cublas") != std::string::npos);
    }
    Config config = json_of("cuda", "tiny linear 64x1");
    config.json = false;
    const auto table = rows_of(config, 0, [&](const Config& with) {
        if (with.gemm == Gemm::kCublas) fail("cuBLAS cannot be opened: no file");
        return make(with);
    });
    REQUIRE(table.size() == 4);  // machine, why, titles, one row
    CHECK(table[1] == "no cuBLAS to compare with: cuBLAS cannot be opened: no file");
}

TEST_CASE("bench_kernels runs relu, add and the loss by themselves, also on the CUDA kernels" *
          doctest::test_suite("device")) {
    const std::pair<std::string, const char*> rows[] = {
        {"cpu", "tiny relu 64x4x4x128"},
        {"cpu", "resnet18 add 32x7x7x512"},
        {kernel_device(), "tiny relu_grad 64x4x4x128"},
        {kernel_device(), "tiny softmax_cross_entropy"}};
    for (const auto& [device, filter] : rows) {
        CAPTURE(device);
        CAPTURE(filter);
        const auto lines = rows_of(json_of(device, filter));
        REQUIRE(lines.size() == 1);
        const auto row = nlohmann::json::parse(lines[0]);
        CHECK(row["unit"] == "GB/s");
        CHECK(row["percent"].get<double>() > 0);
    }
}

TEST_CASE("bench_kernels prints one object a line for each op of a layer, with rate and percent") {
    const auto lines = rows_of(json_of("cpu", "tiny conv2d"));
    size_t forward = 0, grad_x = 0;
    for (const std::string& line : lines) {
        const auto row = nlohmann::json::parse(line);
        CHECK(row["model"] == "tiny");
        CHECK(row["unit"] == "GFLOP/s");
        CHECK(row["milliseconds"].get<double>() > 0);
        CHECK(row["rate"].get<double>() > 0);
        CHECK(row["percent"].get<double>() > 0);
        forward += row["op"] == "conv2d";
        grad_x += row["op"] == "conv2d_grad_x";
    }
    CHECK(forward > 1);
    const auto same = rows_of(json_of("cpu", "resnet18 add 32x7x7x512"));
    REQUIRE(same.size() == 1);
    CHECK(nlohmann::json::parse(same[0])["layers"] == 2);  // blocks of that shape
    CHECK(grad_x == forward - 1);                          // the first needs no gradient of x
    CHECK(lines.size() == 4 * forward - 1);                // and all are followed by batch norm
}

TEST_CASE("bench_kernels takes the batch that it is given, and makes no backend without a row") {
    int made = 0;
    double flops = 0;
    const MakeBackend make = [&](const Config& config) {
        ++made;
        return std::make_unique<FakeGpu>(config, &flops);
    };
    const auto lines = rows_of(json_of("cuda", "resnet18 add 3x7x7x512"), 3, make);
    REQUIRE(lines.size() == 1);
    CHECK(nlohmann::json::parse(lines[0])["shapes"] == "3x7x7x512");
    CHECK(made == 2);  // and one with cuBLAS
    CHECK(rows_of(json_of("cuda", "no such op"), 0, make).empty());
    CHECK(made == 2);
}

}  // namespace convoy
