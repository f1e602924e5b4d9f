// bench kernels: its rows are the layers of a real step, on any device.
#include "src/bench/bench.h"
#include "tests/jobs.h"

namespace convoy {

using nlohmann::json;

// The rows of a bench, as fast as it goes.
static std::vector<json> rows_of(const std::string& device, const char* filter, int batch) {
    Config config;
    config.device = device, config.filter = filter, config.threads = 1, config.json = true;
    if (device != "cpu") config.size = 16;  // an emulator is slow
    Quiet out;
    const int count = bench_kernels(config, batch, 0, out.file);
    const std::vector<json> rows = json_lines(out.text());
    CHECK(int(rows.size()) == count);
    return rows;
}

TEST_CASE("bench_kernels times products and passes over memory, also on the CUDA kernels" *
          doctest::test_suite("device")) {
    const struct {
        std::string device;
        const char *filter, *unit;
        double work;  // of a call
    } cases[] = {
        {"cpu", "tiny linear 1000 64x1x1x128 forward", "GFLOP/s", 2.0 * 64 * 128 * 1000},
        {"cpu", "tiny batchnorm + relu 64x4x4x128 backward", "GB/s",
         3.0 * 4 * 64 * 4 * 4 * 128 + 3 * 4 * 2 * 128},
        {kernel_device(), "tiny linear 1000 2x1x1x128 backward", "GFLOP/s", 4.0 * 2 * 128 * 1000},
        {kernel_device(), "tiny loss 2x", "GB/s", 2.0 * 4 * 2 * 1000}};
    for (const auto& [device, filter, unit, work] : cases) {
        CAPTURE(device, filter);
        const auto rows = rows_of(device, filter, device == "cpu" ? 64 : 2);
        REQUIRE(rows.size() == 1);
        CHECK(rows[0]["unit"] == unit);
        CHECK(rows[0]["percent"] > 0);
        CHECK(rows[0]["milliseconds_min"] <= rows[0]["milliseconds"]);
        CHECK(rows[0]["rate"].get<double>() * rows[0]["milliseconds"].get<double>() * 1e6 ==
              doctest::Approx(work));
    }
}

TEST_CASE("bench_kernels has a row for each layer of a step, and counts those that are alike") {
    std::map<std::string, int> layers;
    std::map<std::string, double> flops;
    for (const json& row : rows_of("cpu", "tiny ", 8)) {
        const std::string kind = split(row["op"].get<std::string>(), ' ')[0];
        const std::string name = cat(kind, " ", row["pass"].get<std::string>());
        layers[name] += row["layers"].get<int>();
        flops[name] += row["layers"].get<int>() * row["rate"].get<double>() *
                       row["milliseconds"].get<double>();
    }
    for (const char* name : {"conv2d forward", "conv2d backward", "batchnorm backward"})
        CHECK(layers[name] == 5);
    CHECK(layers["linear backward"] == 1);
    CHECK(layers["loss "] == 1);
    CHECK(layers["update "] == 1);
    // The first convolution has no gradient of its input.
    CHECK(flops["conv2d backward"] > 1.5 * flops["conv2d forward"]);
    CHECK(flops["conv2d backward"] < 2 * flops["conv2d forward"]);
    // A residual block's own time is its batch norm with the shortcut, not the layers inside.
    const auto blocks = rows_of("cpu", "resnet18 batchnorm + shortcut + relu 2x7x7x512 back", 2);
    REQUIRE(blocks.size() == 1);
    CHECK(blocks[0]["layers"] == 2);
    const auto inner = rows_of("cpu", "resnet18 conv2d 512 3x3 pad 1 2x7x7x512 backward", 2);
    REQUIRE(inner.size() == 1);
    CHECK(blocks[0]["milliseconds"] < inner[0]["milliseconds"]);
}

}  // namespace convoy
