#include "net/coordinator.h"

#include <algorithm>
#include <random>

#include "net/communicator.h"
#include "net/listener.h"

namespace convoy {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::seconds kFormerPatience{60};  // for those of other jobs to hang up

// Numbers for telling coordinators and jobs apart; not training's chance, so not from random.h.
uint64_t fresh_number() {
    std::random_device device;
    return uint64_t(device()) << 32 | device() | 1;
}
}  // namespace

Coordinator::Coordinator(asio::io_context& io, Options options, Log& log)
    : io_(io),
      options_(options),
      log_(log),
      number_(fresh_number()),
      job_(fresh_number()),
      roster_(options.world, number_, {}) {
    spawn(io_.get_executor(), tick());
}

void Coordinator::take(tcp::socket socket, wire::Join join) {
    auto client = std::make_shared<Client>();
    client->id = next_id_++;
    client->job = job_;
    client->wanted = join.rank;
    client->host = join.host;
    client->address = join.address;
    client->heartbeat = milliseconds(join.heartbeat_ms);
    client->heard = Clock::now();
    client->connection = std::make_shared<Connection>(std::move(socket));
    clients_.push_back(client);
    spawn(io_.get_executor(), serve(client));

    if (stage_ != Stage::gathering) {
        refuse(*client, true, cat("a job of ", watch_.world(), " ranks is running there"));
        return;
    }
    // The same rank at the same port of the same host: that process is gone, though the news of it
    // is still on its way.
    for (const ClientPtr& c : std::vector(clients_))
        if (c != client && c->wanted >= 0 && c->wanted == client->wanted &&
            c->host == client->host && c->address == client->address) {
            c->connection->close();
            gone(*c, "it came again");
        }
    say(cat(rank_name(join.rank, join.address), " of ", join.host, " has joined"));
    for (const Roster::Refusal& refusal : roster_.add(client->id, std::move(join)))
        for (const ClientPtr& other : std::vector(clients_))
            if (other->id == refusal.id) refuse(*other, false, refusal.why);
    const std::string status = roster_.status();
    say(status);
    broadcast(wire::encode_text(wire::Type::status, status));
    if (roster_.complete()) seat();
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
    if (client->job == job_) gone(*client, why);
}

void Coordinator::handle(Client& client, const Message& message) {
    using wire::Type;
    if (client.job != job_) return;  // of a job that is over
    switch (message.header.type) {
        case Type::heartbeat: {
            const wire::Beat beat = wire::decode_beat(message.body);
            if (client.rank >= 0) watch_.beat(client.rank, beat, client.heard);
            if (client.silent) notice(cat(rank_name(client.rank, client.address), " is back"));
            client.silent = false;
            break;
        }
        case Type::ready:
            client.ready = true;
            if (stage_ == Stage::forming &&
                std::all_of(clients_.begin(), clients_.end(), [](auto& c) { return c->ready; })) {
                stage_ = Stage::running;
                say(cat("all edges stand: the job of ", clients_.size(), " ranks runs"));
                broadcast(wire::encode_empty(Type::generation, generation_));
            }
            break;
        case Type::abort: {
            const wire::Abort abort = wire::decode_abort(message.body);
            if (client.rank < 0) fail("it gave up: ", abort.why);
            // -1: the rank itself fails. Else it names another, whose bytes made no sense.
            const int lost =
                abort.lost >= 0 && abort.lost < int(clients_.size()) ? abort.lost : client.rank;
            stop_job(lost, cat(rank_name(client.rank, client.address), ": ", abort.why));
            break;
        }
        case Type::leave:
            client.left = true;
            client.connection->send(wire::encode_empty(Type::leave));
            if (std::all_of(clients_.begin(), clients_.end(), [](auto& c) { return c->left; })) {
                say("the job is done");
                next_job();
            }
            break;
        default: fail("it sent ", wire::name(message.header.type), ", which no rank may send");
    }
}

// The connection of a client of this job has ended.
void Coordinator::gone(Client& client, const std::string& why) {
    if (stage_ == Stage::gathering || client.rank < 0) {
        const int id = client.id;
        client.job = 0;
        roster_.remove(id);
        std::erase_if(clients_, [id](const ClientPtr& c) { return c->id == id; });
        if (stage_ == Stage::gathering) {
            const std::string status = cat(client.address, " has gone: ", roster_.status());
            say(status);
            broadcast(wire::encode_text(wire::Type::status, status));
        }
        return;
    }
    if (client.left) return;
    const std::string seen = watch_.last_seen(client.rank);
    stop_job(client.rank, cat(rank_name(client.rank, client.address), " was lost: ", why,
                              stage_ == Stage::forming ? ", while the ring was being formed"
                              : seen.empty()           ? ""
                                                       : ", " + seen));
}

