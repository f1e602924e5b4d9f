#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <atomic>
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
    const Micro* pairs = type_ == Type::kBfloat16 ? cpu_.micro.pairs : nullptr;
    const Micro& micro = pairs ? *pairs : cpu_.micro;
    const int rounds = pairs ? 10'000 : 60'000, runs = 4;  // a run takes 0.1 to 0.4 ms
    float* const* numbers = cpu_.for_threads(kPeakNumbers);
    double best = 0;
    for (int run = 0; run < runs; ++run) {
        // Random numbers, because with zeros AMX is a quarter faster. Read as floats or as bf16,
        // they lie between -1 and 1.
        for (int t = 0; t < threads(); ++t) {
            Random random(1, 0, uint64_t(t), kBench);
            auto* to = reinterpret_cast<Bf16*>(numbers[t]);
            for (int i = 0; i < 2 * kPeakNumbers; ++i) to[i] = random.uniform(-1, 1);
        }
        std::atomic<double> multiply_adds = 0;
        const auto start = Clock::now();
        cpu_.pool.for_each(threads(), [&](int, int thread) {
            multiply_adds += micro.multiply_add_chains(rounds, numbers[thread]);
        });
        best = std::max(best, 2 * multiply_adds / seconds_since(start));
    }
    return best / 1e9;
}

}  // namespace convoy
