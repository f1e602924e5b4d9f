// The CUDA emulator (kernels/simt): right kernels give what CUDA says, wrong ones an error.
#include <cstdio>

#include "kernels/backend.h"
#include "kernels/simt/runtime.h"
#include "tests/device.h"
#include "tests/simt_kernels.h"
#include "tests/support.h"

namespace convoy {

using simt::launch_wrong;

TEST_CASE("simt: a missing barrier is noticed under every order that was tried") {
    const std::vector<float> x = random_floats(256, 1);
    const std::vector<float> want(x.rbegin(), x.rend());
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        simt::set_seed(seed);
        CHECK(simt::reversed_without_barrier(x) != want);
    }
}

TEST_CASE("simt: a copy from pinned memory is as late as it may be") {
    const auto backend = make_backend("simt", {.threads = 1});
    float *host = backend->alloc_host(1), *x = backend->alloc(1), *y = backend->alloc(1);
    const auto read = [&](const float* there) {
        float value = 0;
        backend->download(&value, there, sizeof value);
        return value;
    };
    *host = 1;
    backend->to_device(host, x, 1);
    *host = 2;  // too early
    backend->copy(y, x, 1);
    CHECK(read(y) == 2);
    *host = 3;
    backend->start_upload(host, x, 1);
    CHECK(read(x) == 2);  // too early
    backend->wait_upload();
    CHECK(read(x) == 3);
}

TEST_CASE("a failed allocation is reported once, and the next op runs" *
          doctest::test_suite("device")) {
    const auto backend = make_backend(kernel_device(), {.threads = 1});
    float* const x = backend->alloc(4);
    CHECK_THROWS_AS(backend->alloc(size_t(1) << 42), Error);
    backend->fill(x, 4, 3);
    std::vector<float> got(4);
    backend->download(got.data(), x, 16);
    CHECK(got == std::vector<float>(4, 3.0f));
    CHECK_THROWS_AS(backend->upload(nullptr, got.data(), 16), Error);
    backend->fill(x, 4, 5);
    backend->download(got.data(), x, 16);
    CHECK(got[3] == 5);
}

TEST_CASE("simt: what CUDA leaves undefined is an error that names kernel, block and thread") {
    const std::pair<const char*, std::vector<const char*>> cases[] = {
        {"barrier",
         {"kernel barrier_in_branch_kernel, block (",
          "thread (0,0,0): waits at the barrier tests/simt_kernels.cu:",
          ", which 7 of 64 threads have reached; thread (7,0,0) has ended"}},
        {"early exit",
         {"kernel early_exit_kernel, block (0,0,0), thread (0,0,0): waits at the barrier tests/",
          "63 of 64 threads have reached; thread (33,0,0) has ended"}},
        {"two barriers", {"kernel two_barriers_kernel", "waits at the barrier"}},
        {"mask",
         {"waits in __shfl_xor_sync at tests/simt_kernels.cu:",
          "for lane 16, but thread (16,0,0) has ended"}},
        {"caller", {"mask 0x0000ffff lacks the caller, lane "}},
        {"source", {"reads from lane 16, which is not in mask 0x0000ffff"}},
        {"threads", {"kernel write_kernel: a block of 1025x1x1 threads; there may be 1 to 1024"}},
        {"grid", {"kernel write_kernel: a grid of 1x65536x1 blocks"}},
        {"no blocks", {"kernel write_kernel: a grid of 0x1x1 blocks"}},
        {"dynamic", {"49156 bytes of dynamic shared memory; this kernel may have 49152"}},
        {"too much", {"cudaErrorInvalidValue"}},
        {"host", {"kernel write_kernel: argument 1 does not point to device memory"}},
        {"graph", {"kernel write_kernel: argument 1 does not point to device memory"}},
        {"no shared", {"has no dynamic shared memory"}},
        {"large shared",
         {"kernel large_shared_kernel, block (0,0,0), thread (",
          "take more than 48 KB, with second 49600 bytes"}},
#ifndef __SANITIZE_ADDRESS__  // there the sanitizer reports it, and goes on
#ifndef __clang__             // which does not check copies of a whole struct, such as float4
        {"misaligned",
         {"kernel misaligned_kernel, block (0,0,0), thread (",
          "misaligned access at tests/simt_kernels.cu:", "which needs a multiple of 16"}},
        {"misaligned shared", {"kernel misaligned_shared_kernel", "misaligned access"}},
#endif
        {"shared bounds",
         {"kernel shared_bounds_kernel, block (0,0,0): a thread wrote up to 64 bytes behind",
          " the 256 bytes of tile"}},
        {"dynamic bounds", {"bytes behind the 256 bytes of dynamic shared memory"}},
#endif
    };
    for (const auto& [what, parts] : cases) {
        const std::string text = error_of([&, what = what] { launch_wrong(what); });
        CAPTURE(what, text);
        for (const char* part : parts) CHECK(contains(text, part));
    }
    // And the emulator goes on as if nothing had been.
    CHECK(simt::sum_through_struct({1, 2, 3}, false) == 6);
}

