// remote.h — storages at http://, https:// and s3:// URLs, fetched whole and ahead of need.
//
//   prepare() ─► queue, in the order of reading ─┐
//   read() ────► urgent, before the queue ───────┴─► threads ─► KEY.part ─► KEY ─► read()
//
// Both files are in FOLDER/convoy-shards. KEY is the SHA-256 of URL, version (ETag) and size. Only
// complete files are read. A part that was left behind is continued. Several processes may share
// the folder: the part is locked by the one that fetches it. The next file waits until there is
// room. Files that this process will not read soon make room, the least recently read one first.
#pragma once

#include <memory>
#include <string>

#include "data/storage.h"
#include "src/base/log.h"

namespace convoy {

struct RemoteOptions {
    std::string cache = {};              // folder; "": the user's (cache_folder)
    uint64_t cache_bytes = 10ull << 30;  // that the files in it may take
    int connections = 8;                 // files on the way at a time
    double patience = 60;  // seconds without a byte until a request that fails is an error
    long stall = 10;       // seconds without data until a request has failed
};

// The connections and the folder that all its storages share.
class Remote {
 public:
    // The log hears when a server fails and when it is back. It must outlive the storages.
    Remote(const RemoteOptions& options, Log& log);

    // Contacts no server: a missing object becomes an Error of the first size() or read(). Throws
    // Error for a text that is no URL, and for a folder that cannot be written.
    StoragePtr open(const std::string& url) const;

 private:
    std::shared_ptr<class RemoteFetcher> fetcher_;
};

}  // namespace convoy
