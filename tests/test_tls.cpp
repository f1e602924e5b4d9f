// Who is let in by a token and who is not, played by OpenSSL itself; and collectives over TLS.
#include "net/control/tls.h"

#include <fcntl.h>
#include <openssl/kdf.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/resource.h>

#include <cstring>

#include "net/control/ask_health.h"
#include "net/control/listener.h"
#include "src/base/clock.h"
#include "src/cli/commands.h"
#include "tests/fake_rank.h"
#include "tests/process.h"
#include "tests/relay.h"

namespace convoy {

using std::chrono::milliseconds;
using Bytes = std::vector<unsigned char>;

// --- tokens ---

TEST_CASE(
    "a token has 256 random bits as 64 digits; another length, or another character, is named") {
    const std::string token = make_token();
    CHECK(token.size() == 64);
    CHECK(make_token() != token);
    CHECK(make_tls(token) != nullptr);
    CHECK(make_tls("") == nullptr);
    CHECK_THROWS_WITH_AS(make_tls(token.substr(1)), doctest::Contains("has 63 characters"),
                         AccessError);
    for (const char* wrong : {"G", "g", " ", "\n"})
        CHECK_THROWS_WITH_AS(make_tls(wrong + token.substr(1)), doctest::Contains("64 digits"),
                             AccessError);
}

// --- one connection: ours against OpenSSL's ---

// The key of a token, by other means than the code under test.
static Bytes key_of(const std::string& token) {
    const Bytes raw(token.begin(), token.end());
    Bytes key(32);
    EVP_PKEY_CTX* ctx = EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr);
    size_t size = key.size();
    const char info[] = "convoy psk 1";
    REQUIRE(
        (EVP_PKEY_derive_init(ctx) > 0 && EVP_PKEY_CTX_set_hkdf_md(ctx, EVP_sha256()) > 0 &&
         EVP_PKEY_CTX_set1_hkdf_key(ctx, raw.data(), int(raw.size())) > 0 &&
         EVP_PKEY_CTX_add1_hkdf_info(ctx, reinterpret_cast<const unsigned char*>(info), 12) > 0 &&
         EVP_PKEY_derive(ctx, key.data(), &size) > 0));
    EVP_PKEY_CTX_free(ctx);
    return key;
}

// Somebody at the other end of a connection, who does as the fields say.
struct Stranger {
    std::string identity = "convoy1";
    Bytes key = {};  // empty: none
    std::string suites = "TLS_AES_128_GCM_SHA256", groups = "X25519:P-256";
    Bytes suite = {0x13, 0x01};  // that of the key
    int most_version = TLS1_3_VERSION;
    bool certificate = false;
    std::map<int, int> messages = {};  // handshake messages received, by type
    std::vector<std::string> alerts = {};

    static Stranger* of(const SSL* ssl) { return static_cast<Stranger*>(SSL_get_app_data(ssl)); }
    static SSL_SESSION* session(SSL* ssl) {
        const Stranger* self = of(ssl);
        SSL_SESSION* session = SSL_SESSION_new();
        SSL_SESSION_set1_master_key(session, self->key.data(), self->key.size());
        SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, self->suite.data()));
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION);
        return session;
    }
    SSL* connection(int socket, bool dials) {
        SSL_CTX* ctx = SSL_CTX_new(TLS_method());
        SSL_CTX_set_max_proto_version(ctx, most_version);
        REQUIRE(SSL_CTX_set_ciphersuites(ctx, suites.c_str()));
        REQUIRE(SSL_CTX_set1_groups_list(ctx, groups.c_str()));
        if (certificate) add_certificate(ctx);
        SSL* ssl = SSL_new(ctx);
        SSL_CTX_free(ctx);
        SSL_set_app_data(ssl, this);
        SSL_set_fd(ssl, socket);
        if (!key.empty()) {
            SSL_set_psk_use_session_callback(
                ssl, [](SSL* s, const EVP_MD*, const unsigned char** id, size_t* size,
                        SSL_SESSION** found) {
                    *id = reinterpret_cast<const unsigned char*>(of(s)->identity.data());
                    *size = of(s)->identity.size();
                    *found = session(s);
                    return 1;
                });
            SSL_set_psk_find_session_callback(
                ssl, [](SSL* s, const unsigned char*, size_t, SSL_SESSION** found) {
                    *found = session(s);
                    return 1;
                });
        }
        SSL_set_msg_callback(
            ssl, [](int sends, int, int type, const void* bytes, size_t size, SSL* s, void*) {
                const auto* message = static_cast<const unsigned char*>(bytes);
                if (sends || size < 2) return;
                if (type == SSL3_RT_HANDSHAKE) ++of(s)->messages[message[0]];
                if (type == SSL3_RT_ALERT)
                    of(s)->alerts.push_back(SSL_alert_desc_string_long(message[1]));
            });
        dials ? SSL_set_connect_state(ssl) : SSL_set_accept_state(ssl);
        return ssl;
    }
    static void add_certificate(SSL_CTX* ctx) {
        EVP_PKEY* pair = EVP_EC_gen("P-256");
        X509* paper = X509_new();
        X509_gmtime_adj(X509_getm_notBefore(paper), -60);
        X509_gmtime_adj(X509_getm_notAfter(paper), 3600);
        X509_NAME_add_entry_by_txt(X509_get_subject_name(paper), "CN", MBSTRING_ASC,
                                   reinterpret_cast<const unsigned char*>("rank0"), -1, -1, 0);
        X509_set_issuer_name(paper, X509_get_subject_name(paper));
        X509_set_pubkey(paper, pair);
        X509_sign(paper, pair, EVP_sha256());
        REQUIRE((SSL_CTX_use_certificate(ctx, paper) && SSL_CTX_use_PrivateKey(ctx, pair)));
        X509_free(paper);
        EVP_PKEY_free(pair);
    }
};