// Each of these ends the process that runs it, so each gets one of its own.
TEST_CASE("planted: host read" * doctest::skip()) {
    const auto backend = make_backend("simt", {.threads = 1});
    MESSAGE("got ", *const_cast<volatile float*>(backend->alloc(16)));
}
TEST_CASE("planted: host write after another test" * doctest::skip()) {
    float* x = nullptr;
    {
        const auto backend = make_backend("simt", {.threads = 1});
        x = backend->alloc(16);
    }
    *const_cast<volatile float*>(x) = 1;
}
TEST_CASE("planted: global bounds" * doctest::skip()) { launch_wrong("global bounds"); }
TEST_CASE("planted: shared bounds" * doctest::skip()) { launch_wrong("shared bounds"); }
TEST_CASE("planted: dynamic bounds" * doctest::skip()) { launch_wrong("dynamic bounds"); }

// What it printed.
static std::string output_of_planted(const char* what) {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    std::FILE* pipe = popen(cat("'", self, "' -ns '-tc=planted: ", what, "' 2>&1").c_str(), "r");
    REQUIRE(pipe);
    std::string said;
    for (int c; (c = std::fgetc(pipe)) != EOF;) said += char(c);
    CHECK(pclose(pipe) != 0);
    return said;
}

TEST_CASE("simt: a host that touches device memory ends with a message that names the address") {
    for (const char* what : {"host read", "host write after another test"}) {
        const std::string said = output_of_planted(what);
        CAPTURE(said);
        CHECK(contains(said, "simt: the host touched 0x"));
        CHECK(contains(said, "copy with Backend::download or upload first"));
    }
}

TEST_CASE("simt: a kernel that leaves device memory ends with a message that names its thread") {
    const std::string said = output_of_planted("global bounds");
    CAPTURE(said);
    CHECK(contains(said, "kernel write_kernel, block (0,0,0), thread (3,0,0)"));
}

TEST_CASE("simt: device pointers inside of structs reach a kernel, and are checked") {
    CHECK(simt::sum_through_struct({1, 2, 3}, false) == 6);
#if __has_builtin(__builtin_clear_padding)  // else it may be padding, and is not refused
    CHECK_THROWS_WITH_AS(simt::sum_through_struct({1, 2, 3}, true),
                         "kernel struct_kernel: argument 1 does not point to device memory", Error);
#endif
}

#ifdef __SANITIZE_ADDRESS__
TEST_CASE("simt: the sanitizer stops at the first access out of bounds and names its thread") {
    const std::pair<const char*, const char*> cases[] = {
        {"global bounds", "simt: this was kernel write_kernel, block (0,0,0), thread (3,0,0)"},
        {"shared bounds", "simt: this was kernel shared_bounds_kernel, block (0,0,0), thread (63,"},
        {"dynamic bounds", "simt: this was kernel dynamic_bounds_kernel, block (0,0,0), thread (6"},
    };
    for (const auto& [what, want] : cases) {
        const std::string said = output_of_planted(what);
        CAPTURE(said);
        CHECK(contains(said, "AddressSanitizer"));
        CHECK(contains(said, "simt_kernels.cu:"));
        CHECK(contains(said, want));
    }
}
#endif

}  // namespace convoy
