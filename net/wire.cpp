// wire.cpp — the byte tables of wire.h, written out.
#include "net/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace convoy::wire {

static_assert(std::endian::native == std::endian::little,
              "numbers are copied to the wire as they lie in memory");

namespace {

// Appends fields to a message whose length is filled in at the end.
class Writer {
 public:
    Writer(Type type, uint32_t generation = 0) : header_{type, generation, 0, 0} {
        bytes_.resize(kHeaderBytes);
    }
    template <class T>
    Writer& number(T value) {
        bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
        return *this;
    }
    Writer& text(std::string_view value) {
        number(uint32_t(value.size()));  // every text here is far below 4 GB
        bytes_.append(value);
        return *this;
    }
    Writer& pairs(const Settings& settings) {
        number(uint32_t(settings.size()));
        for (const auto& [name, value] : settings) text(name).text(value);
        return *this;
    }
    std::string finish() {
        header_.length = bytes_.size() - kHeaderBytes;
        encode(header_, std::span<std::byte, kHeaderBytes>(
                            reinterpret_cast<std::byte*>(bytes_.data()), kHeaderBytes));
        return std::move(bytes_);
    }

 private:
    Header header_;
    std::string bytes_;
};

// Takes fields off a body; throws when it ends too early.
class Reader {
 public:
    Reader(Type type, std::string_view body) : type_(type), rest_(body) {}

    template <class T>
    T number() {
        T value;
        std::memcpy(&value, take(sizeof value).data(), sizeof value);
        return value;
    }
    std::string text() { return std::string(take(number<uint32_t>())); }
    // The count of a list whose items have at least `item_bytes` each.
    size_t count(size_t item_bytes) {
        const uint32_t n = number<uint32_t>();
        if (n > rest_.size() / item_bytes)
            fail("a ", name(type_), " message claims ", n, " items in ", rest_.size(), " bytes");
        return n;
    }
    Settings pairs() {
        Settings settings;
        for (size_t n = count(8); n > 0; --n) {
            std::string key = text();
            settings[std::move(key)] = text();
        }
        return settings;
    }
    void finish() {
        if (!rest_.empty())
            fail("a ", name(type_), " message has ", rest_.size(), " bytes too many");
    }

