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
// There is no wait between the steps: what a rank sends is one stream of pieces, what it receives
// is another, and piece s of the first is piece s of the second, one addition later:
//
//      sent        [own chunk][piece 1][piece 2] … [piece n-1]
//      received               [piece 1][piece 2] … [piece n-1][piece n]
//
// So the only rule is that the outgoing stream may not overtake the incoming one. Bytes are added
// and passed on as they come, at most kStage of them at a time so that they are still in the
// cache. A gather is the second lap alone; a broadcast is one piece that everybody passes on.
#include "net/ring.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "net/communicator.h"
#include "net/reduce.h"

namespace convoy {

namespace {

constexpr size_t kStage = 256 << 10;  // bytes: two of them and the data fit a 1 MB L2 cache
constexpr size_t kSmallSum = Communicator::kExactBytes;  // up to here fewer steps beat fewer bytes

}  // namespace

std::vector<int> neighbours(int rank, const std::vector<int>& ring) {
    const int world = int(ring.size());
    const int me = int(std::find(ring.begin(), ring.end(), rank) - ring.begin());
    const int whole = int(std::bit_floor(unsigned(world)));
    std::vector<int> ranks;
    const auto add = [&](int position) {
        const int other = ring[size_t((position + world) % world)];
        if (other != rank && std::find(ranks.begin(), ranks.end(), other) == ranks.end())
            ranks.push_back(other);
    };
    add(me - 1);
    add(me + 1);
    if (me >= whole) add(me - whole);
    if (me < whole && me + whole < world) add(me + whole);
    for (int bit = 1; me < whole && bit < whole; bit *= 2) add(me ^ bit);
    return ranks;
}

// What flows through a rank in one collective.
struct Ring::Route {
    wire::Type type;
    uint64_t bytes;              // of the whole collective: all ranks must agree
    int sent = 0, received = 0;  // pieces 0 … sent-1 go out, 1 … received come in
    int sums = 0;                // pieces 1 … sums are added to what is there, later ones stored
    bool bf16 = false;           // pieces are floats and travel as bf16
};

// A place in a stream of pieces; empty pieces are passed over.
struct Place {
    int piece;
    size_t at = 0;  // bytes into it

    template <class PieceOf>
    void advance(size_t bytes, int end, PieceOf& piece_of) {
        at += bytes;
        while (piece < end && at == piece_of(piece).size()) ++piece, at = 0;
    }
};

// The outgoing stream: a header, then pieces.
class Ring::Outlet {
 public:
    template <class PieceOf>
    Outlet(Ring& ring, const Route& route, PieceOf& piece_of) : ring_(ring), route_(route) {
        if (route.sent == 0) return;
        const wire::Header header{route.type, ring.generation_, ring.number_, route.bytes};
        staged_ = std::span(ring.outbox_).first(wire::kHeaderBytes);
        wire::encode(header, std::span<std::byte, wire::kHeaderBytes>(ring.outbox_.data(),
                                                                      wire::kHeaderBytes));
        place_.advance(0, route.sent, piece_of);
    }

    bool done() const { return place_.piece >= route_.sent && staged_.empty(); }

    // Whether there is anything that may go out now.
    template <class PieceOf>
    bool ready(const Place& arrived, PieceOf& piece_of) const {
        return !staged_.empty() || allowed(arrived, piece_of) > 0;
    }

    // Sends some of it, without blocking; true if any byte went.
    template <class PieceOf>
    bool push(const Place& arrived, PieceOf& piece_of) {
        Link& right = ring_.link(ring_.position_ + 1);
        const size_t bytes = std::min(allowed(arrived, piece_of), kStage);
        if (staged_.empty() && bytes == 0) return false;
        std::span<std::byte> data;
        if (bytes > 0) data = piece_of(place_.piece).subspan(place_.at, bytes);
        // Only a header may wait for more: the kernel holds such bytes back for up to 200 ms.
        const bool more_follows = !staged_.empty() && header_ && bytes > 0;
        if (staged_.empty() && route_.bf16) {
            pack(data);
            place_.advance(bytes, route_.sent, piece_of);
        }
        size_t n = 0;
        if (!staged_.empty()) {
            n = right.send_some(staged_, more_follows);
            staged_ = staged_.subspan(n);
            header_ = header_ && !staged_.empty();
        } else {
            n = right.send_some(data);
            place_.advance(n, route_.sent, piece_of);
        }
        ring_.sent_ += n;
        return n > 0;
    }

 private:
    // Bytes of the current piece that have arrived here; piece 0 has always been here.
    template <class PieceOf>
    size_t allowed(const Place& arrived, PieceOf& piece_of) const {
        if (place_.piece >= route_.sent || place_.piece > std::max(arrived.piece, 0)) return 0;
        const bool whole = place_.piece == 0 || place_.piece < arrived.piece;
        return (whole ? piece_of(place_.piece).size() : arrived.at) - place_.at;
    }

