// block_cache.h — blocks of remote objects in a folder of bounded size.
//
// Several processes may use a folder at once: no lock is held, a file appears whole by being
// renamed, and a file that is damaged, or no file at all, is as good as a missing one.
//
//   FOLDER/convoy-blocks/SET/NAME
//   SET     NAME's hash mod the number of sets; at most 16 files in each
//   NAME    SHA-256 of object, version and size, 32 hex digits; then -BLOCK
//
//   offset  size  content of a file
//   0       8     "convoyB2"
//   8       4     CRC-32C of NAME and of the bytes that follow, little-endian
//   12            the block: kBlock bytes, or less at the end of the object
//
// Whoever stores a block into a full set removes the file that was used least recently (its time of
// modification). So the bound holds without counting, however many processes there are.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace convoy {

class BlockCache {
 public:
    static constexpr uint64_t kBlock = 256 << 10;

    // Makes the folder, for this user alone; removes sets of a larger bound. Throws Error where
    // it cannot be made or written, or the bound is below 16 MB.
    BlockCache(const std::string& folder, uint64_t bytes);

    // The name of an object's blocks.
    static std::string key(const std::string& url, const std::string& version, uint64_t size);

    // Fills `bytes`, all of the block; false: it is not there, or damaged. Any thread.
    bool load(const std::string& key, uint64_t block, std::span<uint8_t> bytes) const;
    // A block that cannot be stored, as on a full disk, is not.
    void store(const std::string& key, uint64_t block, std::span<const uint8_t> bytes) const;

 private:
    std::string set_of(const std::string& name) const;

    const std::string folder_;
    const uint64_t sets_;
};

}  // namespace convoy
