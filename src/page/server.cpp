// server.cpp — see server.h. Boost.Beast parses requests (its headers come with the package of
// Boost.Context). Its streams and Boost.Asio would add 600 KB of code, and poll() is enough.
#include "src/page/server.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <cerrno>
#include <cstring>
#include <list>
#include <thread>

#include "net/communicator.h"
#include "net/tls.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/number.h"
#include "src/page/assets.h"

namespace convoy {

namespace http = boost::beast::http;
using Request = http::request<http::empty_body>;

constexpr size_t kMostConnections = 32, kHeadLimit = 8 << 10;
constexpr double kPatience = 10;  // seconds

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
    auto address = split_address(page == "on" ? "127.0.0.1" : page, "--page");
    if (address.second == 0) address.second = 29480;
    return address;
}

namespace {

// A response. `head`: fields in addition to those of every response.
struct Answer {
    int status = 200;
    std::string type, body, head;
};

struct Viewer {
    int socket;
    std::string in = {}, out = {};
    Clock::time_point begin = Clock::now();  // of the request or of the answer
    bool ends = false;                       // when `out` is sent
};

}  // namespace

struct PageServer::Server {
    Server(const std::string& page, const PageState& its_state)
        : state(its_state), name(page_address(page).first) {
        const std::string port = std::to_string(page_address(page).second);
        addrinfo hints{}, *found = nullptr;
        hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV, hints.ai_socktype = SOCK_STREAM;
        const int unknown = getaddrinfo(name.c_str(), port.c_str(), &hints, &found);
        const int on = 1, flags = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
        int error = wake < 0 ? errno : 0;
        bool listens = false;
        for (addrinfo* at = unknown ? nullptr : found; at && wake >= 0; at = at->ai_next) {
            listener = socket(at->ai_family, flags, 0);
            setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
            listens = listener >= 0 && bind(listener, at->ai_addr, at->ai_addrlen) == 0 &&
                      listen(listener, int(kMostConnections)) == 0;
            if (listens) break;
            if (listener >= 0 || error == 0) error = errno;  // without IPv6, keep the error of IPv4
            if (listener >= 0) close(listener);
        }
        if (!unknown) freeaddrinfo(found);
        if (!listens) {
            const char* why = unknown ? gai_strerror(unknown) : std::strerror(error);
            if (wake >= 0) close(wake);
            fail("the page cannot be served at ", name, ":", port, ": ", why,
                 "; choose another address with --page ADDRESS:PORT");
        }
        sockaddr_storage bound{};
        socklen_t size = sizeof bound;
        char host[64], service[8];
        getsockname(listener, reinterpret_cast<sockaddr*>(&bound), &size);
        getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, host, sizeof host, service,
                    sizeof service, NI_NUMERICHOST | NI_NUMERICSERV);
        address = host, bound_port = service;
        if (!address.starts_with("127.") && address != "::1") token = make_token();
        cookie = "convoy_view_" + bound_port;  // because a browser sends the cookies of all ports
        thread = std::thread([this] { serve(); });
    }
    ~Server() {
        const Clock::time_point begin = Clock::now();
        if (seconds_between(last_look, begin) < 5)
            while (last_look.load() < begin && seconds_since(begin) < 3)
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
        if (last_look.load() > begin)  // the answer is on its way
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
        const uint64_t one = 1;
        (void)!write(wake, &one, sizeof one);
        thread.join();
        for (const Viewer& connection : connections) close(connection.socket);
        close(listener), close(wake);
    }

    void serve() {
        for (std::vector<pollfd> polled;;) {
            // A new connection replaces the oldest if there are too many. If no file can be opened,
            // it stays in the queue.
            polled = {{wake, POLLIN, 0}, {listener, POLLIN, 0}};
            for (const Viewer& connection : connections)
                polled.push_back(
                    {connection.socket, short(connection.out.empty() ? POLLIN : POLLOUT), 0});
            poll(polled.data(), polled.size(), connections.empty() ? -1 : 1000);
            if (polled[0].revents) return;
            size_t i = 2;
            for (auto one = connections.begin(); one != connections.end(); ++i) {
                bool stays = seconds_since(one->begin) < kPatience;
                try {
                    stays = stays && (!polled[i].revents || go_on(*one));
                } catch (const std::exception&) {  // such as no memory: the run continues
                    stays = false;
                }
                if (!stays) close(one->socket);
                one = stays ? std::next(one) : connections.erase(one);
            }
            if (!polled[1].revents) continue;
            const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (socket < 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
            if (socket >= 0) connections.push_back({socket});
            if (connections.size() > kMostConnections) {
                close(connections.front().socket);
                connections.pop_front();
            }
        }
    }

    // Reads or writes as much as possible. Returns false if the connection is finished.
    bool go_on(Viewer& connection) {
        std::string &in = connection.in, &out = connection.out;
        if (out.empty()) {
            char part[kHeadLimit];
            const ssize_t n = recv(connection.socket, part, sizeof part - in.size(), 0);
            if (n < 0 && errno == EAGAIN) return true;
            if (n <= 0) return false;
            in.append(part, size_t(n));
            const size_t end = in.find("\r\n\r\n");
            if (end == in.npos) return in.size() < kHeadLimit;
            connection.ends = !take(std::string_view(in).substr(0, end + 4), out);
            in.erase(0, end + 4);
            connection.begin = Clock::now();
        }
        const ssize_t n = send(connection.socket, out.data(), out.size(), MSG_NOSIGNAL);
        if (n < 0) return errno == EAGAIN;
        out.erase(0, size_t(n));
        return !out.empty() || !connection.ends;
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
    int listener = -1;
    const int wake = eventfd(0, EFD_CLOEXEC);
    std::list<Viewer> connections;
    std::atomic<Clock::time_point> last_look{};  // at /state.json
    std::thread thread;
};

PageServer::PageServer(const std::string& page, const PageState& state)
    : server_(std::make_unique<Server>(page, state)) {}
PageServer::~PageServer() = default;

std::string PageServer::url(std::string host) const {
    char own[256] = "localhost";
    gethostname(own, sizeof own - 1);
    const bool any = server_->address == "0.0.0.0" || server_->address == "::";
    std::string name = !any ? server_->address : host.empty() ? own : host;
    if (name.find(':') != name.npos) name = cat("[", name, "]");
    return cat("http://", name, ":", server_->bound_port, "/",
               server_->token.empty() ? "" : cat("?t=", server_->token));
}

}  // namespace convoy
