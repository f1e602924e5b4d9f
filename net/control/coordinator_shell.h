// coordinator_shell.h — the sockets, probes and clock of a coordinator. It turns what happens into
// events, and performs the actions that the coordinator (coordinator.h) returns.
//
// It runs on the control thread of a rank.
#pragma once

#include <map>
#include <memory>

#include "net/control/connection.h"
#include "net/control/coordinator.h"
#include "net/control/listener.h"
#include "net/control/pause.h"

namespace convoy {

class CoordinatorShell : public std::enable_shared_from_this<CoordinatorShell> {
 public:
    // `first`: the address of the job's first coordinator; none: here.
    CoordinatorShell(asio::io_context& io, Coordinator coordinator, tcp::endpoint first)
        : io_(io), coordinator_(std::move(coordinator)), first_(std::move(first)) {}
    // The listener's JOINs come here; time passes.
    void start(Listener& listener);
    // Stops serving: hangs up on all ranks, which then look for another coordinator.
    void close();

    void step(const Event& event);
    const Coordinator& coordinator() const { return coordinator_; }
    bool drained() const;  // all messages have left this process

 private:
    using Client = std::shared_ptr<Connection>;
    void add(Socket socket, wire::Join join);
    void act(action::Send& send);
    void act(action::HangUp& hang_up);
    void act(action::CheckMachine& check);
    void act(action::Probe& probe);
    asio::awaitable<void> read(int id, Client client);
    asio::awaitable<void> probe(action::Probe wanted);
    asio::awaitable<void> tick();

    asio::io_context& io_;
    Coordinator coordinator_;
    const tcp::endpoint first_;
    Listener* listener_ = nullptr;  // while it serves
    Pause pause_;
    int next_id_ = 0;
    std::map<int, Client> clients_;
    std::set<int> unplugged_;  // their machines do not answer
};

}  // namespace convoy
