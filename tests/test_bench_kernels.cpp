// bench kernels: its rows are the ops of a real step, on any device.
#include <set>

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
    } cases[] = {{"cpu", "tiny linear 64x1x1x128 to 1000", "GFLOP/s", 2.0 * 64 * 128 * 1000},
                 {"cpu", "tiny batch_norm 64x4x4x128", "GB/s", 2.0 * 4 * 64 * 4 * 4 * 128},
                 {kernel_device(), "tiny linear_grad_w 2x1x1x128", "GFLOP/s", 2.0 * 2 * 128 * 1000},
                 {kernel_device(), "tiny softmax_cross_entropy 2x", "GB/s", 2.0 * 4 * 2 * 1000}};
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

TEST_CASE("bench_kernels has a row for each op of a step, and counts the layers of each") {
    std::map<std::string, int> layers;
    std::set<std::string> shapes;
    for (const json& row : rows_of("cpu", "tiny ", 8)) {
        layers[row["op"]] += row["layers"].get<int>();
        CHECK(
            shapes.insert(row["op"].get<std::string>() + row["shapes"].get<std::string>()).second);
    }
    // Each convolution is followed by a batch norm, and the first needs no gradient of its input.
    CHECK(layers["conv2d_moments"] == 5);
    CHECK(layers["conv2d_grad_w"] == 5);
    CHECK(layers["conv2d_grad_x"] == 4);
    CHECK(layers["batch_norm_grad"] == 5);
    CHECK(layers["softmax_cross_entropy"] == 1);
    CHECK(layers["check_finite"] == 1);
    CHECK(layers["sgd"] > 0);
    const auto blocks = rows_of("cpu", "resnet18 batch_norm_grad 2x7x7x512", 2);
    REQUIRE(blocks.size() == 1);
    CHECK(blocks[0]["layers"] == 5);
}

}  // namespace convoy
