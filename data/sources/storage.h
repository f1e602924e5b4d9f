// storage.h — bytes that can be read at any offset: a file on this machine or at a URL.
//
// All formats of shards read through this interface, so they do not know where a shard is stored.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/check.h"

namespace convoy {

// The whole storage fails, such as a server or a disk. So no sample is bad, and the run ends.
struct Unreachable : Error {
    using Error::Error;
};
// The object does not exist, or access is refused. Without the right to list the bucket, S3 gives
// the same answer to both.
struct Missing : Unreachable {
    using Unreachable::Unreachable;
};

class Storage {
 public:
    explicit Storage(std::string name) : name_(std::move(name)) {}
    virtual ~Storage() = default;

    const std::string& name() const { return name_; }  // path or URL, for people
    virtual uint64_t size() const = 0;                 // in bytes
    // A number that a change of the content changes (the time of that change); 0: unknown.
    virtual uint64_t stamp() const { return 0; }
    // Fills `bytes` from `offset` on, and blocks until they are here. Throws Error with the storage
    // and the offset if the bytes cannot be read, or if the storage ends too early. Many threads
    // may call it at once.
    void read(uint64_t offset, std::span<uint8_t> bytes) const {
        if (const uint64_t all = size(); offset > all || bytes.size() > all - offset)
            fail(name_, ": ends at byte ", all, ", before ", offset, " + ", bytes.size());
        fill(offset, bytes);
    }
    // Hints, which neither block nor throw. prepare(): the file will be read as a whole, so a
    // remote file is fetched.
    virtual void prepare() const {}
    // finish(): the file has been read.
    virtual void finish() const {}
    // The bytes that all storages of this kind together may take on this machine.
    virtual uint64_t room() const { return UINT64_MAX; }

 private:
    virtual void fill(uint64_t offset, std::span<uint8_t> bytes) const = 0;  // that are there

    const std::string name_;
};

using StoragePtr = std::shared_ptr<const Storage>;

// A file of this machine. Throws Error if it cannot be opened or is not a file.
StoragePtr open_local(const std::string& path);
// Fills `bytes` from an open file. Returns 0, the error number, or -1 if the file ends before.
int read_from(int file, uint64_t offset, std::span<uint8_t> bytes);

// The folder for copies and indexes: `given`, else ~/.cache/convoy; "" without a home.
std::string cache_folder(const std::string& given);

// The threads and the folder that all remote storages share (remote.h).
using Remote = std::shared_ptr<class RemoteFetcher>;
// Opens a path, or a URL (remote.h) without contacting the server. Throws Error if the file cannot
// be opened or the URL is malformed.
StoragePtr open_storage(const std::string& name, const Remote& remote);
bool is_url(const std::string& name);  // http://, https://, s3://
// A path or URL without password and query, to show to people.
std::string public_name(const std::string& name);

StoragePtr in_memory(std::string name, std::vector<uint8_t> bytes);

// All bytes of a small storage. Throws Error if there are more than `limit`.
std::vector<uint8_t> read_all(const Storage& storage, uint64_t limit);
// The lines of a small text file, without line ends and byte order mark.
std::vector<std::string> read_lines(const std::string& path, uint64_t limit);

}  // namespace convoy
