#include "tests/check_ops.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

namespace {

struct Case {
    int N, C, K;
};
// The fifth needs several blocks of depth and of columns, and fills no block; from 30 images on a
// product may have images for columns, deeper than a group of blocks in the last.
const Case kCases[] = {{1, 1, 1},    {2, 3, 5},    {17, 33, 35}, {16, 64, 32},
                       {5, 700, 67}, {31, 300, 3}, {64, 40, 35}, {30, 2100, 45}};

}  // namespace

TEST_CASE("linear, linear_grad_x and linear_grad_w match the formula in double") {
    auto backend = each_backend(2);
    for (const auto& [N, C, K] : kCases)
        check_linear_in(*backend, Precision::kFp32, {N, 1, 1, C}, K);
    check_linear_in(*backend, Precision::kFp32, {5, 2, 3, 50}, 67);  // images as rows
}

TEST_CASE("linear gives the same bits in every run and the same sums on 1, 2 and 3 threads") {
    for (const int N : {18, 64}) {
        const int C = 600, K = 130;
        std::vector<float> x = random_floats(N * C, 1), w = random_floats(K * C, 2);
        std::vector<float> want;
        for (int threads : {1, 2, 3}) {
            auto backend = make_backend("cpu", {.threads = threads});
            std::vector<float> runs[2];
            for (auto& y : runs) {
                y.resize(N * K);
                backend->linear({x.data(), N, 1, 1, C}, {w.data(), K, 1, 1, C}, nullptr, false,
                                {y.data(), N, 1, 1, K});
            }
            CHECK(runs[0] == runs[1]);
            if (want.empty()) want = runs[0];
            CHECK_CLOSE(runs[0], want, sum_tolerance(C));
        }
    }
}

TEST_CASE("gradients of linear weights have the same bits whatever the number of threads") {
    // Ranks form them from factors, each with the threads it has. 16, 4 and 1 panels of columns.
    for (const auto& [N, C, K] : {Case{128, 512, 100}, Case{32, 128, 128}, Case{300, 3, 7}}) {
        CAPTURE(cat(N, "x", C, " to ", K));
        std::vector<float> x = random_floats(size_t(N) * C, 1),
                           dy = random_floats(size_t(N) * K, 2);
        std::vector<std::vector<float>> dw, db;
        for (int threads : {1, 3, 24}) {
            auto backend = make_backend("cpu", {.threads = threads});
            dw.emplace_back(size_t(K) * C), db.emplace_back(size_t(K));
            backend->linear_grad_w({x.data(), N, 1, 1, C}, {dy.data(), N, 1, 1, K},
                                   {dw.back().data(), K, 1, 1, C}, db.back().data());
        }
        for (size_t i = 1; i < dw.size(); ++i) {
            CHECK(dw[i] == dw[0]);
            CHECK(db[i] == db[0]);
        }
    }
}

TEST_CASE("linear of no images leaves gradients as they are; wrong shapes are refused") {
    auto backend = each_backend();
    std::vector<float> w = random_floats(6, 1), b = random_floats(2, 2);
    Guarded dw(w), db(b);
    backend->linear({nullptr, 0, 1, 1, 3}, {w.data(), 2, 1, 1, 3}, b.data(), true,
                    {nullptr, 0, 1, 1, 2});
    backend->linear_grad_w({nullptr, 0, 1, 1, 3}, {nullptr, 0, 1, 1, 2}, {dw.data(), 2, 1, 1, 3},
                           db.data());
    CHECK(std::vector<float>(dw) == w);
    CHECK(std::vector<float>(db) == b);
    float data[16] = {};
    CHECK_FAILS(
        backend->linear({data, 1, 1, 1, 4}, {data, 2, 1, 1, 3}, nullptr, false, {data, 1, 1, 1, 2}),
        "w is 2x1x1x3, x is 1x1x1x4");
    CHECK_THROWS_AS(
        backend->linear_grad_x({data, 1, 1, 1, 3}, {data, 2, 1, 1, 3}, nullptr, {data, 1, 1, 1, 3}),
        Error);
}

TEST_SUITE_END();

}  // namespace convoy
