// remote.cpp — see remote.h.
#include "data/remote.h"

#include <csignal>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "data/block_cache.h"
#include "data/http.h"
#include "src/base/clock.h"
#include "src/base/random.h"

namespace convoy {
namespace {

constexpr uint64_t kRequest = 1 << 20;   // bytes of the largest request
constexpr uint64_t kGranule = 512;       // pieces begin and end at its multiples: tar's block
constexpr uint64_t kHole = 16 << 10;     // bytes that are fetched too where that saves a request
constexpr size_t kMostWanted = 1 << 16;  // pieces that may wait; further hints are dropped
constexpr uint64_t kFarthest = 1ull << 62;
constexpr double kFirstPatience = 10;  // seconds, for a server that has never answered

}  // namespace

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

    uint64_t granule() const { return cache_ ? BlockCache::kBlock : kGranule; }

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

RangeFetcher::PiecePtr RangeFetcher::find(Object& object, uint64_t offset) {
    auto it = object.pieces.upper_bound(offset);
    if (it == object.pieces.begin()) return nullptr;
    --it;
    return offset < it->second->end ? it->second : nullptr;
}

// A piece in the gap at `offset`, up to `end`, the gap's end or a whole request.
RangeFetcher::PiecePtr RangeFetcher::add(const std::shared_ptr<Object>& object, uint64_t offset,
                                         uint64_t end) {
    const uint64_t begin = offset / granule() * granule();
    end = std::min((end + granule() - 1) / granule() * granule(), begin + kRequest);
    const auto next = object->pieces.upper_bound(offset);
    if (next != object->pieces.end()) end = std::min(end, next->first);
    if (object->is_known) end = std::min(end, object->size);
    const auto piece = std::make_shared<Piece>(Piece{object, begin, end});
    object->pieces[begin] = piece;
    return piece;
}

void RangeFetcher::want(const std::shared_ptr<Object>& object, uint64_t offset, uint64_t length) {
    const uint64_t most = object->is_known ? object->size : kFarthest;
    offset = std::min(offset, most);
    const uint64_t end = offset + std::min(length, most - offset);
    while (offset < end && wanted_.size() < kMostWanted) {
        PiecePtr piece = find(*object, offset);
        if (!piece) {
            piece = add(object, offset, end);
            wanted_.push_back(piece);
            wake_thread();
        }
        offset = piece->end;
    }
}

// Blocks until something has become of the piece at `offset`; null: look again.
RangeFetcher::PiecePtr RangeFetcher::wait_for(const std::shared_ptr<Object>& object,
                                              uint64_t offset, std::unique_lock<std::mutex>& lock) {
    PiecePtr piece = find(*object, offset);
    if (!piece) piece = add(object, offset, offset + 1);
    if (piece->state == Piece::wanted && !piece->is_urgent) {
        piece->is_urgent = true;
        urgent_.push_back(piece);
        wake_thread();
    }
    if (piece->state == Piece::failed) {  // when it was only expected: things may be better now
        drop(piece);
        return nullptr;
    }
    arrived_.wait(lock, [&] { return piece->state > Piece::on_the_way; });
    if (piece->state == Piece::failed) {
        drop(piece);
        const std::string fault = cat(object->where.name, ": ", piece->fault);
        if (piece->is_missing) throw Missing(fault);
        throw Unreachable(fault);
    }
    return piece->state == Piece::here ? piece : nullptr;
}

void RangeFetcher::read(const std::shared_ptr<Object>& object, uint64_t offset,
                        std::span<uint8_t> bytes) {
    std::unique_lock lock(mutex_);
    want(object, offset, bytes.size());
    while (!bytes.empty()) {
        if (object->is_known && (offset > object->size || bytes.size() > object->size - offset))
            fail(object->where.name, ": ends at byte ", object->size, ", before ", offset, " + ",
                 bytes.size());
        const PiecePtr piece = wait_for(object, offset, lock);
        if (!piece || offset >= piece->end) continue;
        if (find(*object, offset) == piece) {  // not dropped meanwhile
            read_.splice(read_.end(), piece->was_read ? read_ : unread_, piece->place);
            piece->was_read = true;
            if (!wanted_.empty()) wake_.notify_one();  // there may be room
        }
        lock.unlock();
        const size_t n = size_t(std::min<uint64_t>(bytes.size(), piece->end - offset));
        std::copy_n(piece->bytes.get() + (offset - piece->begin), n, bytes.begin());
        bytes = bytes.subspan(n), offset += n;
        lock.lock();
    }
}

// The piece together with neighbours that are wanted as well, and small holes between them, as far
// as one request goes.
RangeFetcher::PiecePtr RangeFetcher::grown(PiecePtr piece) {
    auto& pieces = piece->object->pieces;
    const uint64_t end = piece->end;
    for (auto it = pieces.find(piece->begin); it != pieces.begin();) {
        const PiecePtr& left = (--it)->second;
        if (left->state != Piece::wanted || left->end + kHole < piece->begin ||
            end - left->begin > kRequest)
            break;
        piece = left;
    }
    for (auto it = std::next(pieces.find(piece->begin)); it != pieces.end();) {
        const PiecePtr right = it->second;
        if (right->state != Piece::wanted || right->begin > piece->end + kHole ||
            right->end - piece->begin > kRequest)
            break;
        piece->end = right->end;
        right->state = Piece::gone;
        it = pieces.erase(it);
        arrived_.notify_all();
    }
    return piece;
}

// The piece to fetch now, if there is one and memory for it.
RangeFetcher::PiecePtr RangeFetcher::next() {
    for (auto* queue : {&urgent_, &wanted_})
        while (!queue->empty()) {
            PiecePtr piece = queue->front();
            if (piece->state == Piece::wanted) {
                piece = grown(piece);
                if (!make_room(piece->end - piece->begin, queue == &urgent_)) return nullptr;
                piece->state = Piece::on_the_way;
                held_ += piece->end - piece->begin;
                return piece;
            }
            queue->pop_front();
        }
    return nullptr;
}

bool RangeFetcher::make_room(uint64_t bytes, bool is_urgent) {
    while (held_ + bytes > options_.memory_bytes) {
        if (!read_.empty())
            drop(read_.front());
        else if (is_urgent && !unread_.empty())
            drop(unread_.front());
        else
            return is_urgent;
    }
    return true;
}

// Whoever holds the piece may still use its bytes.
void RangeFetcher::drop(PiecePtr piece) {
    if (piece->state == Piece::here) {
        held_ -= piece->end - piece->begin;
        (piece->was_read ? read_ : unread_).erase(piece->place);
    }
    if (piece->state == Piece::wanted) piece->state = Piece::gone;
    auto& pieces = piece->object->pieces;
    const auto it = pieces.find(piece->begin);
    if (it != pieces.end() && it->second == piece) pieces.erase(it);
}

void RangeFetcher::learn(Object& object, const Answer& answer) {
    if (object.is_known) return;
    object.is_known = has_answered_ = true;
    object.size = answer.total;
    object.version = answer.version;
    if (!answer.version.empty())
        object.key = BlockCache::key(object.where.url, answer.version, answer.total);
}

void RangeFetcher::publish(const PiecePtr& piece, std::unique_ptr<uint8_t[]> bytes, Answer answer) {
    Object& object = *piece->object;
    held_ -= piece->end - piece->begin;
    if (answer.fault.empty()) learn(object, answer);
    if (answer.fault.empty() && (answer.total != object.size || answer.version != object.version))
        answer.fault = "it changed on the server while it was read; start again";
    if (!answer.fault.empty()) {
        piece->state = Piece::failed;
        piece->fault = answer.fault, piece->is_missing = answer.missing;
    } else if (find(object, piece->begin) != piece || answer.received == 0) {
        piece->state = Piece::gone;
        drop(piece);
    } else {
        piece->end = piece->begin + answer.received;
        piece->bytes = std::move(bytes);
        piece->state = Piece::here;
        held_ += answer.received;
        piece->place = unread_.insert(unread_.end(), piece);
    }
    arrived_.notify_all();
}

void RangeFetcher::work() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::optional<HttpClient> client;
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        const PiecePtr piece = next();
        if (!piece) {
            ++idle_;
            wake_.wait(lock);
            --idle_;
            continue;
        }
        const bool is_known = piece->object->is_known;
        const size_t size = size_t(piece->end - piece->begin);
        lock.unlock();
        std::unique_ptr<uint8_t[]> bytes;
        Answer answer;
        try {
            if (!client) client.emplace(options_.stall, stopping_);
            bytes = std::make_unique_for_overwrite<uint8_t[]>(size);
            answer = fetch(*client, *piece->object, is_known, piece->begin, {bytes.get(), size});
        } catch (const std::exception& error) {
            answer.fault = error.what();
        }
        lock.lock();
        publish(piece, std::move(bytes), std::move(answer));
    }
}

