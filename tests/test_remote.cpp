// test_remote.cpp — remote storage from a server of ours that misbehaves in all ways, and its
// cache. tests/remote.sh has real servers.
#include "data/remote.h"

#include <fstream>
#include <future>

#include "data/block_cache.h"
#include "data/http.h"
#include "src/base/clock.h"
#include "tests/http_server.h"
#include "tests/net_support.h"

using namespace convoy;
namespace fs = std::filesystem;

namespace {

using Reply = HttpServer::Reply;

// Bytes of every object here: no two places look alike.
std::vector<uint8_t> content(uint64_t begin, uint64_t size) {
    std::vector<uint8_t> bytes(size);
    for (uint64_t i = 0; i < size; ++i) bytes[i] = uint8_t((begin + i) * 2654435761u >> 13);
    return bytes;
}

// A right answer for an object of `size` bytes.
std::string part(const HttpRequest& request, uint64_t size, const std::string& more = "") {
    const uint64_t end = std::min(request.end, size);
    const std::vector<uint8_t> bytes = content(request.begin, end - request.begin);
    return cat("HTTP/1.1 206 Partial Content\r\nContent-Length: ", bytes.size(),
               "\r\nContent-Range: bytes ", request.begin, "-", end - 1, "/", size, "\r\n",
               more.empty() ? "ETag: \"one\"\r\n" : more, "\r\n",
               std::string(bytes.begin(), bytes.end()));
}

std::string status(const std::string& line, const std::string& body = "",
                   const std::string& more = "") {
    return cat("HTTP/1.1 ", line, "\r\n", more, "Content-Length: ", body.size(), "\r\n\r\n", body);
}

constexpr uint64_t kSize = 5'000'000;

std::atomic<bool> gate_is_open{true};  // where it is not, nothing is answered

Reply misbehave(const HttpRequest& request) {
    gate_is_open.wait(false);
    const std::string good = part(request, kSize), half = good.substr(0, good.size() / 2);
    const std::string begun = good.substr(0, 500);  // libcurl looks at the mean speed of 5 s
    const bool is_first = request.number == 0;
    const auto is = [&](const char* path) { return request.path == path; };
    if (is("/stalls-once") && is_first) return {begun, false, true};
    if (is("/stalls")) return {begun, false, true};
    if (is("/drops-once") && is_first) return {half, true};
    if (is("/closes-once") && is_first) return {"", true};
    if (is("/drops")) return {half, true};
    if (is("/truncates")) return {part(request, kSize - 1 - request.begin / 4), true};
    if (is("/403")) return {status("403 Forbidden", "<Code>AccessDenied</Code>")};
    if (is("/403-once") && is_first) return {status("403 Forbidden")};
    if (is("/404")) return {status("404 Not Found")};
    if (is("/500")) return {status("500 Oops")};
    if (is("/503-twice") && request.number < 2)
        return {status("503 Slow Down", "", "Retry-After: 0\r\n")};
    if (is("/whole")) return {status("200 OK", std::string(100'000, 'x'))};
    if (is("/redirects"))
        return {status("302 Found", "", "Location: /good\r\nETag: \"other\"\r\n")};
    if (is("/loops")) return {status("302 Found", "", "Location: /loops\r\n")};
    if (is("/to-a-file")) return {status("302 Found", "", "Location: file:///etc/passwd\r\n")};
    if (is("/changes"))
        return {part(request, kSize, cat("ETag: \"", int(request.begin > 0), "\"\r\n"))};
    if (is("/shrinks")) return {part(request, request.begin > 0 ? kSize - 1 : kSize)};
    if (is("/garbage")) return {"\x01\x02\xff nothing that HTTP knows\r\n\r\n", true};
    if (is("/other-range")) {
        HttpRequest other = request;
        ++other.begin, ++other.end;
        return {part(other, kSize)};
    }
    if (is("/no-range")) return {status("206 Partial Content", "abc")};
    if (is("/nonsense-range"))
        return {status("206 Partial Content", "abc",
                       "Content-Range: bytes -1-99999999999999999999/\x1b\r\n")};
    if (is("/huge"))
        return {cat("HTTP/1.1 206 Partial Content\r\nContent-Length: 9223372036854775807\r\n"
                    "Content-Range: bytes ",
                    request.begin, "-", request.end - 1, "/9223372036854775807\r\n\r\n",
                    std::string(2'000'000, 'x')),
                true};
    if (is("/huge-range"))
        return {cat("HTTP/1.1 206 Partial Content\r\nContent-Length: 9223372036854775807\r\n"
                    "Content-Range: bytes 0-9223372036854775806/9223372036854775807\r\n\r\n"),
                false, true};
    if (is("/endless-head"))
        return {"HTTP/1.1 206 OK\r\n" +
                    [] {
                        std::string lines;
                        for (int i = 0; i < 4'000; ++i)  // libcurl 8 takes 5,000, and 300 KB
                            lines += "X-Header: " + std::string(200, 'a') + "\r\n";
                        return lines;
                    }(),
                true};
    if (is("/endless-error"))
        return {"HTTP/1.1 404 No\r\n\r\n" + std::string(3'000'000, 'e'), false, true};
    if (is("/empty"))
        return {status("416 Range Not Satisfiable", "", "Content-Range: bytes */0\r\n")};
    if (is("/empty-200")) return {status("200 OK")};
    return {good};
}

RemoteOptions patient_for(double patience, long stall = 20) {
    RemoteOptions options;
    options.patience = patience, options.stall = stall;
    return options;
}

struct World {
    HttpServer server{misbehave};
    Diary diary;
    Remote remote;
    explicit World(const RemoteOptions& options = patient_for(30)) : remote(options, diary.log()) {}

    std::vector<uint8_t> read(const std::string& path, uint64_t offset = 1'000'000,
                              size_t size = 100'000) {
        std::vector<uint8_t> bytes(size);
        remote.open(server.url(path))->read(offset, bytes);
        return bytes;
    }
    // Reading must fail with all of these words in the error, and the object's URL.
    void refuses(const std::string& path, const std::vector<std::string>& words) {
        CAPTURE(path);
        try {
            read(path);
            FAIL("it was read");
        } catch (const Unreachable& error) {
            const std::string text = error.what();
            CAPTURE(text);
            CHECK(text.starts_with(server.url(path) + ": "));
            for (const std::string& word : words) {
                const size_t bar = std::min(word.find('|'), word.size());  // or what follows it
                const bool is_there = text.find(word.substr(0, bar)) != std::string::npos;
                CHECK((is_there || (bar < word.size() &&
                                    text.find(word.substr(bar + 1)) != std::string::npos)));
            }
        }
    }
};

Location locate_with(const std::string& url, const std::map<std::string, std::string>& variables) {
    return locate(url, [&](const char* name) {
        const auto it = variables.find(name);
        return it == variables.end() ? "" : it->second;
    });
}

void refuses_url(const std::string& url, const std::string& why) {
    CHECK_THROWS_WITH_AS(locate(url), doctest::Contains(why.c_str()), Error);
}

}  // namespace

TEST_CASE("remote: any part of an object is read, and its end is known") {
    World world;
    const auto storage = world.remote.open(world.server.url("/good"));
    CHECK(storage->size() == kSize);
    for (const auto& [offset, size] : {std::pair<uint64_t, size_t>{0, 1},
                                       {0, 5'000'000},
                                       {4'999'999, 1},
                                       {kSize, 0},
                                       {4095, 2},
                                       {1'048'575, 3'000'000}}) {
        std::vector<uint8_t> bytes(size);
        storage->read(offset, bytes);
        CHECK(bytes == content(offset, size));
    }
    std::vector<uint8_t> beyond(2);
    for (const uint64_t offset : {kSize - 1, kSize + 1, UINT64_MAX})
        CHECK_THROWS_WITH_AS(storage->read(offset, beyond),
                             doctest::Contains("ends at byte 5000000"), Error);
    storage->expect(UINT64_MAX, UINT64_MAX);
    for (const char* path : {"/empty", "/empty-200"})
        CHECK(world.remote.open(world.server.url(path))->size() == 0);
    CHECK(world.read("/good", kSize - 10, 10) ==
          content(kSize - 10, 10));  // before its size is known
}

TEST_CASE("remote: what passes is tried again") {
    World world(patient_for(30, 1));
    for (const char* path :
         {"/stalls-once", "/drops-once", "/closes-once", "/503-twice", "/redirects"}) {
        CAPTURE(path);
        CHECK(world.read(path) == content(1'000'000, 100'000));
    }
    CHECK(world.diary.text().find("503; trying again") != std::string::npos);
    CHECK(world.diary.text().find("answers again after") != std::string::npos);
}

TEST_CASE("remote: each fault is named with the object, and what was tried") {
    World stalled(patient_for(0.1, 1));
    stalled.refuses("/stalls", {"too slow"});
    World world(patient_for(0.3));
    world.refuses("/drops", {"tried", "times"});
    world.refuses("/500", {"answers 500", "tried", "times in"});
    world.refuses("/403", {"answers 403 (AccessDenied)", "access is refused"});
    world.refuses("/404", {"answers 404", "no such object"});
    world.refuses("/whole", {"does not serve ranges"});
    world.refuses("/loops", {"redirected more than 5 times"});
    world.refuses("/to-a-file", {"file"});
    world.refuses("/garbage", {"HTTP/0.9|Invalid status line"});  // of libcurl 7 and 8
    world.refuses("/other-range", {"asked for bytes 999936-", "sends 'bytes 999937-"});
    world.refuses("/no-range", {"the server sends ''"});
    world.refuses("/nonsense-range", {"the server sends 'bytes -1-", "/\\x1b'"});
    world.refuses("/huge", {"sends more than"});
    world.refuses("/huge-range", {"asked for bytes"});
    world.refuses("/endless-head", {"headers without end"});
    world.refuses("/endless-error", {"answers 404"});
    CHECK_THROWS_AS(world.read("/404"), Missing);
    CHECK_THROWS_AS(world.read("/403"), Missing);
    // Final faults cost one request.
    const int before = world.server.requests();
    world.refuses("/404", {});
    CHECK(world.server.requests() == before + 1);
}

TEST_CASE("remote: an object that changes while it is read is named") {
    World world;
    for (const char* path : {"/changes", "/shrinks", "/truncates"}) {
        const auto storage = world.remote.open(world.server.url(path));
        CHECK(storage->size() > 0);
        std::vector<uint8_t> bytes(10);
        CHECK_THROWS_WITH_AS(storage->read(3'000'000, bytes), doctest::Contains("it changed"),
                             Unreachable);
    }
}

TEST_CASE("remote: nobody answers") {
    World world(patient_for(0.1));
    std::vector<uint8_t> bytes(1);
    int closed_port = 0;
    { closed_port = HttpServer(misbehave).port(); }
    const auto storage =
        world.remote.open(cat("http://ann:secret@127.0.0.1:", closed_port, "/x?key=secret"));
    try {
        storage->read(0, bytes);
        FAIL("it was read");
    } catch (const Unreachable& error) {
        const std::string text = error.what();
        CAPTURE(text);
        CHECK(text.starts_with(cat("http://…@127.0.0.1:", closed_port, "/x?…: ")));
        CHECK(text.find("secret") == std::string::npos);
    }
    CHECK(world.diary.text().find("secret") == std::string::npos);
}

TEST_CASE(
    "remote: what is expected together comes in few requests, over connections that are reused") {
    World world;
    const auto storage = world.remote.open(world.server.url("/good"));
    CHECK(storage->size() == kSize);
    const auto expect_all = [](const Storage& in, uint64_t size) {
        gate_is_open = false;  // all is expected before the first answer comes
        for (uint64_t i = 0; i < 500; ++i) in.expect((i * 7 % 500) * 10'000, size);
        gate_is_open = true;
        gate_is_open.notify_all();
    };
    expect_all(*storage, 10'000);
    std::vector<uint8_t> bytes(10'000);
    for (uint64_t i = 0; i < 500; ++i) {
        const uint64_t offset = (i * 7 % 500) * 10'000;
        storage->read(offset, bytes);
        REQUIRE(bytes == content(offset, 10'000));
    }
    // Like the images of a tar: headers lie between them.
    const auto other = world.remote.open(world.server.url("/good"));
    expect_all(*other, 8'000);
    bytes.resize(8'000);
    for (uint64_t i = 0; i < 500; ++i) {
        other->read(i * 10'000, bytes);
        REQUIRE(bytes == content(i * 10'000, 8'000));
    }
    // 1,000 if nothing were merged. Each of 24 threads may have taken one part alone before the
    // others were expected, and so have cut a request in two: at most about 60 each time.
    CHECK(world.server.requests() < 200);
    CHECK(world.server.connections() <= RemoteOptions().connections);
    CHECK(world.server.sent() < 2 * kSize + 200'000);  // nothing twice
}

TEST_CASE("remote: many threads read more than the memory holds") {
    RemoteOptions options = patient_for(30);
    options.memory_bytes = 2 << 20;
    World world(options);
    const auto storage = world.remote.open(world.server.url("/good"));
    for (uint64_t i = 0; i < 100; ++i) storage->expect(i * 50'000, 50'000);  // most are never read
    std::vector<std::future<bool>> readers;
    for (uint64_t t = 0; t < 4; ++t)
        readers.push_back(std::async(std::launch::async, [&, t] {
            Random random(t, 0, 0, kTest);
            bool is_right = true;
            for (int i = 0; i < 100; ++i) {
                const uint64_t offset = random.below(kSize - 30'000),
                               size = 1 + random.below(30'000);
                if (i % 2) storage->expect(offset, size);
                std::vector<uint8_t> bytes(size);
                storage->read(offset, bytes);
                is_right = is_right && bytes == content(offset, size);
            }
            return is_right;
        }));
    for (auto& reader : readers) CHECK(reader.get());
}

TEST_CASE("remote: storages and their connections end at once, with requests on the way") {
    World world;
    {
        RemoteOptions options;
        options.stall = 1'000'000;  // a test that waits for the server never ends
        Remote remote(options, world.diary.log());
        const auto storage = remote.open(world.server.url("/stalls"));
        for (int i = 0; i < options.connections - 1; ++i)  // one is left for what is read
            storage->expect(uint64_t(i) * 100'000, 10);
        std::vector<uint8_t> bytes(10);
        remote.open(world.server.url("/good"))->read(0, bytes);
    }
}

TEST_CASE("remote: a part that could not be fetched ahead is asked for again when it is read") {
    RemoteOptions options = patient_for(30);
    options.connections = 1;  // so what comes later is asked for later
    World world(options);
    const auto storage = world.remote.open(world.server.url("/403-once"));
    storage->expect(0, 10);
    while (world.server.requests() == 0) std::this_thread::yield();
    world.read("/good");
    std::vector<uint8_t> bytes(10);
    storage->read(0, bytes);
    CHECK(bytes == content(0, 10));
}

TEST_CASE("remote: the cache on disk saves requests, for as long as the object is the same") {
    TempDir dir;
    RemoteOptions options = patient_for(30);
    options.cache = dir / "cache";
    std::atomic<int> version = 1;
    HttpServer server([&](const HttpRequest& request) -> Reply {
        if (request.path == "/nameless") return {part(request, kSize, "X: y\r\n")};
        return {part(request, kSize, cat("ETag: \"", version.load(), "\"\r\n"))};
    });
    Diary diary;
    const auto bytes_sent = [&](const char* path) {
        const uint64_t before = server.sent();
        Remote remote(options, diary.log());
        std::vector<uint8_t> bytes(kSize - 5);
        remote.open(server.url(path))->read(3, bytes);
        CHECK(bytes == content(3, kSize - 5));
        return server.sent() - before;
    };
    CHECK(bytes_sent("/a") > kSize);
    CHECK(bytes_sent("/a") < 1000);  // the first answers tell the version
    CHECK(bytes_sent("/nameless") > kSize);
    CHECK(bytes_sent("/nameless") > kSize);  // without a version nothing may be kept
    version = 2;
    CHECK(bytes_sent("/a") > kSize);

    // Damage of all kinds.
    int i = 0;
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(dir / "cache"))
        if (entry.is_regular_file()) files.push_back(entry.path());
    CHECK(files.size() >= 2 * 20);
    for (const fs::path& file : files) switch (i++ % 6) {
            case 0: std::ofstream(file, std::ios::in).seekp(5000).put('\x55'); break;
            case 1: fs::resize_file(file, 20); break;
            case 2: fs::remove(file), fs::create_directory(file); break;
            case 3: fs::remove(file), fs::create_symlink("/dev/zero", file); break;
            case 4: fs::copy_file(files[0], file, fs::copy_options::overwrite_existing); break;
            case 5: std::ofstream(file, std::ios::in).put('X'); break;
        }
    bytes_sent("/a");
}

TEST_CASE("remote: the cache on disk is bounded, also where several use it") {
    TempDir dir;
    const auto files = [&] {
        size_t count = 0;
        for (const auto& entry : fs::recursive_directory_iterator(dir / "cache"))
            count += entry.is_regular_file();
        return count;
    };
    const BlockCache one(dir / "cache", 16 << 20), other(dir / "cache", 16 << 20);
    const std::vector<uint8_t> block = content(7, 1000);
    std::vector<uint8_t> back(1000);
    const std::string key = BlockCache::key("http://x/y", "\"1\"", 10);
    CHECK(key.size() == 32);
    for (uint64_t i = 0; i < 200; ++i) {
        (i % 2 ? one : other).store(key, i, block);
        CHECK(other.load(key, 0, back));  // used again and again, so it stays
        REQUIRE(back == block);
    }
    CHECK(files() <= (16 << 20) / BlockCache::kBlock);
    CHECK(files() > 32);
    CHECK(one.load(key, 199, back));
    size_t here = 0;
    for (uint64_t i = 1; i < 100; ++i) here += one.load(key, i, back);
    CHECK(here == 0);
    const BlockCache smaller(dir / "cache", 16 << 20);  // the same bound removes nothing
    CHECK(smaller.load(key, 199, back));
    CHECK_THROWS_WITH_AS(BlockCache(dir / "cache", 1 << 20), doctest::Contains("16M"), Error);
    CHECK_THROWS_WITH_AS(BlockCache("/proc/self/cache", 16 << 20), doctest::Contains("--cache"),
                         Error);
}

TEST_CASE("remote: a larger cache made smaller gives its folders back") {
    TempDir dir;
    const std::string key = BlockCache::key("u", "v", 1);
    {
        const BlockCache large(dir / "cache", 256 << 20);
        for (uint64_t i = 0; i < 300; ++i) large.store(key, i, content(i, 10));
    }
    fs::create_directories(dir / "cache/12345/mine");  // a folder of the user's own
    const BlockCache small(dir / "cache", 16 << 20);
    size_t sets = 0;
    for (const auto& entry : fs::directory_iterator(dir / "cache/convoy-blocks"))
        sets += entry.is_directory();
    CHECK(sets == 3);
    CHECK(fs::exists(dir / "cache/12345/mine"));
}

TEST_CASE("remote: URLs are taken apart, and their secrets kept") {
    const Location plain = locate("http://host:8080/a%20b/c.tar?token=secret#part");
    CHECK(plain.url == "http://host:8080/a%20b/c.tar?token=secret");
    CHECK(plain.name == "http://host:8080/a%20b/c.tar?…");
    CHECK(plain.credentials == "");
    const Location user = locate("https://ann:pass%40word@host/x.tar");
    CHECK(user.url == "https://host/x.tar");
    CHECK(user.name == "https://…@host/x.tar");
    CHECK(user.credentials == "ann:pass@word");
    refuses_url(user.name, "is not kept: give it again, by --data");
    refuses_url(plain.name, "is not kept: give it again, by --data");
    refuses_url("http://host/a\nHost: other", "control character");
    refuses_url("http://", "malformed");
    refuses_url("https://ann:secret@host:port/", "malformed");
    refuses_url("file:///etc/passwd", "only http, https and s3");
    refuses_url("ftp://host/x", "only http, https and s3");
    refuses_url("gopher://host/x", "only http, https and s3");
    for (const char* url :
         {"s3://", "s3://bucket", "s3://bucket/", "s3://ann:secret@bucket/key", "s3:///key"})
        refuses_url(url, "s3://bucket/key");
    for (const char* url : {"s3://bucket/../key", "s3://bucket/a/./key", "s3://bucket/a/.."})
        refuses_url(url, "between slashes");
}

TEST_CASE("remote: s3:// becomes the address of the region or of an endpoint") {
    const Location open = locate_with("s3://photos/a b/ä+1.tar", {});
    CHECK(open.url == "https://photos.s3.us-east-1.amazonaws.com/a%20b/%C3%A4%2B1.tar");
    CHECK(open.name == "s3://photos/a b/ä+1.tar");
    CHECK(open.signing == "");
    CHECK(open.credentials == "");
    CHECK(locate_with("s3://my.photos/x", {{"AWS_DEFAULT_REGION", "eu-west-1"}}).url ==
          "https://s3.eu-west-1.amazonaws.com/my.photos/x");
    const Location keyed =
        locate_with("s3://photos/x", {{"AWS_REGION", "eu-west-1"},
                                      {"AWS_DEFAULT_REGION", "other"},
                                      {"AWS_ACCESS_KEY_ID", "id"},
                                      {"AWS_SECRET_ACCESS_KEY", "secret"},
                                      {"AWS_SESSION_TOKEN", "token"},
                                      {"AWS_ENDPOINT_URL", "http://store:9000/"}});
    CHECK(keyed.url == "http://store:9000/photos/x");
    CHECK(keyed.signing == "aws:amz:eu-west-1:s3");
    CHECK(keyed.credentials == "id:secret");
    CHECK(keyed.token == "token");
    CHECK_THROWS_WITH_AS(locate_with("s3://photos/x", {{"AWS_ACCESS_KEY_ID", "id"}}),
                         doctest::Contains("only one is set"), Error);
    CHECK_THROWS_WITH_AS(locate_with("s3://photos/x", {{"AWS_ENDPOINT_URL", "store:9000"}}),
                         doctest::Contains("AWS_ENDPOINT_URL"), Error);
}

TEST_CASE("remote: a signed request names its key, sends no secret, and goes nowhere else") {
    std::mutex mutex;
    std::vector<std::string> heads;
    HttpServer server([&](const HttpRequest& request) -> Reply {
        std::lock_guard lock(mutex);
        heads.push_back(request.text);
        if (request.path == "/photos/moved")
            return {status("301 Moved", "",
                           "x-amz-bucket-region: eu-west-1\r\nLocation: /photos/x\r\n")};
        return {part(request, kSize)};
    });
    const std::atomic<bool> stop = false;
    HttpClient client(1, stop);
    std::vector<uint8_t> bytes(10);
    const std::map<std::string, std::string> variables{{"AWS_ACCESS_KEY_ID", "id"},
                                                       {"AWS_SECRET_ACCESS_KEY", "hidden"},
                                                       {"AWS_SESSION_TOKEN", "token"},
                                                       {"AWS_ENDPOINT_URL", server.url("")}};
    CHECK(client.get(locate_with("s3://photos/x", variables), 5, bytes).fault == "");
    CHECK(bytes == content(5, 10));
    const Answer moved = client.get(locate_with("s3://photos/moved", variables), 5, bytes);
    CHECK(moved.fault.find("the bucket is in region eu-west-1: set AWS_REGION") !=
          std::string::npos);
    CHECK(!moved.passing);
    REQUIRE(heads.size() == 2);
    CHECK(heads[0].find("AWS4-HMAC-SHA256 Credential=id/") != std::string::npos);
    CHECK(
        heads[0].find("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token") !=
        std::string::npos);
    CHECK(heads[0].find("hidden") == std::string::npos);
    // Without keys nothing is signed, and a 403 says so.
    CHECK(client.get(locate_with("s3://photos/x", {{"AWS_ENDPOINT_URL", server.url("")}}), 5, bytes)
              .fault == "");
    CHECK(heads[2].find("uthorization") == std::string::npos);
}
