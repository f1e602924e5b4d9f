#include "net/host.h"

#include <unistd.h>

#include <fstream>

#include "src/base/random.h"

namespace convoy {

std::string host_id() {
    // The boot id tells kernels apart (also those of cloned disks, which share a machine id), the
    // namespace link tells containers apart. Where neither can be read the name has to do.
    char name[256] = "host", space[64] = "";
    if (gethostname(name, sizeof name - 1) != 0) name[0] = 0;
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    if (readlink("/proc/self/ns/net", space, sizeof space - 1) < 0) space[0] = 0;
    return fmt::format("{}-{:08x}", name, uint32_t(hash_bytes(boot + space)));
}

bool is_loopback(const asio::ip::address& address) {
    if (address.is_v6() && address.to_v6().is_v4_mapped())
        return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).is_loopback();
    return address.is_loopback();
}

bool means_this_machine(const std::string& host) {
    std::error_code not_an_address;
    const auto address = asio::ip::make_address(host, not_an_address);
    return host == "localhost" || (!not_an_address && is_loopback(address));
}

}  // namespace convoy