// Two ends of a connection, which wait for nothing.
struct Wire {
    int ends[2];
    Wire() { REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0); }
    ~Wire() { close(ends[0]), close(ends[1]); }
};

struct Meeting {
    bool ours = false, refused = false;  // we are done; we have refused
    bool theirs = false;
};
static Meeting meet(Tls& ours, SSL* theirs) {
    Meeting m;
    for (int i = 0; i < 20; ++i) {
        if (!m.ours && !m.refused) {
            const ssize_t done = ours.handshake();
            m.ours = done == 1;
            m.refused = done < 0 && errno == EPROTO;
        }
        m.theirs = SSL_do_handshake(theirs) == 1 || m.theirs;
    }
    char byte;
    SSL_read(theirs, &byte, 1);  // what comes after the handshake
    return m;
}

TEST_CASE("the holder of the token is let in, from both sides, by the one suite, without tickets") {
    const std::string token = make_token();
    for (const bool we_dial : {true, false}) {
        Wire wire;
        Tls ours(make_tls(token), wire.ends[0], we_dial);
        Stranger holder{.key = key_of(token)};
        SSL* theirs = holder.connection(wire.ends[1], !we_dial);
        const Meeting m = meet(ours, theirs);
        CHECK((m.ours && m.theirs));
        CHECK(SSL_version(theirs) == TLS1_3_VERSION);
        CHECK(SSL_get_cipher_name(theirs) == std::string("TLS_AES_128_GCM_SHA256"));
        CHECK(SSL_session_reused(theirs));
        CHECK(SSL_get_negotiated_group(theirs) == NID_X25519);  // never the key alone
        CHECK(holder.messages[SSL3_MT_NEWSESSION_TICKET] == 0);
        CHECK(holder.messages[SSL3_MT_CERTIFICATE] == 0);
        CHECK(holder.alerts.empty());
        SSL_free(theirs);
    }
}

