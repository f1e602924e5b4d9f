#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "kernels/shapes.h"
#include "src/base/clock.h"
#include "src/base/text.h"

namespace convoy {

namespace {
constexpr size_t kCopyGrain = 65536;  // floats; less is copied before a second thread is awake
}

CpuBackend::CpuBackend(const BackendOptions& options, const Micro& micro, std::string why)
    : cpu_(options.threads > 0 ? options.threads : available_cpus(), micro),
      conv_(options.conv),
      why_(std::move(why)) {
    ENSURE(options.threads >= 0 && options.threads <= 4096, "threads is ", options.threads);
}

std::string CpuBackend::description() const {
    return cat("cpu, ", counted(threads(), "thread"), ", ", cpu_.micro.name,
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
    copy(to.floats(), from.floats(), from.elems());
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
    float* const* scratch = cpu_.for_threads(1);
    double best = 0;
    for (int run = 0; run < kRuns; ++run) {
        const auto start = Clock::now();
        cpu_.pool.for_each(threads(), [&](int, int thread) {
            scratch[thread][0] = cpu_.micro.multiply_add_chains(kRounds);
        });
        const double operations = 2.0 * kRounds * kChains * cpu_.micro.width * threads();
        best = std::max(best, operations / seconds_since(start));
    }
    return best / 1e9;
}

}  // namespace convoy
