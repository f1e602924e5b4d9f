#include "net/control/coordinator_shell.h"

#include <algorithm>

#include "net/control/ask_health.h"
#include "net/control/ids.h"

namespace convoy {

using std::chrono::milliseconds;

void CoordinatorShell::start(Listener& listener) {
    listener_ = &listener;
    listener.on_join = [self = shared_from_this()](Socket socket, wire::Join join) {
        self->add(std::move(socket), std::move(join));
    };
    spawn(io_.get_executor(), tick());
}

void CoordinatorShell::close() {
    if (listener_) std::exchange(listener_, nullptr)->on_join = nullptr;
    for (auto& [id, client] : clients_) client->close();
}

void CoordinatorShell::add(Socket socket, wire::Join join) {
    const int id = next_id_++;
    clients_[id] = std::make_shared<Connection>(std::move(socket));
    step(event::Joined{id, std::move(join)});
    spawn(io_.get_executor(), read(id, clients_.at(id)));
}

void CoordinatorShell::step(const Event& event) {
    const auto now = Clock::now();
    std::vector<Action> actions;
    if (pause_.note(now)) actions = coordinator_.step(now, event::Stopped{});
    for (Action& action : coordinator_.step(now, event)) actions.push_back(std::move(action));
    for (Action& action : actions) std::visit([this](auto& one) { act(one); }, action);
}

void CoordinatorShell::act(action::Send& send) {
    const Client& client = clients_.at(send.client);
    if (!send.may_skip || client->drained()) client->send(std::move(send.bytes));
}

void CoordinatorShell::act(action::HangUp& hang_up) { clients_.at(hang_up.client)->close(); }

void CoordinatorShell::act(action::CheckMachine& check) {
    if (!clients_.at(check.client)->machine_is_silent(check.patience)) return;
    unplugged_.insert(check.client);
    clients_.at(check.client)->close();
}

void CoordinatorShell::act(action::Probe& wanted) {
    spawn(io_.get_executor(), probe(std::move(wanted)));
}

asio::awaitable<void> CoordinatorShell::read(int id, Client client) {
    const auto self = shared_from_this();
    std::string why;
    try {
        for (Message message;;) {
            co_await client->read(
                message, coordinator_.has_rank(id) ? wire::kControlLimit : wire::kGuestLimit);
            if (listener_) step(event::Received{id, message});
        }
    } catch (const std::system_error& e) {
        why = reason(e.code());
    } catch (const Error& e) {
        why = e.what();
    }
    client->close();
    if (unplugged_.erase(id) > 0) why = "no sign of life, and its machine does not answer";
    if (listener_) step(event::Disconnected{id, why});
    clients_.erase(id);
}

asio::awaitable<void> CoordinatorShell::probe(action::Probe wanted) {
    const auto self = shared_from_this();
    if (wanted.after.count() > 0) co_await sleep_for(wanted.after);
    if (!listener_) co_return;
    const event::ProbeResult result =
        co_await probe_process(wanted.member, first_, listener_->tls());
    if (listener_) step(result);
}

asio::awaitable<void> CoordinatorShell::tick() {
    const auto self = shared_from_this();
    const milliseconds pause = coordinator_.heartbeat() / 2;
    for (Clock::duration late{}; listener_;) {
        step(event::Tick{late > pause / kLateness ? late : Clock::duration()});
        const auto slept = Clock::now();
        co_await sleep_for(pause);
        late = Clock::now() - slept - pause;
    }
}

bool CoordinatorShell::drained() const {
    return std::ranges::all_of(
        clients_, [](const auto& one) { return one.second->drained() || !one.second->is_open(); });
}

}  // namespace convoy