// Blocks from the cache on disk, and each run of blocks that are not there by a request. What is in
// the cache is known by the object's version, so an unknown object costs a request more.
Answer RangeFetcher::fetch(HttpClient& client, Object& object, bool is_known, uint64_t begin,
                           std::span<uint8_t> bytes) {
    if (!cache_) return ask(client, object, begin, bytes);
    if (!is_known) {
        uint8_t first;
        Answer answer = ask(client, object, 0, {&first, 1});
        if (!answer.fault.empty()) return answer;
        std::lock_guard lock(mutex_);
        learn(object, answer);
    }
    Answer answer;
    answer.total = object.size, answer.version = object.version;
    if (begin >= object.size) return answer;
    bytes = bytes.first(std::min<uint64_t>(bytes.size(), object.size - begin));
    if (object.key.empty()) return ask(client, object, begin, bytes);
    const auto block = [&](size_t at) {
        return bytes.subspan(at, std::min<size_t>(BlockCache::kBlock, bytes.size() - at));
    };
    const auto number = [&](size_t at) { return (begin + at) / BlockCache::kBlock; };
    size_t missing = 0;  // from here to `at` no block is in the cache
    for (size_t at = 0, next = 0; missing < bytes.size(); at = next) {
        const bool is_end = at == bytes.size();
        const bool is_here = !is_end && cache_->load(object.key, number(at), block(at));
        next = is_end ? at : at + block(at).size();
        if (!is_here && !is_end) continue;
        if (missing < at) {
            answer = ask(client, object, begin + missing, bytes.subspan(missing, at - missing));
            if (!answer.fault.empty() || answer.total != object.size ||
                answer.version != object.version)  // another one, as publish() will say
                return answer;
            for (; missing < at; missing += block(missing).size())
                cache_->store(object.key, number(missing), block(missing));
        }
        missing = next;
    }
    answer.received = bytes.size();
    return answer;
}

