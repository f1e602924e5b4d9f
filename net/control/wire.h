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
// end); list = u32 count + items. R: a rank, C: the coordinator.
//
//   JOIN        R → C    i32 wanted rank (-1: any), i32 world (0: not given), u32 heartbeat in ms,
//                        rules, text host id, text address ("10.0.0.5:29400"), u64 process, u64 job
//                        (0: a new one). The next six are of a rank whose ring broke; the header
//                        has the generation of that ring: i64 steps done, text why it broke ("":
//                        all ranks agreed to end it after a step), u8 the sender asks to be added
//                        to the job, u64 id and u32 generation of the last ring that was open to it
//                        (0: none), list of the rings for which it was READY since (u64 id, u32
//                        generation, list of u64 processes); rules (rank 0's count): u8 sums travel
//                        as bf16, u8 the job continues without lost ranks, u8 also without a
//                        majority, u32 fewest ranks, u32 stall in ms, u8 ranks of a host share
//                        memory, u32 silence in ms after which a rank counts as lost
//   STATUS      C → R    text: who is here, who is missing
//   REFUSE      C → R    u8 worth trying again, text why, u8 no job has begun there
//   WELCOME     C → R    u64 job, i32 rank, i32 world, i32 rank that serves the coordinator, rules,
//                        list of peers (text host id, text address, u64 process, i32 number in
//                        logs), list of i32 ring order, text why the previous ring ended ("": this
//                        is the first), u64 that tells this ring from all others
//   LINK        R ↔ R    u64 job, i32 from, i32 to; the acceptor answers the same. Bit 31 of the
//                        generation: for the ring of a group; bit 30: for MESSAGEs; both only after
//                        the ring of all ranks is open
//   READY       R → C    no body: all links of this rank are open
//   GENERATION  C → R    no body: all links are open; the header has the generation
//   HEARTBEAT   R ↔ C    i64 step, u64 collectives begun, u64 done, u64 bytes moved, u32 ms in this
//                        phase, text phase; from the coordinator: zeros, but `done` 1 to a rank
//                        that the job waits for, text whom the job waits for ("" unless it stalls)
//   NOTICE      C → R    text for the log of the job
//   ABORT       R ↔ C    i32 rank that was lost, or not reached while a ring is formed (-1: none),
//                        u8 what ends (End; from a rank `membership`: it fails and leaves, the
//                        others go on), text why
//   OFFER       any → R  no body: may I take part in the job?
//               answer   u64 job, i32 rank that serves the coordinator, rules, list of peers, text
//                        what a newcomer must know; or REFUSE
//   NEWCOMER    C → R    no body: one waits; the header has the generation
//   LEAVE       R ↔ C    no body: the sender has finished and will hang up
//   HEALTH      any → R  no body: how are you?
//               answer   u8 healthy, u64 process, text rank, world, step and phase, or what is
//                        wrong, u8 seeks a coordinator; the header has the generation of the last
//                        ring that was open to it (0: none)
//   MESSAGE     R → R    bytes; the number in the header is a channel (net/ring/messenger.h)
//   SUM, BROADCAST, GATHER, BARRIER, TIMING   R → R   data of a collective (net/ring/ring.h)
//
// Nothing that arrives is trusted. Lengths are compared with a limit before memory is allocated,
// counts with the remaining bytes. Every error says what was wrong. No rank can forge log lines of
// another: control characters become '?', and texts for people are cut to 1,100 characters.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/control/limits.h"
#include "src/base/check.h"

