#include "net/coordinator.h"

#include <algorithm>
#include <random>

#include "net/communicator.h"
#include "net/listener.h"

namespace convoy {

using std::chrono::milliseconds;

namespace {

constexpr std::chrono::seconds kFormerPatience{60};  // for ranks of earlier jobs to hang up
constexpr size_t kStallText = 500;                   // bytes of it in a heartbeat

// Ids that tell coordinators and jobs apart. Training does not depend on them.
uint64_t fresh_id() {
    std::random_device device;
    return uint64_t(device()) << 32 | device() | 1;
}

}  // namespace

Coordinator::Coordinator(asio::io_context& io, Options options, Log& log)
    : io_(io),
      options_(options),
      log_(log),
      id_(fresh_id()),
      job_(fresh_id()),
      roster_(options.world, id_, {}) {
    spawn(io_.get_executor(), tick());
}

void Coordinator::add(tcp::socket socket, wire::Join join) {
    auto client = std::make_shared<Client>();
    client->id = next_id_++;
    client->job = job_;
    client->join = std::move(join);
    client->heard = Clock::now();
    client->connection = std::make_shared<Connection>(std::move(socket));
    clients_.push_back(client);
    spawn(io_.get_executor(), serve(client));

    if (stage_ != Stage::gathering) {
        refuse(*client, true, cat("a job of ", watch_.world(), " ranks is running there"));
        return;
    }
    // The same rank at the same port of the same host: the earlier process has ended, though its
    // connection has not closed here yet.
    for (const ClientPtr& c : std::vector(clients_))
        if (c != client && c->join.rank >= 0 && c->join.rank == client->join.rank &&
            c->join.host == client->join.host && c->join.address == client->join.address) {
            c->connection->close();
            disconnected(*c, "it joined again");
        }
    log(cat(client->name(), " of ", client->join.host, " has joined"));
    for (const Roster::Refusal& refusal : roster_.add(client->id, client->join))
        for (const ClientPtr& other : std::vector(clients_))
            if (other->id == refusal.id) refuse(*other, false, refusal.why);
    const std::string status = roster_.status();
    log(status);
    broadcast(wire::encode_text(wire::Type::status, status));
    if (roster_.complete()) assign_ranks();
}

asio::awaitable<void> Coordinator::serve(ClientPtr client) {
    std::string why;
    try {
        for (Message message;;) {
            co_await client->connection->read(message);
            client->heard = Clock::now();
            handle(*client, message);
        }
    } catch (const std::system_error& e) {
        why = reason(e.code());
    } catch (const Error& e) {
        why = e.what();
    }
    client->connection->close();
    std::erase(former_, client);
    if (client->job == job_) disconnected(*client, why);
}

void Coordinator::handle(Client& client, const Message& message) {
    using wire::Type;
    if (client.job != job_) return;  // of an earlier job
    switch (message.header.type) {
        case Type::heartbeat: {
            const auto beat = wire::decode<wire::Heartbeat>(message.body);
            if (client.rank >= 0) watch_.heard(client.rank, beat, client.heard);
            if (client.silent) notice(cat(client.name(), " is back"));
            client.silent = false;
            break;
        }
        case Type::ready:
            client.ready = true;
            if (stage_ == Stage::forming &&
                std::ranges::all_of(clients_, [](auto& c) { return c->ready; })) {
                stage_ = Stage::running;
                log(cat("all edges are open: the job of ", clients_.size(), " ranks runs"));
                broadcast(wire::encode_empty(Type::generation, generation_));
            }
            break;
        case Type::abort: {
            const auto abort = wire::decode<wire::Abort>(message.body);
            if (client.rank < 0) fail("it gave up: ", abort.why);
            // -1: the rank itself fails. Else it blames another, which sent it invalid data.
            const int lost =
                abort.lost >= 0 && abort.lost < int(clients_.size()) ? abort.lost : client.rank;
            stop_job(lost, cat(client.name(), ": ", abort.why));
            break;
        }
        case Type::leave:
            client.left = true;
            client.connection->send(wire::encode_empty(Type::leave));
            if (std::ranges::all_of(clients_, [](auto& c) { return c->left; })) {
                log("the job is done");
                next_job();
            }
            break;
        default: fail("it sent ", wire::name(message.header.type), ", which no rank may send");
    }
}

// The connection of a client of this job has ended.
void Coordinator::disconnected(Client& client, const std::string& why) {
    if (stage_ == Stage::gathering || client.rank < 0) {
        roster_.remove(client.id);
        remove(client);
        if (stage_ != Stage::gathering) return;
        const std::string status = cat(client.join.address, " has left: ", roster_.status());
        log(status);
        return broadcast(wire::encode_text(wire::Type::status, status));
    }
    if (client.left) return;
    const std::string seen = watch_.last_seen(client.rank);
    stop_job(client.rank, cat(client.name(), " was lost: ", why,
                              stage_ == Stage::forming ? ", while the ring was being formed"
                              : seen.empty()           ? ""
                                                       : ", " + seen));
}

void Coordinator::refuse(Client& client, bool again, const std::string& why) {
    if (!again) {
        log(cat(client.join.address, " was refused: ", why));
        broadcast(wire::encode_text(wire::Type::status, cat("refused: ", why)));
    }
    client.connection->send(wire::encode(wire::Refuse{again, why}));
    const auto self =
        std::ranges::find(clients_, client.id, [](const ClientPtr& c) { return c->id; });
    former_.push_back(*self);
    remove(client);
}

void Coordinator::remove(Client& client) {
    client.job = 0;
    std::erase_if(clients_, [&](const ClientPtr& c) { return c.get() == &client; });
}

void Coordinator::assign_ranks() {
    const Roster::Assignment assignment = roster_.assign_ranks();
    wire::Welcome welcome = assignment.welcome;
    welcome.job = job_;
    welcome.generation = generation_;
    std::vector<std::string> addresses;
    previous_.clear();
    for (int rank = 0; rank < welcome.world; ++rank) {
        addresses.push_back(welcome.peers[rank].address);
        previous_[welcome.peers[rank].host].push_back(rank);
    }
    stage_ = Stage::forming;
    watch_ = StallWatch(addresses, milliseconds(assignment.stall_ms), Clock::now());
    for (const ClientPtr& client : clients_) {
        const auto at = std::ranges::find(assignment.ids, client->id);
        client->rank = welcome.rank = int(at - assignment.ids.begin());
        client->connection->send(wire::encode(welcome));
    }
}

void Coordinator::stop_job(int lost, const std::string& why) {
    log(why);
    broadcast(wire::encode(wire::Abort{lost, why}));
    next_job();
}

void Coordinator::next_job() {
    former_.insert(former_.end(), clients_.begin(), clients_.end());
    clients_.clear();
    job_ = fresh_id();
    ++generation_;
    stage_ = Stage::gathering;
    roster_ = Roster(options_.world, id_, previous_);
}

void Coordinator::broadcast(const std::string& message) {
    for (const ClientPtr& client : clients_)
        if (!client->left) client->connection->send(message);
}

void Coordinator::notice(const std::string& text) {
    log(text);
    broadcast(wire::encode_text(wire::Type::notice, text));
}

void Coordinator::log(const std::string& text) {
    if (options_.verbose) log_.info(text);
}

void Coordinator::send_leave() { broadcast(wire::encode_empty(wire::Type::leave)); }

wire::Health Coordinator::health() const {
    if (stage_ == Stage::gathering) return {true, cat("coordinator: ", roster_.status())};
    const std::string stall = watch_.stall(Clock::now());
    return {true, cat("coordinator: a job of ", watch_.world(), " ranks ",
                      stage_ == Stage::forming ? "opens its connections" : "runs",
                      stall.empty() ? "" : "; " + stall)};
}

bool Coordinator::drained() const {
    const auto done = [](const ClientPtr& client) {
        return client->connection->drained() || !client->connection->is_open();
    };
    return std::ranges::all_of(clients_, done) && std::ranges::all_of(former_, done);
}

// Runs twice in a heartbeat interval, so that lost ranks are found in time.
asio::awaitable<void> Coordinator::tick() {
    for (bool send = true;; send = !send) {
        const auto now = Clock::now();
        wire::Heartbeat heartbeat;
        if (stage_ == Stage::running) heartbeat.phase = watch_.stall(now).substr(0, kStallText);
        const std::string beat = wire::encode(heartbeat);
        for (const ClientPtr& client : std::vector(clients_)) {
            // A heartbeat after messages that wait to be written adds nothing.
            if (send && client->connection->drained()) client->connection->send(beat);
            if (client->job == job_) check_silence(*client, now);
        }
        for (const ClientPtr& client : std::vector(former_))
            if (now - client->heard > kFormerPatience) client->connection->close();
        if (stage_ == Stage::running)
            if (const auto stalled = watch_.report(now)) notice(*stalled);
        co_await sleep_for(options_.heartbeat / 2);
    }
}

// Handles three missed heartbeats. If the machine does not answer either, the rank is lost. If it
// does, its process is stopped or starved: the log says so, and the job waits.
void Coordinator::check_silence(Client& client, Clock::time_point now) {
    if (client.left || now - client.heard < 3 * milliseconds(client.join.heartbeat_ms)) return;
    const std::string quiet =
        fmt::format("{:.1f} s", std::chrono::duration<double>(now - client.heard).count());
    if (client.connection->machine_is_silent(3 * milliseconds(client.join.heartbeat_ms))) {
        client.connection->close();  // its reader ends too late to report another cause
        disconnected(client,
                     cat("no sign of life for ", quiet, ", and its machine does not answer"));
    } else if (client.rank >= 0 && !client.silent) {
        client.silent = true;
        notice(cat(client.name(), " is connected but has been silent for ", quiet,
                   ": its process is stopped or starved; the job waits for it"));
    }
}

void serve_coordinator(const std::string& host, uint16_t port, int world, Log& log,
                       const std::function<int()>& stop,
                       const std::function<void(uint16_t)>& listening) {
    asio::io_context io(1);
    Listener listener(io, log);
    try {
        if (host.empty() || host == "0.0.0.0" || host == "::") {
            listener.open_everywhere(port);
        } else {
            for (const auto& entry : tcp::resolver(io).resolve(host, std::to_string(port)))
                listener.open(entry.endpoint().address(),
                              listener.is_open() ? listener.port() : port);
        }
    } catch (const std::system_error& e) {
        fail("the coordinator cannot listen at ", host.empty() ? "every address" : host, ", port ",
             port, ": ", reason(e.code()));
    }
    Coordinator coordinator(io, {world, milliseconds(1'000), true}, log);
    listener.on_join = [&](tcp::socket socket, wire::Join join) {
        coordinator.add(std::move(socket), std::move(join));
    };
    listener.on_health = [&] { return coordinator.health(); };
    if (listening) listening(listener.port());
    while (stop() == 0) io.run_for(milliseconds(50));
    coordinator.send_leave();
    for (int i = 0; i < 20 && !coordinator.drained(); ++i) io.run_for(milliseconds(50));
}

}  // namespace convoy
