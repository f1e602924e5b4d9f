// support.h — shared by all tests: random numbers, tolerances, comparison, temporary folders.
#pragma once

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "src/base/check.h"
#include "src/base/log.h"
#include "src/base/random.h"

// Shows these values if a check fails. doctest's takes one, in a lambda, which cannot capture a
// structured binding before clang 16.
#undef CAPTURE
#define CAPTURE(...) CAPTURE_AS(DOCTEST_ANONYMOUS(captured_), __VA_ARGS__)
#define CAPTURE_AS(name, ...)                        \
    const auto name = ::convoy::listed(__VA_ARGS__); \
    INFO(#__VA_ARGS__ " := ", name)

namespace convoy {

inline std::string listed(const auto&... values) {
    std::string text;
    ((text += text.empty() ? "" : ", ", append(text, values)), ...);
    return text;
}

inline bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != text.npos;
}

// How often `part` stands in the text, side by side.
inline int count_of(std::string_view text, std::string_view part) {
    int count = 0;
    for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++count;
    return count;
}

// How many times as long as on an idle machine something may take if so many threads want to run.
inline double crowding(double threads, unsigned processors = std::thread::hardware_concurrency()) {
    return std::max(threads / std::max(processors, 1u), 1.0);
}
inline double crowding() {
    double in_last_minute = 0;
    return crowding(getloadavg(&in_last_minute, 1) == 1 ? in_last_minute : 0);
}

// Asks again and again until it holds, for so many seconds of an idle machine at most; returns
// whether it does.
inline bool eventually(const auto& holds, double seconds = 20) {
    const auto begin = std::chrono::steady_clock::now();
    while (!holds()) {
        const std::chrono::duration<double> past = std::chrono::steady_clock::now() - begin;
        if (past.count() > seconds && past.count() > seconds * crowding()) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
}

// Checks that the expression throws an Error whose message contains `text`.
#define CHECK_FAILS(expression, text) \
    CHECK_THROWS_WITH_AS(expression, doctest::Contains(std::string(text).c_str()), ::convoy::Error)

// The message of the Error with which `action` ends; "" if it ends well.
inline std::string error_of(const auto& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

// n floats in [-1, 1); the same seed gives the same floats.
inline std::vector<float> random_floats(size_t n, uint64_t seed) {
    Random random(seed, 0, 0, kTest);
    std::vector<float> x(n);
    for (float& v : x) v = random.uniform(-1, 1);
    return x;
}

// The error bound of a float sum of `terms` products of about `scale`: each addition rounds once.
inline double sum_tolerance(double terms, double scale = 1) { return terms * 0x1p-23 * scale; }

// The backend of the running test case, for messages.
inline std::string& current_backend() {
    static std::string name;
    return name;
}

// Checks got ≈ want for each element; a NaN fails. The message has the count and the worst element.
template <class Got, class Want>
void check_close(const Got& got, const Want& want, double tolerance, const std::string& what) {
    REQUIRE(std::size(got) == std::size(want));
    size_t bad = 0, worst = 0;
    double worst_error = -1;
    for (size_t i = 0; i < std::size(want); ++i) {
        const double error = std::abs(double(got[i]) - double(want[i]));
        if (!(error <= tolerance)) ++bad;
        if (!(error <= worst_error)) worst_error = error, worst = i;
    }
    INFO("backend ", current_backend(), ", ", what, ": ", bad, " of ", std::size(want),
         " off by more than ", tolerance, "; worst at ", worst, ": got ",
         std::size(want) ? double(got[worst]) : 0, ", want ",
         std::size(want) ? double(want[worst]) : 0);
    CHECK(bad == 0);
}
#define CHECK_CLOSE(got, want, tolerance) \
    ::convoy::check_close((got), (want), (tolerance), #got " against " #want)

// Floats between 64 sentinels before and after, which must not change. Starts as NaN.
class Guarded {
 public:
    explicit Guarded(size_t n, float start = std::numeric_limits<float>::quiet_NaN())
        : n_(n), all_(n + 2 * kGuard, kSentinel) {
        std::fill_n(data(), n, start);
    }
    explicit Guarded(const std::vector<float>& x) : Guarded(x.size()) {
        std::copy(x.begin(), x.end(), data());
    }
    ~Guarded() {
        bool intact = true;
        for (size_t i = 0; i < kGuard; ++i)
            intact = intact && all_[i] == kSentinel && all_[kGuard + n_ + i] == kSentinel;
        CHECK_MESSAGE(intact, "an operation wrote outside of its output");
    }
    float* data() { return all_.data() + kGuard; }
    std::span<float> span() { return {data(), n_}; }
    operator std::vector<float>() { return {data(), data() + n_}; }

 private:
    static constexpr size_t kGuard = 64;
    static constexpr float kSentinel = 12345.5f;
    size_t n_;
    std::vector<float> all_;
};

// A log, or a file, whose text a test can read, also while other threads write.
struct Quiet {
    std::FILE* file = std::tmpfile();
    Log log{file};
    ~Quiet() { std::fclose(file); }
    std::string text() {
        std::fflush(file);
        // Not by the stream, whose position belongs to the writing threads.
        std::string all(1 << 20, '\0');
        all.resize(size_t(std::max<ssize_t>(0, pread(fileno(file), all.data(), all.size(), 0))));
        return all;
    }
};

// Runs a command line; the status as of wait(), 0 if it ends well.
inline int shell(const std::string& command) { return std::system(command.c_str()); }

// Limits a resource of this process until the end of the scope, or until lift().
class TightLimit {
 public:
    TightLimit(decltype(RLIMIT_AS) resource, rlim_t most) : resource_(resource) {
        REQUIRE(getrlimit(resource, &usual_) == 0);
        const rlimit tight{most, usual_.rlim_max};
        REQUIRE(setrlimit(resource, &tight) == 0);
    }
    ~TightLimit() { lift(); }
    void lift() { setrlimit(resource_, &usual_); }

 private:
    const decltype(RLIMIT_AS) resource_;
    rlimit usual_{};
};

// A new folder, removed at the end of the scope.
class TempDir {
 public:
    TempDir() {
        std::string pattern = (std::filesystem::temp_directory_path() / "convoy-XXXXXX").string();
        REQUIRE(mkdtemp(pattern.data()) != nullptr);
        path_ = pattern;
    }
    ~TempDir() {
        std::error_code ignored;  // a failed test may have left unusual permissions
        std::filesystem::remove_all(path_, ignored);
    }
    const std::filesystem::path& path() const { return path_; }
    std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
    std::filesystem::path path_;
};

}  // namespace convoy
