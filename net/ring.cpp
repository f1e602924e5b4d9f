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
// A link carries all data twice, but for the chunks of which its two ends are the first to hold the
// sum. Of listeners, which bring zeros, there is no such chunk; so then every second rank, counted
// back from a listener, has one, of twice the size, and listeners do not send their zeros. N ranks
// send 2·(N-1)/N then as if these were not there; an odd N sends 2·N/(N+1), as N+1 ranks do.
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
//
// Without TLS a sum (stream_sum.h) follows the header and each piece. A rank sends that of a piece
// it passes on when the one that it got was right: so nobody completes a collective with damaged
// data.
#include "net/ring.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "net/reduce.h"
#include "net/stream_sum.h"

namespace convoy {

static constexpr size_t kStage = 256 << 10;  // bytes: two of them and the data fit a 1 MB L2 cache

// One collective on this rank: ring.pieces_ are sent to the right and received from the
// left. Pieces 0 … sent-1 go out, pieces 1 … received come in; of these, 1 … sums are added to what
// is there and later ones are stored.
class Ring::Flow {
 public:
    // `bytes`: of the whole collective; all ranks must agree. `bf16`: floats that travel as bf16.
    // first_out: the first piece that this rank sends, where it is not its own; first_in: how many
    // its left one leaves out.
    Flow(Ring& ring, wire::Type type, size_t bytes, int sent, int received, int sums, bool bf16,
         int first_out = 0, int first_in = 0)
        : ring_(ring),
          right_(ring.link(ring.position_ + 1)),
          left_(ring.link(ring.position_ - 1)),
          header_{type, ring.generation_, ++ring.number_, bytes},
          sent_(sent),
          received_(received),
          sums_(sums),
          bf16_(bf16),
          out_{first_out},
          in_{1 + first_in},
          sent_track_(ring.sent_track()),
          received_track_(ring.received_track()),
          span_(sent_track_,
                type == wire::Type::sum      ? kTraceSum
                : type == wire::Type::gather ? kTraceGather
                                             : kTraceBroadcast,
                header_.number, double(bytes)) {
        if (ring.host_) ring.host_->enter(header_.number, type, bytes);
        if (sent > 0) staged_ = ring.stage_header(header_, right_);
        if (received > 0) header_in_ = std::span(header_bytes_).first(header_bytes(left_));
        skip_empty(out_, sent);
        skip_empty(in_, received + 1);
    }

    void run() {
        while (!sent_all() || !received_all()) {
            const bool sent = !sent_all() && send();
            const bool received = !received_all() && receive();
            if (!sent && !received)
                wait_for(right_, !staged_.empty() || sendable() > 0 || can_end_piece(), left_,
                         !received_all());
        }
    }

 private:
    struct Place {
        int piece;
        size_t at = 0;                 // bytes into it
        Clock::time_point begin = {};  // of the piece, where it is recorded
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
    // What is sent now has arrived here in full, undamaged, or is our own.
    bool is_whole() const { return out_.piece == 0 || out_.piece < in_.piece; }
    bool can_end_piece() const { return out_.piece < sent_ && is_done(out_) && is_whole(); }
    // What is this rank's piece s is piece s+1 of the next one, but of a broadcast there is one.
    void record(const Place& place) {
        const bool in = &place == &in_;
        Track* const track = in ? received_track_ : sent_track_;
        if (!track) return;
        const int piece = header_.type == wire::Type::broadcast ? 0 : place.piece - in;
        track->add(in ? kTraceReceive : kTraceSend, place.begin, Clock::now(), piece,
                   double(place.at), ring_.flow(ring_.position_ - in, piece));
    }
    bool sent_all() const { return out_.piece >= sent_ && staged_.empty(); }
    bool has_header() const { return header_received_ == header_in_.size(); }
    bool received_all() const { return in_.piece > received_ && has_header(); }
    // Bytes of the current piece that have arrived here and are not sent; piece 0 is our own.
    size_t sendable() const {
        if (out_.piece >= sent_ || out_.piece > in_.piece) return 0;
        return (is_whole() ? ring_.pieces_[size_t(out_.piece)].size() : in_.at) - out_.at;
    }