void Coordinator::refuse(Client& client, bool again, const std::string& why) {
    if (!again) {
        say(cat(client.address, " was refused: ", why));
        broadcast(wire::encode_text(wire::Type::status, cat("refused: ", why)));
    }
    client.connection->send(wire::encode(wire::Refuse{again, why}));
    client.job = 0;
    const int id = client.id;
    for (const ClientPtr& c : clients_)
        if (c->id == id) former_.push_back(c);
    std::erase_if(clients_, [id](const ClientPtr& c) { return c->id == id; });
}

void Coordinator::seat() {
    const Roster::Seating seating = roster_.seat();
    wire::Welcome welcome = seating.welcome;
    welcome.job = job_;
    welcome.generation = generation_;
    std::vector<std::string> addresses;
    previous_.clear();
    for (int rank = 0; rank < welcome.world; ++rank) {
        addresses.push_back(welcome.peers[rank].address);
        previous_[welcome.peers[rank].host].push_back(rank);
    }
    stage_ = Stage::forming;
    watch_ = StallWatch(addresses, milliseconds(seating.stall_ms), Clock::now());
    for (const ClientPtr& client : clients_) {
        const auto at = std::find(seating.ids.begin(), seating.ids.end(), client->id);
        client->rank = welcome.rank = int(at - seating.ids.begin());
        client->connection->send(wire::encode(welcome));
    }
}

void Coordinator::stop_job(int lost, const std::string& why) {
    say(why);
    broadcast(wire::encode(wire::Abort{lost, why}));
    next_job();
}

void Coordinator::next_job() {
    for (const ClientPtr& client : clients_) former_.push_back(client);
    clients_.clear();
    job_ = fresh_number();
    ++generation_;
    stage_ = Stage::gathering;
    roster_ = Roster(options_.world, number_, previous_);
}

void Coordinator::broadcast(const std::string& message) {
    for (const ClientPtr& client : clients_)
        if (!client->left) client->connection->send(message);
}

void Coordinator::notice(const std::string& text) {
    say(text);
    broadcast(wire::encode_text(wire::Type::notice, text));
}

void Coordinator::say(const std::string& text) {
    if (options_.say_so) log_.info(text);
}

void Coordinator::say_goodbye() { broadcast(wire::encode_empty(wire::Type::leave)); }

bool Coordinator::drained() const {
    const auto done = [](const ClientPtr& client) {
        return client->connection->drained() || !client->connection->is_open();
    };
    return std::all_of(clients_.begin(), clients_.end(), done) &&
           std::all_of(former_.begin(), former_.end(), done);
}

// Twice in a heartbeat, so that one that is late by half is still counted in time.
asio::awaitable<void> Coordinator::tick() {
    const std::string beat = wire::encode(wire::Beat{});
    for (bool speak = true;; speak = !speak) {
        const auto now = Clock::now();
        for (const ClientPtr& client : std::vector(clients_)) {
            // A heartbeat behind others that wait to be written says nothing new.
            if (speak && client->connection->drained()) client->connection->send(beat);
            if (client->job == job_) check_silence(*client, now);
        }
        for (const ClientPtr& client : std::vector(former_))
            if (now - client->heard > kFormerPatience) client->connection->close();
        if (stage_ == Stage::running)
            if (const auto stalled = watch_.report(now)) notice(*stalled);
        co_await sleep_for(options_.heartbeat / 2);
    }
}

// Three missed heartbeats. If its machine does not answer either, the rank is lost. If it does,
// the process is stopped or starved: that is said, and waited for.
void Coordinator::check_silence(Client& client, Clock::time_point now) {
    const auto quiet = std::chrono::duration_cast<milliseconds>(now - client.heard);
    if (client.left || quiet < 3 * client.heartbeat) return;
    if (client.connection->machine_is_silent(3 * client.heartbeat)) {
        const std::string why =
            cat("no sign of life for ", quiet.count() / 1000, ".", quiet.count() % 1000 / 100,
                " s, and its machine does not answer");
        client.connection->close();  // its reader ends, too late to be the first cause
        gone(client, why);
    } else if (client.rank >= 0 && !client.silent) {
        client.silent = true;
        notice(cat(rank_name(client.rank, client.address), " is connected but has been silent for ",
                   quiet.count() / 1000, ".", quiet.count() % 1000 / 100,
                   " s: its process is stopped or starved; the job waits for it"));
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
        coordinator.take(std::move(socket), std::move(join));
    };
    if (listening) listening(listener.port());
    while (stop() == 0) io.run_for(milliseconds(50));
    coordinator.say_goodbye();
    for (int i = 0; i < 20 && !coordinator.drained(); ++i) io.run_for(milliseconds(50));
}

}  // namespace convoy
