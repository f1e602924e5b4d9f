// records.h — reads formats with many samples in one file, from the first byte to the last.
//
//   tar        WebDataset: the files of a sample share a key, by the rules in shards.md
//   tfrecord   tf.train.Example with image/encoded, image/class/label and image/class/text
//   cifar10    1 byte label, then 32x32 red, green and blue bytes;    cifar100   2 bytes label
//   idx        MNIST's images (rows x columns of grey bytes); the labels are in a file of their own
//
// Whatever the bytes claim, a scanner allocates no more than the bytes it has read, and at most
// kMaxSample for a sample.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/sources/storage.h"

namespace convoy {

// Bytes of one encoded image; Pillow's largest is 512 MB.
constexpr uint64_t kMaxSample = 1ull << 29;

// Reads a storage from its first byte to its last, a block at a time.
class ByteStream {
 public:
    explicit ByteStream(StoragePtr storage, size_t block = 1 << 20);
    const std::string& name() const { return storage_->name(); }
    uint64_t offset() const { return at_ - left_.size(); }  // of the next bytes
    // The rest of the block, or the next one, until the next call; empty at the end. Throws Error.
    std::span<const uint8_t> next();
    // The next n bytes into `out`; fewer at the end. Grows with what is read.
    void take(uint64_t n, std::vector<uint8_t>& out);

 private:
    const StoragePtr storage_;
    const size_t block_;
    uint64_t at_ = 0;  // of the byte after the block
    std::vector<uint8_t> bytes_;
    std::span<const uint8_t> left_;  // bytes of the block that were not returned yet
};

// The class of a record: a number, a name, both, or nothing.
struct Label {
    std::optional<int64_t> number = {};
    std::string name = {};
    auto operator<=>(const Label&) const = default;
};

// Parses "7" as a number and "hat" as a name, without the blanks around them.
Label parse_label(std::string_view text);

struct Record {
    uint64_t offset = 0;             // of the image's bytes in the stream
    std::span<const uint8_t> bytes;  // valid during the call
    Label label;
};

// The shape of raw pixels: planes of H x W bytes, one after the other.
struct RawShape {
    uint32_t H = 0, W = 0, C = 0;  // 0: images are encoded
    size_t bytes() const { return size_t(H) * W * C; }
};

// A scanner calls these. A fault is a sample that cannot be used.
struct Findings {
    std::function<void(const Record&)> record;
    std::function<void(uint64_t offset, const std::string& why)> fault;
    // Members of an archive that belong to no sample, by their kind: ".heic".
    std::function<void(const std::string& what, uint64_t count)> left_out = [](auto&&...) {};
};

enum class ShardFormat : uint32_t { unknown, tar, tfrecord, cifar10, cifar100, idx };

// The format of a file with these first bytes (4 KB are enough) and this size. tar, TFRecord and
// IDX are recognised by signatures and checksums, CIFAR by its size and its first labels.
constexpr size_t kHeadBytes = 4096;
ShardFormat shard_format(std::span<const uint8_t> head, uint64_t size);

// The shape of the samples of a raw format; all 0 for the others. Throws Error: a damaged header.
RawShape raw_shape(ShardFormat format, const Storage& storage);

// Reports every record of the stream in its order. Ends early, with a fault, if damage makes it
// impossible to find the next record. `labels`: of IDX (read_idx_labels), else empty. Throws only
// what the stream or `findings` throw.
void scan_records(ShardFormat format, ByteStream& stream, const Findings& findings,
                  std::span<const uint8_t> labels = {});

std::vector<uint8_t> read_idx_labels(const Storage& storage);

// Unpacks a gzip file of up to `limit` bytes. Throws Error: damaged, truncated, larger.
// is_head: returns only the beginning, about `limit` bytes, or less if the file is damaged.
std::vector<uint8_t> inflate(const Storage& storage, uint64_t limit, bool is_head = false);
bool is_gzip(std::span<const uint8_t> head);

// Makes a PPM or PGM file in memory, which the decoder reads, from raw planes.
void raw_to_pnm(RawShape shape, std::span<const uint8_t> planes, std::vector<uint8_t>& out);

void scan_tar(ByteStream& stream, const Findings& findings);
// The name of the member whose content begins at `offset`; "" if there is none or this is no tar.
std::string tar_member_name(const Storage& storage, uint64_t offset);
void scan_tfrecord(ByteStream& stream, const Findings& findings);
// Whether these bytes begin a TFRecord: a length with its checksum.
bool begins_tfrecord(std::span<const uint8_t> head);

}  // namespace convoy
