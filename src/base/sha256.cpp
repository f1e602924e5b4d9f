#include "src/base/sha256.h"

#include <fmt/format.h>
// Not EVP, which would add all of libcrypto (3 MB) to the static binary.
#define OPENSSL_API_COMPAT 0x10100000L
#include <openssl/sha.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "src/base/check.h"

namespace convoy {

std::string sha256_of(const std::function<std::string_view()>& next) {
    SHA256_CTX digest;
    SHA256_Init(&digest);
    for (auto part = next(); !part.empty(); part = next())
        SHA256_Update(&digest, part.data(), part.size());
    unsigned char hash[SHA256_DIGEST_LENGTH];
    SHA256_Final(hash, &digest);
    return fmt::format("{:02x}", fmt::join(hash, ""));
}

std::string sha256_of(std::string_view text) {
    return sha256_of([&] { return std::exchange(text, {}); });
}

std::string sha256_of_file(const std::string& path, ProgressBar* bar) {
    std::ifstream file(path, std::ios::binary);
    if (!file) fail("cannot read ", path, ": ", std::strerror(errno));
    std::vector<char> block(1 << 20);
    return sha256_of([&]() -> std::string_view {
        file.read(block.data(), std::streamsize(block.size()));
        if (bar) bar->add(uint64_t(file.gcount()));
        return {block.data(), size_t(file.gcount())};
    });
}

}  // namespace convoy
