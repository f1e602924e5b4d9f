#include <nlohmann/json.hpp>

#include "src/bench_kernels.h"
#include "tests/support.h"

namespace convoy {

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
    CHECK(grad_x == forward - 1);  // the first needs no gradient of x
    CHECK(rows == 3 * forward - 1);
}

}  // namespace convoy
