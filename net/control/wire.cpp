#include "net/control/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "src/base/bytes.h"
#include "src/base/text.h"

namespace convoy::wire {

static_assert(std::endian::native == std::endian::little && sizeof(int) == 4,
              "numbers are copied to the wire as they lie in memory");

namespace {

// In the order of enum Type: from 0, and from Type::sum on. null: not a type.
constexpr const char* kNames[] = {
    nullptr,  "JOIN",  "STATUS", "REFUSE", "WELCOME", "LINK",  "READY", "GENERATION", "HEARTBEAT",
    "NOTICE", "ABORT", "LEAVE",  "HEALTH", "MESSAGE", nullptr, nullptr, "OFFER",      "NEWCOMER"};
constexpr const char* kCollectives[] = {"SUM", "BROADCAST", "GATHER", "BARRIER", "TIMING"};
static_assert(std::size(kNames) == size_t(Type::newcomer) + 1 &&
              std::size(kCollectives) == size_t(Type::timing) - size_t(Type::sum) + 1);

// The header as it lies on the wire.
struct HeaderBytes {
    uint32_t magic;
    uint16_t version, type;
    uint32_t generation, number;
    uint64_t length;
};
static_assert(sizeof(HeaderBytes) == kHeaderBytes);

// Appends fields to a message whose length is filled in at the end.
class Writer {
 public:
    explicit Writer(Type type, uint32_t generation = 0) : header_{type, generation, 0, 0} {
        bytes_.resize(kHeaderBytes);
    }
    template <class... Fields>
    void operator()(const Fields&... fields) {
        (put(fields), ...);
    }
    std::string finish() {
        header_.length = bytes_.size() - kHeaderBytes;
        encode(header_, std::as_writable_bytes(std::span(bytes_)).first<kHeaderBytes>());
        return std::move(bytes_);
    }

 private:
    template <class T>
    void put(T value) requires std::is_arithmetic_v<T> {
        bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    void put(const std::string& text) {
        put(uint32_t(text.size()));  // every text here is far below 4 GB
        bytes_ += text;
    }
    void put(const Member& m) { (*this)(m.host, m.address, m.process, m.number); }
    void put(const RingId& ring) { (*this)(ring.id, ring.generation, ring.members); }
    void put(const Rules& r) {
        (*this)(r.bf16, r.elastic, r.alone, r.min_world, r.stall_ms, r.shm, r.silence_ms);
    }
    void put(End end) { put(uint8_t(end)); }
    template <class List>
    void put(const List& list) requires requires {
        list.empty();
    }
    {
        put(uint32_t(list.size()));
        for (const auto& item : list) put(item);
    }

    Header header_;
    std::string bytes_;
};

bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }

// Takes fields off a body. Throws if the body ends too early.
class Reader {
 public:
    Reader(Type type, std::string_view body) : type_(type), rest_(body) {}

    template <class... Fields>
    void operator()(Fields&... fields) {
        (get(fields), ...);
    }
    void finish() {
        if (!rest_.empty())
            fail("a ", name(type_), " message has ", rest_.size(), " bytes too many");
    }

 private:
    template <class T>
    void get(T& value) requires std::is_arithmetic_v<T> {
        std::memcpy(&value, take(sizeof value).data(), sizeof value);
    }
    void get(bool& value) { value = take(1)[0] != 0; }
    void get(std::string& text) {
        uint32_t length;
        get(length);
        text = take(length);
        const bool is_read = type_ != Type::offer && type_ != Type::join;  // by people
        if (is_read) text.resize(std::min(text.size(), 4 * kMostText));
        for (char& c : text)
            if (is_control(c) && (c != '\n' || type_ != Type::offer)) c = '?';
        if (type_ != Type::offer) text = printable(text);
        if (is_read) text = cut_text(text, kMostText);
    }
    void get(Member& m) { (*this)(m.host, m.address, m.process, m.number); }
    void get(RingId& ring) { (*this)(ring.id, ring.generation, ring.members); }
    void get(Rules& r) {
        (*this)(r.bf16, r.elastic, r.alone, r.min_world, r.stall_ms, r.shm, r.silence_ms);
        r.silence_ms = std::clamp(r.silence_ms, Rules().silence_ms, uint32_t(kMostSilence.count()));
    }
    void get(End& end) {
        end = End(take(1)[0]);
        if (end > End::cut_off) fail("a ", name(type_), " message ends nothing that there is");
    }
    template <class T>
    void get(std::vector<T>& list) {
        uint32_t n;
        get(n);
        const size_t least = std::is_arithmetic_v<T> ? sizeof(T) : 8;  // bytes of an item
        if (n > rest_.size() / least)
            fail("a ", name(type_), " message claims ", n, " items in ", rest_.size(), " bytes");
        list.resize(n);
        for (T& item : list) get(item);
    }
    std::string_view take(size_t bytes) {
        if (bytes > rest_.size())
            fail("a ", name(type_), " message ends too early: ", bytes, " bytes wanted, ",
                 rest_.size(), " left");
        std::string_view taken = rest_.substr(0, bytes);
        rest_.remove_prefix(bytes);
        return taken;
    }

