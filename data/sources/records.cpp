// records.cpp — streams, the recognition of formats, and the formats with raw pixels.
#include "data/sources/records.h"

#include <zlib.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <utility>

#include "src/base/bytes.h"
#include "src/base/text.h"

namespace convoy {

ByteStream::ByteStream(StoragePtr storage, size_t block)
    : storage_(std::move(storage)), block_(block) {}

std::span<const uint8_t> ByteStream::next() {
    if (!left_.empty()) return std::exchange(left_, {});
    bytes_.resize(std::min<uint64_t>(block_, storage_->size() - at_));
    storage_->read(at_, bytes_);
    at_ += bytes_.size();
    return bytes_;
}

void ByteStream::take(uint64_t n, std::vector<uint8_t>& out) {
    out.clear();
    while (out.size() < n) {
        if (left_.empty() && (left_ = next()).empty()) return;
        const size_t some = std::min<uint64_t>(n - out.size(), left_.size());
        out.insert(out.end(), left_.begin(), left_.begin() + ptrdiff_t(some));
        left_ = left_.subspan(some);
    }
}

Label parse_label(std::string_view text) {
    const auto is_blank = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
    text = without_bom(text);
    while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
    if (const auto number = to_number<int64_t>(text)) return {number, ""};
    return {{}, std::string(text)};
}

namespace {

constexpr size_t kCifarPixels = 32 * 32 * 3;
constexpr size_t kIdxHeader = 16, kIdxLabelsHeader = 8;
constexpr uint32_t kIdxImages = 0x803, kIdxLabels = 0x801;

// A header's checksum is the sum of its 512 bytes, with the checksum itself as blanks. An empty
// archive consists of empty blocks, at most 20.
bool begins_tar(std::span<const uint8_t> head, uint64_t size) {
    if (head.size() < 512) return false;
    if (head[0] == 0)
        return size <= 20 * 512 && std::ranges::count(head, 0) == ptrdiff_t(head.size());
    long sum = 0;
    for (size_t i = 0; i < 512; ++i) sum += i >= 148 && i < 156 ? ' ' : head[i];
    const std::string claimed(as_text(head.subspan(148, 8)));
    return sum == std::strtol(claimed.c_str(), nullptr, 8);
}

bool holds_cifar(std::span<const uint8_t> head, uint64_t size, size_t label_bytes) {
    const size_t record = label_bytes + kCifarPixels;
    if (size == 0 || size % record != 0) return false;
    for (size_t at = 0; at + label_bytes <= head.size(); at += record)
        if (label_bytes == 1 ? head[at] >= 10 : head[at] >= 20 || head[at + 1] >= 100) return false;
    return true;
}

// Records of one size: label bytes, of which the last counts (CIFAR-100 has the coarse label
// first), then pixels. IDX has its labels in another file.
void scan_raw(ByteStream& stream, const Findings& findings, size_t label_bytes, size_t pixels,
              const std::span<const uint8_t>* labels, uint64_t count) {
    std::vector<uint8_t> bytes;
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t at = stream.offset();
        stream.take(label_bytes + pixels, bytes);
        if (bytes.empty() && !labels) return;
        if (bytes.size() < label_bytes + pixels)
            return findings.fault(at, cat("truncated: ", stream.name(), " ends in image ", i));
        const int64_t label = labels ? (*labels)[i] : bytes[label_bytes - 1];
        findings.record({at + label_bytes, std::span(bytes).subspan(label_bytes), {label, ""}});
    }
}

void scan_idx(ByteStream& stream, const Findings& findings, std::span<const uint8_t> labels) {
    std::vector<uint8_t> header;
    stream.take(kIdxHeader, header);
    if (header.size() < kIdxHeader || big_endian(header, 0) != kIdxImages)
        return findings.fault(0, "no header of IDX images");
    const uint64_t count = big_endian(header, 4);
    const size_t pixels = RawShape{big_endian(header, 8), big_endian(header, 12), 1}.bytes();
    if (pixels == 0 || pixels > kMaxSample) return findings.fault(0, "no size that an image has");
    if (count != labels.size())
        return findings.fault(0, cat(count, " images and ", labels.size(), " labels"));
    scan_raw(stream, findings, 0, pixels, &labels, count);
}

}  // namespace

bool is_gzip(std::span<const uint8_t> head) {
    return head.size() > 2 && head[0] == 0x1F && head[1] == 0x8B && head[2] == 8;
}

