#include <nlohmann/json.hpp>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/micro.h"
#include "src/bench/bench_kernels.h"
#include "tests/support.h"

namespace convoy {

namespace {

// Stands for a GPU: fast, and its memory out of reach. Counts what it multiplies as cuBLAS.
struct FakeGpu final : CpuBackend {
    FakeGpu(const BackendOptions& options, double* flops)
        : CpuBackend({.threads = 1}, pick_micro()), flops(flops), cublas(options.gemm) {}
    bool host_visible() const override { return false; }
    void linear(Tensor x, Tensor w, const float* b, bool relu, Tensor y) override {
        if (cublas == Gemm::kCublas) *flops = 2.0 * x.N * w.N * w.C;
        CpuBackend::linear(x, w, b, relu, y);
    }
    double* flops;
    Gemm cublas;
};

std::string all_of(std::FILE* file) {
    std::rewind(file);
    std::string text;
    for (int c; (c = std::fgetc(file)) != EOF;) text += char(c);
    std::fclose(file);
    return text;
}

}  // namespace

TEST_CASE("bench_kernels on a GPU has cuBLAS do the same products beside it, or says why not") {
    double flops = 0;
    KernelBench options;
    options.device = "cuda", options.seconds = 0, options.json = true;
    options.make = [&](const std::string&, const BackendOptions& with) {
        return std::make_unique<FakeGpu>(with, &flops);
    };
    for (const char* filter : {"tiny conv2d 64x4x4x64", "tiny linear 64x1"}) {
        options.filter = filter;
        options.out = std::tmpfile();
        CHECK(bench_kernels(options) == 1);
        const auto row = nlohmann::json::parse(all_of(options.out));
        CHECK(row["cublas_milliseconds"].get<double>() > 0);
        CHECK(row["rate"].get<double>() * row["milliseconds"].get<double>() * 1e6 ==
              doctest::Approx(flops));
    }
    options.filter = "tiny resize 64x71x95x3";
    options.out = std::tmpfile();
    CHECK(bench_kernels(options) == 1);
    CHECK(nlohmann::json::parse(all_of(options.out))["unit"] == "GB/s");
    for (const char* filter : {"tiny conv2d_grad_x 64x4x4", "tiny conv2d_grad_w 64x4x4"}) {
        options.filter = filter;
        options.out = std::tmpfile();
        CHECK(bench_kernels(options) >= 1);
        CHECK(all_of(options.out).find("percent_of_cublas") != std::string::npos);
    }
    options.make = [&](const std::string&, const BackendOptions& with) {
        if (with.gemm == Gemm::kCublas) fail("cuBLAS cannot be opened: no file");
        return std::make_unique<FakeGpu>(with, &flops);
    };
    options.filter = "tiny linear 64x1", options.json = false, options.out = std::tmpfile();
    CHECK(bench_kernels(options) == 1);
    const std::string table = all_of(options.out);
    CAPTURE(table);
    CHECK(table.find("\nno cuBLAS to compare with: cuBLAS cannot be opened: no file\n") !=
          std::string::npos);
}

TEST_CASE("bench_kernels runs relu, add and the loss by themselves, also on the CUDA kernels") {
    const std::pair<const char*, const char*> rows[] = {{"cpu", "tiny relu 64x4x4x128"},
                                                        {"cpu", "resnet18 add 32x7x7x512"},
                                                        {"simt", "tiny relu_grad 64x4x4x128"},
                                                        {"simt", "tiny softmax_cross_entropy"}};
    for (const auto& [device, filter] : rows) {
        KernelBench options;
        options.device = device, options.threads = 1, options.seconds = 0;
        options.filter = filter, options.json = true, options.out = std::tmpfile();
        CAPTURE(device);
        CAPTURE(filter);
        CHECK(bench_kernels(options) == 1);
        const auto row = nlohmann::json::parse(all_of(options.out));
        CHECK(row["unit"] == "GB/s");
        CHECK(row["percent"].get<double>() > 0);
    }
}

TEST_CASE("bench_kernels prints one object a line for each op of a layer, with rate and percent") {
    TempDir dir;
    std::FILE* out = std::fopen((dir / "rows").c_str(), "w+");
    REQUIRE(out);
    KernelBench options;
    options.device = "cpu", options.threads = 1, options.seconds = 0;
    options.filter = "tiny conv2d", options.json = true, options.out = out;
    const int rows = bench_kernels(options);
    std::rewind(out);
    char line[1024];
    int lines = 0, forward = 0, grad_x = 0;
    while (std::fgets(line, sizeof line, out)) {
        const auto row = nlohmann::json::parse(line);
        CHECK(row["model"] == "tiny");
        CHECK(row["unit"] == "GFLOP/s");
        CHECK(row["milliseconds"].get<double>() > 0);
        CHECK(row["rate"].get<double>() > 0);
        CHECK(row["percent"].get<double>() > 0);
        forward += row["op"] == "conv2d";
        grad_x += row["op"] == "conv2d_grad_x";
        ++lines;
    }
    std::fclose(out);
    CHECK(lines == rows);
    CHECK(forward > 1);
    CHECK(grad_x == forward - 1);    // the first needs no gradient of x
    CHECK(rows == 4 * forward - 1);  // and all are followed by batch norm
}

}  // namespace convoy