    void pack(std::span<std::byte> data) {
        auto* packed = reinterpret_cast<uint16_t*>(ring_.outbox_.data());
        auto* floats = reinterpret_cast<float*>(data.data());
        const size_t n = data.size() / sizeof(float);
        // The first complete piece: its owner must hold what the others are going to read.
        if (place_.piece == route_.sums)
            pack_bf16_and_round(packed, floats, n);
        else
            pack_bf16(packed, floats, n);
        staged_ = std::span(ring_.outbox_).first(n * sizeof(uint16_t));
    }

    Ring& ring_;
    const Route& route_;
    Place place_{0};
    std::span<const std::byte> staged_;  // header or packed floats, in the outbox
    bool header_ = true;                 // it is the header
};

// The incoming stream: a header, then pieces, added or stored.
class Ring::Inlet {
 public:
    template <class PieceOf>
    Inlet(Ring& ring, const Route& route, PieceOf& piece_of) : ring_(ring), route_(route) {
        if (route.received == 0) header_bytes_ = wire::kHeaderBytes;
        place_.advance(0, route.received + 1, piece_of);
    }

    bool done() const {
        return place_.piece > route_.received && header_bytes_ == wire::kHeaderBytes;
    }
    const Place& place() const { return place_; }

    // Takes some bytes, without blocking; true if there were any.
    template <class PieceOf>
    bool pull(PieceOf& piece_of) {
        Link& left = ring_.link(ring_.position_ - 1);
        size_t n = 0;
        if (header_bytes_ < wire::kHeaderBytes) {
            n = left.receive_some(std::span(header_).subspan(header_bytes_));
            header_bytes_ += n;
            if (header_bytes_ == wire::kHeaderBytes)
                ring_.check({route_.type, ring_.generation_, ring_.number_, route_.bytes}, header_,
                            ring_.position_ - 1);
            return n > 0;
        }
        const std::span<std::byte> piece = piece_of(place_.piece).subspan(place_.at);
        if (!route_.bf16 && place_.piece > route_.sums) {
            n = left.receive_some(piece.first(std::min(piece.size(), kStage)));
            place_.advance(n, route_.received + 1, piece_of);
        } else {
            const size_t wire_bytes = route_.bf16 ? piece.size() / 2 : piece.size();
            const size_t room = std::min(wire_bytes, kStage) - waiting_;
            n = left.receive_some(std::span(ring_.inbox_).subspan(waiting_, room));
            place_.advance(apply(piece, waiting_ + n), route_.received + 1, piece_of);
        }
        ring_.moved_ += n;
        return n > 0;
    }

 private:
    // Adds or stores the whole elements among the first `bytes` of the inbox; a part of one at the
    // end moves to the front. Returns how many bytes of the piece are done.
    size_t apply(std::span<std::byte> piece, size_t bytes) {
        const size_t size = route_.bf16 ? sizeof(uint16_t) : sizeof(float), n = bytes / size;
        auto* into = reinterpret_cast<float*>(piece.data());
        const std::byte* from = ring_.inbox_.data();
        if (!route_.bf16)
            add(into, reinterpret_cast<const float*>(from), n);
        else if (place_.piece <= route_.sums)
            add_bf16(into, reinterpret_cast<const uint16_t*>(from), n);
        else
            unpack_bf16(into, reinterpret_cast<const uint16_t*>(from), n);
        waiting_ = bytes - n * size;
        std::memmove(ring_.inbox_.data(), from + n * size, waiting_);
        return n * sizeof(float);
    }

