// peer_shards.cpp — see peer_shards.h.
#include "src/job/peer_shards.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <mutex>

#include "src/base/check.h"

namespace convoy {

// This rank's shards, by their numbers in the catalogue. Other ranks' requests come at any time.
struct PeerShards::Served {
    std::mutex mutex;
    std::vector<StoragePtr> files;

    void answer(uint32_t number, uint64_t offset, std::span<std::byte> bytes) {
        StoragePtr file;
        {
            std::lock_guard lock(mutex);
            if (number >= files.size()) fail("there is no shard ", number, " of ", files.size());
            file = files[number];
        }
        if (offset > file->size() || bytes.size() > file->size() - offset)
            fail(file->name(), " has ", file->size(), " bytes: not ", bytes.size(), " at ", offset);
        file->read(offset, {reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()});
    }
};

// Pieces of other ranks' shards: on their way, or here. Those that were read make room for others,
// the oldest first.
class PeerShards::Cache {
 public:
    Cache(Fetcher& fetcher, size_t most) : fetcher_(fetcher), most_(most) {}

    struct Place {
        int rank;
        uint32_t file;
        uint64_t offset, length;
        auto operator<=>(const Place&) const = default;
    };

    void expect(const Place& place) {
        std::lock_guard lock(mutex_);
        if (!pieces_.contains(place) && make_room(place.length)) start(place);
    }
    void read(const Place& place, std::span<uint8_t> out) {
        std::shared_ptr<Piece> piece;
        {
            std::lock_guard lock(mutex_);
            const auto at = pieces_.find(place);
            if (at != pieces_.end()) {
                piece = at->second;
                if (piece->is_read) read_.erase(piece->in_read);
            } else {
                make_room(place.length);  // as far as possible: it is needed now
                piece = start(place);
            }
            piece->is_read = true;
            piece->in_read = read_.insert(read_.end(), place);
        }
        try {
            for (const std::shared_future<void>& part : piece->parts) part.get();
        } catch (...) {
            std::lock_guard lock(mutex_);
            const auto at = pieces_.find(place);
            if (at != pieces_.end() && at->second == piece) forget(at);
            throw;
        }
        std::copy(piece->bytes.begin(), piece->bytes.end(),
                  reinterpret_cast<std::byte*>(out.data()));
    }

 private:
    struct Piece {
        std::vector<std::byte> bytes;
        std::vector<std::shared_future<void>> parts;  // each at most Fetcher::kMostBytes
        bool is_read = false;
        std::list<Place>::iterator in_read;
        ~Piece() {  // the fetcher writes into `bytes` until then
            for (const std::shared_future<void>& part : parts) part.wait();
        }
    };
    using Pieces = std::map<Place, std::shared_ptr<Piece>>;

    void forget(Pieces::iterator at) {
        held_ -= at->first.length;
        if (at->second->is_read) read_.erase(at->second->in_read);
        pieces_.erase(at);
    }
    bool make_room(uint64_t length) {
        while (held_ + length > most_ && !read_.empty()) forget(pieces_.find(read_.front()));
        return held_ + length <= most_;
    }
    std::shared_ptr<Piece> start(const Place& place) {
        auto piece = std::make_shared<Piece>();
        piece->bytes.resize(place.length);
        for (uint64_t at = 0; at < place.length; at += Fetcher::kMostBytes) {
            const size_t n = std::min(Fetcher::kMostBytes, place.length - at);
            piece->parts.push_back(
                fetcher_.fetch(place.rank, place.file, place.offset + at, {&piece->bytes[at], n})
                    .share());
        }
        held_ += place.length;
        return pieces_[place] = piece;
    }

    Fetcher& fetcher_;
    const size_t most_;
    std::mutex mutex_;
    Pieces pieces_;
    std::list<Place> read_;  // of pieces that were read, the oldest first
    uint64_t held_ = 0;
};

// A shard that lies on another rank.
class PeerShards::PeerFile final : public Storage {
 public:
    PeerFile(std::string name, uint64_t size, int rank, uint32_t number,
             std::shared_ptr<Cache> cache)
        : Storage(std::move(name)), size_(size), rank_(rank), number_(number), cache_(cache) {}
    uint64_t size() const override { return size_; }
    void read(uint64_t offset, std::span<uint8_t> bytes) const override {
        if (offset > size_ || bytes.size() > size_ - offset)
            fail(name(), ": ends at byte ", size_, ", before ", offset, " + ", bytes.size());
        cache_->read({rank_, number_, offset, bytes.size()}, bytes);
    }
    void expect(uint64_t offset, uint64_t length) const override {
        if (offset <= size_ && length <= size_ - offset)
            cache_->expect({rank_, number_, offset, length});
    }

