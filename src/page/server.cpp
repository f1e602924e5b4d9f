// server.cpp — see server.h. Boost.Beast only parses requests (its headers come with the package of
// Boost.Context): its streams and Boost.Asio would add 600 KB of code to net's own Asio.
#include "src/page/server.h"

#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <unistd.h>

#include <atomic>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <list>
#include <thread>

#include "net/control/asio.h"
#include "net/control/join_options.h"
#include "net/control/tls.h"
#include "net/ring/communicator.h"
#include "src/base/clock.h"
#include "src/base/text.h"

namespace convoy {

namespace http = boost::beast::http;
using Request = http::request<http::empty_body>;

constexpr size_t kMostConnections = 32, kHeadLimit = 8 << 10;
constexpr std::chrono::seconds kPatience{10};

static std::string text_of(boost::beast::string_view view) { return {view.data(), view.size()}; }

// The value of `name` in "a=1&b=2" or "a=1; b=2"; "" if it is missing.
static std::string value_of(const std::string& pairs, const std::string& name) {
    for (size_t at = 0; at < pairs.size();) {
        const size_t end = std::min(pairs.find_first_of("&; ", at), pairs.size());
        if (pairs.compare(at, name.size() + 1, name + "=") == 0)
            return pairs.substr(at + name.size() + 1, end - at - name.size() - 1);
        at = end + 1;
    }
    return "";
}

static bool equal_in_constant_time(const std::string& a, const std::string& b) {
    return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::pair<std::string, uint16_t> page_address(const std::string& page) {
    const bool is_port = !page.empty() && page.find_first_not_of("0123456789") == page.npos;
    auto address = split_address(page == "on" ? "127.0.0.1"
                                 : is_port    ? "127.0.0.1:" + page
                                              : page,
                                 "--page");
    if (address.second == 0) address.second = 29480;
    try {
        asio::io_context io;
        tcp::resolver(io).resolve(address.first, "");
    } catch (const std::system_error& e) {
        fail("--page ", page, ": '", address.first, "' is no address: ", e.code().message(),
             "; give PORT, ADDRESS or ADDRESS:PORT");
    }
    return address;
}

namespace {

// A response. `head`: fields in addition to those of every response.
struct Answer {
    int status = 200;
    std::string type, body, head;
};

}  // namespace

struct PageServer {
    PageServer(const std::string& page, const PageState& its_state)
        : state(its_state), name(page_address(page).first) {
        const std::string port = std::to_string(page_address(page).second);
        try {
            acceptor = {io, tcp::resolver(io).resolve(name, port).begin()->endpoint()};
        } catch (const std::system_error& e) {
            fail("the page cannot be served at ", name, ":", port, ": ", e.code().message(),
                 "; choose another address with --page ADDRESS:PORT");
        }
        address = acceptor.local_endpoint().address().to_string();
        bound_port = std::to_string(acceptor.local_endpoint().port());
        if (!address.starts_with("127.") && address != "::1") token = make_token();
        cookie = "convoy_view_" + bound_port;  // because a browser sends the cookies of all ports
        spawn(io.get_executor(), accept());
        thread = std::thread([this] { io.run(); });
    }
    ~PageServer() {
        const Clock::time_point begin = Clock::now();
        if (seconds_between(last_look, begin) < 5)
            while (last_look.load() < begin && seconds_since(begin) < 3)
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
        if (last_look.load() > begin)  // the answer is on its way
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
        io.stop();
        thread.join();
    }

    // A new connection replaces the oldest if there are too many.
    asio::awaitable<void> accept() {
        for (;;) {
            try {
                viewers.push_back(co_await acceptor.async_accept(asio::use_awaitable));
                spawn(io.get_executor(), serve(std::prev(viewers.end())));
                if (viewers.size() > kMostConnections) viewers.front().close();
                continue;
            } catch (const std::exception&) {
                // No file can be opened: the connection stays in the queue.
            }
            co_await sleep_for(std::chrono::milliseconds(20));
        }
    }

    // Answers a viewer until it leaves or is too slow.
    asio::awaitable<void> serve(std::list<tcp::socket>::iterator viewer) {
        std::string in, out;
        bool goes_on = true;
        const auto exchange = [&]() -> asio::awaitable<void> {
            const size_t head = co_await asio::async_read_until(
                *viewer, asio::dynamic_buffer(in, kHeadLimit), "\r\n\r\n", asio::use_awaitable);
            goes_on = take(std::string_view(in).substr(0, head), out);
            in.erase(0, head);
            co_await asio::async_write(*viewer, asio::buffer(out), asio::use_awaitable);
        };
        try {
            while (goes_on) co_await within(kPatience, *viewer, exchange());
        } catch (const std::exception&) {
            // It is gone, its head is too long, or there is no memory: the run continues.
        }
        viewers.erase(viewer);
    }

    // Answers the head of a request. Returns false if the connection ends after that.
    bool take(std::string_view head, std::string& out) {
        http::request_parser<http::empty_body> parser;
        boost::system::error_code error;
        parser.header_limit(kHeadLimit);
        parser.put(boost::asio::buffer(head.data(), head.size()), error);
        const Request& request = parser.get();
        const bool understood = parser.is_header_done();
        const bool goes_on = understood && parser.is_done() && !error && request.keep_alive();
        Answer answer = {400, "text/plain; charset=utf-8", "the head of the request is not valid\n",
                         ""};
        if (understood) answer = this->answer(request, parser.is_done() && !error);
        out = cat("HTTP/1.1 ", answer.status, " ",
                  text_of(http::obsolete_reason(http::status(answer.status))),
                  "\r\nContent-Type: ", answer.type, "\r\nContent-Length: ", answer.body.size(),
                  "\r\nConnection: ", goes_on ? "keep-alive" : "close",
                  "\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer"
                  "\r\nX-Content-Type-Options: nosniff"
                  "\r\nContent-Security-Policy: default-src 'none'; script-src 'self'; "
                  "style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
                  "form-action 'none'; frame-ancestors 'none'\r\n",
                  answer.head, "\r\n");
        if (!understood || request.method() != http::verb::head) out += answer.body;
        return goes_on;
    }

    // whole: the request has no body.
    Answer answer(const Request& request, bool whole) {
        const auto refuse = [](int status, const char* why, const std::string& head = "") {
            return Answer{status, "text/plain; charset=utf-8", cat(why, "\n"), head};
        };
        const std::string target = text_of(request.target());
        const size_t question = std::min(target.find('?'), target.size());
        const std::string path = target.substr(0, question);
        const std::string query = target.substr(std::min(question + 1, target.size()));
        if (request.method() != http::verb::get && request.method() != http::verb::head)
            return refuse(405, "this page is read-only", "Allow: GET, HEAD\r\n");
        if (!whole) return refuse(400, "a request must not have a body");
        if (token.empty()) {
            if (!is_ours(text_of(request[http::field::host])))
                return refuse(403, "open this page by its IP address, or as localhost");
        } else if (equal_in_constant_time(value_of(query, "t"), token)) {
            if (path == "/")  // removes the token from the address bar
                return refuse(303, "see /",
                              cat("Location: /\r\nSet-Cookie: ", cookie, "=", token,
                                  "; HttpOnly; SameSite=Strict; Path=/\r\n"));
        } else if (!equal_in_constant_time(text_of(request[http::field::authorization]),
                                           "Bearer " + token) &&
                   !equal_in_constant_time(value_of(text_of(request[http::field::cookie]), cookie),
                                           token)) {
            return refuse(401, "open the URL with ?t= that the trainer has printed");
        }
        if (path == "/state.json") {
            last_look = Clock::now();
            const uint64_t after = to_number<uint64_t>(value_of(query, "after")).value_or(0);
            return {200, "application/json",
                    state.snapshot(after, unix_seconds())
                        .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                    ""};
        }
        if (path == "/metrics")
            return {200, "text/plain; version=0.0.4; charset=utf-8", state.metrics(), ""};
        for (const Asset& asset : kAssets)
            if (path == asset.path)
                return {200, std::string(asset.type), std::string(asset.bytes),
                        asset.gzipped ? "Content-Encoding: gzip\r\n" : ""};
        return refuse(404, "there is no such page");
    }

    // Whether the Host of a request is an IP address, localhost, or the name given by --page.
    bool is_ours(const std::string& host) const {
        const size_t colon = host.rfind(':');
        std::string wanted = host.ends_with("]") ? host : host.substr(0, colon);
        if (wanted == "localhost" || wanted == name) return true;
        if (wanted.starts_with("[")) wanted = wanted.substr(1, wanted.size() - 2);
        in6_addr any;
        return inet_pton(AF_INET, wanted.c_str(), &any) == 1 ||
               inet_pton(AF_INET6, wanted.c_str(), &any) == 1;
    }

    const PageState& state;
    const std::string name;  // as --page has it
    std::string address, bound_port, token, cookie;
    asio::io_context io{1};
    tcp::acceptor acceptor{io};
    std::list<tcp::socket> viewers;
    std::atomic<Clock::time_point> last_look{};  // at /state.json
    std::thread thread;
};

std::shared_ptr<const PageServer> serve_page(const std::string& page, const PageState& state) {
    return std::make_shared<PageServer>(page, state);
}

std::string url_of(const PageServer& server) {
    char own[256] = "localhost";
    gethostname(own, sizeof own - 1);
    const bool any = server.address == "0.0.0.0" || server.address == "::";
    std::string name = any ? own : server.address;
    if (name.find(':') != name.npos) name = cat("[", name, "]");
    return cat("http://", name, ":", server.bound_port, "/",
               server.token.empty() ? "" : cat("?t=", server.token));
}

}  // namespace convoy
