// remote.h — storage at http://, https:// and s3:// URLs, fetched ahead over several connections.
//
//   expect() ─► pieces wanted ─┐                         ┌─► cache on disk ─┐
//   read() ──► pieces urgent ──┴─► threads, one request ─┴─► server ────────┴─► pieces
//              (first)             each at a time                               (bounded memory)
//
// A piece is a part of an object that is fetched by one request: what was expected, rounded to
// granules, with its neighbours where they are wanted too. Pieces that are here stay until their
// memory is needed; what was not read for longest goes first.
#pragma once

#include <memory>
#include <string>

#include "data/storage.h"
#include "src/base/log.h"

namespace convoy {

struct RemoteOptions {
    std::string cache = {};                // folder of the cache on disk (block_cache.h); "": none
    uint64_t cache_bytes = 10ull << 30;    // that it may take
    uint64_t memory_bytes = 256ull << 20;  // for pieces, on the way or here
    int connections = 24;                  // at a time
    double patience = 60;  // seconds for which a request is tried again before it is an error
    long stall = 10;       // seconds without data after which it is
};

// The connections and the cache that all storages opened by it share.
class Remote {
 public:
    // The log hears when a server fails and when it is back; it must outlive the storages.
    Remote(const RemoteOptions& options, Log& log);

    // Contacts nobody: that there is no such object becomes an Error of the first size() or read().
    // Throws Error for what is no URL that can be read, and where the cache cannot be used.
    std::shared_ptr<const Storage> open(const std::string& url) const;

 private:
    std::shared_ptr<class RangeFetcher> fetcher_;
};

}  // namespace convoy