    // Sends some bytes without blocking; true if any went. Only what is followed at once, by data
    // or a sum, may wait for more: the kernel holds such bytes back for up to 200 ms.
    bool send() {
        if (staged_.empty() && can_end_piece()) {
            stage_sum();
            if (staged_.empty()) return true;
        }
        const size_t bytes = std::min(sendable(), kStage);
        size_t n = 0;
        if (staged_.empty() && bytes == 0) return false;
        if (out_.at == 0 && sent_track_) out_.begin = Clock::now();
        if (staged_.empty() && bf16_) pack(bytes);
        if (staged_.empty()) {
            const auto piece = ring_.pieces_[size_t(out_.piece)].subspan(out_.at, bytes);
            const bool is_end = out_.at + bytes == ring_.pieces_[size_t(out_.piece)].size();
            n = right_.send_some(piece, right_.is_plain() && is_end && is_whole());
            if (right_.is_plain()) sum_out_.add(piece.first(n));
            out_.at += n;
        } else {
            n = right_.send_some(staged_, header_sent_ ? can_end_piece() : bytes > 0);
            staged_ = staged_.subspan(n);
            header_sent_ = header_sent_ || staged_.empty();
        }
        ring_.sent_ += n, ring_.moved_ += n;
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
        if (right_.is_plain()) sum_out_.add(staged_);
        out_.at += bytes;
    }
    // Stages the sum of a piece, and goes on to the next one.
    void stage_sum() {
        if (right_.is_plain()) {
            const uint64_t sum = std::exchange(sum_out_, {}).value();
            std::memcpy(ring_.outbox_.data(), &sum, kSumBytes);
            staged_ = std::span(ring_.outbox_).first(kSumBytes);
        }
        end_piece(out_, sent_);
    }

