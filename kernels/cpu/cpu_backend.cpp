#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "kernels/shapes.h"
#include "src/base/clock.h"
#include "src/base/random.h"
#include "src/base/text.h"

namespace convoy {

namespace {
constexpr size_t kCopyGrain = 65536;  // floats; for fewer, waking a thread takes longer
}

CpuBackend::CpuBackend(const BackendOptions& options, const Micro& micro, std::string why)
    : cpu_(options.threads > 0 ? options.threads : available_cores(), micro),
      conv_(options.conv),
      type_(options.precision == Precision::kBf16 ? Type::kBfloat16 : Type::kFloat32),
      why_(std::move(why)) {
    ENSURE(options.threads >= 0 && options.threads <= 4096, "threads is ", options.threads);
}

std::string CpuBackend::description() const {
    return cat("cpu, ", counted(threads(), "thread"), ", ", cpu_.micro.name,
               type_ == Type::kBfloat16 ? ", activations and products in bf16" : "",
               why_.empty() ? "" : "; ", why_);
}

float* CpuBackend::alloc(size_t elems) { return owned_.emplace_back(elems).data(); }

void CpuBackend::upload(void* device, const void* host, size_t bytes) {
    if (bytes) std::memcpy(device, host, bytes);
}
void CpuBackend::download(void* host, const void* device, size_t bytes) {
    if (bytes) std::memcpy(host, device, bytes);
}
void CpuBackend::copy(Tensor to, Tensor from) {
    check_copy(to, from);
    with_type(to.type, [&]<class To>(To) {
        with_type(from.type, [&]<class From>(From) {
            To* out = numbers<To>(to);
            const From* in = numbers<From>(from);
            cpu_.pool.for_ranges(to.elems(), kCopyGrain, [&](size_t begin, size_t end) {
                std::copy(in + begin, in + end, out + begin);
            });
        });
    });
}

void CpuBackend::copy(float* to, const float* from, size_t elems) {
    cpu_.pool.for_ranges(elems, kCopyGrain, [&](size_t begin, size_t end) {
        std::memcpy(to + begin, from + begin, (end - begin) * sizeof(float));
    });
}
void CpuBackend::fill(float* to, size_t elems, float value) {
    cpu_.pool.for_ranges(elems, kCopyGrain,
                         [&](size_t begin, size_t end) { std::fill(to + begin, to + end, value); });
}

double CpuBackend::measure_peak_gflops() {
    constexpr int kRounds = 60'000, kRuns = 4;  // a run is 0.1 ms with AVX-512 at 3 GHz
    // In bf16: products of tiles from L1, with random numbers, because zeros are a quarter faster.
    constexpr int kSteps = 64, kBlocks = 64, kNumbers = 32 * 256 + 1024;
    float* const* scratch = cpu_.for_threads(1024 + kNumbers / 2);
    const bool tiles = type_ == Type::kBfloat16;
    ptrdiff_t at[kSteps];
    for (int t = 0; t < kSteps; ++t) at[t] = t % 8 * 32;
    for (int t = 0; t < threads() && tiles; ++t) {
        Random random(1, 0, uint64_t(t), kBench);
        auto* to = reinterpret_cast<Bf16*>(scratch[t] + 1024);
        for (int i = 0; i < kNumbers; ++i) to[i] = random.uniform(-1, 1);
    }
    const auto multiply_tiles = [&](float* sums) {
        const auto* a = reinterpret_cast<const Bf16*>(sums + 1024);
        const TileRegion region(cpu_.micro.tiles);
        for (int i = 0; i < kBlocks; ++i)
            cpu_.micro.tiles.multiply(
                {kSteps, a, 256, 16 * 256, 0, at, a + 32 * 256, 0, 512, sums});
    };
    const double operations =
        tiles ? 2.0 * 32 * 32 * 32 * kSteps * kBlocks : 2.0 * kRounds * kChains * cpu_.micro.width;
    double best = 0;
    for (int run = 0; run < kRuns; ++run) {
        const auto start = Clock::now();
        cpu_.pool.for_each(threads(), [&](int, int thread) {
            if (tiles)
                multiply_tiles(scratch[thread]);
            else
                scratch[thread][0] = cpu_.micro.multiply_add_chains(kRounds);
        });
        best = std::max(best, operations * threads() / seconds_since(start));
    }
    return best / 1e9;
}

}  // namespace convoy