TEST_CASE("nobody else is let in, and learns no more than one alert") {
    const std::string token = make_token();
    const Bytes key = key_of(token), sha384(48, 7);
    struct {
        std::string what;
        Stranger stranger;
        bool we_dial;
    } cases[] = {
        {"an impostor with a certificate",
         {.suites = "TLS_AES_128_GCM_SHA256", .certificate = true},
         true},
        {"no key", {}, false},
        {"no key, but a certificate", {.certificate = true}, false},
        {"another key", {.key = key_of(make_token())}, false},
        {"another key, which listens", {.key = key_of(make_token())}, true},
        {"an identity that names no key", {.identity = "convoy2", .key = key}, false},
        {"another hash",
         {.key = sha384, .suites = "TLS_AES_256_GCM_SHA384", .suite = {0x13, 0x02}},
         false},
        {"another hash beside the right one",
         {.key = sha384,
          .suites = "TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256",
          .suite = {0x13, 0x02}},
         false},
        {"another cipher",
         {.key = key, .suites = "TLS_CHACHA20_POLY1305_SHA256", .suite = {0x13, 0x03}},
         false},
        {"another cipher, which listens",
         {.key = key, .suites = "TLS_CHACHA20_POLY1305_SHA256", .suite = {0x13, 0x03}},
         true},
        {"another group", {.key = key, .groups = "P-256"}, false},
        {"another group, which listens", {.key = key, .groups = "P-256"}, true},
        {"TLS 1.2", {.most_version = TLS1_2_VERSION}, false},
        {"TLS 1.2 with a certificate, which listens",
         {.most_version = TLS1_2_VERSION, .certificate = true},
         true},
    };
    for (auto& [what, stranger, we_dial] : cases) {
#ifdef OPENSSL_NO_CHACHA  // the static build's library: the stranger has no such cipher either
        if (stranger.suite[1] == 3) continue;
#endif
        CAPTURE(what);
        Wire wire;
        Tls ours(make_tls(token), wire.ends[0], we_dial);
        SSL* theirs = stranger.connection(wire.ends[1], !we_dial);
        const Meeting m = meet(ours, theirs);
        CHECK_FALSE(m.ours);
        CHECK(m.refused);
        CHECK_FALSE(m.theirs);
        CHECK(stranger.alerts.size() <= 1);
        if (!we_dial) CHECK(stranger.alerts.size() == 1);
        // It is not spoken at all: no certificate is looked at.
        if (stranger.most_version == TLS1_2_VERSION)
            CHECK(stranger.alerts == (we_dial ? std::vector<std::string>()
                                              : std::vector<std::string>{"protocol version"}));
        SSL_free(theirs);
    }
}

TEST_CASE("a client that offers another group first is asked again, and the key serves twice") {
    const std::string token = make_token();
    for (int i = 0; i < 3; ++i) {
        Wire wire;
        Tls ours(make_tls(token), wire.ends[0], false);
        Stranger holder{.key = key_of(token), .groups = "P-256:X25519"};
        SSL* theirs = holder.connection(wire.ends[1], true);
        const Meeting m = meet(ours, theirs);
        CHECK((m.ours && m.theirs));
        CHECK(holder.messages[SSL3_MT_SERVER_HELLO] == 2);  // the first is a HelloRetryRequest
        CHECK(SSL_get_negotiated_group(theirs) == NID_X25519);
        SSL_free(theirs);
    }
}

// Two ends that have met: ours, which dialled, and OpenSSL's.
struct Pair {
    const std::string token = make_token();
    Wire wire;
    Tls ours{make_tls(token), wire.ends[0], true};
    Stranger holder{.key = key_of(token)};
    SSL* theirs = holder.connection(wire.ends[1], false);
    Pair() { REQUIRE(meet(ours, theirs).ours); }
    ~Pair() { SSL_free(theirs); }
};

TEST_CASE("the key is changed after so many records, and no byte is lost by it") {
    Pair pair;
    const uint32_t records = Tls::records_per_key;
    CHECK(records <= 23'726'566);  // 2^24.5, the limit of AES-GCM (RFC 8446, 5.5)
    Tls::records_per_key = 3;
    for (unsigned char i = 0; i < 10; ++i) {
        const std::byte sent{i};
        unsigned char got = 99;
        CHECK(pair.ours.write(std::span(&sent, 1)) == 1);
        CHECK(SSL_read(pair.theirs, &got, 1) == 1);
        CHECK(got == i);
    }
    Tls::records_per_key = records;
    CHECK(pair.holder.messages[SSL3_MT_KEY_UPDATE] == 3);  // before records 4, 7 and 10
}

TEST_CASE("a byte that was changed on the way is an error, not data") {
    Pair pair;
    Wire aside;  // the record passes through our hands
    SSL_set_fd(pair.theirs, aside.ends[0]);
    REQUIRE(SSL_write(pair.theirs, "gradient", 8) == 8);
    char record[64];
    const ssize_t size = recv(aside.ends[1], record, sizeof record, 0);
    REQUIRE(size == 8 + 1 + 16 + 5);
    record[6] ^= 1;
    REQUIRE(send(pair.wire.ends[1], record, size_t(size), 0) == size);
    std::byte got[8];
    CHECK(pair.ours.read(got) == -1);
    CHECK(errno == EPROTO);
}

// --- ranks ---