    Type type_;
    std::string_view rest_;
};

// Rejects or corrects values that no correct program sends.
void check(Join& m) {
    // With a heartbeat of 0 every rank would be lost at once; with days, no rank ever.
    m.heartbeat_ms = std::clamp<uint32_t>(m.heartbeat_ms, 10, 600'000);
    m.rules.stall_ms = std::max<uint32_t>(m.rules.stall_ms, 10);
    m.process = std::max<uint64_t>(m.process, 1);  // 0 is nobody
    m.why = cut_text(m.why, kMostText);
    if (m.host.size() > kMaxName || m.address.size() > kMaxName)
        fail("a JOIN message has a host id or an address of more than ", kMaxName, " bytes");
    if (m.rank < -1 || m.rank >= kMaxWorld || m.world < 0 || m.world > kMaxWorld)
        fail("a JOIN message asks for rank ", m.rank, " in a world of ", m.world);
}
void check(const Welcome& m) {
    const auto is_rank = [&](int rank) { return rank >= 0 && rank < m.world; };
    std::vector<bool> in_ring(m.ring.size());
    for (int rank : m.ring)
        if (is_rank(rank) && size_t(rank) < in_ring.size()) in_ring[size_t(rank)] = true;
    if (m.world > kMaxWorld || !is_rank(m.rank) || !is_rank(m.server) ||
        int(m.peers.size()) != m.world || int(m.ring.size()) != m.world ||
        std::ranges::count(in_ring, true) != m.world)
        fail("a WELCOME message contradicts itself: rank ", m.rank, " in a world of ", m.world,
             " with ", m.peers.size(), " peers and a ring of ", m.ring.size());
}
void check(const Offer& m) {
    const int world = int(m.peers.size());  // at most a body's bytes
    if (world < 1 || world > kMaxWorld || m.server < 0 || m.server >= world)
        fail("an OFFER message has ", world, " peers, and rank ", m.server, " as the coordinator");
}
void check(const auto&) {}

}  // namespace

const char* name(Type type) {
    const size_t number = size_t(type), collective = number - size_t(Type::sum);
    if (number < std::size(kNames)) return kNames[number];
    return collective < std::size(kCollectives) ? kCollectives[collective] : nullptr;
}

void encode(const Header& header, std::span<std::byte, kHeaderBytes> out) {
    const HeaderBytes bytes{kMagic,        kVersion,     uint16_t(header.type), header.generation,
                            header.number, header.length};
    std::memcpy(out.data(), &bytes, sizeof bytes);
}

Header decode(std::span<const std::byte, kHeaderBytes> in, uint64_t limit) {
    HeaderBytes bytes;
    std::memcpy(&bytes, in.data(), sizeof bytes);
    const Header header{Type(bytes.type), bytes.generation, bytes.number, bytes.length};
    if ((bytes.magic & 0xffff) == 0x0316)
        throw NotConvoy("it speaks TLS: it has a token, this side has none", 0, true);
    if (bytes.magic != kMagic)
        throw NotConvoy(
            cat("not a Convoy trainer: it sent '", printable(as_text(in.first(8))), "'"), 0);
    if (bytes.version != kVersion)
        throw NotConvoy(cat("it speaks version ", bytes.version, " of the protocol, this trainer ",
                            "speaks ", kVersion, ": run the same build on all machines"),
                        bytes.version);
    if (!name(header.type)) fail("a message of the unknown type ", bytes.type);
    if (header.type == Type::health || header.type == Type::heartbeat)
        limit = std::min(limit, kHealthLimit);
    if (header.length > limit)
        fail("a ", name(header.type), " message of ", header.length, " bytes; the limit is ",
             limit);
    return header;
}

template <class M>
std::string encode(M message) {
    uint32_t generation = 0;
    if constexpr (requires { message.generation; }) generation = message.generation;
    Writer out(M::kType, generation);
    message.fields(out);
    return out.finish();
}

template <class M>
M decode(std::string_view body, [[maybe_unused]] uint32_t generation) {
    M message;
    if constexpr (requires { message.generation; }) message.generation = generation;
    Reader in(M::kType, body);
    message.fields(in);
    in.finish();
    check(message);
    return message;
}

#define MESSAGE_TYPE(M)                \
    template std::string encode<M>(M); \
    template M decode<M>(std::string_view, uint32_t)
MESSAGE_TYPE(Join);
MESSAGE_TYPE(Refuse);
MESSAGE_TYPE(Welcome);
MESSAGE_TYPE(Link);
MESSAGE_TYPE(Heartbeat);
MESSAGE_TYPE(Abort);
MESSAGE_TYPE(Offer);
MESSAGE_TYPE(Health);
#undef MESSAGE_TYPE

std::string encode_text(Type type, const std::string& text) {
    Writer out(type);
    out(text);
    return out.finish();
}

std::string encode_empty(Type type, uint32_t generation) {
    return Writer(type, generation).finish();
}

std::string decode_text(std::string_view body) {
    std::string text;
    Reader in(Type::notice, body);
    in(text);
    in.finish();
    return text;
}

}  // namespace convoy::wire
