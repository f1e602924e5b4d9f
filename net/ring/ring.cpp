// ring.cpp — sums in a ring, without steps.
//
//      0 ──► 1     The data is cut into `world` chunks. Rank r (by place in the ring) sends chunk r
//      ▲     │     to its right; the chunk that arrives from the left is added to its own and sent
//      │     ▼     on, and so forth: after world-1 arrivals the last one is a complete sum (first
//      3 ◄── 2     lap). Complete chunks go round once more and are stored (second lap).
//
// Patarasuk, Yuan: "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
// Each rank sends 2·(world-1)/world of the data. A chunk is summed along one path only, so every
// rank ends with the same bits.
//
// The steps do not wait for each other. A rank sends one stream of pieces and receives another;
// piece s of the first is piece s of the second, one addition later:
//
//      sent        [own chunk][piece 1][piece 2] … [piece n-1]
//      received               [piece 1][piece 2] … [piece n-1][piece n]
//
// The one rule: the outgoing stream may not overtake the incoming one. Bytes are added and passed
// on as they come, at most kStage at a time, so that they are still in the cache. A gather is the
// second lap alone; a broadcast is one piece that every rank passes on.
#include "net/ring/ring.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "net/ring/reduce.h"

namespace convoy {

static constexpr size_t kStage = 256 << 10;  // bytes: two of them and the data fit a 1 MB L2 cache

// One collective on this rank. ring.pieces_ are sent to the right and received from the left:
// pieces 0 … sent-1 go out, pieces 1 … received come in. Received pieces 1 … sums are added to the
// local data; later pieces are stored.
class Ring::Flow {
 public:
    // `bytes`: of the whole collective; all ranks must agree. `bf16`: floats that travel as bf16.
    // `to` and `from`: places in the ring.
    Flow(Ring& ring, wire::Type type, size_t bytes, int sent, int received, int sums, bool bf16,
         int to, int from)
        : ring_(ring),
          right_(ring.link(to)),
          left_(ring.link(from)),
          from_(from),
          header_{type, ring.generation_, ring.number_, bytes},
          sent_(sent),
          received_(received),
          sums_(sums),
          bf16_(bf16),
          sent_track_(ring.record_.sent_track),
          received_track_(ring.record_.received_track),
          span_(sent_track_,
                type == wire::Type::sum      ? kTraceSum
                : type == wire::Type::gather ? kTraceGather
                                             : kTraceBroadcast,
                header_.number, double(bytes)) {
        if (ring.host_) ring.host_->enter(header_.number, type, bytes);
        if (sent > 0) staged_ = ring.stage_header(header_);
        if (received > 0) header_in_ = header_bytes_;
        skip_empty(out_, sent);
        skip_empty(in_, received + 1);
    }

    void run() {
        while (!sent_all() || !received_all()) {
            const bool sent = !sent_all() && send();
            const bool received = !received_all() && receive();
            if (!sent && !received)
                wait_for(right_, !staged_.empty() || sendable() > 0, left_, !received_all());
        }
    }

 private:
    struct Place {
        int piece;
        size_t at = 0;                 // bytes into it
        Clock::time_point begin = {};  // of the piece, if it is recorded
    };

    bool is_done(const Place& place) const {
        return place.at == ring_.pieces_[size_t(place.piece)].size();
    }
    void skip_empty(Place& place, int end) {
        while (place.piece < end && place.at == 0 && is_done(place)) ++place.piece;
    }
    void end_piece(Place& place, int end) {
        record(place);
        ++place.piece, place.at = 0;
        skip_empty(place, end);
    }
    // This rank's piece s is piece s+1 of the next rank. A broadcast has one piece.
    void record(const Place& place) {
        const bool in = &place == &in_;
        Track* const track = in ? received_track_ : sent_track_;
        if (!track) return;
        const int piece = header_.type == wire::Type::broadcast ? 0 : place.piece - in;
        track->add(in ? kTraceReceive : kTraceSend, place.begin, Clock::now(), piece,
                   double(place.at));
    }
    bool sent_all() const { return out_.piece >= sent_ && staged_.empty(); }
    bool has_header() const { return header_received_ == header_in_.size(); }
    bool received_all() const { return in_.piece > received_ && has_header(); }
    // Bytes of the current piece that have arrived here and are not sent. Piece 0 is our own.
    size_t sendable() const {
        if (out_.piece >= sent_ || out_.piece > in_.piece) return 0;
        const bool is_here = out_.piece == 0 || out_.piece < in_.piece;
        return (is_here ? ring_.pieces_[size_t(out_.piece)].size() : in_.at) - out_.at;
    }

