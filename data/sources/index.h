// index.h — where the samples of a shard are. One scan finds them; a file by the shards keeps them.
//
// The file "convoy.index" of a folder, little-endian:
//
//   offset  size  type
//        0     8  text   "CNVYIDX4"
//        8     4  u32    checksum (CRC-32C) of all that follows
//       12     4  u32    number of shards; then for each of them:
//              8  text   name: length (4), bytes; in the folder of the index
//              8  u64    size of the shard in bytes
//              8  u64    its stamp (storage.h)
//           4x4  u32    format, H, W, C (records.h)
//                 labels, their number (4); each: has a number (4), number (8), name
//                 faults: their number (8), how many follow (4); each: offset (8), text
//                 members that are no samples: kinds (4); each: how many (8), text
//              8  u64    number n of samples, then columns of n:
//            8 n  u64    offset        4 n  u32  length in bytes
//            4 n  u32    checksum      4 n  u32  which of the labels
//
// The index is a cache: if it is damaged, or a shard has another size or stamp, the shard is
// scanned again. An index on a server was made on another machine, so only the size is compared.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "data/sources/dataset.h"
#include "data/sources/records.h"
#include "data/sources/remote.h"

namespace convoy {

constexpr size_t kMaxFaults = 1000;  // kept per shard

struct ShardFault {
    uint64_t offset = 0;
    std::string why;
};

struct ShardIndex {
    uint64_t bytes = 0, stamp = 0;
    ShardFormat format = ShardFormat::unknown;
    RawShape shape;             // of raw pixels
    std::vector<Label> labels;  // all that occur, each once

    uint64_t fault_count = 0;
    std::vector<ShardFault> faults;  // the first ones
    std::map<std::string, uint64_t> left_out;

    // Columns of the samples: 20 bytes each.
    std::vector<uint64_t> offsets;
    std::vector<uint32_t> lengths, checksums, label_of;

    size_t size() const { return offsets.size(); }
};

// One file of many samples.
struct Shard {
    std::string name;    // path, or URL as people may see it
    StoragePtr storage;  // its bytes; unpacked if it is gzipped
    ShardIndex index;
};

// Opens the shards of these names. Their indexes come from the index file if it matches. The other
// shards are read whole, `threads` at a time, and the index file is written. The log shows what is
// scanned, and the progress. Throws Error: a shard cannot be opened, or has no known format.
std::vector<Shard> open_shards(const std::vector<std::string>& names, const DataOptions& options,
                               const Remote& remote, Log& log);

// The samples of shards as a source (shard_source.cpp). class_of[s][k]: the class of samples of
// shards[s] with label number k; -1 leaves them out. A sample is called "train-000.tar, byte 1536";
// its title is "train-000.tar/hat/12.jpg", without tar its name. Each read compares the bytes with
// the checksum in the index.
SourcePtr shard_source(std::vector<Shard> shards, std::vector<std::string> classes,
                       const std::vector<std::vector<int32_t>>& class_of);

// Whether a file is a shard, by its first bytes. Throws Error if it cannot be read.
bool is_shard(const std::string& name);

// Makes the index of one shard by reading it whole.
ShardIndex scan_shard(const StoragePtr& storage, ShardFormat format,
                      std::span<const uint8_t> idx_labels = {});

// Converts indexes to the content of the file, and back. Throws Error if the index is not valid.
using NamedIndex = std::pair<std::string, const ShardIndex*>;
std::vector<uint8_t> pack_index(std::span<const NamedIndex> shards);
std::map<std::string, ShardIndex> unpack_index(std::span<const uint8_t> bytes);

inline constexpr const char* kIndexName = "convoy.index";

// "shards/train-000.tar" → "shards" and "train-000.tar"; the folder of a bare name is ".".
std::pair<std::string, std::string> split_path(const std::string& name);

}  // namespace convoy
