// records.h — formats that hold many samples in one file, read from the first byte to the last.
//
//   tar        WebDataset: files of one sample share a key, the path up to the first dot of the
//              file name. key.jpg (any extension of has_image_name()) is the image; key.cls a
//              number or the name of a class; key.json an object with a label. Without both, the
//              folder in the key is the class. Where a key has none of the three, as in IMG.1.jpg
//              and IMG.2.jpg, keys end at the last dot.
//   tfrecord   tf.train.Example with image/encoded, image/class/label and image/class/text
//   cifar10    1 byte label, then 32x32 red, green and blue bytes;    cifar100   2 bytes label
//   idx        MNIST's images (rows x columns of grey bytes); the labels are in a file of their own
//
// A scanner reads a stream, so it serves a file as well as a pipe. Whatever the bytes claim, it
// allocates no more than what has arrived, and at most kMaxSample for one sample.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/storage.h"

namespace convoy {

// Bytes of one encoded image; Pillow's largest is 512 MB.
constexpr uint64_t kMaxSample = 1ull << 29;

// Bytes in their order.
class ByteStream {
 public:
    explicit ByteStream(std::string name) : name_(std::move(name)) {}
    virtual ~ByteStream() = default;
    const std::string& name() const { return name_; }
    // The next ones, at least one; valid until the next call. Empty at the end. Throws Error.
    virtual std::span<const uint8_t> next() = 0;

 private:
    const std::string name_;
};

// A storage from its beginning, a block at a time.
class StorageStream final : public ByteStream {
 public:
    explicit StorageStream(StoragePtr storage, size_t block = 1 << 20);
    std::span<const uint8_t> next() override;
    uint64_t offset() const { return at_; }  // of what comes next

 private:
    const StoragePtr storage_;
    const size_t block_;
    uint64_t at_ = 0;
    std::vector<uint8_t> bytes_;
};

// What a record says about its class: a number, a name, both, or nothing.
struct Label {
    std::optional<int64_t> number = {};
    std::string name = {};
    bool operator==(const Label&) const = default;
    auto operator<=>(const Label&) const = default;
};

// Of a text: "7" is a number, "hat" a name; blanks around it do not count.
Label parse_label(std::string_view text);

struct Record {
    uint64_t offset = 0;             // of the image's bytes in the stream
    std::span<const uint8_t> bytes;  // valid during the call
    Label label;
};

// Rows of bytes without a header: planes of H x W, one after the other.
struct RawShape {
    uint32_t H = 0, W = 0, C = 0;  // 0: images are encoded
    size_t bytes() const { return size_t(H) * W * C; }
    bool operator==(const RawShape&) const = default;
};

// What a scanner finds. A fault is a sample that cannot be used: "at byte 1536: …".
struct Findings {
    std::function<void(const Record&)> record;
    std::function<void(uint64_t offset, const std::string& why)> fault;
    // Members of an archive that belong to no sample, by what they are: ".heic".
    std::function<void(const std::string& what, uint64_t count)> left_out = [](const std::string&,
                                                                               uint64_t) {};
};

enum class ShardFormat : uint32_t { unknown, tar, tfrecord, cifar10, cifar100, idx };

// The format by the first bytes of a file (4 KB are enough) and its size. tar, TFRecord and IDX
// are recognised by signatures and checksums, CIFAR by its size and its first labels.
constexpr size_t kHeadBytes = 4096;
ShardFormat shard_format(std::span<const uint8_t> head, uint64_t size);

// The shape of the samples of a raw format; all 0 for the others. Throws Error: a damaged header.
RawShape raw_shape(ShardFormat format, const Storage& storage);

// Reports every record of the stream in its order. Ends early, with a fault, where the damage
// leaves no way to find the next record. `labels`: of IDX (read_idx_labels), else empty. Throws
// only what the stream or `findings` throw.
void scan_records(ShardFormat format, ByteStream& stream, const Findings& findings,
                  std::span<const uint8_t> labels = {});

std::vector<uint8_t> read_idx_labels(const Storage& storage);

// The content of a gzip file, up to `limit` bytes. Throws Error: damaged, truncated, larger.
// is_head: the beginning is enough, `limit` bytes or a little more, or what damage leaves of it.
std::vector<uint8_t> inflate(const Storage& storage, uint64_t limit, bool is_head = false);
bool is_gzip(std::span<const uint8_t> head);

// Raw planes as a PPM or PGM file in memory, which the decoder knows.
void raw_to_pnm(RawShape shape, std::span<const uint8_t> planes, std::vector<uint8_t>& out);

// For scanners: exact pieces of a stream.
class Pieces {
 public:
    explicit Pieces(ByteStream& stream) : stream_(stream) {}
    uint64_t offset() const { return offset_; }  // of what comes next
    // The next n bytes into `out`; fewer at the end of the stream. Grows with what arrives.
    void take(uint64_t n, std::vector<uint8_t>& out);

 private:
    ByteStream& stream_;
    std::span<const uint8_t> left_;
    uint64_t offset_ = 0;
};

void scan_tar(ByteStream& stream, const Findings& findings);
// The name of the member whose content begins at `offset`; "" where there is none, nor a tar.
std::string tar_member_name(const Storage& storage, uint64_t offset);
void scan_tfrecord(ByteStream& stream, const Findings& findings);
// Whether these bytes begin a TFRecord: a length with its checksum.
bool begins_tfrecord(std::span<const uint8_t> head);

}  // namespace convoy