    // Sends some bytes without blocking; true if any went. The header waits for the data that
    // follows it at once: the kernel may hold other bytes back for up to 200 ms.
    bool send() {
        const size_t bytes = std::min(sendable(), kStage);
        if (staged_.empty() && bytes == 0) return false;
        if (out_.at == 0 && sent_track_) out_.begin = Clock::now();
        if (staged_.empty() && bf16_) pack(bytes);
        size_t n = 0;
        if (staged_.empty()) {
            n = right_.send_some(ring_.pieces_[size_t(out_.piece)].subspan(out_.at, bytes));
            out_.at += n;
        } else {
            n = right_.send_some(staged_, !header_sent_ && bytes > 0);
            staged_ = staged_.subspan(n);
            header_sent_ = header_sent_ || staged_.empty();
        }
        if (out_.piece < sent_ && staged_.empty() && is_done(out_)) end_piece(out_, sent_);
        ring_.record_.sent += n, ring_.record_.moved += n;
        if (ring_.host_) ring_.host_->progress(n);
        return n > 0;
    }

    // Stages `bytes` of the current piece as bf16.
    void pack(size_t bytes) {
        auto* packed = reinterpret_cast<uint16_t*>(ring_.outbox_.data());
        auto* floats = reinterpret_cast<float*>(&ring_.pieces_[size_t(out_.piece)][out_.at]);
        const size_t n = bytes / sizeof(float);
        pack_bf16(packed, floats, n);
        // The first complete piece: its owner must hold what the others are going to read.
        if (out_.piece == sums_) unpack_bf16(floats, packed, n);
        staged_ = std::span(ring_.outbox_).first(n * sizeof(uint16_t));
        out_.at += bytes;
    }

    // Receives some bytes without blocking; true if any came.
    bool receive() {
        size_t n = 0;
        if (!has_header()) {
            n = left_.receive_some(header_in_.subspan(header_received_));
            header_received_ += n;
            if (has_header()) ring_.check(header_, header_bytes_, from_);
            return n > 0;
        }
        const std::span<std::byte> piece = ring_.pieces_[size_t(in_.piece)].subspan(in_.at);
        if (in_.at == 0 && received_track_) in_.begin = Clock::now();
        if (!bf16_ && in_.piece > sums_) {
            n = left_.receive_some(piece.first(std::min(piece.size(), kStage)));
            in_.at += n;
        } else {
            const size_t room =
                std::min(bf16_ ? piece.size() / 2 : piece.size(), kStage) - partial_;
            n = left_.receive_some(std::span(ring_.inbox_).subspan(partial_, room));
            in_.at += apply(piece, partial_ + n);
        }
        if (is_done(in_)) end_piece(in_, received_ + 1);
        ring_.record_.moved += n;
        if (ring_.host_) ring_.host_->progress(n);
        return n > 0;
    }

    // Adds or stores the whole elements among the first `bytes` of the inbox; a part of one at the
    // end moves to the front. Returns how many bytes of the piece are done.
    size_t apply(std::span<std::byte> piece, size_t bytes) {
        const size_t size = bf16_ ? sizeof(uint16_t) : sizeof(float), n = bytes / size;
        auto* into = reinterpret_cast<float*>(piece.data());
        const std::byte* from = ring_.inbox_.data();
        if (!bf16_)
            add(into, reinterpret_cast<const float*>(from), n);
        else if (in_.piece <= sums_)
            add_bf16(into, reinterpret_cast<const uint16_t*>(from), n);
        else
            unpack_bf16(into, reinterpret_cast<const uint16_t*>(from), n);
        partial_ = bytes - n * size;
        std::memmove(ring_.inbox_.data(), from + n * size, partial_);
        return n * sizeof(float);
    }

