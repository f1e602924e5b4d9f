#include "net/control/ids.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "src/base/random.h"

namespace convoy {

// An id of the running kernel. A machine id would not do, because clones of a disk share it.
static std::string boot_id() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    return boot;
}

std::string machine_id() { return boot_id().empty() ? host_id() : boot_id(); }

std::string host_id() {
    // The namespace link tells containers apart. Where neither can be read the name must suffice.
    char name[256] = "host", space[64] = "";
    if (gethostname(name, sizeof name - 1) != 0) name[0] = 0;
    if (readlink("/proc/self/ns/net", space, sizeof space - 1) < 0) space[0] = 0;
    return fmt::format("{}-{:08x}", name, uint32_t(hash_bytes(boot_id() + space)));
}

uint64_t fresh_id() {
    std::random_device device;
    return uint64_t(device()) << 32 | device() | 1;
}

}  // namespace convoy