 private:
    const uint64_t size_;
    const int rank_;
    const uint32_t number_;
    const std::shared_ptr<Cache> cache_;
};

PeerShards::PeerShards(Communicator& communicator, size_t cache_bytes)
    : communicator_(communicator), served_(std::make_shared<Served>()) {
    Fetcher& fetcher =
        communicator.open_fetcher([served = served_](uint32_t file, uint64_t offset, auto bytes) {
            served->answer(file, offset, bytes);
        });
    cache_ = std::make_shared<Cache>(fetcher, cache_bytes);
}

// Every rank's bytes, however many: in rounds, as one all-gather is bounded.
static std::vector<std::vector<uint8_t>> gather_bytes(Communicator& communicator,
                                                      std::span<const uint8_t> mine) {
    constexpr size_t kRound = 8 << 20;
    std::vector<std::vector<uint8_t>> all(static_cast<size_t>(communicator.world()));
    for (bool more = true; more;) {
        const size_t n = std::min(kRound, mine.size());
        const auto round = communicator.allgather(std::as_bytes(mine.first(n)));
        mine = mine.subspan(n);
        more = false;
        for (size_t r = 0; r < all.size(); ++r) {
            const auto* bytes = reinterpret_cast<const uint8_t*>(round[r].data());
            all[r].insert(all[r].end(), bytes, bytes + round[r].size());
            more = more || round[r].size() == kRound;  // it may have more to say
        }
    }
    return all;
}

// A catalogue: first number (4 bytes), count (4), the size of each shard (8), the index (index.h).
static std::vector<uint8_t> write_catalogue(uint32_t first, std::span<const Shard> shards) {
    std::vector<uint8_t> bytes;
    const auto append = [&](const auto& number) {
        const auto* from = reinterpret_cast<const uint8_t*>(&number);
        bytes.insert(bytes.end(), from, from + sizeof number);
    };
    append(first), append(uint32_t(shards.size()));
    std::vector<NamedIndex> named;
    for (const Shard& shard : shards) {
        append(shard.storage->size());
        named.emplace_back(split_path(shard.name).second, &shard.index);
    }
    const std::vector<uint8_t> index = pack_index(named);
    bytes.insert(bytes.end(), index.begin(), index.end());
    return bytes;
}

void PeerShards::complete(std::vector<Shard>& shards) {
    const auto file_name = [](const Shard& shard) { return split_path(shard.name).second; };
    std::ranges::sort(shards, {}, file_name);  // as the indexes of a catalogue are
    std::map<std::string, Shard> all;
    uint32_t first;
    {
        std::lock_guard lock(served_->mutex);
        first = uint32_t(served_->files.size());
        for (const Shard& shard : shards) served_->files.push_back(shard.storage);
    }
    const std::vector<uint8_t> mine = write_catalogue(first, shards);
    for (Shard& shard : shards)
        if (std::string name = file_name(shard), path = shard.name;
            !all.try_emplace(std::move(name), std::move(shard)).second)
            fail("--shards peers knows shards by their file names: '", path, "' is a second one");

    const std::vector<std::vector<uint8_t>> catalogues = gather_bytes(communicator_, mine);
    for (int rank = 0; rank < communicator_.world(); ++rank) {
        if (rank == communicator_.rank()) continue;
        std::span<const uint8_t> bytes = catalogues[size_t(rank)];
        const auto take = [&]<class T>(T number) {
            if (bytes.size() < sizeof number) fail("rank ", rank, " sent half a catalogue");
            std::memcpy(&number, bytes.data(), sizeof number);
            bytes = bytes.subspan(sizeof number);
            return number;
        };
        uint32_t number = take(uint32_t());
        std::vector<uint64_t> sizes;
        for (uint32_t count = take(uint32_t()); count > 0; --count)
            sizes.push_back(take(uint64_t()));
        std::map<std::string, ShardIndex> indexes = unpack_index(bytes);
        if (indexes.size() != sizes.size()) fail("rank ", rank, " sent a damaged catalogue");
        auto size = sizes.begin();
        for (auto& [name, index] : indexes) {
            auto file = std::make_shared<PeerFile>(cat("rank ", rank, "'s ", name), *size++, rank,
                                                   number++, cache_);
            const auto [at, is_new] = all.try_emplace(name);
            if (is_new)
                at->second = {file->name(), file, std::move(index)};
            else if (at->second.index.lengths != index.lengths ||
                     at->second.index.checksums != index.checksums)
                fail("'", at->second.name, "' and ", file->name(), " have different samples");
        }
    }
    shards.clear();
    for (auto& [name, shard] : all) shards.push_back(std::move(shard));
}

}  // namespace convoy
