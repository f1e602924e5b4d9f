// shard_writer.cpp — see shard_writer.h; tfrecord.cpp has TFRecord's layout.
#include "data/sources/shard_writer.h"

#include <archive_entry.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstring>

#include "data/sources/crc32c.h"
#include "src/base/bytes.h"
#include "src/base/protobuf.h"

namespace convoy {

ShardWriter::ShardWriter(ShardFormat format, const std::string& path)
    : path_(path),
      file_(std::fopen(path.c_str(), "wbe"), std::fclose),
      tar_(format == ShardFormat::tar ? archive_write_new() : nullptr, archive_write_free) {
    if (!file_) give_up(errno);
    if (!tar_) return;
    check(archive_write_set_format_ustar(tar_.get()));
    check(archive_write_set_bytes_in_last_block(tar_.get(), 1));
    check(archive_write_open_FILE(tar_.get(), file_.get()));
}

void ShardWriter::add(const std::string& key, const std::string& extension,
                      std::span<const uint8_t> image, int32_t label, const std::string& name) {
    const std::string file = cat(key, ".", extension);
    if (tar_) {
        add_member(file, image);
        return add_member(key + ".cls", text_bytes(cat(label)));
    }
    std::string format = extension == "jpg" ? "JPEG" : extension;
    for (char& c : format) c = char(std::toupper(static_cast<unsigned char>(c)));
    ProtoMessage features;
    const auto add = [&](const char* key, int kind, const ProtoMessage& list) {
        const ProtoMessage feature = ProtoMessage().bytes(kind, list);
        features.bytes(1, ProtoMessage().bytes(1, key).bytes(2, feature));
    };
    const auto text = [](std::string_view value) { return ProtoMessage().bytes(1, value); };
    // In the order of their names, as protobuf's deterministic output has them.
    add("image/class/label", 3, ProtoMessage().number(1, label));
    add("image/class/text", 1, text(name));
    add("image/encoded", 1, text(as_text(image)));
    add("image/filename", 1, text(file));
    add("image/format", 1, text(format));
    const std::string record = tfrecord(ProtoMessage().bytes(1, features));
    if (std::fwrite(record.data(), 1, record.size(), file_.get()) != record.size()) give_up(errno);
}

void ShardWriter::add_member(const std::string& name, std::span<const uint8_t> bytes) {
    const std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry(archive_entry_new(),
                                                                         archive_entry_free);
    archive_entry_set_pathname(entry.get(), name.c_str());
    archive_entry_set_size(entry.get(), la_int64_t(bytes.size()));
    archive_entry_set_filetype(entry.get(), AE_IFREG);
    archive_entry_set_perm(entry.get(), 0644);
    check(archive_write_header(tar_.get(), entry.get()));
    if (archive_write_data(tar_.get(), bytes.data(), bytes.size()) != la_ssize_t(bytes.size()))
        check(ARCHIVE_FATAL);
}

void ShardWriter::close() {
    if (tar_) check(archive_write_close(tar_.get()));
    if (std::fflush(file_.get()) != 0 || fsync(fileno(file_.get())) != 0) give_up(errno);
}

void ShardWriter::check(int state) const {
    if (state < ARCHIVE_WARN)
        give_up(archive_errno(tar_.get()) > 0 ? archive_errno(tar_.get()) : EIO);
}

void ShardWriter::give_up(int error) const {
    fail(path_, ": cannot be written: ", std::strerror(error));
}

std::string tfrecord(std::string_view data) {
    const auto number = [](auto value) { return std::string(as_text(std::span(&value, 1))); };
    const auto checksum = [&](std::string_view text) {
        return number(masked_crc32c(text_bytes(text)));
    };
    const std::string length = number(uint64_t(data.size()));
    return cat(length, checksum(length), data, checksum(data));
}

}  // namespace convoy
