// range_fetcher.h — the pieces of remote objects: which are wanted, on the way or here, and the
// threads that fetch them. The drawing is in remote.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "data/block_cache.h"
#include "data/http.h"
#include "data/remote.h"
#include "src/base/clock.h"

namespace convoy {

class RangeFetcher {
 public:
    struct Piece;
    using PiecePtr = std::shared_ptr<Piece>;
    struct Object {
        Location where;
        bool is_known = false;  // by its first answer; what follows does not change after it
        uint64_t size = 0;
        std::string version = {}, key = {};  // key: of the cache on disk; "": not to be cached
        std::map<uint64_t, PiecePtr> pieces = {};  // by their begin; they do not overlap
    };
    struct Piece {
        // gone: into another piece, or empty
        enum State { wanted, on_the_way, here, failed, gone };
        std::shared_ptr<Object> object;
        uint64_t begin, end;
        State state = wanted;
        bool is_urgent = false;  // someone waits for it
        bool was_read = false;
        bool is_missing = false;  // failed: there is no such object
        std::string fault = {};
        std::unique_ptr<uint8_t[]> bytes = {};
        std::list<PiecePtr>::iterator place = {};  // here: in read_ or unread_
    };

    RangeFetcher(const RemoteOptions& options, Log& log) : options_(options), log_(log) {}
    ~RangeFetcher() {
        {
            std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        wake_.notify_all(), stop_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }

    std::shared_ptr<Object> open(const Location& where) {
        std::lock_guard lock(mutex_);
        if (!cache_ && !options_.cache.empty())
            cache_ = std::make_unique<BlockCache>(options_.cache, options_.cache_bytes);
        return std::make_shared<Object>(Object{where});
    }
    uint64_t size(const std::shared_ptr<Object>& object) {
        std::unique_lock lock(mutex_);
        while (!object->is_known) wait_for(object, 0, lock);
        return object->size;
    }
    void read(const std::shared_ptr<Object>& object, uint64_t offset, std::span<uint8_t> bytes);
    void expect(const std::shared_ptr<Object>& object, uint64_t offset, uint64_t length) {
        std::lock_guard lock(mutex_);
        want(object, offset, length);
    }
    // No storage asks for it any more.
    void forget(const std::shared_ptr<Object>& object) {
        std::lock_guard lock(mutex_);
        while (!object->pieces.empty()) drop(object->pieces.begin()->second);
    }

 private:
    // Under the lock:
    void wake_thread() {
        if (idle_ < urgent_.size() + wanted_.size() &&
            threads_.size() < size_t(options_.connections))
            threads_.emplace_back([this] { work(); });
        wake_.notify_one();
    }
    PiecePtr find(Object& object, uint64_t offset);
    PiecePtr add(const std::shared_ptr<Object>& object, uint64_t offset, uint64_t end);
    void want(const std::shared_ptr<Object>& object, uint64_t offset, uint64_t length);
    PiecePtr wait_for(const std::shared_ptr<Object>& object, uint64_t offset,
                      std::unique_lock<std::mutex>& lock);
    PiecePtr grown(PiecePtr piece);
    PiecePtr next();
    bool make_room(uint64_t bytes, bool is_urgent);
    void drop(PiecePtr piece);
    void learn(Object& object, const Answer& answer);
    void publish(const PiecePtr& piece, std::unique_ptr<uint8_t[]> bytes, Answer answer);
    // Of a thread:
    void work();
    Answer fetch(HttpClient& client, Object& object, bool is_known, uint64_t begin,
                 std::span<uint8_t> bytes);
    Answer ask(HttpClient& client, const Object& object, uint64_t begin, std::span<uint8_t> bytes);

    // Pieces begin and end at its multiples: tar's block, or that of the cache.
    uint64_t granule() const { return cache_ ? BlockCache::kBlock : 512; }

    const RemoteOptions options_;
    Log& log_;
    std::unique_ptr<BlockCache> cache_;

    std::mutex mutex_;                 // guards what follows, and each Object and Piece
    std::condition_variable wake_;     // for threads: a piece to fetch, or the end
    std::condition_variable arrived_;  // for readers: a piece is here, failed or gone
    std::condition_variable stop_;     // for threads that wait to try again: the end
    std::atomic<bool> stopping_ = false;
    std::deque<PiecePtr> urgent_, wanted_;  // also pieces whose state is another one by now
    std::list<PiecePtr> unread_, read_;     // here, in the order of their arrival, or last use
    uint64_t held_ = 0;                     // bytes on the way and here
    size_t idle_ = 0;
    bool has_answered_ = false;  // any server
    int failing_ = 0;            // requests that are tried again
    Clock::time_point failing_since_;
    std::vector<std::thread> threads_;  // last: all else must exist when they run
};

}  // namespace convoy
