// remote.h — storages at http://, https:// and s3:// URLs, fetched whole and ahead of need.
//
//   prepare() ─► plan: files in the order of reading ─┐
//   read() ────► the front of the plan ───────────────┴─► threads ─► KEY.part ─► KEY ─► read()
//
// Both files are in FOLDER/convoy-shards. KEY is the SHA-256 of URL, version (ETag) and size. Only
// complete files are read. An unfinished .part of an earlier run is continued. Several processes
// may share the folder: a lock on the .part lets one of them fetch it. A transfer waits until there
// is room. For room, files outside the plan are deleted, the least recently read one first.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "data/sources/storage.h"
#include "src/base/log.h"

namespace convoy {

struct RemoteOptions {
    std::string cache = {};              // folder; "": the user's (cache_folder)
    uint64_t cache_bytes = 10ull << 30;  // that the files in it may take
    int connections = 8;                 // files fetched at a time
    double patience = 60;            // seconds without a byte until failing requests are an error
    long stall = 10;                 // seconds without data until one request fails
    std::function<int()> stop = {};  // if it returns other than 0, streams and searches end
};

// The folder in the cache for shards, which is made if it is not there. Throws Error.
std::string shard_folder(const std::string& cache);

// log: gets a line when a server fails or answers again, and must outlive the storages.
Remote make_remote(const RemoteOptions& options, Log& log);
// Contacts no server: a missing object becomes an Error of the first size() or read(). Throws Error
// if the text is no URL, or the folder cannot be written.
StoragePtr open_remote(const Remote& remote, const std::string& url);

}  // namespace convoy
