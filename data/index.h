// index.h — where the samples of a shard lie: made by one scan, kept in a file beside the shards.
//
// The file "convoy.index" of a folder, little-endian:
//
//   offset  size  type
//        0     8  text   "CNVYIDX3"
//        8     4  u32    checksum (CRC-32C) of all that follows
//       12     4  u32    number of shards; then for each of them:
//              8  text   name: length (4), bytes; in the folder of the index
//              8  u64    size of the shard in bytes
//              8  u64    its stamp (storage.h)
//           4x4  u32    format, H, W, C (records.h)
//                 labels, their number (4); each: has a number (4), number (8), name
//                 faults, their number (8), those that are kept (4); each: offset (8), text
//                 members that are no samples, their kinds (4); each: how many (8), text
//              8  u64    number n of samples, then columns of n:
//            8 n  u64    offset        4 n  u32  length in bytes
//            4 n  u32    checksum      4 n  u32  which of the labels
//
// The index is a cache: if it is damaged, or a shard has another size or stamp, the shard is
// scanned again. An index that lies on a server came from another machine: there the size alone
// counts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "data/records.h"
#include "data/remote.h"
#include "src/base/log.h"

namespace convoy {

constexpr size_t kMaxFaults = 1000;  // kept of a shard

struct ShardFault {
    uint64_t offset = 0;
    std::string why;
};

struct ShardIndex {
    uint64_t bytes = 0, stamp = 0;
    ShardFormat format = ShardFormat::unknown;
    RawShape shape;             // of raw pixels
    std::vector<Label> labels;  // each that occurs, once

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
    StoragePtr storage;  // its bytes; of a gzipped one the content
    ShardIndex index;
};

struct IndexOptions {
    std::string cache;  // folder for what cannot be written beside the shards; "": the user's
    int threads = 1;    // shards scanned at a time
    Remote remote;      // for URLs
};

// Opens the shards of these names and indexes them: from the index file of their folder where it
// matches, else by reading them whole, `threads` at a time, and writing it. A line says what is
// scanned and how far it is. Throws Error: a shard that cannot be opened or is of no known format.
std::vector<Shard> open_shards(const std::vector<std::string>& names, const IndexOptions& options,
                               Log& log);

// Whether a file is a shard, by its first bytes. Throws Error where it cannot be read.
bool is_shard(const std::string& name);

// The index of one shard, by reading it whole.
ShardIndex scan_shard(const StoragePtr& storage, ShardFormat format,
                      std::span<const uint8_t> idx_labels = {});

// The file's content, and back. unpack_index throws Error for bytes that are no valid index.
using NamedIndex = std::pair<std::string, const ShardIndex*>;
std::vector<uint8_t> pack_index(std::span<const NamedIndex> shards);
std::map<std::string, ShardIndex> unpack_index(std::span<const uint8_t> bytes);

inline constexpr const char* kIndexName = "convoy.index";

// "shards/train-000.tar" → "shards" and "train-000.tar"; the folder of a bare name is ".".
std::pair<std::string, std::string> split_path(const std::string& name);

}  // namespace convoy
