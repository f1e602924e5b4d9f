#include "net/wire.h"

#include <cstring>

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
    const auto body = [](const std::string& message) { return message.substr(wire::kHeaderBytes); };
    const std::string why =
        wire::decode<wire::Abort>(body(wire::encode(wire::Abort{-1, long_one}))).why;
    CHECK(why.starts_with("bye?error: rank 7"));
    CHECK(why.size() < 1'200);
    CHECK(wire::decode_text(body(wire::encode_text(wire::Type::notice, long_one))) == why);
    // Escaped it is longer, and is cut between two characters; it is passed on as it was taken.
    std::string strange = std::string(1'090, 'x') + "\x80";
    for (int i = 0; i < 400; ++i) strange += i % 2 ? "\x90" : "€";
    for (const std::string& text : {strange, std::string(1'000, '\x80')}) {
        const std::string taken =
            wire::decode_text(body(wire::encode_text(wire::Type::notice, text)));
        CHECK(cut_text(taken, 1'200) == taken);
        CHECK(is_utf8(taken));
        CHECK(wire::decode_text(body(wire::encode_text(wire::Type::notice, taken))) == taken);
    }
    wire::Offer offer;
    offer.peers.resize(1);
    offer.what = long_one;
    CHECK(wire::decode<wire::Offer>(body(wire::encode(offer))).what == long_one);
}

TEST_CASE("a header is laid out as the table in wire.h says") {
    std::byte head[kHeaderBytes];
    encode({wire::Type::sum, 0x01020304, 0x05060708, 0x1112131415161718}, head);
    const unsigned char want[kHeaderBytes] = {'C',  'N',  'V',  'Y',  11,   0,    32,   0,
                                              4,    3,    2,    1,    8,    7,    6,    5,
                                              0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11};
    CHECK(std::memcmp(head, want, kHeaderBytes) == 0);
}

TEST_CASE("JOIN, WELCOME, HEARTBEAT, ABORT, REFUSE, HEALTH and EDGE come back as they were sent") {
    Join join{2,
              4,
              77,
              250,
              {.bf16 = true, .elastic = true, .min_world = 3, .stall_ms = 9000, .shm = true},
              "nodeA",
              "10.0.0.7:29401",
              5,
              {{"batch", "64"}, {"model", "resnet18"}}};
    const Join join2 = decode<Join>(body_of(encode(join)));
    CHECK(join2.rank == 2);
    CHECK(join2.world == 4);
    CHECK(join2.serves == 77);
    CHECK(join2.heartbeat_ms == 250);
    CHECK(join2.rules.stall_ms == 9000);
    CHECK(join2.rules.bf16);
    CHECK(join2.rules.elastic);
    CHECK(!join2.rules.alone);
    CHECK(join2.rules.min_world == 3);
    CHECK(join2.rules.shm);
    CHECK(join2.process == 5);
    CHECK(join2.host == "nodeA");
    CHECK(join2.address == "10.0.0.7:29401");
    CHECK(join2.settings == join.settings);

    const Rules rules{.bf16 = true};
    Welcome welcome{99, 3, 1, 2, 0, rules, {{"a", "x:1", 8}, {"b", "y:2", 9}}, {1, 0}, "gone"};
    const std::string sent = encode(welcome);
    CHECK(header_of(sent).type == wire::Type::welcome);
    CHECK(header_of(sent).length == sent.size() - kHeaderBytes);
    const Welcome welcome2 = decode<Welcome>(body_of(sent), header_of(sent).generation);
    CHECK(welcome2.job == 99);
    CHECK(welcome2.generation == 3);
    CHECK(welcome2.rank == 1);
    CHECK(welcome2.world == 2);
    CHECK(welcome2.server == 0);
    CHECK(welcome2.rules.bf16);
    CHECK(welcome2.peers[1].process == 9);
    CHECK(welcome2.why == "gone");
    CHECK(welcome2.peers[1].host == "b");
    CHECK(welcome2.peers[1].address == "y:2");
    CHECK(welcome2.ring == welcome.ring);

    const Heartbeat beat =
        decode<Heartbeat>(body_of(encode(Heartbeat{812, 9, 8, 12345, 40'000, "backward"})));
    CHECK(beat.step == 812);
    CHECK(beat.begun == 9);
    CHECK(beat.done == 8);
    CHECK(beat.moved == 12345);
    CHECK(beat.phase_ms == 40'000);
    CHECK(beat.phase == "backward");

    const Abort abort = decode<Abort>(body_of(encode(Abort{2, "out of memory", End::ring, 4})));
    CHECK(abort.lost == 2);
    CHECK(abort.why == "out of memory");
    CHECK(abort.end == End::ring);
    std::string neverending = encode(Abort{2, "", End(7), 4});
    CHECK_FAILS(decode<Abort>(body_of(neverending)), "ends nothing that there is");
    const Offer offer = decode<Offer>(
        body_of(encode(Offer{5, 1, {.min_world = 3}, {{"h", "a:1", 7}, {"i", "b:2", 8}}, "{}", 4})),
        4);
    CHECK(offer.job == 5);
    CHECK(offer.server == 1);
    CHECK(offer.rules.min_world == 3);
    CHECK(offer.peers[1].address == "b:2");
    CHECK(offer.what == "{}");
    CHECK(offer.generation == 4);
    CHECK_FAILS(decode<Offer>(body_of(encode(Offer{5, 1, {}, {{"h", "a:1", 7}}}))),
                "has 1 peers, and rank 1 as the coordinator");
    Join again = join;
    again.address = std::string(256, 'x');
    CHECK_FAILS(decode<Join>(body_of(encode(again))), "more than 255 bytes");
    again.address = "a:1\nb";
    again.job = 5, again.step = 811, again.why = "cut", again.newcomer = true;
    again.open = 77, again.open_generation = 3;
    again.maybe_open = {{78, 4, {8, 9}}, {79, 5, {8}}};
    const Join again2 = decode<Join>(body_of(encode(again)), 4);
    CHECK(again2.address == "a:1?b");
    CHECK(again2.job == 5);
    CHECK(again2.step == 811);
    CHECK(again2.why == "cut");
    CHECK(again2.newcomer);
    CHECK(again2.generation == 4);
    CHECK(again2.open == 77);
    CHECK(again2.open_generation == 3);
    REQUIRE(again2.maybe_open.size() == 2);
    CHECK(again2.maybe_open[0].members == std::vector<uint64_t>{8, 9});
    CHECK(again2.maybe_open[1].id == 79);
    CHECK(again2.maybe_open[1].generation == 5);
    again.maybe_open[1].members.resize(kMostAttempted);
    CHECK(encode(again).size() < kJoinLimit);
    const Refuse refuse = decode<Refuse>(body_of(encode(Refuse{true, "busy", true})));
    CHECK(refuse.again);
    CHECK(refuse.why == "busy");
    CHECK(refuse.no_job);
    const Health health = decode<Health>(body_of(encode(Health{true, "rank 1 of 4", 5, 6})));
    CHECK(health.healthy);
    CHECK(health.text == "rank 1 of 4");
    CHECK(health.process == 5);
    const Edge edge = decode<Edge>(body_of(encode(Edge{5, 1, 0, 3})));
    CHECK(edge.job == 5);
    CHECK(edge.from == 1);
    CHECK(edge.to == 0);
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
        body_of(encode(Join{2, 4, 7, 250, {}, "nodeA", "10.0.0.7:1", 5, {{"batch", "64"}}})),
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
    body[body.size() - 1] =
        char(0x7f);  // the count of the settings, now about two thousand million
    CHECK_FAILS(decode<Join>(body), "items in 0 bytes");
}

TEST_CASE("a JOIN that names a setting twice is refused") {
    Join join;
    join.settings = {{"lr", "1"}, {"lt", "2"}};
    std::string body = body_of(encode(join));
    body[body.rfind("lt") + 1] = 'r';
    CHECK_FAILS(decode<Join>(body), "the setting 'lr' twice");
}

TEST_CASE("a WELCOME whose ring is no permutation of the ranks is refused") {
    Welcome welcome{9, 1, 1, 2, 0, {}, {{"a", "x:1", 8}, {"b", "y:2", 9}}, {1, 1}, ""};
    CHECK_FAILS(decode<Welcome>(body_of(encode(welcome)), 1), "contradicts itself");
}

}  // namespace convoy
