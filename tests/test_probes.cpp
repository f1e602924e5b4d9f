// What instructions of compute capability 9.0 do with counted numbers, on a GPU that has them.
#include <fstream>

#include "tests/device.h"
#include "tests/probe_kernels.h"
#include "tests/support.h"

namespace convoy {

TEST_CASE("probes: wgmma and copies by tensor maps move counted numbers as the PTX manual says") {
    if (!on_gpu() || !cuda::run_probes) return;
    const char* path = std::getenv("CONVOY_PROBES");  // everything goes there, for the emulator
    std::ofstream file(path ? path : "/dev/null");
    for (const cuda::Probe& probe : cuda::run_probes()) {
        CAPTURE(probe.name);
        CHECK(probe.got == probe.want);
        file << probe.name << (probe.got == probe.want ? ": as expected\n" : ": NOT AS EXPECTED\n");
        for (const auto* numbers : {&probe.got, &probe.want}) {
            for (size_t i = 0; i < numbers->size(); ++i)
                file << (*numbers)[i] << (i % 16 == 15 ? '\n' : ' ');
            file << '\n';
        }
    }
    const double mma = make_backend("cuda", {.precision = Precision::kBf16})->measure_peak_gflops();
    MESSAGE("ceilings in bf16, GFLOP/s: mma.sync ", mma, ", wgmma ", cuda::wgmma_peak_gflops());
}

}  // namespace convoy
