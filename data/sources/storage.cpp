// storage.cpp — storages of files on this machine, and of bytes in memory.
#include "data/sources/storage.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "data/sources/http.h"
#include "data/sources/remote.h"
#include "src/base/bytes.h"
#include "src/base/text.h"

namespace convoy {
namespace {

// The most shards that stay open: a process may be limited to 1,024 open files.
constexpr int kMostOpen = 512;
std::atomic<int> open_files = 0;

// Errors that are not the file's fault and may pass: too many open files, or a failing disk.
bool is_of_system(int error) { return error == EMFILE || error == ENFILE || error == EIO; }

// Repeats a call that such an error stops, for two seconds.
auto tried(auto call) {
    for (int tries = 0;; ++tries) {
        const auto result = call();
        if (result >= 0 || (errno != EINTR && !(is_of_system(errno) && tries < 20))) return result;
        if (errno != EINTR) ::poll(nullptr, 0, 100);
    }
}

class LocalFile final : public Storage {
 public:
    explicit LocalFile(const std::string& path)
        : Storage(printable(path)), path_(path), file_(open()) {
        struct stat status;
        const int error = fstat(file_, &status) != 0 ? errno : 0;
        const bool is_file = error == 0 && S_ISREG(status.st_mode);
        if (is_file) {
            size_ = uint64_t(status.st_size);
            stamp_ =
                uint64_t(status.st_mtim.tv_sec) * 1'000'000'000 + uint64_t(status.st_mtim.tv_nsec);
        }
        keeps_open_ = is_file && open_files++ < kMostOpen;
        if (is_file && !keeps_open_) --open_files;
        if (!keeps_open_) ::close(file_);
        if (error != 0) fail(name(), ": cannot be opened: ", std::strerror(error));
        if (!is_file) fail(name(), ": not a file");
    }
    ~LocalFile() override {
        if (keeps_open_) ::close(file_), --open_files;
    }
    LocalFile(const LocalFile&) = delete;

    uint64_t size() const override { return size_; }
    uint64_t stamp() const override { return stamp_; }

 private:
    void fill(uint64_t offset, std::span<uint8_t> bytes) const override {
        const int file = keeps_open_ ? file_ : open();
        const int error = read_from(file, offset, bytes);
        if (!keeps_open_) ::close(file);
        if (error < 0) fail(name(), ": it became shorter while it was read");
        if (error > 0) fail_by(error, cat("cannot be read at byte ", offset));
    }
    int open() const {
        const int file =
            tried([&] { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
        if (file < 0) fail_by(errno, "cannot be opened");
        return file;
    }
    [[noreturn]] void fail_by(int error, const std::string& what) const {
        const std::string why = cat(name(), ": ", what, ": ", std::strerror(error));
        if (is_of_system(error)) throw Unreachable(why);
        fail(why);
    }

    const std::string path_;
    const int file_;
    bool keeps_open_ = false;
    uint64_t size_ = 0, stamp_ = 0;
};

class Memory final : public Storage {
 public:
    Memory(std::string name, std::vector<uint8_t> bytes)
        : Storage(std::move(name)), bytes_(std::move(bytes)) {}
    uint64_t size() const override { return bytes_.size(); }

 private:
    void fill(uint64_t offset, std::span<uint8_t> bytes) const override {
        std::copy_n(bytes_.begin() + ptrdiff_t(offset), bytes.size(), bytes.begin());
    }

    const std::vector<uint8_t> bytes_;
};

}  // namespace

int read_from(int file, uint64_t offset, std::span<uint8_t> bytes) {
    while (!bytes.empty()) {
        const ssize_t n =
            tried([&] { return pread(file, bytes.data(), bytes.size(), off_t(offset)); });
        if (n <= 0) return n < 0 ? errno : -1;
        bytes = bytes.subspan(size_t(n));
        offset += uint64_t(n);
    }
    return 0;
}

std::string cache_folder(const std::string& given) {
    if (!given.empty()) return given;
    const std::string cache = environment_variable("XDG_CACHE_HOME");
    if (!cache.empty()) return cache + "/convoy";
    const std::string home = environment_variable("HOME");
    return home.empty() ? "" : home + "/.cache/convoy";
}

StoragePtr open_local(const std::string& path) { return std::make_shared<LocalFile>(path); }

bool is_url(const std::string& name) { return name.find("://") != std::string::npos; }

StoragePtr open_storage(const std::string& name, const Remote& remote) {
    return is_url(name) ? open_remote(remote, name) : open_local(name);
}

std::string public_name(const std::string& name) {
    return is_url(name) && !name.starts_with("s3://") ? locate(name).name : name;
}

StoragePtr in_memory(std::string name, std::vector<uint8_t> bytes) {
    return std::make_shared<Memory>(std::move(name), std::move(bytes));
}

std::vector<std::string> read_lines(const std::string& path, uint64_t limit) {
    const std::vector<uint8_t> bytes = read_all(*open_local(path), limit);
    std::vector<std::string> lines = split(without_bom(as_text(bytes)), '\n');
    for (std::string& line : lines)
        if (line.ends_with('\r')) line.pop_back();
    return lines;
}

std::vector<uint8_t> read_all(const Storage& storage, uint64_t limit) {
    if (storage.size() > limit)
        fail(storage.name(), ": ", storage.size(), " bytes, more than the ", limit, " expected");
    std::vector<uint8_t> bytes;
    for (uint64_t at = 0; at < storage.size(); at = bytes.size()) {  // memory as it arrives
        bytes.resize(at + std::min<uint64_t>(storage.size() - at, 1 << 24));
        storage.read(at, std::span(bytes).subspan(at));
    }
    return bytes;
}

}  // namespace convoy
