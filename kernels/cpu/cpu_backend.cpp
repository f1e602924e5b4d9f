#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "kernels/shapes.h"
#include "src/base/clock.h"
#include "src/base/random.h"
#include "src/base/text.h"

namespace convoy {

static constexpr size_t kCopyGrain = 65536;  // floats; for fewer, waking a thread takes longer

CpuBackend::CpuBackend(const BackendOptions& options, const Micro& micro, std::string why)
    : cpu_(options.threads > 0 ? options.threads : available_cores(), micro, options.idle),
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

void CpuBackend::upload(void* device, const void* host, size_t bytes) {
    if (bytes) std::memcpy(device, host, bytes);
}
void CpuBackend::copy(Tensor to, Tensor from) {
    check_copy(to, from);
    with_type(to.type, [&]<class To>(To) {
        with_type(from.type, [&]<class From>(From) {
            To* out = elements<To>(to);
            const From* in = elements<From>(from);
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
    // In bf16: tiles of pairs in L1, with random numbers, because zeros are a quarter faster.
    constexpr int kDepth = 128, kTiles = 512;
    const Micro* pairs = type_ == Type::kBfloat16 ? cpu_.micro.pairs : nullptr;
    const Micro& micro = pairs ? *pairs : cpu_.micro;
    const size_t a = size_t(16) * kRowStride, b = size_t(kDepth) * micro.nr;
    float* const* scratch = cpu_.for_threads(a + b + size_t(micro.mr) * micro.nr);
    for (int t = 0; t < threads() && pairs; ++t) {
        Random random(1, 0, uint64_t(t), kBench);
        auto* to = reinterpret_cast<Bf16*>(scratch[t]);
        for (size_t i = 0; i < 2 * (a + b); ++i) to[i] = random.uniform(-1, 1);
    }
    const auto multiply_tiles = [&](float* from) {
        float* rows[16];
        for (int i = 0; i < micro.mr; ++i) rows[i] = from + a + b + i * micro.nr;
        const TileRegion region(micro);
        for (int i = 0; i < kTiles; ++i)
            micro.tile_by_row[micro.mr](kDepth, from, from + a, {rows, micro.nr});
    };
    const double operations =
        pairs ? 4.0 * micro.mr * micro.nr * kDepth * kTiles : 2.0 * kRounds * kChains * micro.width;
    double best = 0;
    for (int run = 0; run < kRuns; ++run) {
        const auto start = Clock::now();
        cpu_.pool.for_each(threads(), [&](int, int thread) {
            if (pairs)
                multiply_tiles(scratch[thread]);
            else
                scratch[thread][0] = micro.multiply_add_chains(kRounds);
        });
        best = std::max(best, operations * threads() / seconds_since(start));
    }
    return best / 1e9;
}

}  // namespace convoy