// A request, again until it succeeds, cannot succeed, or patience is over.
Answer RangeFetcher::ask(HttpClient& client, const Object& object, uint64_t begin,
                         std::span<uint8_t> bytes) {
    const auto start = Clock::now();
    for (int tries = 1;; ++tries) {
        Answer answer = client.get(object.where, begin, bytes);
        std::unique_lock lock(mutex_);
        const bool is_good = answer.fault.empty();
        const double patience =
            has_answered_ ? options_.patience : std::min(options_.patience, kFirstPatience);
        const bool is_over =
            is_good || !answer.passing || stopping_ || seconds_since(start) >= patience;
        if (!is_over && tries == 1 && failing_++ == 0) {
            failing_since_ = Clock::now();
            log_.notice(object.where.name, ": ", answer.fault, "; trying again");
        }
        if (is_over && tries > 1 && --failing_ == 0 && is_good)
            log_.notice(object.where.name, ": answers again after ",
                        fmt::format("{:.1f} s", seconds_since(failing_since_)));
        if (is_over && !is_good && tries > 1)
            answer.fault +=
                fmt::format("; tried {} times in {:.0f} s", tries, seconds_since(start));
        if (is_over) return answer;
        // Doubled each time; not the same for all, so that they do not come back at once.
        const double spread = 0.5 + double(begin / granule() % 16) / 16;
        const double wait =
            std::max(answer.wait, spread * std::min(0.25 * std::exp2(tries - 1), 8.0));
        stop_.wait_for(lock, std::chrono::duration<double>(wait), [&] { return stopping_.load(); });
    }
}

namespace {

class RemoteFile final : public Storage {
 public:
    RemoteFile(std::shared_ptr<RangeFetcher> fetcher, const Location& where)
        : Storage(where.name), fetcher_(std::move(fetcher)), object_(fetcher_->open(where)) {}
    ~RemoteFile() override { fetcher_->forget(object_); }

    uint64_t size() const override { return fetcher_->size(object_); }
    uint64_t stamp() const override {
        size();
        return object_->version.empty() ? 0 : hash_bytes(object_->version);
    }
    void read(uint64_t offset, std::span<uint8_t> bytes) const override {
        fetcher_->read(object_, offset, bytes);
    }
    void expect(uint64_t offset, uint64_t length) const override {
        fetcher_->expect(object_, offset, length);
    }

 private:
    const std::shared_ptr<RangeFetcher> fetcher_;
    const std::shared_ptr<RangeFetcher::Object> object_;
};

}  // namespace

Remote::Remote(const RemoteOptions& options, Log& log)
    : fetcher_(std::make_shared<RangeFetcher>(options, log)) {}

std::shared_ptr<const Storage> Remote::open(const std::string& url) const {
    return std::make_shared<RemoteFile>(fetcher_, locate(url));
}

}  // namespace convoy
