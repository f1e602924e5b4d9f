#include "src/base/sha256.h"

#include <fmt/format.h>
// Not EVP, which would add all of libcrypto (3 MB) to the static binary.
#define OPENSSL_API_COMPAT 0x10100000L
#include <openssl/sha.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "src/base/check.h"

namespace convoy {

static std::string finish(SHA256_CTX& digest) {
    unsigned char hash[SHA256_DIGEST_LENGTH];
    SHA256_Final(hash, &digest);
    return fmt::format("{:02x}", fmt::join(hash, ""));
}

std::string sha256_of(std::string_view text) {
    SHA256_CTX digest;
    SHA256_Init(&digest);
    SHA256_Update(&digest, text.data(), text.size());
    return finish(digest);
}

std::string sha256_of_file(const std::string& path, ProgressBar* bar) {
    std::ifstream file(path, std::ios::binary);
    if (!file) fail("cannot read ", path, ": ", std::strerror(errno));
    SHA256_CTX digest;
    SHA256_Init(&digest);
    std::vector<char> block(1 << 20);
    while (file.read(block.data(), std::streamsize(block.size())), file.gcount() > 0) {
        SHA256_Update(&digest, block.data(), size_t(file.gcount()));
        if (bar) bar->add(uint64_t(file.gcount()));
    }
    return finish(digest);
}

}  // namespace convoy
