#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "kernels/backend.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/support.h"

namespace convoy {

TEST_CASE("make_backend takes the threads asked for and names what it cannot give") {
    CHECK(make_backend("cpu", {.threads = 3})->threads() == 3);
    CHECK(make_backend("cpu")->threads() == available_cores());
    CHECK(available_cores() >= 1);
    CHECK(available_cores() <= available_cpus());
    CHECK(make_backend("simt", {.threads = 3})->threads() == 3);
    CHECK_FAILS(make_backend("cuda:999"), "--device cuda:999");
    for (const char* wrong : {"cuda:", "cuda:x", "cuda:-1", "cuda0", "simt:0", "cpu:1"})
        CHECK_FAILS(make_backend(wrong), "cannot be '");
    CHECK_FAILS(make_backend("gpu"), "--device cannot be 'gpu'");
    CHECK_THROWS_AS(make_backend("cpu", {.threads = -1}), Error);
}

TEST_CASE("count_cores counts hyperthreads of one core once, and processors without a list") {
    TempDir folder;
    const auto put = [&](int cpu, const char* siblings) {
        const std::string topology = folder / cat("cpu", cpu, "/topology");
        std::filesystem::create_directories(topology);
        std::ofstream(topology + "/thread_siblings_list") << siblings << "\n";
    };
    put(0, "0,2"), put(1, "1,3"), put(2, "0,2"), put(3, "1,3"), put(4, "4-5"), put(5, "4-5");
    const auto count = [&](std::vector<int> cpus) { return count_cores(cpus, folder.path()); };
    CHECK(count({0, 1, 2, 3, 4, 5}) == 3);
    CHECK(count({0, 2}) == 1);
    CHECK(count({2, 3, 5}) == 3);
    CHECK(count({0, 2, 6, 7}) == 3);  // 6 and 7 have no list
    CHECK(count_cores(std::vector{0, 1, 2}, folder / "none") == 3);
}

TEST_CASE("ThreadPool does each task once, and what a thread does not come to others take") {
    for (int threads : {1, 2, 5}) {
        ThreadPool pool(threads);
        for (int n : {0, 1, 3, 64}) {
            std::vector<int> done(n, 0);
            std::atomic<int> others{0};
            pool.for_each(n, [&](int task, int thread) {
                CHECK_UNARY(thread >= 0 && thread < threads);
                ++done[task];
                if (task > 0) ++others;
                while (task == 0 && threads > 1 && others < n - 1) std::this_thread::yield();
            });
            CHECK(std::count(done.begin(), done.end(), 1) == n);
        }
        for (size_t n : {size_t(0), size_t(7), size_t(1000)}) {
            std::vector<std::atomic<int>> seen(n);
            pool.for_ranges(n, 16, [&](size_t begin, size_t end) {
                for (size_t i = begin; i < end; ++i) ++seen[i];
            });
            CHECK(std::count(seen.begin(), seen.end(), 1) == std::ptrdiff_t(n));
        }
    }
}

TEST_CASE("memory that the system does not have is told in GB, with the options to lower") {
    for (const char* text : {" GB", "--batch", "--size", "--accumulate"})
        CHECK_FAILS(Memory(size_t(200'000'000'000'000) / 4), text);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("ThreadPool ends the threads that it has if the system allows no more, and says so") {
    const TightLimit limit(RLIMIT_AS, 1ull << 33);  // room for some thousand stacks
    CHECK_FAILS(ThreadPool(9'000), " of 9000 threads can be created");
}
#endif

TEST_CASE("ThreadPool keeps up over many short jobs, and wakes after a rest") {
    ThreadPool pool(3);
    std::atomic<int> count{0};
    for (int job = 0; job < 2000; ++job) {
        // A share of the jobs finds the workers asleep: yielding outlasts their short spin.
        if (job % 100 == 0)
            for (int i = 0; i < 300; ++i) std::this_thread::yield();
        pool.for_each(3, [&](int, int) { ++count; });
    }
    CHECK(count == 6000);
}

TEST_CASE(
    "ThreadPool gives its caller the error of a task, does the other tasks and stays usable") {
    for (int threads : {1, 2, 5}) {
        ThreadPool pool(threads);
        for (int n : {1, 2, 64}) {
            std::atomic<int> others{0};
            const auto fail_at = [&](int task, int) {
                ENSURE(task != n / 2, "task ", task);
                ++others;
            };
            const std::string want = cat("task ", n / 2);
            CHECK_FAILS(pool.for_each(n, fail_at), want);
            CHECK(others == n - 1);
            CHECK_THROWS_AS(pool.for_each(n, [&](int, int) { fail("each"); }), Error);
            pool.for_each(n, [&](int, int) { ++others; });
            CHECK(others == 2 * n - 1);
        }
    }
}

TEST_CASE("subnormal numbers are 0 in every thread of the CPU's ops, and not in their caller") {
    constexpr float kTiny = 0x1p-130f;
    for (int threads : {1, 2, 3}) {
        const auto backend = make_backend("cpu", {.threads = threads});
        for (int n : {100, 300'000}) {  // less than a thread is woken for, and enough for all
            std::vector<float> x(size_t(n), kTiny), y = x;
            backend->add({x.data(), 1, 1, 1, n}, {y.data(), 1, 1, 1, n});
            CHECK(std::count(x.begin(), x.end(), 0.0f) == n);
        }
        volatile float tiny = kTiny;
        CHECK(tiny * 2 == 2 * kTiny);
    }
    float seen = 0;
    ThreadPool(1).for_each(1, [&](int, int) {
        volatile float tiny = kTiny;
        seen = tiny * 2;
    });
    CHECK(seen == 2 * kTiny);  // other pools keep them: the emulator of GPUs has one
}

TEST_CASE("a gradient cannot take the place of its mask") {
    const auto backend = make_backend("cpu");
    float dx[4] = {}, dy[4] = {}, w[1] = {};
    const uint8_t argmax[4] = {};
    const Tensor DX(dx, {1, 2, 2, 1}), DY(dy, {1, 2, 2, 1}), W(w, {1, 1, 1, 1});
    const Window window = Window::square(1);
    CHECK_THROWS_AS(backend->conv2d_grad_x(DY, W, window, DX, DX), Error);
    CHECK_THROWS_AS(backend->max_pool_grad(DY, argmax, window, DX, DX), Error);
    backend->conv2d_grad_x(DY, W, window, Tensor(), DX);
}

}  // namespace convoy
