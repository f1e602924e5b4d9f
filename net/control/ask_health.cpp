#include "net/control/ask_health.h"

#include "net/control/addresses.h"
#include "net/control/connection.h"

namespace convoy {

// Asks whoever is at the other end. Throws as the socket does, or Error.
static asio::awaitable<void> ask_health(Socket& socket, wire::Health& health) {
    co_await write_message(socket, wire::encode_empty(wire::Type::health));
    Message answer;
    co_await read_message(socket, wire::kHealthLimit, answer);
    if (answer.header.type != wire::Type::health)
        fail("it answered ", wire::name(answer.header.type));
    health = wire::decode<wire::Health>(answer.body, answer.header.generation);
}

asio::awaitable<event::ProbeResult> probe_process(wire::Member member, tcp::endpoint first,
                                                  TlsContext tls) {
    event::ProbeResult result{member.process};
    try {
        const auto [host, port] = reachable(member.address, first);
        Socket socket = co_await dial(host, port, tls, kAskPatience);
        wire::Health health;
        co_await within(kAskPatience, socket, ask_health(socket, health));
        result.lives = health.process == member.process;
        result.seeks = health.seeks, result.generation = health.generation;
        if (!result.lives && health.process != 0) result.gone = "another process is at its address";
    } catch (const NotReached& e) {
        result.why = e.what(), result.gone = e.all_refused ? "redial refused" : "";
    } catch (const Error& e) {
        result.why = e.what();
    } catch (const std::system_error&) {
        // It hung up: it has too many guests, or dies.
    }
    co_return result;
}

namespace {

// An answer ends the search. Without an answer, a stopped rank is reported before another program,
// and another program before an empty port.
struct Search {
    asio::io_context io{1};
    TlsContext tls;
    HealthReport report = {};
    int found = 0;

    void note(int weight, HealthReport what) {
        if (weight > found) report = std::move(what), found = weight;
    }
    asio::awaitable<void> ask(tcp::endpoint endpoint, std::chrono::milliseconds patience) {
        const std::string who = cat("the process that listens at ", address_text(endpoint));
        wire::Health health;
        bool connected = false;
        try {
            Socket socket(io);
            const auto exchange = [&]() -> asio::awaitable<void> {
                co_await socket.async_connect(endpoint, asio::use_awaitable);
                connected = true;
                co_await secure(socket, tls, true);
                co_await ask_health(socket, health);
            };
            co_await within(patience, socket, exchange());
            note(3, {health.healthy, false, std::move(health.text)});
            io.stop();
        } catch (const TimedOut&) {
            if (connected)
                note(2, {false, false,
                         cat(who, " has not answered in ", patience.count(),
                             " ms: it is stopped or starved")});
        } catch (const std::system_error& e) {
            if (connected)
                note(1, {false, true,
                         cat(who, " did not answer (", reason(e.code()),
                             "): check that it is a trainer")});
        } catch (const AccessError& e) {
            note(2, {false, false, cat(who, ": ", e.what())});
        } catch (const Error& e) {
            note(1, {false, true, cat(who, " is no healthy trainer: ", e.what())});
        }
    }
};

}  // namespace

HealthReport ask_health(uint16_t port, std::chrono::milliseconds patience,
                        const std::string& token) {
    Search search{.tls = make_tls(token),
                  .report = {false, true,
                             cat("nobody listens at port ", port,
                                 " of this machine: the rank has ended, "
                                 "has not reached its coordinator yet, or has another --port")}};
    for (const auto& [name, address] : interfaces())
        spawn(search.io.get_executor(), search.ask({address, port}, patience));
    search.io.run();
    return search.report;
}

bool answers(const std::string& address, uint16_t port, std::chrono::milliseconds patience,
             const std::string& token) {
    Search search{.tls = make_tls(token)};
    const auto ask_all = [&]() -> asio::awaitable<void> {
        try {
            for (const tcp::endpoint& endpoint : co_await resolve(address, port))
                spawn(search.io.get_executor(), search.ask(endpoint, patience));
        } catch (const Error&) {
            // The name is not known.
        }
    };
    spawn(search.io.get_executor(), ask_all());
    search.io.run();
    return search.found == 3;
}

}  // namespace convoy