 private:
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

// What the first bytes of a stranger look like, for the error: "GET / HT", or in hexadecimal.
std::string printable(std::span<const std::byte> bytes) {
    std::string plain, hex;
    bool is_text = true;
    for (std::byte byte : bytes) {
        const char c = char(byte);
        is_text = is_text && c >= ' ' && c <= '~';
        plain += c;
        hex += fmt::format("{:02x}", unsigned(byte));
    }
    return is_text ? "'" + plain + "'" : hex;
}

}  // namespace

const char* name(Type type) {
    switch (type) {
        case Type::join: return "JOIN";
        case Type::status: return "STATUS";
        case Type::refuse: return "REFUSE";
        case Type::welcome: return "WELCOME";
        case Type::edge: return "EDGE";
        case Type::ready: return "READY";
        case Type::generation: return "GENERATION";
        case Type::heartbeat: return "HEARTBEAT";
        case Type::notice: return "NOTICE";
        case Type::abort: return "ABORT";
        case Type::leave: return "LEAVE";
        case Type::sum: return "SUM";
        case Type::share: return "SHARE";
        case Type::gather: return "GATHER";
        case Type::token: return "TOKEN";
        case Type::probe: return "PROBE";
    }
    return nullptr;
}

void encode(const Header& header, std::span<std::byte, kHeaderBytes> out) {
    const uint16_t type = uint16_t(header.type);
    std::memcpy(&out[0], &kMagic, 4);
    std::memcpy(&out[4], &kVersion, 2);
    std::memcpy(&out[6], &type, 2);
    std::memcpy(&out[8], &header.generation, 4);
    std::memcpy(&out[12], &header.number, 4);
    std::memcpy(&out[16], &header.length, 8);
}

Header decode(std::span<const std::byte, kHeaderBytes> bytes, uint64_t limit) {
    uint32_t magic;
    uint16_t version, type;
    Header header;
    std::memcpy(&magic, &bytes[0], 4);
    std::memcpy(&version, &bytes[4], 2);
    std::memcpy(&type, &bytes[6], 2);
    std::memcpy(&header.generation, &bytes[8], 4);
    std::memcpy(&header.number, &bytes[12], 4);
    std::memcpy(&header.length, &bytes[16], 8);
    if (magic != kMagic)
        throw NotConvoy(cat("not a Convoy trainer: it sent ", printable(bytes.first(8))), 0);
    if (version != kVersion)
        throw NotConvoy(cat("it speaks version ", version, " of the protocol, this trainer speaks ",
                            kVersion, ": run the same build on all machines"),
                        version);
    header.type = Type(type);
    if (!name(header.type)) fail("a message of the unknown type ", type);
    if (header.length > limit)
        fail("a ", name(header.type), " message of ", header.length, " bytes; the limit is ",
             limit);
    return header;
}

std::string encode(const Join& m) {
    return Writer(Type::join)
        .number(int32_t(m.rank))
        .number(int32_t(m.world))
        .number(m.serves)
        .number(m.heartbeat_ms)
        .number(m.stall_ms)
        .number(uint8_t(m.bf16))
        .text(m.host)
        .text(m.address)
        .pairs(m.settings)
        .finish();
}

Join decode_join(std::string_view body) {
    Reader in(Type::join, body);
    Join m;
    m.rank = in.number<int32_t>();
    m.world = in.number<int32_t>();
    m.serves = in.number<uint64_t>();
    // A heartbeat of 0 would declare everybody lost at once, one of days would never do so.
    m.heartbeat_ms = std::clamp<uint32_t>(in.number<uint32_t>(), 10, 600'000);
    m.stall_ms = in.number<uint32_t>();
    m.bf16 = in.number<uint8_t>() != 0;
    m.host = in.text();
    m.address = in.text();
    m.settings = in.pairs();
    in.finish();
    if (m.rank < -1 || m.rank >= kMaxWorld || m.world < 0 || m.world > kMaxWorld)
        fail("a JOIN message asks for rank ", m.rank, " in a world of ", m.world);
    return m;
}

std::string encode(const Refuse& m) {
    return Writer(Type::refuse).number(uint8_t(m.again)).text(m.why).finish();
}

Refuse decode_refuse(std::string_view body) {
    Reader in(Type::refuse, body);
    Refuse m;
    m.again = in.number<uint8_t>() != 0;
    m.why = in.text();
    in.finish();
    return m;
}

std::string encode(const Welcome& m) {
    Writer out(Type::welcome, m.generation);
    out.number(m.job).number(int32_t(m.rank)).number(int32_t(m.world)).number(int32_t(m.server));
    out.number(uint8_t(m.bf16));
    out.number(uint32_t(m.peers.size()));
    for (const Member& peer : m.peers) out.text(peer.host).text(peer.address);
    out.number(uint32_t(m.ring.size()));
    for (int rank : m.ring) out.number(int32_t(rank));
    return out.pairs(m.settings).finish();
}

Welcome decode_welcome(std::string_view body, uint32_t generation) {
    Reader in(Type::welcome, body);
    Welcome m;
    m.generation = generation;
    m.job = in.number<uint64_t>();
    m.rank = in.number<int32_t>();
    m.world = in.number<int32_t>();
    m.server = in.number<int32_t>();
    m.bf16 = in.number<uint8_t>() != 0;
    m.peers.resize(in.count(8));
    for (Member& peer : m.peers) {
        peer.host = in.text();
        peer.address = in.text();
    }
    m.ring.resize(in.count(4));
    for (int& rank : m.ring) rank = in.number<int32_t>();
    m.settings = in.pairs();
    in.finish();

    std::vector<int> sorted = m.ring;
    std::sort(sorted.begin(), sorted.end());
    bool sound = m.world >= 1 && m.world <= kMaxWorld && m.rank >= 0 && m.rank < m.world &&
                 m.server >= -1 && m.server < m.world && int(m.peers.size()) == m.world &&
                 int(m.ring.size()) == m.world;
    for (int r = 0; sound && r < m.world; ++r) sound = sorted[r] == r;
    if (!sound)
        fail("a WELCOME message contradicts itself: rank ", m.rank, " in a world of ", m.world,
             " with ", m.peers.size(), " peers and a ring of ", m.ring.size());
    return m;
}

std::string encode(const Edge& m, uint32_t generation) {
    return Writer(Type::edge, generation)
        .number(m.job)
        .number(int32_t(m.from))
        .number(int32_t(m.to))
        .finish();
}

Edge decode_edge(std::string_view body) {
    Reader in(Type::edge, body);
    Edge m;
    m.job = in.number<uint64_t>();
    m.from = in.number<int32_t>();
    m.to = in.number<int32_t>();
    in.finish();
    return m;
}

std::string encode(const Beat& m) {
    return Writer(Type::heartbeat)
        .number(m.step)
        .number(m.begun)
        .number(m.done)
        .number(m.moved)
        .number(m.phase_ms)
        .text(m.phase)
        .finish();
}

Beat decode_beat(std::string_view body) {
    Reader in(Type::heartbeat, body);
    Beat m;
    m.step = in.number<int64_t>();
    m.begun = in.number<uint64_t>();
    m.done = in.number<uint64_t>();
    m.moved = in.number<uint64_t>();
    m.phase_ms = in.number<uint32_t>();
    m.phase = in.text();
    in.finish();
    return m;
}

std::string encode(const Abort& m) {
    return Writer(Type::abort).number(int32_t(m.lost)).text(m.why).finish();
}

Abort decode_abort(std::string_view body) {
    Reader in(Type::abort, body);
    Abort m;
    m.lost = in.number<int32_t>();
    m.why = in.text();
    in.finish();
    return m;
}

std::string encode_text(Type type, std::string_view text) {
    return Writer(type).text(text).finish();
}

std::string encode_empty(Type type, uint32_t generation) {
    return Writer(type, generation).finish();
}

std::string decode_text(std::string_view body) {
    Reader in(Type::notice, body);
    std::string text = in.text();
    in.finish();
    return text;
}

}  // namespace convoy::wire