static JoinOptions options_for(int rank, uint16_t port, const std::string& token) {
    JoinOptions options = rank_options(rank, 2, port);
    options.access.token = token;
    return options;
}

// What each rank of a job ends with, after a few collectives of every kind.
static std::vector<std::vector<float>> results(int world, const std::string& token, bool bf16) {
    std::vector<std::vector<float>> all(static_cast<size_t>(world));
    run_ranks(
        world,
        [&](JoinOptions& options) {
            options.access.token = token;
            options.bf16_wire = bf16;
        },
        [&](Job& job) {
            Communicator& c = *job.communicator;
            std::vector<float>& mine = all[size_t(c.rank())];
            for (const size_t n : {0, 1, 7, 4096, 4097, 300'001, 3'000'000}) {
                std::vector<float> data = random_floats(n, uint64_t(c.rank()) + 1);
                c.allreduce_sum(data).get();
                mine.insert(mine.end(), data.begin(), data.end());
            }
            std::vector<float> block = random_floats(70'000, 9);
            c.broadcast(std::as_writable_bytes(std::span(block)), world - 1);
            mine.insert(mine.end(), block.begin(), block.end());
            for (const auto& text : gather_lists(c, std::string(size_t(c.rank()) * 40'000, 'x')))
                mine.push_back(float(text.size()));
            c.measure_links();
        });
    return all;
}

TEST_CASE("collectives of 2, 3 and 4 ranks over TLS give the bits of the plain ones") {
    const std::string token = make_token();
    Tls::records_per_key = 5;  // the keys change all the time
    for (const int world : {2, 3, 4})
        for (const bool bf16 : {false, true}) {
            CAPTURE(world);
            const auto plain = results(world, "", bf16), encrypted = results(world, token, bf16);
            for (size_t rank = 0; rank < plain.size(); ++rank) {
                REQUIRE(plain[rank].size() == encrypted[rank].size());
                CHECK(std::memcmp(plain[rank].data(), encrypted[rank].data(),
                                  plain[rank].size() * sizeof(float)) == 0);
            }
        }
    Tls::records_per_key = 1 << 23;
}

TEST_CASE("a listener on the wire reads nothing of a job, of its hosts or of its sums") {
    const std::string needle = "needle-host";
    const std::string sums(4096, 'N');  // floats whose bytes are all 'N'
    for (const std::string& token : {std::string(), make_token()}) {
        Diary diary;
        Port port;
        Relay control([&] { return port.get(); });
        const uint16_t port0 = free_port();
        Relay link([&] { return port0; });
        const auto run = [&](int rank) {
            JoinOptions options = rank_options(rank, 2, port);
            options.access.token = token;
            options.host_id = needle;
            if (rank == 1) options.port = control.port();
            if (rank == 0) options.listen_port = port0;
            if (rank == 0) options.advertise = cat("127.0.0.1:", link.port());
            options.access.open = true;  // --advertise listens everywhere
            Job job = join(options, diary.log);
            std::vector<float> data(sums.size() / sizeof(float), 0);
            if (rank == 0) std::memcpy(data.data(), sums.data(), sums.size());
            job.communicator->allreduce_sum(data).get();
            CHECK(std::memcmp(data.data(), sums.data(), sums.size()) == 0);
            finish(job);
        };
        std::thread other([&] { run(1); });
        run(0);
        other.join();
        const bool plain = token.empty();
        CHECK(contains(control.passed(), needle) == plain);
        CHECK(contains(link.passed(), sums.substr(0, 64)) == plain);
        CHECK(contains(link.passed(), "CNVY") == plain);
    }
}

TEST_CASE("a link that somebody bends to another rank than was meant is refused") {
    const std::string token = make_token();
    Diary diary;
    Port port;
    std::thread rank0([&] {
        JoinOptions options = rank_options(0, 2, port);
        options.access.token = token;
        CHECK_THROWS_AS(join(options, diary.log), Error);
    });
    const TlsContext tls = make_tls(token);
    int refused = 0;
    // The test is rank 1.
    const auto run = [&]() -> asio::awaitable<void> {
        Socket control = co_await dial("127.0.0.1", port.get(), tls, milliseconds(5'000));
        wire::Join join_message;
        join_message.rank = 1, join_message.address = "127.0.0.1:9";
        co_await write_message(control, wire::encode(join_message));
        Message message;
        while (message.header.type != wire::Type::welcome)
            co_await read_message(control, wire::kControlLimit, message);
        const auto welcome = wire::decode<wire::Welcome>(message.body, message.header.generation);
        const auto [host, port] = split_address(welcome.peers[0].address, "peer");
        // From the rank to itself, from another one, to another one, of another job, of another
        // generation; then the right one.
        const wire::Link links[] = {{welcome.job, 0, 0, welcome.generation},
                                    {welcome.job, 2, 0, welcome.generation},
                                    {welcome.job, 1, 1, welcome.generation},
                                    {welcome.job ^ 1, 1, 0, welcome.generation},
                                    {welcome.job, 1, 0, welcome.generation + 1},
                                    {welcome.job, 1, 0, welcome.generation}};
        for (const wire::Link& link : links) {
            Socket socket = co_await dial(host, port, tls, milliseconds(5'000));
            co_await write_message(socket, wire::encode(link));
            try {
                co_await read_message(socket, wire::kJoinLimit, message);
                const auto answer = wire::decode<wire::Link>(message.body);
                CHECK((answer.job == welcome.job && answer.from == 0 && answer.to == 1));
                CHECK(refused == 5);
            } catch (const std::system_error&) {
                ++refused;
            }
        }
    };
    asio::io_context io;
    std::exception_ptr failure;
    asio::co_spawn(io, run(), [&](std::exception_ptr error) { failure = error; });
    io.run();
    rank0.join();
    if (failure) std::rethrow_exception(failure);
    CHECK(refused == 5);
}

TEST_CASE("a rank does not take the port of a coordinator that ends just then") {
    const std::string token = make_token();
    Diary diary;
    asio::io_context io;
    tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
    const uint16_t port = acceptor.local_endpoint().port();
    std::thread rank1(
        [&] { CHECK_THROWS_AS(join(options_for(1, port, token), diary.log), Error); });
    const TlsContext tls = make_tls(token);
    const std::string refusal = wire::encode(wire::Refuse{false, "enough"});
    std::string address;
    const auto run = [&]() -> asio::awaitable<void> {
        Socket control = co_await acceptor.async_accept(asio::use_awaitable);
        acceptor.close();  // the port is free while the rank still shakes hands
        co_await secure(control, tls, false);
        Message message;
        co_await read_message(control, wire::kJoinLimit, message);
        address = wire::decode<wire::Join>(message.body).address;
        co_await write_message(control, refusal);
    };
    std::exception_ptr failure;
    asio::co_spawn(io, run(), [&](std::exception_ptr error) { failure = error; });
    io.run();
    rank1.join();
    if (failure) std::rethrow_exception(failure);
    CHECK(address.starts_with("127.0.0.1:"));
    CHECK(address != cat("127.0.0.1:", port));
}

TEST_CASE("a token on one side only, or another one, ends both sides' wait with one sentence") {
    const std::string token = make_token();
    const std::pair<std::string, std::string> sides[] = {
        {token, ""}, {"", token}, {token, make_token()}};
    for (const auto& [served, given] : sides) {
        CAPTURE(served.empty(), given.empty());
        Diary diary;
        RankZero rank0(2, diary, {served});
        CHECK_FAILS(join(options_for(1, rank0.port(), given), diary.log),
                    "refused: the token differs or the other side has none");
        const std::string text = diary.text();
        CHECK(contains(text, "refused 127.0.0.1:"));
        if (!token.empty()) CHECK(!contains(text, token));
    }
}

TEST_CASE("health is told to those who hold the token, and to all where there is none") {
    const std::string token = make_token();
    Diary diary;
    RankZero secret(3, diary, {token}), plain(3, diary);
    const auto ask = [](uint16_t port, const std::string& with) {
        return ask_health(port, milliseconds(5'000), with);
    };
    CHECK(ask(secret.port(), token).text == "joining: 1 of 3 joined, missing rank 1-2");
    CHECK(ask(secret.port(), token).healthy);
    CHECK(ask(plain.port(), "").healthy);
    for (const auto& report :
         {ask(secret.port(), ""), ask(secret.port(), make_token()), ask(plain.port(), token)}) {
        CAPTURE(report.text);
        CHECK_FALSE(report.healthy);
        CHECK_FALSE(report.none_is_there);
        CHECK(!contains(report.text, "missing rank"));
        CHECK(contains(report.text, "the token differs or the other side has none"));
    }
}

// The bytes that the other end sends until it closes.
static std::string rest_of(tcp::socket& socket) {
    std::string bytes;
    std::error_code error;
    asio::read(socket, asio::dynamic_buffer(bytes), error);
    return bytes;
}

TEST_CASE("garbage gets one alert and one line; of half handshakes the oldest are closed") {
    const std::string token = make_token(), alert(kTlsAlert, sizeof kTlsAlert);
    Diary diary;
    RankZero rank0(2, diary, {token});
    asio::io_context io;
    const tcp::endpoint at(asio::ip::make_address("127.0.0.1"), rank0.port());
    wire::Join join_message;
    join_message.world = 2;
    join_message.address = "sneaked in";
    const std::string garbage[] = {"GET / HTTP/1.1\r\n\r\n", wire::encode(join_message),
                                   std::string(400, '\xff'), "SSH-2.0-OpenSSH_9.2\r\n"};
    for (const std::string& bytes : garbage) {
        tcp::socket stranger(io);
        stranger.connect(at);
        asio::write(stranger, asio::buffer(bytes));
        CHECK(rest_of(stranger) == alert);
    }
    // A record of a handshake that claims 16 KB, of which ten bytes come.
    std::vector<tcp::socket> slow;
    for (int i = 0; i < 100; ++i) {
        slow.emplace_back(io);
        slow.back().connect(at);
        asio::write(slow.back(), asio::buffer("\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03", 10));
    }
    for (size_t i = 0; i < 84; ++i) CHECK(rest_of(slow[i]).size() <= alert.size());
    sum_once(options_for(1, rank0.port(), token), diary.log);
    const std::string text = diary.text();
    CHECK(!contains(text, "sneaked in"));
    CHECK(contains(text, "its token differs, or it has none"));
}

TEST_CASE("without a token nothing listens where other machines are, unless --open is given") {
    Diary diary;
    asio::io_context io;
    LogQueue lines(diary.log);
    const auto listen = [&](const Access& access) { Listener(io, lines, access).open({}, 0); };
    CHECK_THROWS_WITH_AS(listen({}), doctest::Contains("without a token it does not listen at"),
                         AccessError);
    CHECK_NOTHROW(listen({"", true}));
    CHECK_NOTHROW(listen({make_token(), false}));
    JoinOptions options = options_for(0, 0, "");
    options.advertise = "127.0.0.1:1";  // of another machine, for all it knows
    options.listen_port = free_port();
    const auto begin = Clock::now();
    CHECK_FAILS(join(options, diary.log), "--token-file");
    CHECK(seconds_since(begin) < 10);  // it does not wait for the coordinator
}

TEST_CASE("program: token, --token-file and CONVOY_TOKEN; a file that others can read is refused") {
    const TempDir folder;
    const auto [status, output] = run_trainer({"token"});
    CHECK(status == 0);
    const std::string token = output.substr(0, output.find('\n')), file = folder / "token";
    CHECK(make_tls(token) != nullptr);
    std::ofstream(file) << token << "\n";
    const auto bench = [&](const std::string& given) {
        return run_trainer(
            {"bench", "allreduce", "--bytes", "1K", "--json", "--token-file", given});
    };
    chmod(file.c_str(), 0644);
    CHECK(bench(file).first == 1);
    CHECK(contains(bench(file).second, "chmod 600"));
    chmod(file.c_str(), 0600);
    const auto [good, figures] = bench(file);
    CHECK(good == 0);
    for (const char* part : {"\"encrypted\":1", "\"shm\":\"off\"", "--shm off\n"})
        CHECK(contains(figures, part));
    const auto line = parse_command_line({"health"}, {{"CONVOY_TOKEN", token}});
    CHECK(access_of(line.config).token == token);
    rlimit core{};
    CHECK((getrlimit(RLIMIT_CORE, &core) == 0 && core.rlim_cur == 1));  // none is dumped
    const auto both = parse_command_line({"health", "--token-file", file}, {{"CONVOY_TOKEN", "x"}});
    CHECK(access_of(both.config).token == token);
    CHECK(contains(bench(folder / "none").second, "cannot be read"));
    CHECK(contains(
        run_trainer({"--token-file", folder / "none", "--generated", "24", "--out", folder / "run"})
            .second,
        "cannot be read"));
    std::ofstream(file) << token.substr(2) << "\n";
    CHECK(contains(bench(file).second, "the token is damaged: it has 62 characters"));
}

}  // namespace convoy
