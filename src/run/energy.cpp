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

std::vector<EnergyCounter> gpu_counter(const std::string& uuid, const std::string& nvml) {
    void* library = dlopen(nvml.c_str(), RTLD_NOW | RTLD_LOCAL);  // to the end of the process
    if (!library) fail(dlerror());
    // As NVML's documentation declares them; each returns a status, 0 where it succeeded.
    int (*init)();
    int (*get_handle)(const char* uuid, void** device);
    int (*get_energy)(void* device, unsigned long long* millijoules);
    const auto find = [&]<class F>(const char* name, F& function) {
        function = reinterpret_cast<F>(dlsym(library, name));
        if (!function) fail(nvml, " has no function ", name);
    };
    const auto check = [](int status, const char* call) {
        if (status != 0) fail(call, " ended with status ", status);
    };
    find("nvmlInit_v2", init);
    find("nvmlDeviceGetHandleByUUID", get_handle);
    find("nvmlDeviceGetTotalEnergyConsumption", get_energy);
    check(init(), "nvmlInit_v2");
    void* device = nullptr;
    check(get_handle(uuid.c_str(), &device), "nvmlDeviceGetHandleByUUID");
    const auto read = [=] {
        unsigned long long millijoules = 0;
        check(get_energy(device, &millijoules), "nvmlDeviceGetTotalEnergyConsumption");
        return uint64_t(millijoules);
    };
    return {{read, 1e-3, 0}};
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