    Ring& ring_;
    const Route& route_;
    Place place_{1};
    std::byte header_[wire::kHeaderBytes];
    size_t header_bytes_ = 0;  // of it, that have come
    size_t waiting_ = 0;       // bytes of an incomplete element at the front of the inbox
};

Ring::Ring(int rank, std::vector<int> ring, std::vector<Link> links, uint32_t generation, Wire wire,
           std::atomic<uint64_t>& moved)
    : ring_(std::move(ring)),
      links_(std::move(links)),
      generation_(generation),
      wire_(wire),
      outbox_(kStage),
      inbox_(kStage),
      moved_(moved) {
    position_ = int(std::find(ring_.begin(), ring_.end(), rank) - ring_.begin());
    ENSURE(links_.size() == ring_.size() && position_ < world(), "rank ", rank, " of ", world());
}

void Ring::shut() noexcept {
    for (Link& link : links_) link.shut();
}

template <class PieceOf>
void Ring::flow(const Route& route, PieceOf piece_of) {
    ++number_;
    Outlet out(*this, route, piece_of);
    Inlet in(*this, route, piece_of);
    while (!out.done() || !in.done()) {
        const bool sent = !out.done() && out.push(in.place(), piece_of);
        const bool received = !in.done() && in.pull(piece_of);
        if (!sent && !received)
            wait_for(link(position_ + 1), !out.done() && out.ready(in.place(), piece_of),
                     link(position_ - 1), !in.done());
    }
}

void Ring::sum(std::span<float> data) {
    if (data.size_bytes() <= kSmallSum) return recursive_doubling(wire::Type::sum, data);
    const size_t n = data.size(), w = size_t(world());
    Route route{wire::Type::sum, data.size_bytes()};
    route.sent = route.received = 2 * (world() - 1);
    route.sums = world() - 1;
    route.bf16 = wire_ == Wire::bf16;
    flow(route, [&](int piece) {  // chunk position, position-1, position-2, …
        const size_t chunk = size_t(position_ - piece + 2 * world()) % w;
        const size_t first = n * chunk / w, last = n * (chunk + 1) / w;
        return std::as_writable_bytes(data.subspan(first, last - first));
    });
}

void Ring::gather(std::span<const std::span<float>> blocks) {
    if (world() == 1) return;
    Route route{wire::Type::gather, 0};
    for (const auto& block : blocks) route.bytes += block.size_bytes();
    route.sent = route.received = world() - 1;
    route.bf16 = wire_ == Wire::bf16;
    flow(route,
         [&](int piece) { return std::as_writable_bytes(blocks[size_t(at(position_ - piece))]); });
}

void Ring::gather_bytes(std::span<const std::span<std::byte>> blocks) {
    if (world() == 1) return;
    Route route{wire::Type::gather, 0};
    for (const auto& block : blocks) route.bytes += block.size();
    route.sent = route.received = world() - 1;
    flow(route, [&](int piece) { return blocks[size_t(at(position_ - piece))]; });
}

void Ring::broadcast(std::span<std::byte> data, int root) {
    if (world() == 1) return;
    Route route{wire::Type::share, data.size()};
    const bool is_root = at(position_) == root;
    // To the root it would only come back.
    const bool passes_on = at(position_ + 1) != root;
    route.sent = is_root ? 1 : passes_on ? 2 : 0;
    route.received = is_root ? 0 : 1;
    flow(route, [&](int piece) { return is_root == (piece == 0) ? data : data.first(0); });
}

void Ring::barrier() { recursive_doubling(wire::Type::token, {}); }

// Recursive doubling: log2(world) exchanges of everything with the partner at distance 1, 2, 4, …
// Both add the same two numbers, so both hold the same bits. Ranks beyond the largest power of two
// hand theirs to a partner first and get the result back at the end.
void Ring::recursive_doubling(wire::Type type, std::span<float> data) {
    if (world() == 1) return;
    ++number_;
    float theirs[kSmallSum / sizeof(float)];
    const std::span<float> arrived = std::span(theirs).first(data.size());
    const int whole = int(std::bit_floor(unsigned(world())));
    if (position_ >= whole) {
        send_small(type, position_ - whole, data);
        return receive_small(type, position_ - whole, data);
    }
    if (position_ + whole < world()) {
        receive_small(type, position_ + whole, arrived);
        add(data.data(), theirs, data.size());
    }
    for (int bit = 1; bit < whole; bit *= 2) {
        send_small(type, position_ ^ bit, data);
        receive_small(type, position_ ^ bit, arrived);
        add(data.data(), theirs, data.size());
    }
    if (position_ + whole < world()) send_small(type, position_ + whole, data);
}

void Ring::send_small(wire::Type type, int position, std::span<const float> data) {
    const std::span message = std::span(outbox_).first(wire::kHeaderBytes + data.size_bytes());
    wire::encode({type, generation_, number_, data.size_bytes()},
                 message.first<wire::kHeaderBytes>());
    if (!data.empty()) std::memcpy(&message[wire::kHeaderBytes], data.data(), data.size_bytes());
    link(position).send_all(message);
    sent_ += message.size();
}

void Ring::receive_small(wire::Type type, int position, std::span<float> data) {
    const wire::Header expected{type, generation_, number_, data.size_bytes()};
    const std::span message = std::span(inbox_).first(wire::kHeaderBytes + data.size_bytes());
    // The header first: a neighbour in a shorter sum will never send the rest of this one.
    const size_t got = link(position).receive_at_least(wire::kHeaderBytes, message);
    check(expected, message.first<wire::kHeaderBytes>(), position);
    link(position).receive_all(message.subspan(got));
    if (!data.empty()) std::memcpy(data.data(), &message[wire::kHeaderBytes], data.size_bytes());
    moved_ += message.size();
}

void Ring::check(const wire::Header& expected, std::span<const std::byte, wire::kHeaderBytes> got,
                 int position) const {
    const int rank = at(position);
    const std::string& who = links_[size_t(rank)].peer();
    wire::Header header;
    try {
        header = wire::decode(got, UINT64_MAX);
    } catch (const Error& e) {
        throw PeerMistake(rank, cat("nonsense from ", who, ": ", e.what()));
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
