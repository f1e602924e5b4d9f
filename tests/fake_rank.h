// fake_rank.h — a mock rank that sends single messages, so that a test can send wrong ones.
#pragma once

#include "net/control/connection.h"
#include "net/control/ids.h"
#include "tests/net_support.h"

namespace convoy {

class FakeRank {
 public:
    FakeRank(int rank, uint16_t coordinator_port) : rank_(rank) {
        control_.connect({asio::ip::make_address("127.0.0.1"), coordinator_port});
    }

    void join(int world, std::string address = "127.0.0.1:9") {
        const wire::Join join{rank_, world, 100, {}, "fake", std::move(address), process_};
        say(control_, wire::encode(join));
    }
    // Skips messages until one of this type arrives.
    Message await(wire::Type type) {
        for (;;) {
            Message message = hear(control_);
            if (message.header.type == type) return message;
        }
    }
    void await_welcome() {
        const Message message = await(wire::Type::welcome);
        welcome_ = wire::decode<wire::Welcome>(message.body, message.header.generation);
    }
    std::string await_end(wire::End end) {
        for (;;) {
            const auto abort = wire::decode<wire::Abort>(await(wire::Type::abort).body);
            if (abort.end == end) return abort.why;
        }
    }
    // The only link of rank 1 in a world of 2.
    void open_link() {
        const auto [host, port] = split_address(welcome_.peers[0].address, "peer");
        link_.connect({asio::ip::make_address(host), port});
        say(link_, wire::encode(wire::Link{welcome_.job, rank_, 0, welcome_.generation}));
        CHECK(hear(link_).header.type == wire::Type::link);
    }
    // Connects again as if the answer to LINK had been lost. Returns whether an answer arrives.
    bool dials_again() {
        const auto to = link_.remote_endpoint();
        link_.close();
        link_.connect(to);
        say(link_, wire::encode(wire::Link{welcome_.job, rank_, 0, welcome_.generation}));
        return has_news(link_) && hear(link_).header.type == wire::Type::link;
    }
    void stand(int world) {
        join(world);
        await_welcome();
        open_link();
        ready();
    }
    void ready() {
        say(control_, wire::encode_empty(wire::Type::ready, welcome_.generation));
        await(wire::Type::generation);
    }
    void beat(const wire::Heartbeat& beat) { say(control_, wire::encode(beat)); }
    // Sends a collective's header.
    void send_header(std::span<const std::byte> bytes) {
        asio::write(link_, asio::buffer(bytes.data(), bytes.size()));
    }
    void send_header(const wire::Header& header) {
        std::array<std::byte, wire::kHeaderBytes> bytes;
        wire::encode(header, bytes);
        send_header(bytes);
    }
    void send(std::string_view bytes) { asio::write(control_, asio::buffer(bytes)); }
    void close_link() { link_.close(); }
    void die() {
        control_.close();
        link_.close();
    }
    const wire::Welcome& welcome() const { return welcome_; }

    static void say(tcp::socket& socket, const std::string& bytes) {
        asio::write(socket, asio::buffer(bytes));
    }
    static Message hear(tcp::socket& socket) {
        std::byte head[wire::kHeaderBytes];
        asio::read(socket, asio::buffer(head));
        Message message{wire::decode(head, wire::kControlLimit), ""};
        message.body.resize(message.header.length);
        asio::read(socket, asio::buffer(message.body));
        return message;
    }

 private:
    int rank_;
    const uint64_t process_ = fresh_id();
    asio::io_context io_;
    tcp::socket control_{io_}, link_{io_};
    wire::Welcome welcome_;
};

}  // namespace convoy