namespace convoy::wire {

constexpr uint32_t kMagic = 0x59564e43;  // "CNVY" as bytes in memory order
constexpr uint16_t kVersion = 14;
constexpr size_t kHeaderBytes = 24;

enum class Type : uint16_t {
    join = 1,
    status = 2,
    refuse = 3,
    welcome = 4,
    link = 5,
    ready = 6,
    generation = 7,
    heartbeat = 8,
    notice = 9,
    abort = 10,
    leave = 11,
    health = 12,
    message = 13,
    offer = 16,
    newcomer = 17,
    sum = 32,
    broadcast = 33,
    gather = 34,
    barrier = 35,
    timing = 36,
};
const char* name(Type type);

struct Header {
    Type type{};
    uint32_t generation = 0;
    uint32_t number = 0;
    uint64_t length = 0;
};

// The bytes are not a message of this program and version. `version` is the other side's version if
// it is another Convoy, else 0.
struct NotConvoy : Error {
    NotConvoy(const std::string& text, uint16_t version_, bool tls_ = false)
        : Error(text), version(version_), tls(tls_) {}
    uint16_t version;
    bool tls;  // it begins a handshake of TLS
};

void encode(const Header& header, std::span<std::byte, kHeaderBytes> out);
// Throws NotConvoy for a wrong magic or version, Error for an unknown type or a length above
// `limit`.
Header decode(std::span<const std::byte, kHeaderBytes> bytes, uint64_t limit);

struct Message {
    Header header;
    std::string body;
};

// Job settings that coordinators need. Every rank knows them, as any rank may become coordinator.
struct Rules {
    bool bf16 = false, elastic = false, alone = false;
    uint32_t min_world = 1, stall_ms = 30'000;
    bool shm = false;
    uint32_t silence_ms = uint32_t(kSilence.count());
    milliseconds silence() const { return milliseconds(silence_ms); }
};

// One struct a message. fields() lists what its body holds, in the order of the table above.
struct RingId {
    uint64_t id = 0;
    uint32_t generation = 0;
    std::vector<uint64_t> members = {};  // processes, by rank
};
struct Join {
    static constexpr Type kType = Type::join;
    int rank = -1, world = 0;
    uint32_t heartbeat_ms = 1000;
    Rules rules;
    std::string host, address;
    uint64_t process = 0;
    uint64_t job = 0;
    int64_t step = -1;
    std::string why = {};
    bool newcomer = false;
    uint64_t open = 0;
    uint32_t open_generation = 0;
    std::vector<RingId> maybe_open = {};
    uint32_t generation = 0;  // travels in the header
    void fields(auto& body) {
        body(rank, world, heartbeat_ms, rules, host, address, process, job, step, why, newcomer,
             open, open_generation, maybe_open);
    }
};
struct Refuse {
    static constexpr Type kType = Type::refuse;
    bool again = false;
    std::string why;
    bool no_job = false;
    void fields(auto& body) { body(again, why, no_job); }
};
struct Member {
    std::string host;     // host id: the same for two ranks of one machine or container
    std::string address;  // "10.0.0.5:29400" as its peers dial it
    uint64_t process = 0;
    int number = -1;  // its rank in its first ring, by which people know it
};
struct Welcome {
    static constexpr Type kType = Type::welcome;
    uint64_t job = 0;
    uint32_t generation = 0;  // travels in the header
    int rank = 0, world = 0, server = 0;
    Rules rules = {};
    std::vector<Member> peers = {};  // by rank
    std::vector<int> ring = {};
    std::string why = {};
    uint64_t id = 0;  // no other ring has it
    void fields(auto& body) { body(job, rank, world, server, rules, peers, ring, why, id); }
};
constexpr uint32_t kGroupLink = uint32_t(1) << 31, kMessageLink = uint32_t(1) << 30;
struct Link {
    static constexpr Type kType = Type::link;
    uint64_t job = 0;
    int from = 0, to = 0;
    uint32_t generation = 0;  // travels in the header, with kGroupLink or kMessageLink
    void fields(auto& body) { body(job, from, to); }
    // Whether it belongs to a group or to MESSAGEs, and to the same ranks as `ring`.
    bool is_alongside(const Welcome& ring) const {
        const uint32_t kind = generation & (kGroupLink | kMessageLink);
        return job == ring.job && kind != 0 && generation == (ring.generation | kind);
    }
};
struct Heartbeat {
    static constexpr Type kType = Type::heartbeat;
    int64_t step = 0;
    uint64_t begun = 0, done = 0, moved = 0;
    uint32_t phase_ms = 0;
    std::string phase;
    void fields(auto& body) { body(step, begun, done, moved, phase_ms, phase); }
};
// What an ABORT ends: the job; only the ring, so that the others form a new one; the membership of
// the rank that gets it; or a cut-off part of the job, whose state this rank saves.
enum class End : uint8_t { job, ring, membership, cut_off };
struct Abort {
    static constexpr Type kType = Type::abort;
    int lost = -1;
    std::string why;
    End end = End::job;
    uint32_t generation = 0;  // travels in the header
    void fields(auto& body) { body(lost, end, why); }
};
struct Offer {
    static constexpr Type kType = Type::offer;
    uint64_t job = 0;
    int server = 0;
    Rules rules = {};
    std::vector<Member> peers = {};
    std::string what = {};
    uint32_t generation = 0;  // travels in the header
    void fields(auto& body) { body(job, server, rules, peers, what); }
};
struct Health {
    static constexpr Type kType = Type::health;
    bool healthy = false;
    std::string text;
    uint64_t process = 0;
    bool seeks = false;       // a coordinator: it is in no ring
    uint32_t generation = 0;  // travels in the header
    void fields(auto& body) { body(healthy, process, text, seeks); }
};

// A whole message, header included.
template <class M>
std::string encode(M message);
std::string encode_text(Type type, const std::string& text);  // STATUS, NOTICE
std::string encode_empty(Type type, uint32_t generation = 0);

// What a body says. Throws an Error that names the message and what is wrong with it; bytes left
// over are an error too.
template <class M>
M decode(std::string_view body, uint32_t generation = 0);
std::string decode_text(std::string_view body);

}  // namespace convoy::wire
