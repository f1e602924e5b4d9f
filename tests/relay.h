// relay.h — a TCP proxy between two processes of a test, which keeps or changes the bytes.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "net/control/asio.h"

namespace convoy {

// Listens on loopback and forwards bytes in both directions to the port to().
class Relay {
 public:
    // touch: may change the bytes, at most 64 KB at a time, in the relay's thread.
    explicit Relay(std::function<uint16_t()> to, std::function<void(std::span<char>)> touch = {})
        : to_(std::move(to)), touch_(std::move(touch)) {
        acceptor_ = {io_, tcp::endpoint(asio::ip::make_address("127.0.0.1"), 0)};
        thread_ = std::thread([this] {
            asio::co_spawn(io_, accept(), [](std::exception_ptr) {});
            io_.run();
        });
    }
    ~Relay() {
        io_.stop();
        thread_.join();
    }
    uint16_t port() { return acceptor_.local_endpoint().port(); }
    // The bytes of all connections, in both directions.
    std::string passed() {
        std::lock_guard lock(mutex_);
        return passed_;
    }

 private:
    asio::awaitable<void> accept() {
        for (;;) {
            const auto in = std::make_shared<tcp::socket>(io_),
                       out = std::make_shared<tcp::socket>(io_);
            co_await acceptor_.async_accept(*in, asio::use_awaitable);
            co_await out->async_connect({asio::ip::make_address("127.0.0.1"), to_()},
                                        asio::use_awaitable);
            spawn(io_.get_executor(), pass(in, out));
            spawn(io_.get_executor(), pass(out, in));
        }
    }
    asio::awaitable<void> pass(std::shared_ptr<tcp::socket> from, std::shared_ptr<tcp::socket> to) {
        std::string buffer(1 << 16, '\0');
        try {
            for (;;) {
                const size_t n =
                    co_await from->async_read_some(asio::buffer(buffer), asio::use_awaitable);
                if (touch_) touch_({buffer.data(), n});
                {
                    std::lock_guard lock(mutex_);
                    passed_ += buffer.substr(0, n);
                }
                co_await asio::async_write(*to, asio::buffer(buffer.data(), n),
                                           asio::use_awaitable);
            }
        } catch (const std::system_error&) {
            std::error_code ignored;
            to->close(ignored);
        }
    }

    std::function<uint16_t()> to_;
    std::function<void(std::span<char>)> touch_;
    asio::io_context io_{1};
    tcp::acceptor acceptor_{io_};
    std::mutex mutex_;
    std::string passed_;
    std::thread thread_;
};

}  // namespace convoy
