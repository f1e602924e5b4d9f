// range_fetcher.cpp — what is wanted, and what readers wait for. The threads are in
// range_requests.cpp.
#include "data/range_fetcher.h"

#include <algorithm>

namespace convoy {
namespace {

constexpr uint64_t kRequest = 1 << 20;   // bytes of the largest request
constexpr uint64_t kHole = 16 << 10;     // bytes that are fetched too where that saves a request
constexpr size_t kMostWanted = 1 << 16;  // pieces that may wait; further hints are dropped
constexpr uint64_t kFarthest = 1ull << 62;

}  // namespace

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

}  // namespace convoy
