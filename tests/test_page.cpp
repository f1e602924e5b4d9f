// The page of a run: its state from events, /metrics, the server, and the program with --page and
// page (src/page).
#include <arpa/inet.h>
#include <poll.h>

#include <regex>

#include "src/base/text.h"
#include "src/page/server.h"
#include "tests/jobs.h"

using namespace convoy;
using nlohmann::json;

namespace {

const char* const kHostile = "<img src=x onerror=alert(1)>\"\\\n\x1b[2J";

// What a rank says of a second in which it waited so long for images, and for the network.
json used(double data, double net) {
    return {{"seconds", 2.0}, {"data_wait", data},   {"net_wait", net},
            {"cpu", 1.5},     {"memory", 100000000}, {"sent", 3000000}};
}

void begin(PageState& state, int ranks, int64_t step = 0) {
    json list = json::array();
    for (int rank = 0; rank < ranks; ++rank)
        list.push_back({{"share", 1}, {"address", cat("10.0.0.", rank + 5, ":29400")}});
    state.event({{"event", "start"}, {"time", 1000.0}, {"model", "tiny"}, {"data", kHostile}});
    state.event({{"event", "job"},
                 {"time", 1000.0},
                 {"step", step},
                 {"steps", 100},
                 {"epochs", 4},
                 {"ranks", list}});
}

void step(PageState& state, int64_t n, double loss = 1) {
    state.event({{"event", "step"},
                 {"time", 1000.0 + double(n)},
                 {"step", n},
                 {"epoch", n / 25},
                 {"loss", loss},
                 {"top1", 0.5},
                 {"images", 64},
                 {"images_per_second", 64.0},
                 {"lr", 0.1}});
}

std::string limit(const std::vector<json>& ranks) {
    PageState state;
    begin(state, int(ranks.size()));
    state.event({{"event", "utilisation"}, {"ranks", json(ranks)}});
    return state.snapshot(0, 1000)["limit"];
}

int connect_to(int port) {
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(uint16_t(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(s, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    return s;
}

// All that comes back until the server closes, or is silent for a while.
std::string talk(int port, const std::string& request) {
    const int s = connect_to(port);
    (void)!send(s, request.data(), request.size(), MSG_NOSIGNAL);
    std::string all;
    char part[4096];
    for (pollfd entry{s, POLLIN, 0}; poll(&entry, 1, 3000) > 0;) {
        const ssize_t n = recv(s, part, sizeof part, 0);
        if (n <= 0) break;
        all.append(part, size_t(n));
    }
    close(s);
    return all;
}

std::string get(int port, const std::string& target, const std::string& head = "",
                const std::string& verb = "GET", const std::string& host = "localhost:1") {
    return talk(port, cat(verb, " ", target, " HTTP/1.1\r\nHost: ", host,
                          "\r\nConnection: close\r\n", head, "\r\n"));
}

std::string body_of(const std::string& answer) {
    return answer.substr(answer.find("\r\n\r\n") + 4);
}

int port_of(const std::string& url) { return std::stoi(url.substr(url.find(':', 7) + 1)); }

// Prometheus's rules, strictly: returns the samples by name and labels.
std::map<std::string, double> parse_metrics(const std::string& text) {
    static const std::regex sample(
        R"re(([a-z_0-9]+)(\{[a-z]+="(?:[^"\\\n]|\\.)*"(?:,[a-z]+="(?:[^"\\\n]|\\.)*")*\})? (\S+))re");
    std::map<std::string, double> samples;
    std::map<std::string, std::string> types;
    std::string current;
    REQUIRE(text.ends_with("\n"));
    for (const std::string& line : split(text.substr(0, text.size() - 1), '\n')) {
        CAPTURE(line);
        const std::vector<std::string> words = split(line, ' ');
        if (line.starts_with("# TYPE ")) {
            REQUIRE(words.size() == 4);
            CHECK(types.emplace(words[2], words[3]).second);  // samples of a name are together
            CHECK((words[3] == "counter") == words[2].ends_with("_total"));
            current = words[2];
        } else if (!line.starts_with("# HELP ")) {
            std::smatch match;
            REQUIRE(std::regex_match(line, match, sample));
            CHECK(match[1] == current);
            CHECK(samples.emplace(cat(match[1].str(), match[2].str()), std::stod(match[3])).second);
        }
    }
    return samples;
}

}  // namespace

TEST_CASE("page: the state of a run follows from its events") {
    PageState state;
    CHECK(state.snapshot(0, 0)["state"] == "starting");
    begin(state, 2);
    step(state, 10), step(state, 20, 0.5);
    state.event({{"event", "val"}, {"step", 20}, {"loss", 0.75}, {"top1", 0.625}});
    state.event({{"event", "utilisation"}, {"ranks", {used(0.25, 0), used(0, 0.5)}}});
    const json s = state.snapshot(0, 1020);
    CHECK(s["state"] == "training");
    CHECK(s["step"] == 20);
    CHECK(s["loss"] == 0.5);
    CHECK(s["val_top1"] == 0.625);
    CHECK(s["best_top1"] == 0.625);
    CHECK(s["eta"] == 80);  // 20 steps in 20 s, 80 are left
    state.event({{"event", "checkpoint"}, {"time", 1023.0}, {"step", 23}});
    CHECK(state.snapshot(0, 1024)["eta"] == 76);  // a clock, whichever step other events tell
    CHECK(s["ranks"][1]["address"] == "10.0.0.6:29400");
    CHECK(s["ranks"][1]["net_wait"] == 0.5);
    CHECK(s["train"] == json{{10, 1, 0.5, 0.1, 64}, {20, 0.5, 0.5, 0.1, 64}});
    CHECK(s["val"] == json{{20, 0.75, 0.625}});
    CHECK(s["events"][0][2] == "training starts");

    step(state, 30);  // only what is new
    const json later = state.snapshot(s["next"], 1030);
    CHECK(later["reset"] == false);
    CHECK(later["train"].size() == 1);
    CHECK(later["events"].empty());
    CHECK(state.snapshot(99999, 0)["reset"] == true);  // of another process

    state.event({{"event", "regroup"}, {"time", 1031}, {"step", 30}, {"why", "rank 1 (…) lost"}});
    begin(state, 1, 30);
    CHECK(state.snapshot(0, 0)["ranks"].size() == 1);
    state.event({{"event", "wait"}, {"step", 30}});
    CHECK(state.snapshot(0, 0)["state"] == "waiting");
    state.event({{"event", "done"}, {"step", 30}, {"how", "finished"}});
    CHECK(state.snapshot(0, 0)["state"] == "done");
    state.event({{"event", "job"}, {"epoch", 1}, {"epochs", 2}, {"step", 30}});
    state.event({{"event", "done"}, {"epoch", 2}, {"step", 30}, {"how", "finished"}});
    CHECK(state.snapshot(0, 0)["epoch"] == 1);  // the last of 0, 1

    begin(state, 1, 20);  // resumed: what was done after step 20 is not shown
    const json resumed = state.snapshot(later["next"], 0);
    CHECK(resumed["reset"] == true);
    CHECK(resumed["train"].size() == 2);
}

TEST_CASE("page: a long run keeps a bounded number of points, from its first to its last") {
    PageState state;
    begin(state, 1);
    for (int64_t i = 1; i <= 10000; ++i) step(state, i);
    const json points = state.snapshot(0, 0)["train"];
    CHECK(points.size() <= 2000);
    CHECK(points.size() >= 1000);
    CHECK(points.front()[0] == 1);
    CHECK(points.back()[0] == 10000);
}

TEST_CASE("page: one sentence says what limits a run") {
    json checks = used(0.05, 0.05);
    checks["compute"] = 0.3;
    const struct {
        std::vector<json> ranks;
        std::vector<const char*> words;
    } cases[] = {
        {{used(0.05, 0)}, {"computing", "95 %"}},
        {{checks}, {"validation", "60 %"}},
        {{used(0.7, 0)}, {"decoding", "70 %"}},
        {{used(0, 0.6), used(0.1, 0.65)}, {"network", "60 %"}},
        {{used(0, 0.6), used(0, 0.5), used(0.61, 0.01)},
         {"rank 2 (10.0.0.7:29400)", "decoding", "61 %"}},
        {{used(0, 0.1), used(0, 0.6)}, {"rank 0 (10.0.0.5:29400)", "computing", "90 %"}},
    };
    for (const auto& [ranks, words] : cases)
        for (const char* word : words) {
            CAPTURE(limit(ranks));
            CHECK(contains(limit(ranks), word));
        }
    CHECK(limit({{{"seconds", 1}}}) == "");
}

TEST_CASE("page: damaged and hostile lines of a log change nothing, or what they may") {
    PageState state;
    begin(state, 1);
    const std::string deep(100000, '['), long_name(100000, 'x');
    const char* const lines[] = {
        "",
        "{",
        "[]",
        "null",
        "{\"event\":7}",
        "{\"event\":\"step\"}",
        R"({"event":"step","step":"a","loss":[1],"top1":{},"time":null})",
        R"({"event":"step","step":1e308,"loss":-1e308,"images":1e400})",
        R"({"event":"job","ranks":{"a":1},"steps":-5,"step":1e300})",
        R"({"event":"utilisation","ranks":[1,null,[],{"seconds":0,"cpu":"x"}]})",
        R"({"event":"val","loss":null})",
        R"({"event":"regroup","why":["x"]})",
        "\xff\xfe{\"event\":\"done\"}",
        deep.c_str()};
    for (const char* line : lines) state.line(line);
    state.event({{"event", "regroup"}, {"why", long_name}});
    state.event({{"event", "error"}, {"cause", "\xff bytes"}});
    json many = json::array();
    for (int i = 0; i < 5000; ++i) many.push_back({{"address", kHostile}});
    state.event({{"event", "job"}, {"step", 0}, {"ranks", many}});
    const json s = state.snapshot(0, 0);
    CHECK(s["ranks"].size() <= 1024);
    for (const json& event : s["events"]) CHECK(event[2].get<std::string>().size() <= 420);
    CHECK(!s.dump(-1, ' ', false, json::error_handler_t::replace).empty());
    parse_metrics(state.metrics());
}

TEST_CASE("page: metrics follow Prometheus's rules, and those of a lost rank vanish") {
    PageState state;
    begin(state, 2);
    state.event({{"event", "start"}, {"model", kHostile}});
    for (int i = 1; i <= 3; ++i) {
        step(state, i);
        json with_rest = used(0, 0.5);
        with_rest["compute"] = 0.375;
        state.event({{"event", "utilisation"}, {"ranks", {used(0.25, 0), with_rest}}});
    }
    const std::string text = state.metrics();
    auto samples = parse_metrics(text);
    CHECK(samples["convoy_step"] == 3);
    CHECK(samples["convoy_images_total"] == 192);
    CHECK(samples["convoy_state{state=\"training\"}"] == 1);
    const std::string rank1 = "{rank=\"1\",host=\"10.0.0.6:29400\"";
    CHECK(samples["convoy_phase_seconds_total" + rank1 + ",phase=\"network\"}"] == 3);
    CHECK(samples["convoy_phase_seconds_total" + rank1 + ",phase=\"compute\"}"] == 2.25);
    CHECK(samples["convoy_phase_seconds_total" + rank1 + ",phase=\"other\"}"] == 0.75);
    const std::string rank0 = "{rank=\"0\",host=\"10.0.0.5:29400\"";  // not told: what is no wait
    CHECK(samples["convoy_phase_seconds_total" + rank0 + ",phase=\"compute\"}"] == 4.5);
    CHECK(samples["convoy_cpu_seconds_total" + rank1 + "}"] == 9);
    CHECK(samples["convoy_network_sent_bytes_total" + rank1 + "}"] == 9e6);
    begin(state, 1, 3);
    CHECK(!contains(state.metrics(), "rank=\"1\""));
    TempDir folder;
    std::ofstream(folder / "metrics") << text;
    if (shell("command -v promtool >/dev/null") != 0)
        MESSAGE("promtool (package prometheus) is not there: not asked");
    else
        for (const std::string& what :
             {cat("metrics <", folder / "metrics"),
              std::string(
                  "config tools/deploy/monitoring/prometheus.yml >/dev/null")})  // and rules
            CHECK(shell(cat("promtool check ", what)) == 0);
}

TEST_CASE("page server: GET and HEAD of its own paths, at its own name, and nothing else") {
    PageState state;
    begin(state, 1);
    const auto server = serve_page(cat("127.0.0.1:", free_port()), state);
    const int port = port_of(url_of(*server));
    CHECK(url_of(*server) == cat("http://127.0.0.1:", port, "/"));
    const std::string page = get(port, "/");
    CHECK(page.starts_with("HTTP/1.1 200 OK\r\n"));
    CHECK(contains(page, "Content-Security-Policy: default-src 'none'; script-src 'self';"));
    CHECK(contains(page, "<script src=\"page.js\">"));
    CHECK(!contains(page, "<script>"));
    const std::string head = get(port, "/", "", "HEAD");
    CHECK(head.ends_with("\r\n\r\n"));
    CHECK(contains(head, cat("Content-Length: ", kAssets[0].bytes.size(), "\r\n")));
    CHECK(contains(get(port, "/charts.js"), "Content-Encoding: gzip"));
    CHECK(contains(get(port, "/metrics"),
                   "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    const std::string answer = get(port, "/state.json?after=0");
    CHECK(
        json::parse(answer.substr(answer.find("\r\n\r\n")))["data"].get<std::string>().starts_with(
            "<img"));
    for (const char* verb : {"POST", "PUT", "DELETE", "OPTIONS", "BREW"})
        CHECK(get(port, "/", "", verb).starts_with("HTTP/1.1 405 "));
    CHECK(get(port, "/", "Content-Length: 5\r\n").starts_with("HTTP/1.1 400 "));
    CHECK(get(port, "/", "Content-Length: 99999999999999999999\r\n").starts_with("HTTP/1.1 400 "));
    CHECK(talk(port, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    CHECK(talk(port, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 403 "));  // no Host
    for (const char* path : {"/x", "/../etc/passwd", "//", "/state.json/", "/%2e%2e/"})
        CHECK(get(port, path).starts_with("HTTP/1.1 404 "));
    for (const char* host :
         {"evil.example", "127.0.0.1.evil.example:80", "[::1", "", "a@localhost"})
        CHECK(get(port, "/", "", "GET", host).starts_with("HTTP/1.1 403 "));
    for (const char* host : {"localhost", "127.0.0.1:29480", "[::1]:80"})
        CHECK(get(port, "/", "", "GET", host).starts_with("HTTP/1.1 200 "));
    CHECK(talk(port, std::string(20000, 'a')) == "");  // a head without an end
}

TEST_CASE("page server: beyond loopback nobody looks without the token") {
    PageState state;
    begin(state, 1);
    const auto server = serve_page(cat("0.0.0.0:", free_port()), state);
    const std::string url = url_of(*server);
    REQUIRE(url.starts_with("http://"));
    const int port = port_of(url);
    const std::string token = url.substr(url.find("?t=") + 3);
    CHECK(token.size() > 50);
    CHECK(!contains(url_of(*serve_page(cat("0.0.0.0:", free_port()), state)), token));
    for (const char* path : {"/", "/state.json", "/metrics", "/page.js", "/?t=", "/?t=00"})
        CHECK(get(port, path).starts_with("HTTP/1.1 401 "));
    const std::string entry = get(port, "/?t=" + token, "", "GET", "any.name");
    CHECK(entry.starts_with("HTTP/1.1 303 "));
    const std::string cookie = cat("convoy_view_", port, "=", token);
    CHECK(contains(entry, cat("Set-Cookie: ", cookie, "; HttpOnly; SameSite=Strict")));
    CHECK(get(port, "/", cat("Cookie: a=b; ", cookie, "\r\n")).starts_with("HTTP/1.1 200 "));
    CHECK(get(port, "/", cat("Cookie: ", cookie, "0\r\n")).starts_with("HTTP/1.1 401 "));
    const std::string bearer = "Authorization: Bearer ";
    CHECK(get(port, "/metrics", cat(bearer, token, "\r\n")).starts_with("HTTP/1.1 200 "));
    CHECK(get(port, "/metrics", cat(bearer, "x\r\n")).starts_with("HTTP/1.1 401 "));
}

TEST_CASE("page server: a port that is taken is named, and so is what is no address") {
    PageState state;
    const auto server = serve_page(cat("127.0.0.1:", free_port()), state);
    CHECK_FAILS(serve_page(cat("127.0.0.1:", port_of(url_of(*server))), state),
                "--page ADDRESS:PORT");
    CHECK_FAILS(serve_page("127.0.0.1:x", state), "--page");
    CHECK(page_address("on") == std::pair(std::string("127.0.0.1"), uint16_t(29480)));
    CHECK(page_address("10.0.0.5").second == 29480);
    CHECK(page_address("8080") == std::pair(std::string("127.0.0.1"), uint16_t(8080)));
    for (const char* nonsense : {"99999", "-1", "no such host", "256.1.1.1", "a/b"})
        CHECK_FAILS(page_address(nonsense), "--page");
    CHECK(page_address("::1") == std::pair(std::string("::1"), uint16_t(29480)));
}

TEST_CASE("program: --page and page show a run, and idle visitors do not stop it") {
    TempDir folder;
    const uint16_t page = free_port();
    const std::string where = at(page);
    Cluster ranks(folder, 2,
                  typed("--threads 1 --size 16 --batch 8 --generated 240 --epochs 100000") +
                      Words{"--out", folder / "run", "--page", where},
                  {"--threads", "1", "--out", folder / "heir"});
    Process &rank0 = ranks[0], &rank1 = ranks[1];
    REQUIRE(rank0.wait_for("page: http://" + where + "/"));
    std::vector<int> idle;
    for (int i = 0; i < 50; ++i) idle.push_back(connect_to(page));
    REQUIRE(rank0.wait_for("epoch 3/"));
    for (const int socket : idle) close(socket);
    json state;
    eventually([&] {
        state = json::parse(body_of(get(page, "/state.json")));
        return state["ranks"].size() == 2 && state["ranks"][1].contains("cpu");
    });
    REQUIRE(state["ranks"].size() == 2);
    for (const json& rank : state["ranks"]) {
        CHECK(rank["memory"] > 1e6);
        CHECK(rank["cpu"] > 0);
        CHECK(rank["sent"] > 0);
    }
    CHECK(state["limit"] != "");

    rank0.kill(SIGKILL);  // the heir has the page, with what was before
    REQUIRE(rank1.wait_for("page: http://"));
    state = json::parse(body_of(get(page, "/state.json")));
    CHECK(state["train"][0][0] == 10);
    CHECK(state["ranks"].size() == 1);
    CHECK(contains(state["events"].dump(), "rank 0 ("));
    rank1.kill(SIGINT);
    CHECK(rank1.wait() == 128 + SIGINT);
    CHECK(contains(rank1.output(), "all ranks together: "));

    CHECK(contains(output_of({"page", folder / "none"}, 1), "cannot read"));
}

TEST_CASE("program: the page of a resumed run shows what came before") {
    TempDir folder;
    const Words usual = typed("--threads 1 --size 16 --batch 8 --generated 240");
    output_of(usual + typed("--epochs 1 --out") + Words{folder / "run"});
    const uint16_t page = free_port();
    Process again(
        folder, "again",
        usual + typed("--epochs 100000 --resume") + Words{folder / "run", "--page", cat(page)});
    REQUIRE(again.wait_for("page: http://"));
    REQUIRE(again.wait_for("epoch 2/"));
    const json state = json::parse(body_of(get(page, "/state.json")));
    CHECK(state["train"][0][0] == 10);
    CHECK(contains(state["events"].dump(), "done: "));
    CHECK(state["state"] == "training");
    again.kill(SIGINT);
    CHECK(again.wait() == 128 + SIGINT);
}