ShardFormat shard_format(std::span<const uint8_t> head, uint64_t size) {
    if (begins_tar(head, size)) return ShardFormat::tar;
    if (begins_tfrecord(head) || size == 0) return ShardFormat::tfrecord;
    if (head.size() >= kIdxHeader && big_endian(head, 0) == kIdxImages) return ShardFormat::idx;
    if (holds_cifar(head, size, 1)) return ShardFormat::cifar10;
    if (holds_cifar(head, size, 2)) return ShardFormat::cifar100;
    return ShardFormat::unknown;
}

RawShape raw_shape(ShardFormat format, const Storage& storage) {
    if (format == ShardFormat::cifar10 || format == ShardFormat::cifar100) return {32, 32, 3};
    if (format != ShardFormat::idx) return {};
    std::vector<uint8_t> header(kIdxHeader);
    storage.read(0, header);
    const RawShape shape{big_endian(header, 8), big_endian(header, 12), 1};
    if (shape.H < 1 || shape.W < 1 || shape.H > 1 << 16 || shape.W > 1 << 16)
        fail(storage.name(), ": damaged: images of ", shape.W, "x", shape.H, " pixels");
    return shape;
}

void scan_records(ShardFormat format, ByteStream& stream, const Findings& findings,
                  std::span<const uint8_t> labels) {
    switch (format) {
        case ShardFormat::tar: return scan_tar(stream, findings);
        case ShardFormat::tfrecord: return scan_tfrecord(stream, findings);
        case ShardFormat::cifar10:
        case ShardFormat::cifar100:
            return scan_raw(stream, findings, format == ShardFormat::cifar10 ? 1 : 2, kCifarPixels,
                            nullptr, UINT64_MAX);
        case ShardFormat::idx: return scan_idx(stream, findings, labels);
        case ShardFormat::unknown: break;
    }
    findings.fault(0, "no tar, TFRecord, CIFAR or IDX file");
}

std::vector<uint8_t> read_idx_labels(const Storage& storage) {
    std::vector<uint8_t> bytes = read_all(storage, UINT32_MAX);
    if (bytes.size() < kIdxLabelsHeader || big_endian(bytes, 0) != kIdxLabels)
        fail(storage.name(), ": not a file of IDX labels");
    if (big_endian(bytes, 4) != bytes.size() - kIdxLabelsHeader)
        fail(storage.name(), ": says ", big_endian(bytes, 4), " labels and holds ",
             bytes.size() - kIdxLabelsHeader);
    bytes.erase(bytes.begin(), bytes.begin() + kIdxLabelsHeader);
    return bytes;
}

std::vector<uint8_t> inflate(const Storage& storage, uint64_t limit, bool is_head) {
    z_stream z = {};
    ENSURE(inflateInit2(&z, 15 + 16) == Z_OK, "zlib");  // 16: gzip
    const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&z, inflateEnd);
    std::vector<uint8_t> in(1 << 16), part(1 << 18), out;
    uint64_t at = 0;
    for (int state = Z_OK;;) {
        if (z.avail_in == 0) {
            in.resize(std::min<uint64_t>(in.size(), storage.size() - at));
            if (in.empty() && (is_head || state == Z_STREAM_END)) return out;
            if (in.empty()) fail(storage.name(), ": truncated: the gzip stream has no end");
            storage.read(at, in);
            at += in.size(), z.next_in = in.data(), z.avail_in = uInt(in.size());
        }
        if (state == Z_STREAM_END) inflateReset(&z);  // files one after the other are one
        z.next_out = part.data(), z.avail_out = uInt(part.size());
        state = ::inflate(&z, Z_NO_FLUSH);
        const bool is_damaged = state != Z_OK && state != Z_STREAM_END && state != Z_BUF_ERROR;
        out.insert(out.end(), part.begin(), part.end() - z.avail_out);
        if (is_head && (is_damaged || out.size() > limit)) return out;
        if (is_damaged) fail(storage.name(), ": damaged gzip data before byte ", at);
        if (out.size() > limit)
            fail(storage.name(), ": inflates to more than ", limit, " bytes: unpack it on disk");
    }
}

void raw_to_pnm(RawShape shape, std::span<const uint8_t> planes, std::vector<uint8_t>& out) {
    ENSURE(planes.size() == shape.bytes() && (shape.C == 1 || shape.C == 3), planes.size(),
           " bytes, ", shape.C, " channels");
    const std::string header = cat(shape.C == 1 ? "P5 " : "P6 ", shape.W, " ", shape.H, " 255\n");
    out.resize(header.size() + planes.size());
    uint8_t* to = std::copy(header.begin(), header.end(), out.data());
    const size_t plane = size_t(shape.H) * shape.W;
    for (size_t c = 0; c < shape.C; ++c)
        for (size_t i = 0; i < plane; ++i) to[i * shape.C + c] = planes[c * plane + i];
}

}  // namespace convoy
