// energy.h — the energy that a machine has used, read from counters, and how busy its GPU is.
//
// Tried: fake powercap trees, and a mock of NVML. Not tried: a machine with RAPL, or with a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace convoy {

struct EnergyCounter {
    std::function<uint64_t()> value;  // throws Error
    double joules_per_unit;
    uint64_t largest;  // 0 follows; itself 0: the counter never starts again
    uint64_t last = value();
};

// RAPL: all CPU packages of the machine, from Linux's powercap (Intel and AMD; most systems let
// only root read it). They start again after some 260 kJ, 15 minutes at 290 W: readings must not be
// further apart. Throws Error.
std::vector<EnergyCounter> cpu_packages(const std::string& powercap = "/sys/class/powercap");
// NVML: one GPU. The library comes with the driver and is opened at run time. Throws Error.
std::vector<EnergyCounter> gpu_counter(const std::string& uuid,
                                       const std::string& nvml = "libnvidia-ml.so.1");

struct GpuUse {
    double busy, memory_bytes;  // busy: part of the last second or less in which a kernel ran
};
// Of one GPU and all that use it, by NVML. Throws Error, as what it returns does.
std::function<GpuUse()> gpu_use(const std::string& uuid,
                                const std::string& nvml = "libnvidia-ml.so.1");

// The sum of some counters. When one cannot be read all are given up, with what they have counted:
// a part of the machine, or of the time, would pass for all of it.
class EnergySource {
 public:
    EnergySource() = default;  // not known
    explicit EnergySource(const std::function<std::vector<EnergyCounter>()>& open);
    void read();
    double joules() const { return counters_.empty() ? -1 : joules_; }  // -1: not known
    std::string take_failure() { return std::exchange(failure_, ""); }  // returned once; "": none

 private:
    std::vector<EnergyCounter> counters_;
    double joules_ = 0;  // from the start to the last reading
    std::string failure_;
};

}  // namespace convoy
