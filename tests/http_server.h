// http_server.h — an HTTP server in this process, whose path selects correct or faulty behaviour.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support.h"

namespace convoy {

struct HttpRequest {
    std::string path, text;       // text: the whole head
    uint64_t begin = 0, end = 0;  // the range [begin, end)
    int number = 0;               // of the request, per path, from 0
};

class HttpServer {
 public:
    // The answer. close: then closes the connection. stall: then waits until the client gives up.
    struct Reply {
        std::string bytes;
        bool close = false, stall = false;
    };
    using Handler = std::function<Reply(const HttpRequest&)>;

    explicit HttpServer(Handler handler) : handler_(std::move(handler)) {
        listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        REQUIRE(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
        REQUIRE(listen(listener_, 64) == 0);
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
        port_ = ntohs(address.sin_port);
        acceptor_ = std::thread([this] { accept_all(); });
    }
    ~HttpServer() {
        stopping_ = true;
        acceptor_.join();
        for (std::thread& thread : threads_) thread.join();
        ::close(listener_);
    }

    std::string url(const std::string& path) const { return cat("http://127.0.0.1:", port_, path); }
    int port() const { return port_; }
    int requests() const { return requests_; }

 private:
    // Whether the socket becomes readable before the server ends.
    bool wait(int socket) {
        pollfd entry{socket, POLLIN, 0};
        while (!stopping_)
            if (poll(&entry, 1, 20) > 0) return true;
        return false;
    }
    void accept_all() {
        while (wait(listener_)) {
            const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
            if (socket < 0) continue;
            threads_.emplace_back([this, socket] { serve(socket); });
        }
    }
    void serve(int socket) {
        std::string input;
        while (wait(socket)) {
            char part[4096];
            const ssize_t n = recv(socket, part, sizeof part, 0);
            if (n <= 0) break;
            input.append(part, size_t(n));
            const size_t end = input.find("\r\n\r\n");
            if (end == input.npos) continue;
            const Reply reply = handler_(parse(input.substr(0, end + 4)));
            input.erase(0, end + 4);
            size_t at = 0;
            for (ssize_t m = 0; at < reply.bytes.size() && m >= 0;
                 at += size_t(std::max<ssize_t>(m, 0)))
                m = send(socket, reply.bytes.data() + at, reply.bytes.size() - at, MSG_NOSIGNAL);
            if (reply.stall) wait(socket);  // until the client gives up
            if (reply.close || reply.stall) break;
        }
        ::close(socket);
    }
    HttpRequest parse(const std::string& text) {
        HttpRequest request;
        request.text = text;
        request.path = text.substr(4, text.find(' ', 4) - 4);
        const size_t range = text.find("Range: bytes=");
        if (range != text.npos) {
            char* dash = nullptr;
            request.begin = std::strtoull(text.c_str() + range + 13, &dash, 10);
            request.end = std::strtoull(dash + 1, nullptr, 10) + 1;
        }
        ++requests_;
        std::lock_guard lock(mutex_);
        request.number = numbers_[request.path]++;
        return request;
    }

    const Handler handler_;
    int listener_ = -1, port_ = 0;
    std::atomic<bool> stopping_ = false;
    std::atomic<int> requests_ = 0;
    std::mutex mutex_;
    std::map<std::string, int> numbers_;
    std::vector<std::thread> threads_;  // of connections; only acceptor_ changes it
    std::thread acceptor_;
};

}  // namespace convoy
