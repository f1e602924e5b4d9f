#include "net/control/wire.h"

#include <cstring>
#include <tuple>

#include "src/base/text.h"
#include "tests/support.h"

namespace convoy {

using namespace wire;

static Header header_of(const std::string& message, uint64_t limit = kControlLimit) {
    std::byte head[kHeaderBytes];
    REQUIRE(message.size() >= kHeaderBytes);
    std::memcpy(head, message.data(), kHeaderBytes);
    return decode(head, limit);
}
static std::string body_of(const std::string& message) { return message.substr(kHeaderBytes); }

TEST_CASE("wire: a text for people is one line of a kilobyte") {
    const std::string long_one = "bye\nerror: rank 7 was lost" + std::string(3'000'000, 'x');
    const std::string why = decode<Abort>(body_of(encode(Abort{-1, long_one}))).why;
    CHECK(why.starts_with("bye?error: rank 7"));
    CHECK(why.size() < 1'200);
    CHECK(decode_text(body_of(encode_text(wire::Type::notice, long_one))) == why);
    // Escaped it is longer, and is cut between two characters; it is passed on as it was taken.
    std::string strange = std::string(1'090, 'x') + "\x80";
    for (int i = 0; i < 400; ++i) strange += i % 2 ? "\x90" : "€";
    for (const std::string& text : {strange, std::string(1'000, '\x80')}) {
        const std::string taken = decode_text(body_of(encode_text(wire::Type::notice, text)));
        CHECK(cut_text(taken, 1'200) == taken);
        CHECK(is_utf8(taken));
        CHECK(decode_text(body_of(encode_text(wire::Type::notice, taken))) == taken);
    }
    Offer offer;
    offer.peers.resize(1);
    offer.what = long_one;
    CHECK(decode<Offer>(body_of(encode(offer))).what == long_one);
}

TEST_CASE("a header is laid out as the table in wire.h says") {
    std::byte head[kHeaderBytes];
    encode({wire::Type::sum, 0x01020304, 0x05060708, 0x1112131415161718}, head);
    const unsigned char want[kHeaderBytes] = {'C',  'N',  'V',  'Y',  14,   0,    32,   0,
                                              4,    3,    2,    1,    8,    7,    6,    5,
                                              0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11};
    CHECK(std::memcmp(head, want, kHeaderBytes) == 0);
}

// The message as it arrives.
template <class M>
static M arrived(const M& message) {
    const std::string bytes = encode(message);
    CHECK(header_of(bytes).type == M::kType);
    CHECK(header_of(bytes).length == bytes.size() - kHeaderBytes);
    return decode<M>(body_of(bytes), header_of(bytes).generation);
}
// fields: returns a tuple of a message's fields.
static void check_arrives(const auto& message, auto fields) {
    CHECK(fields(arrived(message)) == fields(message));
}

TEST_CASE("JOIN, WELCOME, HEARTBEAT, ABORT, REFUSE, HEALTH and LINK come back as they were sent") {
    using std::tuple;
    const auto rules = [](const Rules& r) {
        return tuple(r.bf16, r.elastic, r.alone, r.min_world, r.stall_ms, r.shm, r.silence_ms);
    };
    const Join join{2,
                    4,
                    250,
                    {.bf16 = true,
                     .elastic = true,
                     .min_world = 3,
                     .stall_ms = 9000,
                     .shm = true,
                     .silence_ms = 6000},
                    "nodeA",
                    "10.0.0.7:29401",
                    5};
    check_arrives(join, [&](const Join& m) {
        return tuple(m.rank, m.world, m.heartbeat_ms, rules(m.rules), m.host, m.address, m.process);
    });
    const std::vector<Member> peers = {{"a", "x:1", 8}, {"b", "y:2", 9, 4}};
    const auto second = [](const std::vector<Member>& all) {
        REQUIRE(all.size() == 2);
        return tuple(all[1].host, all[1].address, all[1].process, all[1].number);
    };
    check_arrives(Welcome{99, 3, 1, 2, 0, {.bf16 = true}, peers, {1, 0}, "gone"},
                  [&](const Welcome& m) {
                      return tuple(m.job, m.generation, m.rank, m.world, m.server, rules(m.rules),
                                   second(m.peers), m.ring, m.why);
                  });
    check_arrives(Heartbeat{812, 9, 8, 12345, 40'000, "backward"}, [](const Heartbeat& m) {
        return tuple(m.step, m.begun, m.done, m.moved, m.phase_ms, m.phase);
    });
    check_arrives(Abort{2, "out of memory", End::ring, 4},
                  [](const Abort& m) { return tuple(m.lost, m.why, m.end); });
    CHECK_FAILS(decode<Abort>(body_of(encode(Abort{2, "", End(7), 4}))),
                "ends nothing that there is");
    check_arrives(Offer{5, 1, {.min_world = 3}, peers, "{}", 4}, [&](const Offer& m) {
        return tuple(m.job, m.server, rules(m.rules), second(m.peers), m.what, m.generation);
    });
    CHECK_FAILS(decode<Offer>(body_of(encode(Offer{5, 1, {}, {{"h", "a:1", 7}}}))),
                "has 1 peers, and rank 1 as the coordinator");
    CHECK_FAILS(decode<Welcome>(body_of(encode(Welcome{9, 1, 0, 1, -1, {}, {peers[0]}, {0}}))),
                "contradicts itself");
    Join again = join;
    again.address = std::string(256, 'x');
    CHECK_FAILS(decode<Join>(body_of(encode(again))), "more than 255 bytes");
    again.address = "x\nerror: rank 7\x1b[31m was lost";  // it is written into logs
    CHECK(arrived(again).address == "x?error: rank 7?[31m was lost");
    again.job = 5, again.step = 811, again.why = "cut", again.newcomer = true;
    again.open = 77, again.open_generation = 3, again.generation = 4;
    again.maybe_open = {{78, 4, {8, 9}}, {79, 5, {8}}};
    check_arrives(again, [](const Join& m) {
        REQUIRE(m.maybe_open.size() == 2);
        return tuple(m.job, m.step, m.why, m.newcomer, m.generation, m.open, m.open_generation,
                     m.maybe_open[0].members, m.maybe_open[1].id, m.maybe_open[1].generation);
    });
    again.maybe_open[1].members.resize(kMostAttempted);
    CHECK(encode(again).size() < kJoinLimit);
    check_arrives(Refuse{true, "busy", true},
                  [](const Refuse& m) { return tuple(m.again, m.why, m.no_job); });
    check_arrives(Health{true, "rank 1 of 4", 5, true, 6},
                  [](const Health& m) { return tuple(m.healthy, m.text, m.process, m.seeks); });
    check_arrives(Link{5, 1, 0, 3}, [](const Link& m) { return tuple(m.job, m.from, m.to); });
}

TEST_CASE("a header of other bytes, another version, an unknown type or too long is refused") {
    const std::string http = "GET / HTTP/1.1\r\nHost: x\r\n";
    CHECK_THROWS_WITH_AS(header_of(http),
                         doctest::Contains("not a Convoy trainer: it sent 'GET / HT'"), NotConvoy);
    std::string other = encode_empty(wire::Type::leave);
    other[4] = 77;
    CHECK_THROWS_WITH_AS(header_of(other), doctest::Contains("speaks version 77"), NotConvoy);
    std::string unknown = encode_empty(wire::Type::leave);
    unknown[6] = 99;
    CHECK_FAILS(header_of(unknown), "unknown type 99");
    std::string huge = encode_empty(wire::Type::join);
    huge[22] = 1;  // 2^48 bytes: must be refused before anything is allocated
    CHECK_FAILS(header_of(huge), "JOIN message of 281474976710656 bytes");
    // Anybody may send HEALTH, and to anybody: no more than its answer needs is ever allocated.
    std::string health = encode(Health{true, std::string(kHealthLimit, 'x'), 5});
    CHECK_FAILS(header_of(health), "the limit is 4096");
}

TEST_CASE("every cut and every flipped byte of a message either decodes or is an Error") {
    const std::string bodies[] = {
        body_of(encode(Join{2, 4, 250, {}, "nodeA", "10.0.0.7:1", 5})),
        body_of(
            encode(Welcome{9, 1, 1, 2, 0, {}, {{"a", "x:1", 8}, {"b", "y:2", 9}}, {1, 0}, "gone"})),
        body_of(encode(Heartbeat{1, 2, 1, 4, 5, "data"}))};
    size_t refused = 0, tried = 0;
    const auto try_all = [&](const std::string& body) {
        for (int kind = 0; kind < 3; ++kind) {
            ++tried;
            try {
                kind == 0   ? void(decode<Join>(body))
                : kind == 1 ? void(decode<Welcome>(body, 1))
                            : void(decode<Heartbeat>(body));
            } catch (const Error&) {
                ++refused;
            }
        }
    };
    for (const std::string& body : bodies) {
        for (size_t cut = 0; cut < body.size(); ++cut) {
            try_all(body.substr(0, cut));
        }
        for (size_t i = 0; i < body.size(); ++i)
            for (int value : {0, 1, 127, 128, 255}) {
                std::string changed = body;
                changed[i] = char(value);
                try_all(changed);
            }
    }
    CHECK(refused > tried / 2);
    for (size_t cut = 0; cut < bodies[0].size(); ++cut)
        CHECK_THROWS_AS(decode<Join>(bodies[0].substr(0, cut)), Error);
    CHECK_FAILS(decode<Join>(bodies[0] + "x"), "1 bytes too many");
}

TEST_CASE("a list that claims more items than its bytes could hold is refused by its count") {
    std::string body = body_of(encode(Join{}));
    body[body.size() - 1] = char(0x7f);  // the count of rings, now about two thousand million
    CHECK_FAILS(decode<Join>(body), "items in 0 bytes");
}

TEST_CASE("a WELCOME whose ring is no permutation of the ranks is refused") {
    Welcome welcome{9, 1, 1, 2, 0, {}, {{"a", "x:1", 8}, {"b", "y:2", 9}}, {1, 1}, ""};
    CHECK_FAILS(decode<Welcome>(body_of(encode(welcome)), 1), "contradicts itself");
}

}  // namespace convoy
