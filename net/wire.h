// wire.h — the protocol: every byte that Convoy puts on a connection, and nothing else.
//
// All numbers are little-endian. Every message is a header and a body:
//
//   offset size
//   0      4    magic, the bytes "CNVY"
//   4      2    version of the protocol; these first 24 bytes keep their meaning in all versions
//   6      2    type (see Type)
//   8      4    generation of the job; 0 before WELCOME
//   12     4    number of the collective within the generation; 0 for other types
//   16     8    length of the body in bytes
//
// Bodies are built of: u8 u16 u32 u64 i32 i64; text = u32 length + bytes (UTF-8, no zero at the
// end); list = u32 count + items; pairs = list of (text name, text value).
//
//   JOIN        rank → coordinator   i32 wanted rank (-1: any), i32 world (0: not said),
//                                    u64 number of the coordinator that its
//                                    process serves (0: none), u32 heartbeat in ms, u32 stall in
//                                    ms, u8 sums travel as bf16, text host id, text address
//                                    ("10.0.0.5:29400"), pairs settings
//   STATUS      coordinator → rank   text: who is here, who is missing
//   REFUSE      coordinator → rank   u8 worth trying again, text why
//   WELCOME     coordinator → rank   u64 job, i32 rank, i32 world, i32 rank that serves the
//                                    coordinator (-1: none does), u8 sums travel as bf16 (as rank
//                                    0 said), list of peers (text host id,
//                                    text address), list of i32 ring order, pairs settings
//   EDGE        rank ↔ rank          u64 job, i32 from, i32 to; the acceptor answers in kind
//   READY       rank → coordinator   no body: all edges of this rank stand
//   GENERATION  coordinator → rank   no body: all edges stand; the header has the generation
//   HEARTBEAT   both ways            i64 step, u64 collectives begun, u64 done, u64 bytes moved,
//                                    u32 ms in this phase, text phase
//   NOTICE      coordinator → rank   text for the log of every rank
//   ABORT       both ways            i32 rank that was lost (-1: none), text why
//   LEAVE       both ways            no body: this end goes in order
//   SUM, SHARE, GATHER, TOKEN, PROBE rank → rank: a collective; the body is its data (ring.h)
//
// What arrives is a stranger's until proven otherwise: lengths are compared with a limit before
// anything is allocated, counts with the bytes that are left, and every error says what was wrong.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/check.h"

namespace convoy::wire {

constexpr uint32_t kMagic = 0x59564e43;  // "CNVY" as bytes in memory order
constexpr uint16_t kVersion = 1;
constexpr size_t kHeaderBytes = 24;
constexpr uint64_t kControlLimit = 4 << 20;  // body of a message that is not a collective
constexpr uint64_t kJoinLimit = 1 << 20;     // body of a first message, from anybody
constexpr int kMaxWorld = 4096;

enum class Type : uint16_t {
    join = 1,
    status = 2,
    refuse = 3,
    welcome = 4,
    edge = 5,
    ready = 6,
    generation = 7,
    heartbeat = 8,
    notice = 9,
    abort = 10,
    leave = 11,
    sum = 32,
    share = 33,
    gather = 34,
    token = 35,
    probe = 36,
};
const char* name(Type type);

struct Header {
    Type type{};
    uint32_t generation = 0;
    uint32_t number = 0;
    uint64_t length = 0;
};

// The bytes are no message of this program and version. `version` is that of the other side when
// it is a Convoy of another version, else 0.
struct NotConvoy : Error {
    NotConvoy(const std::string& text, uint16_t version_) : Error(text), version(version_) {}
    uint16_t version;
};

void encode(const Header& header, std::span<std::byte, kHeaderBytes> out);
// Throws NotConvoy for a wrong magic or version, Error for an unknown type or a length above
// `limit`.
Header decode(std::span<const std::byte, kHeaderBytes> bytes, uint64_t limit);

using Settings = std::map<std::string, std::string>;

struct Join {
    int rank = -1, world = 0;
    uint64_t serves = 0;
    uint32_t heartbeat_ms = 1000, stall_ms = 30'000;
    bool bf16 = false;
    std::string host, address;
    Settings settings;
};
struct Refuse {
    bool again = false;
    std::string why;
};
struct Member {
    std::string host, address;
};
struct Welcome {
    uint64_t job = 0;
    uint32_t generation = 0;  // travels in the header
    int rank = 0, world = 0, server = -1;
    bool bf16 = false;
    std::vector<Member> peers;  // by rank
    std::vector<int> ring;
    Settings settings;
};
struct Edge {
    uint64_t job = 0;
    int from = 0, to = 0;
};
struct Beat {
    int64_t step = 0;
    uint64_t begun = 0, done = 0, moved = 0;
    uint32_t phase_ms = 0;
    std::string phase;
};
struct Abort {
    int lost = -1;
    std::string why;
};

// Whole messages, header included.
std::string encode(const Join&);
std::string encode(const Refuse&);
std::string encode(const Welcome&);
std::string encode(const Edge&, uint32_t generation);
std::string encode(const Beat&);
std::string encode(const Abort&);
std::string encode_text(Type type, std::string_view text);  // STATUS, NOTICE
std::string encode_empty(Type type, uint32_t generation = 0);

// Bodies. Each throws an Error that names the message and what is wrong with it; bytes left over
// are wrong too.
Join decode_join(std::string_view body);
Refuse decode_refuse(std::string_view body);
Welcome decode_welcome(std::string_view body, uint32_t generation);
Edge decode_edge(std::string_view body);
Beat decode_beat(std::string_view body);
Abort decode_abort(std::string_view body);
std::string decode_text(std::string_view body);

}  // namespace convoy::wire
