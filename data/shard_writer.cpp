// shard_writer.cpp — see shard_writer.h; tfrecord.cpp has TFRecord's layout.
#include "data/shard_writer.h"

#include <archive.h>
#include <archive_entry.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "data/crc32c.h"
#include "src/base/bytes.h"
#include "src/base/check.h"
#include "src/base/protobuf.h"

namespace convoy {
namespace {

class OutputFile {
 public:
    explicit OutputFile(const std::string& path)
        : path_(path), file_(std::fopen(path.c_str(), "wbe"), std::fclose) {
        if (!file_) give_up();
    }
    void write(std::span<const uint8_t> bytes) {
        if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) give_up();
    }
    std::FILE* get() const { return file_.get(); }
    void sync() {
        if (std::fflush(file_.get()) != 0 || fsync(fileno(file_.get())) != 0) give_up();
    }
    [[noreturn]] void give_up(int error = errno) {
        fail(path_, ": cannot be written: ", std::strerror(error));
    }

 private:
    const std::string path_;
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

class TarWriter final : public ShardWriter {
 public:
    explicit TarWriter(const std::string& path)
        : file_(path), tar_(archive_write_new(), archive_write_free) {
        check(archive_write_set_format_ustar(tar_.get()));
        check(archive_write_set_bytes_in_last_block(tar_.get(), 1));
        check(archive_write_open_FILE(tar_.get(), file_.get()));
    }
    void add(const std::string& key, const std::string& extension, std::span<const uint8_t> image,
             int32_t label, const std::string&) override {
        member(cat(key, ".", extension), image);
        member(key + ".cls", text_bytes(cat(label)));
    }
    void close() override {
        check(archive_write_close(tar_.get()));
        file_.sync();
    }

 private:
    void check(int state) {
        if (state < ARCHIVE_WARN)
            file_.give_up(archive_errno(tar_.get()) > 0 ? archive_errno(tar_.get()) : EIO);
    }
    void member(const std::string& name, std::span<const uint8_t> bytes) {
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

    OutputFile file_;
    const std::unique_ptr<archive, int (*)(archive*)> tar_;
};

class TfrecordWriter final : public ShardWriter {
 public:
    explicit TfrecordWriter(const std::string& path) : file_(path) {}

    void add(const std::string& key, const std::string& extension, std::span<const uint8_t> image,
             int32_t label, const std::string& name) override {
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
        add("image/filename", 1, text(cat(key, ".", extension)));
        add("image/format", 1, text(format));
        file_.write(text_bytes(tfrecord(ProtoMessage().bytes(1, features))));
    }
    void close() override { file_.sync(); }

 private:
    OutputFile file_;
};

}  // namespace

std::string tfrecord(std::string_view data) {
    const auto number = [](auto value) { return std::string(as_text(std::span(&value, 1))); };
    const auto checksum = [&](std::string_view text) {
        return number(masked_crc32c(text_bytes(text)));
    };
    const std::string length = number(uint64_t(data.size()));
    return cat(length, checksum(length), data, checksum(data));
}

std::unique_ptr<ShardWriter> make_shard_writer(ShardFormat format, const std::string& path) {
    if (format == ShardFormat::tfrecord) return std::make_unique<TfrecordWriter>(path);
    ENSURE(format == ShardFormat::tar, "format ", int(format));
    return std::make_unique<TarWriter>(path);
}

}  // namespace convoy
