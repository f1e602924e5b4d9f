// peer_shards.h — --shards peers: what a rank lacks it reads from the rank that has it.
//
//   local shards ─► catalogue ─► all ranks ─► the same list of shards everywhere, by name
//                                             │ here:  the file itself
//                                             └ there: PeerFile ─► cache ◄─ Fetcher ◄─ its rank
//
// The order of samples is that of one set, so losses are those of a job where every rank has it
// all. The loader tells which samples come (Storage::expect), so bytes travel while others train.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/index.h"
#include "net/communicator.h"

namespace convoy {

class PeerShards {
 public:
    // Serves this rank's shards to the others from now on. At most `cache_bytes` of theirs are kept
    // in memory. Collective; the communicator must outlive it and every shard it makes.
    PeerShards(Communicator& communicator, size_t cache_bytes);

    // `shards`: this rank's own, maybe none; becomes those of all ranks, sorted by the names of
    // their files. Where several ranks have one, this rank's own is read, else the lowest rank's.
    // Collective. Throws Error where files of one name differ.
    void complete(std::vector<Shard>& shards);

 private:
    struct Served;
    class Cache;
    class PeerFile;
    Communicator& communicator_;
    std::shared_ptr<Served> served_;
    std::shared_ptr<Cache> cache_;
};

}  // namespace convoy
