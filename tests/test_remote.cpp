// test_remote.cpp — remote storage from a server of ours that misbehaves in all ways, and the
// folder in which it keeps whole files. tests/remote.sh has real servers.
#include "data/sources/remote.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <future>

#include "data/sources/http.h"
#include "data/sources/records.h"
#include "src/base/bytes.h"
#include "src/base/sha256.h"
#include "tests/call_hooks.h"
#include "tests/data_files.h"
#include "tests/golden.h"
#include "tests/golden_shards.h"
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
std::string part(const HttpRequest& request, uint64_t size, const std::string& more = "",
                 const std::vector<uint8_t>* whole = nullptr) {
    const uint64_t end = std::min(request.end, size);
    std::vector<uint8_t> bytes = content(request.begin, end - request.begin);
    if (whole)
        bytes.assign(whole->begin() + ptrdiff_t(request.begin), whole->begin() + ptrdiff_t(end));
    return cat("HTTP/1.1 206 Partial Content\r\nContent-Length: ", bytes.size(),
               "\r\nContent-Range: bytes ", request.begin, "-", end - 1, "/", size, "\r\n",
               more.empty() ? "ETag: \"one\"\r\n" : more, "\r\n",
               std::string(bytes.begin(), bytes.end()));
}

std::string status(const std::string& line, const std::string& body = "",
                   const std::string& more = "") {
    return cat("HTTP/1.1 ", line, "\r\n", more, "Content-Length: ", body.size(), "\r\n\r\n", body);
}

constexpr uint64_t kSize = 5'000'000, kShard = 1'000'000;

// The first request for an object asks for one byte: its size and version.
bool is_look(const HttpRequest& request) { return request.end == 1; }

std::string range_of(const std::string& range) {
    return cat("HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\nContent-Range: ", range,
               "\r\n\r\nabc");
}