    Ring& ring_;
    Link &right_, &left_;
    const int from_;
    const wire::Header header_;
    const int sent_, received_, sums_;
    const bool bf16_;
    Place out_{0}, in_{1};
    std::span<const std::byte> staged_;  // header or packed floats, in the outbox
    bool header_sent_ = false;
    std::array<std::byte, wire::kHeaderBytes> header_bytes_;
    std::span<std::byte> header_in_;  // empty: nothing is to come
    size_t header_received_ = 0;      // bytes
    size_t partial_ = 0;              // bytes of an incomplete element at the front of the inbox
    Track *const sent_track_, *const received_track_;
    const Span span_;
};

Ring::Ring(int rank, std::vector<int> ring, std::vector<Link> links, uint32_t generation, bool bf16,
           RingRecord& record)
    : ring_(std::move(ring)),
      links_(std::move(links)),
      generation_(generation),
      bf16_(bf16),
      outbox_(kStage),
      inbox_(kStage),
      record_(record) {
    for (Link& link : links_) link.set_limit(record.limit);
    position_ = int(std::find(ring_.begin(), ring_.end(), rank) - ring_.begin());
    ENSURE(links_.size() == ring_.size() && position_ < world(), "rank ", rank, " of ", world());
}

void Ring::shut() noexcept {
    shut_ = true;
    for (Link& link : links_) link.shut();
}

void Ring::sum(std::span<float> data) {
    const bool small = data.size_bytes() <= kSmallSum;
    if (hosts_.size() == 1 || (!small && !hosts_.empty())) return sum_by_host(data);
    small ? recursive_doubling(wire::Type::sum, std::as_writable_bytes(data)) : sum_large(data);
}

void Ring::run(wire::Type type, size_t bytes, int sent, int received, int sums, bool bf16) {
    ++number_;
    Flow(*this, type, bytes, sent, received, sums, bf16, position_ + 1, position_ - 1).run();
}

void Ring::sum_large(std::span<float> data) {
    const int whole = int(std::bit_floor(unsigned(world()))), extra = world() > whole;
    const int saved =
        2 * (world() - 1) - 2 * (std::bit_width(unsigned(whole)) - 1 + extra);  // hops
    const bool halves = has_all_links_ && 2 * data.size_bytes() <= size_t(saved) * kHopBytes;
    halves ? halve_and_double(data, whole) : sum_around(data);
}

// Recursive halving, then doubling (Rabenseifner 2004). With the partner at distance whole/2 a rank
// exchanges halves of the data and adds the one that it keeps, then quarters with the partner at
// whole/4, … until it holds the complete sum of its own part. The parts come back the same way, so
// all ranks hold the same bits. Ranks beyond the largest power of two are as in ring_small.cpp.
void Ring::halve_and_double(std::span<float> data, int whole) {
    ++number_;
    const auto exchange = [&](int other, std::span<float> out, std::span<float> in, bool adds) {
        pieces_ = {std::as_writable_bytes(out), std::as_writable_bytes(in)};
        Flow(*this, wire::Type::sum, data.size_bytes(), !out.empty(), !in.empty(), adds, bf16_,
             other, other)
            .run();
    };
    if (position_ >= whole) {
        exchange(position_ - whole, data, {}, true);
        return exchange(position_ - whole, {}, data, false);
    }
    const bool has_extra = position_ + whole < world();
    if (has_extra) exchange(position_ + whole, {}, data, true);
    std::vector<std::array<std::span<float>, 2>> halves;  // mine, theirs
    for (int bit = whole / 2; bit > 0; bit /= 2) {
        const std::span<float> all = halves.empty() ? data : halves.back()[0];
        halves.push_back({all.first(all.size() / 2), all.subspan(all.size() / 2)});
        if (position_ & bit) std::swap(halves.back()[0], halves.back()[1]);
        exchange(position_ ^ bit, halves.back()[1], halves.back()[0], true);
    }
    for (int bit = 1; bit < whole; bit *= 2, halves.pop_back())
        exchange(position_ ^ bit, halves.back()[0], halves.back()[1], false);
    if (has_extra) exchange(position_ + whole, data, {}, false);
}

void Ring::sum_around(std::span<float> data) {
    const int laps = 2 * (world() - 1);
    pieces_.clear();
    for (int piece = 0; piece <= laps; ++piece) {  // chunk position, position-1, position-2, …
        const size_t chunk = size_t(position_ - piece + 2 * world()) % size_t(world());
        const size_t first = data.size() * chunk / size_t(world());
        const size_t last = data.size() * (chunk + 1) / size_t(world());
        pieces_.push_back(std::as_writable_bytes(data.subspan(first, last - first)));
    }
    run(wire::Type::sum, data.size_bytes(), laps, laps, world() - 1, bf16_);
}

void Ring::gather(std::span<const std::span<std::byte>> blocks, bool floats) {
    size_t bytes = 0;
    for (const auto& block : blocks) bytes += block.size();
    floats = floats && bf16_;
    if (bytes <= kSmallSum && !floats) return gather_small(blocks, bytes);
    pieces_.clear();
    for (int piece = 0; piece < world(); ++piece)
        pieces_.push_back(blocks[size_t(at(position_ - piece))]);
    const int others = world() - 1;
    run(wire::Type::gather, bytes, others, others, 0, floats);
}

void Ring::broadcast(std::span<std::byte> data, int root) {
    const bool is_root = at(position_) == root, last = at(position_ + 1) == root;
    pieces_ = {is_root ? data : data.first(0), is_root ? data.first(0) : data};
    const int sent = last ? 0 : is_root ? 1 : 2;
    run(wire::Type::broadcast, data.size(), sent, is_root ? 0 : 1, 0, false);
}

std::span<const std::byte> Ring::stage_header(const wire::Header& header) {
    const std::span staged = std::span(outbox_).first<wire::kHeaderBytes>();
    wire::encode(header, staged);
    return staged;
}

void Ring::check(const wire::Header& expected, std::span<const std::byte, wire::kHeaderBytes> got,
                 int position) const {
    const int rank = at(position);
    const std::string& who = links_[size_t(rank)].peer();
    wire::Header header;
    try {
        header = wire::decode(got, UINT64_MAX);
    } catch (const Error& e) {
        throw PeerMistake(rank, cat("invalid data from ", who, ": ", e.what()));
    }
    if (header.generation != expected.generation)
        throw PeerMistake(rank, cat(who, " is in generation ", header.generation,
                                    " of the job, this rank in ", expected.generation));
    if (header.type == expected.type && header.number == expected.number &&
        header.length == expected.length)
        return;
    const auto describe = [](const wire::Header& h) {
        return cat("collective ", h.number, ", a ", wire::name(h.type), " of ", h.length, " bytes");
    };
    throw PeerMistake(rank, cat(who, " is in ", describe(header), "; this rank is in ",
                                describe(expected), ": do they train the same model?"));
}

}  // namespace convoy
