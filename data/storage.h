// storage.h — bytes that can be read at any offset: a file here, at a URL, or on another rank.
//
// Sources of sharded data read through this alone, so where a shard lies is no concern of its
// format.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/check.h"

namespace convoy {

// The storage as a whole is at fault, such as a server that is gone or a disk that fails: no sample
// is to blame, and the run ends.
struct Unreachable : Error {
    using Error::Error;
};
// There is no such object, or it may not be read: S3 answers alike where it may not be listed.
struct Missing : Unreachable {
    using Unreachable::Unreachable;
};

class Storage {
 public:
    explicit Storage(std::string name) : name_(std::move(name)) {}
    virtual ~Storage() = default;

    const std::string& name() const { return name_; }  // path or URL, for people
    virtual uint64_t size() const = 0;                 // in bytes
    // A number that is another one when the content has changed (the time of the last change);
    // 0: not known.
    virtual uint64_t stamp() const { return 0; }
    // Fills `bytes` from `offset` on; blocks until they are there. Throws Error that names the
    // storage and the offset where they cannot be read, or the end comes first. May be called by
    // many threads at once.
    virtual void read(uint64_t offset, std::span<uint8_t> bytes) const = 0;
    // Hints; they neither block nor throw. This part will be read soon (of a file on another rank).
    virtual void expect(uint64_t /*offset*/, uint64_t /*length*/) const {}
    // Announces that the file will be read as a whole, so that a remote file is fetched ahead.
    virtual void prepare() const {}
    // Announces that the file has been read.
    virtual void finish() const {}
    // Bytes that all storages of this kind may occupy on this machine.
    virtual uint64_t room() const { return UINT64_MAX; }

 private:
    const std::string name_;
};

using StoragePtr = std::shared_ptr<const Storage>;

// A file of this machine. Throws Error where it cannot be opened or is not a file.
StoragePtr open_local(const std::string& path);
// Fills `bytes` from an open file. Returns 0, the error number, or -1 where the file ends before.
int read_from(int file, uint64_t offset, std::span<uint8_t> bytes);

// The folder for copies and indexes: `given`, else ~/.cache/convoy; "" without a home.
std::string cache_folder(const std::string& given);

// A path, or a URL (remote.h). Throws Error for a file that cannot be opened, and for what is no
// URL; nobody is contacted.
StoragePtr open_storage(const std::string& name, const class Remote& remote);
bool is_url(const std::string& name);  // http://, https://, s3://
// A path or URL as people may see it: without password and query.
std::string public_name(const std::string& name);

// Bytes that are here already.
StoragePtr in_memory(std::string name, std::vector<uint8_t> bytes);

// All bytes of a small storage. Throws Error where it holds more than `limit`.
std::vector<uint8_t> read_all(const Storage& storage, uint64_t limit);
// The lines of a small file of text, without their ends and a byte order mark.
std::vector<std::string> read_lines(const std::string& path, uint64_t limit);

}  // namespace convoy