Reply misbehave(const HttpRequest& request) {
    const uint64_t size = request.path.starts_with("/shard") ? kShard : kSize;
    const std::string good = part(request, size), half = good.substr(0, good.size() / 2);
    const bool is_first = request.number == 1;
    const auto is = [&](const char* path) { return request.path == path; };
    if (is("/404")) return {status("404 Not Found")};
    if (is("/403")) return {status("403 Forbidden", "<Code>AccessDenied</Code>")};
    if (is("/500")) return {status("500 Oops")};
    if (is("/503-twice") && request.number < 2)
        return {status("503 Slow Down", "", "Retry-After: 0\r\n")};
    if (is("/redirects"))
        return {status("302 Found", "", "Location: /good\r\nETag: \"other\"\r\n")};
    if (is("/loops")) return {status("302 Found", "", "Location: /loops\r\n")};
    if (is("/to-a-file")) return {status("302 Found", "", "Location: file:///etc/passwd\r\n")};
    if (is("/garbage")) return {"\x01\x02\xff nothing that HTTP knows\r\n\r\n", true};
    if (is("/no-range")) return {status("206 Partial Content", "abc")};
    if (is("/nonsense-range")) return {range_of("bytes -1-99999999999999999999/\x1b")};
    if (is("/huge")) return {range_of("bytes 0-0/9223372036854775807")};
    if (is("/whole")) {
        const std::vector<uint8_t> all = content(0, kSize);
        return {status("200 OK", std::string(all.begin(), all.end()))};
    }
    if (is("/unsized")) return {"HTTP/1.1 200 OK\r\n\r\nabc", true};
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
    if (is_look(request)) return {good};

    const std::string begun = good.substr(0, 500);  // libcurl looks at the mean speed of 5 s
    if (is("/stalls-once") && is_first) return {begun, false, true};
    if (is("/stalls")) return {begun, false, true};
    if (is("/drops-once") && is_first) return {half, true};
    if (is("/closes-once") && is_first) return {"", true};
    if (is("/closes")) return {"", true};
    if (is("/403-once") && is_first) return {status("403 Forbidden")};
    if (is("/half-then-403") && is_first) return {half, true};
    if (is("/half-then-403") && request.number == 2) return {status("403 Forbidden")};
    if (is("/changes")) return {part(request, kSize, "ETag: \"two\"\r\n")};
    if (is("/shrinks")) return {part(request, kSize - 1)};
    if (is("/other-range")) {
        HttpRequest other = request;
        ++other.begin;
        return {part(other, kSize)};
    }
    if (is("/sends-more")) {
        std::string more = good + std::string(100'000, 'x');
        const std::string length = cat("Content-Length: ", kSize);
        return {more.replace(more.find(length), length.size(),
                             cat("Content-Length: ", kSize + 100'000))};
    }
    return {good};
}

struct World {
    TempDir folder;
    std::mutex mutex;
    std::vector<HttpRequest> fetches;  // requests for more than the size
    HttpServer server;
    Diary diary;
    RemoteOptions options;
    Remote remote;

    explicit World(double patience = 30, long stall = 20,
                   const HttpServer::Handler& handler = misbehave)
        : server([this, handler](const HttpRequest& request) {
              if (!is_look(request)) {
                  std::lock_guard lock(mutex);
                  fetches.push_back(request);
              }
              return handler(request);
          }) {
        options.cache = folder / "cache", options.patience = patience, options.stall = stall;
        start();
    }
    // Another process, with the same folder.
    void start() { remote = make_remote(options, diary.log); }
    StoragePtr open(const std::string& path) { return open_remote(remote, server.url(path)); }
    std::vector<uint8_t> read(const std::string& path, uint64_t offset = 1'000'000,
                              size_t size = 100'000) {
        std::vector<uint8_t> bytes(size);
        open(path)->read(offset, bytes);
        return bytes;
    }
    int fetched(const std::string& path) {
        std::lock_guard lock(mutex);
        return int(std::ranges::count(fetches, path, &HttpRequest::path));
    }
    size_t count() {
        std::lock_guard lock(mutex);
        return fetches.size();
    }
    // Files of the cache, and their bytes.
    std::vector<fs::path> files() {
        std::vector<fs::path> all;
        for (const auto& entry : fs::directory_iterator(folder / "cache/convoy-shards"))
            all.push_back(entry.path());
        return all;
    }
    uint64_t bytes() {
        uint64_t all = 0;
        std::error_code gone;
        for (const fs::path& file : files())
            if (const uint64_t size = fs::file_size(file, gone); !gone) all += size;
        return all;
    }
    // Reading must fail with all of these words in the error, and the object's URL.
    void refuses(const std::string& path, const std::vector<std::string>& words) {
        CAPTURE(path);
        const std::string text = error_of([&] { read(path); });
        CAPTURE(text);
        CHECK(text.starts_with(server.url(path) + ": "));
        for (const std::string& word : words) {
            const size_t bar = std::min(word.find('|'), word.size());  // or what follows it
            const bool is_there = contains(text, word.substr(0, bar));
            CHECK((is_there || (bar < word.size() && contains(text, word.substr(bar + 1)))));
        }
    }
};

Location locate_with(const std::string& url, const std::map<std::string, std::string>& variables) {
    return locate(url, [&](const char* name) {
        const auto it = variables.find(name);
        return it == variables.end() ? "" : it->second;
    });
}

void refuses_url(const std::string& url, const std::string& why) { CHECK_FAILS(locate(url), why); }

}  // namespace

TEST_CASE("remote: any part of an object is read, its end is known, and it is fetched once") {
    World world;
    const auto storage = world.open("/good");
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
        CHECK_FAILS(storage->read(offset, beyond), "5000000");
    CHECK(world.fetched("/good") == 1);
    std::vector<std::future<bool>> readers;
    for (uint64_t t = 0; t < 4; ++t)
        readers.push_back(std::async(std::launch::async, [&, t] {
            return world.read(cat("/shard-", t % 2), 500 * t, 700) == content(500 * t, 700);
        }));
    for (auto& reader : readers) CHECK(reader.get());
    CHECK(world.fetched("/shard-0") + world.fetched("/shard-1") == 2);
    for (const char* path : {"/empty", "/empty-200"}) {
        CHECK(world.open(path)->size() == 0);
        CHECK(world.read(path, 0, 0).empty());
    }
    // A server that does not serve ranges.
    CHECK(world.read("/whole") == content(1'000'000, 100'000));
}

TEST_CASE("remote: what passes is tried again, from where it ended") {
    World stalling(30, 1), world;  // a short time without data would also end slow connections
    CHECK(stalling.read("/stalls-once") == content(1'000'000, 100'000));
    for (const char* path : {"/drops-once", "/closes-once", "/503-twice", "/redirects"}) {
        CAPTURE(path);
        CHECK(world.read(path) == content(1'000'000, 100'000));
    }
    REQUIRE(world.fetched("/drops-once") == 2);
    for (const HttpRequest& request : world.fetches)
        if (request.path == "/drops-once") CHECK((request.begin == 0) == (request.number == 1));
    CHECK(contains(world.diary.text(), "503; trying again"));
    CHECK(contains(world.diary.text(), "answers again after"));
}

TEST_CASE("remote: each fault is named with the object, and what was tried") {
    World stalled(0.1, 1);
    stalled.refuses("/stalls", {"too slow"});
    World world(0.3);
    world.refuses("/closes", {"tried", "times"});
    world.refuses("/500", {"500", "tried", "times in"});
    world.refuses("/403", {"403 (AccessDenied)"});
    world.refuses("/404", {"404"});
    world.refuses("/loops", {"5 times"});
    world.refuses("/to-a-file", {"file"});
    world.refuses("/garbage", {"HTTP/0.9|Invalid status line"});  // of libcurl 7 and 8
    world.refuses("/other-range", {"from 0 on", "'bytes 1-"});
    world.refuses("/no-range", {"''"});
    world.refuses("/nonsense-range", {"'bytes -1-", "/\\x1b'"});
    world.refuses("/sends-more", {"5000000"});
    world.refuses("/huge", {"9223372036854775807", "--cache"});
    world.refuses("/unsized", {"Content-Length"});
    world.refuses("/endless-head", {"headers"});
    world.refuses("/endless-error", {"404"});
    for (const char* path : {"/changes", "/shrinks"}) world.refuses(path, {"changed"});
    CHECK_THROWS_AS(world.read("/404"), Missing);
    CHECK_THROWS_AS(world.read("/403"), Missing);
    CHECK_THROWS_AS(world.read("/500"), Unreachable);
    // Final faults cost one request.
    const int before = world.server.requests();
    world.refuses("/404", {});
    CHECK(world.server.requests() == before + 1);
}

TEST_CASE("remote: nobody answers") {
    World world(0.1);
    std::vector<uint8_t> bytes(1);
    int closed_port = 0;
    { closed_port = HttpServer(misbehave).port(); }
    const auto storage = open_remote(
        world.remote, cat("http://ann:secret@127.0.0.1:", closed_port, "/x?key=secret"));
    try {
        storage->read(0, bytes);
        FAIL("it was read");
    } catch (const Unreachable& error) {
        const std::string text = error.what();
        CAPTURE(text);
        CHECK(text.starts_with(cat("http://…@127.0.0.1:", closed_port, "/x?…: ")));
        CHECK(!contains(text, "secret"));
    }
    CHECK(!contains(world.diary.text(), "secret"));
}

TEST_CASE("remote: storages and their connections end at once, with requests on the way") {
    World world(60, 1'000'000);  // a test that waits for the server never ends
    std::vector<StoragePtr> storages;
    for (int i = 0; i < world.options.connections - 1; ++i) {  // one is left for what is read
        storages.push_back(world.open(cat("/stalls")));
        storages.back()->size();
        storages.back()->prepare();
    }
    CHECK(world.read("/good") == content(1'000'000, 100'000));
    storages.clear();
    world.remote = nullptr;
}

TEST_CASE("remote: an object that could not be fetched ahead is asked for again when it is read") {
    World world;
    const auto storage = world.open("/403-once");
    storage->size(), storage->prepare();
    while (world.fetched("/403-once") == 0) std::this_thread::yield();
    CHECK(world.read("/good") == content(1'000'000, 100'000));
    std::vector<uint8_t> bytes(10);
    try {  // a reader that came before the refusal is told of it
        storage->read(0, bytes);
    } catch (const Missing&) {
        storage->read(0, bytes);
    }
    CHECK(bytes == content(0, 10));
}

TEST_CASE("remote: a file that a run left unfinished is continued by the next") {
    World world(0.5);
    CHECK_THROWS_AS(world.read("/half-then-403"), Missing);
    world.start();
    CHECK(world.read("/half-then-403") == content(1'000'000, 100'000));
    REQUIRE(world.count() == 3);
    CHECK(world.fetches[1].begin > kSize / 3);
    CHECK(world.fetches[2].begin == world.fetches[1].begin);
    CHECK(world.files().size() == 1);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    refused = "flock";  // a file system without locks
    CHECK_FAILS(world.read("/whole"), cat(".part: ", std::strerror(ENOSYS)));
    refused = "";
#endif
}

TEST_CASE("remote: a complete file serves later runs, for as long as the object is the same") {
    std::atomic<int> version = 1;
    World world(30, 20, [&](const HttpRequest& request) -> Reply {
        return {part(request, kSize, cat("ETag: \"", version.load(), "\"\r\n"))};
    });
    const auto fetches = [&] {
        const size_t before = world.count();
        world.start();
        CHECK(world.read("/a") == content(1'000'000, 100'000));
        return world.count() - before;
    };
    CHECK(fetches() == 1);
    CHECK(fetches() == 0);
    version = 2;
    CHECK(fetches() == 1);
    CHECK(world.files().size() == 2);
    for (const fs::path& file : world.files()) fs::resize_file(file, kSize - 1);
    CHECK(fetches() == 1);
    for (const fs::path& file : world.files())
        fs::remove(file), fs::create_symlink("/dev/zero", file);
    CHECK(fetches() == 1);
    for (const fs::path& file : world.files())  // larger than the object
        fs::remove(file), std::ofstream(cat(file.string(), ".part")) << std::string(kSize + 1, 'x');
    CHECK(fetches() == 1);
    // The folder must be one that can be written.
    world.options.cache = "/proc/self/cache";
    world.start();
    CHECK_FAILS(world.open("/a"), "--cache");
}

TEST_CASE("remote: two processes that share the folder fetch an object once") {
    std::atomic<bool> is_open = false;
    World world(30, 20, [&](const HttpRequest& request) -> Reply {
        if (!is_look(request)) is_open.wait(false);
        return misbehave(request);
    });
    const Remote other = make_remote(world.options, world.diary.log);
    std::vector<StoragePtr> both = {world.open("/good"),
                                    open_remote(other, world.server.url("/good"))};
    std::vector<std::future<bool>> readers;
    for (const StoragePtr& storage : both)
        readers.push_back(std::async(std::launch::async, [&storage] {
            std::vector<uint8_t> bytes(1000);
            storage->read(7, bytes);
            return bytes == content(7, 1000);
        }));
    while (world.server.requests() < 3) std::this_thread::yield();
    is_open = true, is_open.notify_all();
    for (auto& reader : readers) CHECK(reader.get());
    CHECK(world.fetched("/good") == 1);
    CHECK(world.files().size() == 1);
}

TEST_CASE("remote: files are fetched ahead in their order, within the bound, each once") {
    World world;
    world.options.cache_bytes = 7 * kShard / 2;
    world.options.connections = 2;
    world.start();
    std::vector<StoragePtr> shards;
    for (int i = 0; i < 10; ++i) {
        shards.push_back(world.open(cat("/shard-", i)));
        CHECK(shards.back()->size() == kShard);
        CHECK(shards.back()->room() == world.options.cache_bytes);
    }
    for (const StoragePtr& shard : shards) shard->prepare();
    std::vector<uint8_t> bytes(100);
    for (int i = 0; i < 10; ++i) {
        while (i < 8 && world.fetched(cat("/shard-", i + 1)) == 0)  // the next is on the way
            std::this_thread::yield();
        shards[size_t(i)]->read(100 * uint64_t(i), bytes);
        CHECK(bytes == content(100 * uint64_t(i), 100));
        CHECK(world.bytes() <= world.options.cache_bytes);
        shards[size_t(i)]->finish();
    }
    for (int i = 0; i < 10; ++i) CHECK(world.fetched(cat("/shard-", i)) == 1);
    // What is read without a plan goes in the order of its last use, and comes again.
    world.start();
    for (const int i : {3, 5, 3, 6, 3, 7, 3, 8, 3, 5})
        CHECK(world.read(cat("/shard-", i), 0, 10) == content(0, 10));
    CHECK(world.bytes() <= world.options.cache_bytes);
    CHECK(world.fetched("/shard-3") == 2);
}

TEST_CASE(
    "remote: the first file has the connection for itself, then several are fetched at once") {
    std::mutex mutex;
    std::condition_variable changed;
    int under_way = 0, most = 0, begun = 0;
    bool is_alone = false;
    const auto serve = [&](const HttpRequest& request) {
        if (is_look(request)) return misbehave(request);
        std::unique_lock lock(mutex);
        most = std::max(most, ++under_way);
        changed.notify_all();
        if (++begun == 1)  // time for others to come, which would be wrong
            is_alone =
                !changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return begun > 1; });
        else if (begun < 9)
            changed.wait_for(lock, std::chrono::seconds(20), [&] { return most > 1; });
        --under_way;
        return misbehave(request);
    };
    World world(30, 20, serve);
    std::vector<StoragePtr> shards;
    for (int i = 0; i < 9; ++i) shards.push_back(world.open(cat("/shard-", i)));
    for (const StoragePtr& shard : shards) CHECK(shard->size() == kShard);
    for (const StoragePtr& shard : shards) shard->prepare();
    std::vector<uint8_t> bytes(100);
    for (const StoragePtr& shard : shards) shard->read(0, bytes);
    CHECK(is_alone);
    CHECK(most > 1);
}

TEST_CASE("remote: an epoch reads shards one after the other; what does not fit is refused") {
    const std::vector<uint8_t> tar =
        inflate(*in_memory("golden", from_base64(golden::kTarUstar)), 1 << 20);
    World world(30, 20, [&](const HttpRequest& request) -> Reply {
        if (!request.path.ends_with(".tar")) return {status("404 Not Found")};
        return {part(request, tar.size(), "", &tar)};
    });
    DataOptions options{
        .train = world.server.url("/train-{0..7}.tar"),
        .remote = {.cache = world.options.cache, .cache_bytes = tar.size() * 7 / 2}};
    std::string log;
    const DataSet set = open(options, &log);
    REQUIRE(set.train->size() == 24);
    CHECK(contains(log, "convoy.index"));
    const auto epoch = [&](const Source& source, uint32_t number) {
        const Order order(source.shard_sizes(), 4, 1, number);
        source.plan(order.visits(), 0);
        std::vector<uint8_t> bytes;
        for (uint64_t i = 0; i < source.size(); ++i) {
            source.pass(i);
            source.read(order(i), bytes);
            CHECK(!bytes.empty());
            CHECK(world.bytes() <= options.remote.cache_bytes);
        }
    };
    const size_t before = world.count();
    epoch(*set.train, 0), epoch(*set.train, 1);
    CHECK(world.count() - before <= 16);
    const Order full(set.train->shard_sizes(), 0, 1, 0);
    CHECK_FAILS(set.train->plan(full.visits(), 0), "--cache");
    // The index of this machine serves the next run; no shard is scanned.
    const size_t scanned = world.count();
    CHECK(open(options).train->size() == 24);
    CHECK(world.count() == scanned);
    // A part of each class held back passes the order on.
    options.val_split = 0.4f;
    const DataSet parts = open(options);
    epoch(*parts.train, 0);
}

TEST_CASE("remote: what a packed set on a server has lost counts as damaged") {
    const std::vector<uint8_t> tar =
        inflate(*in_memory("golden", from_base64(golden::kTarUstar)), 1 << 20);
    World world(30, 20, [&](const HttpRequest& request) -> Reply {
        const bool is_json = request.path == "/set/dataset.json";
        if (!is_json && !request.path.ends_with(".tar") && request.path != "/shard")
            return {status("404 Not Found")};
        std::string shards;
        for (const char* name : {"a.tar", "b.tar"})
            shards += cat(shards.empty() ? "" : ",", "{\"name\": \"", name,
                          "\", \"images\": ", *name == 'a' ? 3 : 7, ", \"sha256\": \"",
                          sha256_of(as_text(tar)), "\"}");
        const std::string json = cat("{\"train\": {\"shards\": [", shards, "]}}");
        const std::vector<uint8_t> about(json.begin(), json.end());
        return {part(request, is_json ? about.size() : tar.size(), "", is_json ? &about : &tar)};
    });
    DataOptions options{.train = world.server.url("/set/"),
                        .remote = {.cache = world.options.cache}};
    const SourcePtr train = open(options).train;
    CHECK((train->size() == 6 && train->damaged() == 4));
    options.is_check = true;  // a.tar has the sum of dataset.json
    CHECK(open(options).train->damaged() == 4);
    options.train = world.server.url("/set");  // a folder, too
    CHECK(open(options).train->damaged() == 4);
    options.train = world.server.url("/shard");  // no folder
    CHECK(open(options).train->size() == 3);
    options.train = world.server.url("/none/");
    refuses(options, "dataset.json");
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
    refuses_url(user.name, "again, by --data");
    refuses_url(plain.name, "again, by --data");
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
    CHECK_FAILS(locate_with("s3://photos/x", {{"AWS_ACCESS_KEY_ID", "id"}}), "only one is set");
    CHECK_FAILS(locate_with("s3://photos/x", {{"AWS_ENDPOINT_URL", "store:9000"}}),
                "AWS_ENDPOINT_URL");
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
    ObjectInfo info;
    const std::map<std::string, std::string> variables{{"AWS_ACCESS_KEY_ID", "id"},
                                                       {"AWS_SECRET_ACCESS_KEY", "hidden"},
                                                       {"AWS_SESSION_TOKEN", "token"},
                                                       {"AWS_ENDPOINT_URL", server.url("")}};
    const auto look = [&](const char* url, const auto& given) {
        return http_get(locate_with(url, given), info, -1, 0, 1, stop);
    };
    CHECK(look("s3://photos/x", variables).fault == "");
    CHECK((info.size == kSize && info.version == "\"one\""));
    const Answer moved = look("s3://photos/moved", variables);
    CHECK(contains(moved.fault, "eu-west-1"));
    CHECK(contains(moved.fault, "AWS_REGION"));
    CHECK(!moved.passing);
    REQUIRE(heads.size() == 2);
    CHECK(contains(heads[0], "AWS4-HMAC-SHA256 Credential=id/"));
    CHECK(contains(heads[0],
                   "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token"));
    CHECK(!contains(heads[0], "hidden"));
    // Without keys nothing is signed.
    const std::map<std::string, std::string> open{{"AWS_ENDPOINT_URL", server.url("")}};
    CHECK(look("s3://photos/x", open).fault == "");
    CHECK(!contains(heads[2], "uthorization"));
}
