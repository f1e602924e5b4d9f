// block_cache.cpp — see block_cache.h.
#include "data/block_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "data/crc32c.h"
#include "src/base/check.h"
#include "src/base/number.h"
#include "src/base/random.h"
#include "src/base/sha256.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kWays = 16;  // blocks of a set
constexpr char kBlockMagic[9] = "convoyB2";
constexpr size_t kHeader = 12;

uint32_t checksum(const std::string& name, std::span<const uint8_t> bytes) {
    return crc32c(bytes, crc32c({reinterpret_cast<const uint8_t*>(name.data()), name.size()}));
}

std::string block_name(const std::string& key, uint64_t block) { return cat(key, "-", block); }

}  // namespace

BlockCache::BlockCache(const std::string& folder, uint64_t bytes)
    : folder_(folder + "/convoy-blocks"), sets_(bytes / (kWays * (kBlock + kHeader))) {
    if (bytes < 16 << 20) fail("--cache DIR:SIZE: SIZE is less than 16M: give 16M or more");
    std::error_code error;
    fs::create_directories(folder, error);
    if (!error && mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST)
        error.assign(errno, std::generic_category());
    if (!error && access(folder_.c_str(), R_OK | W_OK | X_OK) != 0)
        error.assign(errno, std::generic_category());
    if (error) fail("--cache ", folder, ": cannot be made or written: ", error.message());
    for (const fs::directory_entry& set : fs::directory_iterator(folder_, error)) {
        const std::string name = set.path().filename();
        if (to_number<uint64_t>(name).value_or(0) < sets_ || !set.is_directory(error)) continue;
        for (const fs::directory_entry& block : fs::directory_iterator(set, error))
            unlink(block.path().c_str());
        rmdir(set.path().c_str());
    }
}

std::string BlockCache::key(const std::string& url, const std::string& version, uint64_t size) {
    return sha256_of(cat(url, '\n', version, '\n', size)).substr(0, 32);
}

std::string BlockCache::set_of(const std::string& name) const {
    return cat(folder_, "/", hash_bytes(name) % sets_);
}

bool BlockCache::load(const std::string& key, uint64_t block, std::span<uint8_t> bytes) const {
    const std::string name = block_name(key, block), path = cat(set_of(name), "/", name);
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) return false;
    uint8_t header[kHeader] = {};
    uint32_t crc = 0;
    struct stat status;
    const bool is_whole = fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
                          uint64_t(status.st_size) == kHeader + bytes.size() &&
                          pread(file, header, kHeader, 0) == ssize_t(kHeader) &&
                          pread(file, bytes.data(), bytes.size(), kHeader) == ssize_t(bytes.size());
    if (is_whole) futimens(file, nullptr);  // used now
    close(file);
    std::memcpy(&crc, header + 8, 4);
    return is_whole && std::memcmp(header, kBlockMagic, 8) == 0 && crc == checksum(name, bytes);
}

void BlockCache::store(const std::string& key, uint64_t block,
                       std::span<const uint8_t> bytes) const {
    const std::string name = block_name(key, block), set = set_of(name);
    std::string part = set + "/part-XXXXXX";
    mkdir(set.c_str(), 0700);
    std::error_code error;
    std::vector<std::pair<fs::file_time_type, std::string>> files;
    for (const fs::directory_entry& file : fs::directory_iterator(set, error))
        files.emplace_back(file.last_write_time(error), file.path());
    std::ranges::sort(files);
    for (size_t i = 0; i + kWays <= files.size(); ++i) unlink(files[i].second.c_str());

    const int file = mkostemp(part.data(), O_CLOEXEC);
    if (file < 0) return;
    uint8_t header[kHeader];
    const uint32_t crc = checksum(name, bytes);
    std::memcpy(header, kBlockMagic, 8);
    std::memcpy(header + 8, &crc, 4);
    const bool is_whole = write(file, header, kHeader) == ssize_t(kHeader) &&
                          write(file, bytes.data(), bytes.size()) == ssize_t(bytes.size());
    if (close(file) != 0 || !is_whole || rename(part.c_str(), cat(set, "/", name).c_str()) != 0)
        unlink(part.c_str());
}

}  // namespace convoy