    // Receives some bytes without blocking; true if any came.
    bool receive() {
        size_t n = 0;
        if (!has_header()) {
            n = left_.receive_some(header_in_.subspan(header_received_));
            header_received_ += n;
            if (has_header()) ring_.check(header_, header_in_, ring_.position_ - 1);
            return n > 0;
        }
        const std::span<std::byte> piece = ring_.pieces_[size_t(in_.piece)].subspan(in_.at);
        if (in_.at == 0 && received_track_) in_.begin = Clock::now();
        if (piece.empty()) {
            // The sum alone is still to come.
        } else if (!bf16_ && in_.piece > sums_) {
            n = left_.receive_some(piece.first(std::min(piece.size(), kStage)));
            if (left_.is_plain()) sum_in_.add(piece.first(n));
            in_.at += n;
        } else {
            const size_t room =
                std::min(bf16_ ? piece.size() / 2 : piece.size(), kStage) - partial_;
            const auto into = std::span(ring_.inbox_).subspan(partial_, room);
            n = left_.receive_some(into);
            if (left_.is_plain()) sum_in_.add(into.first(n));
            in_.at += apply(piece, partial_ + n);
        }
        if (is_done(in_) && left_.is_plain()) {
            const size_t came = left_.receive_some(std::span(sum_bytes_).subspan(sum_received_));
            sum_received_ += came, n += came;
        }
        if (is_done(in_) && (sum_received_ == kSumBytes || !left_.is_plain())) {
            if (left_.is_plain()) check_sum(left_, sum_bytes_, sum_in_.value());
            sum_in_ = {}, sum_received_ = 0;
            end_piece(in_, received_ + 1);
        }
        ring_.moved_ += n;
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
    const wire::Header header_;
    const int sent_, received_, sums_;
    const bool bf16_;
    Place out_, in_;
    std::span<const std::byte> staged_;  // header or packed floats, in the outbox
    bool header_sent_ = false;
    std::byte header_bytes_[wire::kHeaderBytes + kSumBytes];
    std::span<std::byte> header_in_;  // of them; empty: nothing is to come
    size_t header_received_ = 0;      // bytes
    size_t partial_ = 0;              // bytes of an incomplete element at the front of the inbox
    StreamSum sum_out_, sum_in_;      // of the current pieces
    std::byte sum_bytes_[kSumBytes];
    size_t sum_received_ = 0;  // bytes
    Track *const sent_track_, *const received_track_;
    const Span span_;
};

Ring::Ring(int rank, std::vector<int> ring, std::vector<Link> links, uint32_t generation, bool bf16,
           std::atomic<uint64_t>& moved, const RingTracks* tracks, int group)
    : ring_(std::move(ring)),
      links_(std::move(links)),
      generation_(generation),
      bf16_(bf16),
      outbox_(kStage),
      inbox_(kStage),
      moved_(moved),
      tracks_(tracks),
      group_(uint64_t(group)) {
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
    small ? recursive_doubling(wire::Type::sum, data) : sum_around(data);
}

void Ring::sum_around(std::span<float> data) {
    const int laps = 2 * (world() - 1);
    std::vector<size_t> begin{0};  // of each chunk, in parts of one size
    for (int chunk = 0; chunk < world(); ++chunk)
        begin.push_back(begin.back() + has_first(chunk - 1));
    ENSURE(begin.back() > 0, "all ranks listen");
    pieces_.clear();
    for (int piece = 0; piece <= laps; ++piece) {  // chunk position, position-1, position-2, …
        const size_t chunk = size_t(position_ - piece + 2 * world()) % size_t(world());
        const size_t first = data.size() * begin[chunk] / begin.back();
        const size_t last = data.size() * begin[chunk + 1] / begin.back();
        pieces_.push_back(std::as_writable_bytes(data.subspan(first, last - first)));
    }
    Flow(*this, wire::Type::sum, data.size_bytes(), laps, laps, world() - 1, bf16_,
         listeners_to(position_), listeners_to(position_ - 1))
        .run();
}

void Ring::gather(std::span<const std::span<std::byte>> blocks, bool floats) {
    if (world() == 1) return;
    pieces_.clear();
    size_t bytes = 0;
    for (int piece = 0; piece < world(); ++piece) {
        pieces_.push_back(blocks[size_t(at(position_ - piece))]);
        bytes += pieces_.back().size();
    }
    const int others = world() - 1;
    Flow(*this, wire::Type::gather, bytes, others, others, 0, floats && bf16_).run();
}

void Ring::broadcast(std::span<std::byte> data, int root) {
    if (world() == 1) return;
    const bool is_root = at(position_) == root, last = at(position_ + 1) == root;
    pieces_ = {is_root ? data : data.first(0), is_root ? data.first(0) : data};
    const int sent = last ? 0 : is_root ? 1 : 2;
    Flow(*this, wire::Type::broadcast, data.size(), sent, is_root ? 0 : 1, 0, false).run();
}

// The same where a piece is sent and where it is received: which ring, collective, sender, piece.
// Of numbers that wrap no two are in one trace.
uint64_t Ring::flow(int sender, int piece) const {
    const uint64_t place = uint64_t((sender + world()) % world());
    return uint64_t(generation_ & 0xff) << 56 | (group_ & 0xfff) << 44 |
           uint64_t(number_ & 0xffff) << 28 | (place & 0xfff) << 16 | uint64_t(piece & 0xffff);
}

std::span<const std::byte> Ring::stage_header(const wire::Header& header, const Link& link) {
    const std::span staged = std::span(outbox_).first(header_bytes(link));
    wire::encode(header, staged.first<wire::kHeaderBytes>());
    const uint64_t sum = stream_sum(staged.first(wire::kHeaderBytes));
    if (link.is_plain()) std::memcpy(&staged[wire::kHeaderBytes], &sum, kSumBytes);
    return staged;
}

void Ring::check_sum(const Link& link, std::span<const std::byte, kSumBytes> sum, uint64_t right) {
    uint64_t sent;
    std::memcpy(&sent, sum.data(), kSumBytes);
    if (sent != right) throw LinkLost(cat("data from ", link.peer(), " was damaged on its way"));
}

void Ring::check(const wire::Header& expected, std::span<const std::byte> got, int position) const {
    const int rank = at(position);
    const Link& link = links_[size_t(rank)];
    const std::string& who = link.peer();
    if (link.is_plain())
        check_sum(link, got.last<kSumBytes>(), stream_sum(got.first(wire::kHeaderBytes)));
    wire::Header header;
    try {
        header = wire::decode(got.first<wire::kHeaderBytes>(), UINT64_MAX);
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
