// energy.cpp — see energy.h.
#include "src/run/energy.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "src/base/check.h"
#include "src/base/number.h"

namespace convoy {

namespace fs = std::filesystem;

static uint64_t read_number(const fs::path& path) {
    errno = 0;
    std::string line;
    if (!std::getline(std::ifstream(path), line))
        fail("cannot read ", path.string(), ": ", errno ? std::strerror(errno) : "it is empty");
    const auto number = to_number<uint64_t>(line);
    if (!number) fail(path.string(), " holds '", line, "' instead of a whole number");
    return *number;
}

// One zone a package: intel-rapl:0. Its parts (intel-rapl:0:0, "core" or "dram"), the platform
// ("psys") and the second way to the same counters (intel-rapl-mmio:0) are left out.
std::vector<EnergyCounter> cpu_packages(const std::string& powercap) {
    std::vector<EnergyCounter> counters;
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(powercap, error)) {
        const fs::path& zone = entry.path();
        std::string name;
        std::getline(std::ifstream(zone / "name"), name);
        if (zone.filename().string().starts_with("intel-rapl:") && name.starts_with("package-"))
            counters.push_back({[file = zone / "energy_uj"] { return read_number(file); }, 1e-6,
                                read_number(zone / "max_energy_range_uj")});
    }
    if (counters.empty())
        fail("no CPU package is listed in ", powercap,
             error ? cat(" (", error.message(), ")") : "");
    return counters;
}

namespace {

// NVML and one GPU of it. The library stays open to the end of the process. Functions are as
// NVML's documentation declares them; each returns a status, 0 where it succeeded.
struct Gpu {
    Gpu(const std::string& uuid, const std::string& nvml)
        : name(nvml), library(dlopen(nvml.c_str(), RTLD_NOW | RTLD_LOCAL)) {
        if (!library) fail(dlerror());
        check(find<int()>("nvmlInit_v2")(), "nvmlInit_v2");
        const char* handle = "nvmlDeviceGetHandleByUUID";
        check(find<int(const char*, void**)>(handle)(uuid.c_str(), &device), handle);
    }
    template <class Function>
    Function* find(const char* function) const {
        void* const found = dlsym(library, function);
        if (!found) fail(name, " has no function ", function);
        return reinterpret_cast<Function*>(found);
    }
    static void check(int status, const char* call) {
        if (status != 0) fail(call, " ended with status ", status);
    }
    const std::string name;
    void* const library;
    void* device = nullptr;
};

}  // namespace

std::vector<EnergyCounter> gpu_counter(const std::string& uuid, const std::string& nvml) {
    const Gpu gpu(uuid, nvml);
    const char* call = "nvmlDeviceGetTotalEnergyConsumption";
    const auto get = gpu.find<int(void*, unsigned long long*)>(call);
    const auto read = [=, device = gpu.device] {
        unsigned long long millijoules = 0;
        Gpu::check(get(device, &millijoules), call);
        return uint64_t(millijoules);
    };
    return {{read, 1e-3, 0}};
}

std::function<GpuUse()> gpu_use(const std::string& uuid, const std::string& nvml) {
    struct Percents {
        unsigned gpu, memory;
    };
    struct Bytes {
        unsigned long long total, free, used;
    };
    const Gpu gpu(uuid, nvml);
    const char *rates = "nvmlDeviceGetUtilizationRates", *memory = "nvmlDeviceGetMemoryInfo";
    const auto get_rates = gpu.find<int(void*, Percents*)>(rates);
    const auto get_memory = gpu.find<int(void*, Bytes*)>(memory);
    return [=, device = gpu.device] {
        Percents percents{};
        Bytes bytes{};
        Gpu::check(get_rates(device, &percents), rates);
        Gpu::check(get_memory(device, &bytes), memory);
        return GpuUse{percents.gpu / 100.0, double(bytes.used)};
    };
}

EnergySource::EnergySource(const std::function<std::vector<EnergyCounter>()>& open) {
    try {
        counters_ = open();
    } catch (const Error& error) {
        failure_ = error.what();
    }
}

void EnergySource::read() try {
    for (auto& [value, joules_per_unit, largest, last] : counters_) {
        const uint64_t now = value();
        if (now < last && largest < last)
            fail("a counter went back from ", last, " to ", now, "; its largest is ", largest);
        joules_ += joules_per_unit * double(now < last ? largest - last + now : now - last);
        last = now;
    }
} catch (const Error& error) {
    counters_.clear();
    failure_ = error.what();
}

}  // namespace convoy
