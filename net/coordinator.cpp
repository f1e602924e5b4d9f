#include "net/coordinator.h"

#include <sys/resource.h>

#include <algorithm>
#include <random>

#include "net/communicator.h"

namespace convoy {

using std::chrono::milliseconds;

namespace {

// Of this process's files some are for those who ask at the port, and for images.
size_t most_seats() {
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    return std::max(files.rlim_cur / 2, files.rlim_cur - std::min<rlim_t>(files.rlim_cur, 256));
}

}  // namespace

milliseconds Coordinator::round_trip{0};

uint64_t fresh_id() {
    std::random_device device;
    return uint64_t(device()) << 32 | device() | 1;
}

std::string offer_message(const wire::Welcome& job, const std::string& what) {
    if (!job.rules.elastic)
        return wire::encode(wire::Refuse{
            false,
            "the job takes in nobody: its rank 0 says --elastic off, or --shards mine or peers"});
    return wire::encode(
        wire::Offer{job.job, job.server, job.rules, job.peers, what, job.generation});
}

Coordinator::Coordinator(asio::io_context& io, Options options, LogQueue& log)
    : io_(io),
      options_(options),
      log_(log),
      id_(fresh_id()),
      job_(fresh_id()),
      roster_(options.world, id_, {}) {
    spawn(io_.get_executor(), tick());
}

Coordinator::Coordinator(asio::io_context& io, Options options, LogQueue& log, const Rings& rings,
                         const std::string& why)
    : Coordinator(io, options, log) {
    const wire::Welcome& last = rings.last;
    job_ = last.job;
    generation_ = last.generation;
    welcome_ = rings.open;
    pause_ = options.pause;
    break_ring(-1, why);
    for (const wire::Welcome& ring : rings.attempts) {
        regroup_.attempted(ring, Clock::now());
        add_newcomers(welcome_, ring);
    }
    const int server =
        last.server < 0 ? -1 : rank_of(welcome_, last.peers[size_t(last.server)].process);
    if (server >= 0) options.server_left ? regroup_.left(server) : regroup_.cut(server, why);
    for (const uint64_t process : options.dead)
        if (const int rank = rank_of(welcome_, process); rank >= 0 && regroup_.waits_for(rank))
            regroup_.gone(rank, "redial refused", Clock::now());
    if (options.cut_off) regroup_.doubt(Clock::now());
    if (server >= 0) regroup_.expect_none(server);
    for (int rank = 0; rank < welcome_.world; ++rank)
        spawn(io_.get_executor(), probe(rank, broken_));
}

void Coordinator::add(Socket socket, wire::Join join) {
    auto client = std::make_shared<Client>();
    client->id = next_id_++;
    client->job = job_;
    client->join = std::move(join);
    client->heard = Clock::now();
    client->connection = std::make_shared<Connection>(std::move(socket));
    clients_.push_back(client);
    spawn(io_.get_executor(), serve(client));

    if (stage_ != Stage::gathering) {
        refuse(*client, true,
               cat("a job of ", watch_.world(), " ranks is running there",
                   elastic() ? ", which --join would enter" : ""));
        return;
    }
    if (clients_.size() > most_seats())
        return refuse(*client, true,
                      cat(most_seats(), " ranks are here, the most that `ulimit -n` there allows"));
    // The same rank, or process, at the same port of the same host: the earlier one has ended,
    // though its connection has not closed here yet.
    for (const ClientPtr& c : std::vector(clients_))
        if (c != client && c->join.rank == client->join.rank &&
            (c->join.rank >= 0 || c->join.process == client->join.process) &&
            c->join.host == client->join.host && c->join.address == client->join.address) {
            c->connection->close();
            disconnected(*c, "it joined again");
        }
    const std::string news = cat(client->name(), " of ", client->join.host, " has joined");
    for (const Roster::Refusal& refusal : roster_.add(client->id, client->join))
        for (const ClientPtr& other : std::vector(clients_))
            if (other->id == refusal.id) refuse(*other, false, refusal.why);
    if (client->refused) return;
    const std::string status = roster_.status();
    if (!tell_status(news, status))
        client->connection->send(wire::encode_text(wire::Type::status, status));
    if (roster_.complete()) assign_ranks();
}

asio::awaitable<void> Coordinator::serve(ClientPtr client) {
    std::string why;
    try {
        for (Message message;;) {
            co_await client->connection->read(
                message, client->rank < 0 ? wire::kGuestLimit : wire::kControlLimit);
            if (client->job == job_) client->heard = Clock::now();
            handle(*client, message);
        }
    } catch (const std::system_error& e) {
        why = reason(e.code());
    } catch (const Error& e) {
        why = e.what();
    }
    client->connection->close();
    std::erase(former_, client);
    std::erase(newcomers_, client);
    if (client->job == job_) disconnected(*client, why);
}

void Coordinator::handle(Client& client, const Message& message) {
    using wire::Type;
    if (client.job != job_) return;  // of an earlier job
    switch (message.header.type) {
        case Type::heartbeat: {
            const auto beat = wire::decode<wire::Heartbeat>(message.body);
            if (client.rank >= 0 && stage_ == Stage::regrouping)
                regroup_.heard(client.rank, client.heard);
            else if (client.rank >= 0)
                watch_.heard(client.rank, beat, client.heard);
            if (client.silent) notice(cat(client.name(), " is back"));
            client.silent = false;
            break;
        }
        case Type::ready:
            if (stage_ != Stage::forming || message.header.generation != generation_) break;
            client.ready = true;
            if (std::ranges::all_of(clients_, [](auto& c) { return c->ready; })) {
                stage_ = Stage::running, waits_since_.reset();
                base_ = {};
                log(cat("all edges are open: the job of ", clients_.size(), " ranks runs"));
                broadcast(wire::encode_empty(Type::generation, generation_));
                call_for_newcomers();
            }
            break;
        case Type::abort: {
            const auto abort = wire::decode<wire::Abort>(message.body);
            if (client.rank < 0) fail("it gave up: ", abort.why);
            if (abort.end == wire::End::ring) {
                const uint32_t generation = message.header.generation;
                if (stage_ == Stage::forming && generation == generation_ && abort.lost >= 0 &&
                    abort.lost < welcome_.world && !std::exchange(client.accuses, true))
                    spawn(io_.get_executor(),
                          judge(client.rank, abort.lost, generation, abort.why));
                break;
            }
            if (abort.end == wire::End::membership && elastic()) {
                own_rank_failed_ |= welcome_.peers[size_t(client.rank)].process == options_.process;
                log(cat(client.name(), " fails and leaves: ", abort.why));
                lose({client.rank}, abort.why);
                decide();
                break;
            }
            // -1: the rank itself fails. Else it blames another, which sent it invalid data.
            const int lost =
                abort.lost >= 0 && abort.lost < welcome_.world ? abort.lost : client.rank;
            stop_job(lost, cat(client.name(), ": ", abort.why));
            break;
        }
        case Type::leave:
            if (client.rank < 0 || (stage_ == Stage::forming && !elastic()))
                fail("it left before the job began");
            client.left = true;
            client.connection->send(wire::encode_empty(Type::leave));
            if (std::ranges::all_of(clients_, [](auto& c) { return c->left; })) {
                log("the job is done");
                next_job();
            } else if (stage_ == Stage::forming) {
                break_ring(client.rank, "it left before the ring was open");
            } else if (stage_ == Stage::regrouping) {
                regroup_.left(client.rank);
                decide();
            }
            break;
        case Type::rejoin:
            if (!elastic() || client.rank < 0) fail("it has no rank in an elastic job");
            back(client, wire::decode<wire::Rejoin>(message.body, message.header.generation));
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
        tell_status("", cat(client.join.address, " has left: ", roster_.status()));
        return;
    }
    if (client.left) return;
    if (elastic()) {
        client.heard = Clock::now();
        if (stage_ != Stage::regrouping) break_ring(client.rank, why);
        const int rank = client.rank;  // in the ring that was open
        remove(client);
        regroup_.cut(rank, why);
        return spawn(io_.get_executor(), probe(rank, broken_));
    }
    stop_job(client.rank,
             cat(client.name(), " was lost: ", why,
                 stage_ == Stage::forming ? ", while the ring was being formed"
                                          : ", " + watch_.last_seen(client.rank, Clock::now())));
}

void Coordinator::refuse(Client& client, bool again, const std::string& reason) {
    const std::string why = reason.substr(0, kRefusalText);
    if (!again) {
        const std::string line =
            refused_.line(Clock::now(), cat(client.join.address, " was refused: ", why));
        if (!line.empty()) {
            log(line);
            broadcast(wire::encode_text(wire::Type::status, cat("refused: ", why)));
        }
    }
    client.connection->send(wire::encode(wire::Refuse{again, why}));
    turn_out(*std::ranges::find(clients_, client.id, [](const ClientPtr& c) { return c->id; }));
    remove(client);
}

// Hangs up on a refused client when it has had time to read why, or when many have come after it.
void Coordinator::turn_out(ClientPtr client) {
    client->refused = true;
    former_.push_back(std::move(client));
    if (std::ranges::count(former_, true, &Client::refused) <= kMostRefused) return;
    const auto oldest = std::ranges::find(former_, true, &Client::refused);
    (*oldest)->connection->close();
    former_.erase(oldest);
}

void Coordinator::remove(Client& client) {
    client.job = 0;
    std::erase_if(clients_, [&](const ClientPtr& c) { return c.get() == &client; });
}

void Coordinator::assign_ranks() {
    const Roster::Assignment assignment = roster_.assign_ranks();
    welcome_ = assignment.welcome;
    welcome_.job = job_;
    for (const ClientPtr& client : clients_)
        client->rank = int(std::ranges::find(assignment.ids, client->id) - assignment.ids.begin());
    welcome_all();
}

void Coordinator::welcome_all() {
    welcome_.generation = generation_, welcome_.id = fresh_id();
    std::vector<std::string> addresses;
    previous_.clear();
    for (int rank = 0; rank < welcome_.world; ++rank) {
        addresses.push_back(welcome_.peers[rank].address);
        previous_[welcome_.peers[rank].host].push_back(rank);
    }
    stage_ = Stage::forming;
    due_ = Clock::now() + form_patience;
    watch_ = StallWatch(addresses, milliseconds(welcome_.rules.stall_ms), Clock::now());
    for (const ClientPtr& client : clients_) {
        wire::Welcome welcome = welcome_;
        welcome.rank = client->rank;
        client->ready = client->accuses = false;
        client->connection->send(wire::encode(welcome));
    }
}

std::vector<std::string> Coordinator::names() const {
    std::vector<std::string> names;
    for (int rank = 0; rank < welcome_.world; ++rank)
        names.push_back(rank_name(rank, welcome_.peers[size_t(rank)].address));
    return names;
}

void Coordinator::stop_job(int lost, const std::string& why, wire::End end) {
    log(why);
    broadcast(wire::encode(wire::Abort{lost, why, end, generation_}));
    next_job();
}

void Coordinator::next_job() {
    for (const ClientPtr& client : newcomers_)
        client->connection->send(
            wire::encode(wire::Abort{-1, "the job has ended", wire::End::membership}));
    clients_.insert(clients_.end(), newcomers_.begin(), newcomers_.end());
    for (const ClientPtr& client : former_)
        if (client->connection->drained()) client->connection->close();
    former_.insert(former_.end(), clients_.begin(), clients_.end());
    clients_.clear(), newcomers_.clear();
    job_ = fresh_id();
    ++generation_;
    base_ = {};
    stage_ = Stage::gathering;
    roster_ = Roster(options_.world, id_, previous_);
}

// Who is here and who is missing, to all of them; where strangers come and go, later.
bool Coordinator::tell_status(const std::string& news, const std::string& status) {
    is_told_ = !told_.line(Clock::now(), status).empty();
    if (!is_told_) return false;
    if (!news.empty()) log(news);
    log(status);
    broadcast(wire::encode_text(wire::Type::status, status));
    return true;
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

std::string Coordinator::offer() const {
    if (stage_ == Stage::gathering)
        return wire::encode(wire::Refuse{true, cat(wire::kNoJobYet, ": ", roster_.status())});
    return offer_message(welcome_, "");
}

wire::Health Coordinator::health() const {
    if (stage_ == Stage::gathering) return {true, cat("coordinator: ", roster_.status())};
    const std::string stall = watch_.stall(Clock::now());
    return {true, cat("coordinator: a job of ", watch_.world(), " ranks ",
                      stage_ == Stage::forming      ? "opens its connections"
                      : stage_ == Stage::regrouping ? "forms a new ring, "
                                                    : "runs",
                      stage_ == Stage::regrouping ? regroup_.waiting_text() : "",
                      stall.empty() ? "" : "; " + stall)};
}

bool Coordinator::drained() const {
    const auto done = [](const ClientPtr& client) {
        return client->connection->drained() || !client->connection->is_open();
    };
    return std::ranges::all_of(clients_, done) && std::ranges::all_of(former_, done);
}

void serve_coordinator(const std::string& host, uint16_t port, int world, Log& its_log,
                       const std::function<int()>& stop,
                       const std::function<void(uint16_t)>& listening, const Access& access) {
    LogQueue log(its_log);
    asio::io_context io(1);
    Listener listener(io, log, access);
    try {
        if (host.empty() || host == "0.0.0.0" || host == "::") {
            listener.open_everywhere(port);
        } else {
            auto found = asio::co_spawn(io, resolve(host, port), asio::use_future);
            while (stop() == 0 && io.run_for(milliseconds(50)) > 0) {}
            io.restart();
            if (stop() != 0) return;
            for (const tcp::endpoint& endpoint : found.get())
                listener.open(endpoint.address(), listener.is_open() ? listener.port() : port);
        }
    } catch (const std::system_error& e) {
        fail("the coordinator cannot listen at ", host.empty() ? "every address" : host, ", port ",
             port, ": ", reason(e.code()));
    }
    Coordinator coordinator(io, {world, milliseconds(1'000), true, 0, {}, {}, listener.tls()}, log);
    listener.on_join = [&](Socket socket, wire::Join join) {
        coordinator.add(std::move(socket), std::move(join));
    };
    listener.on_rejoin = [&](Socket socket, const wire::Rejoin& rejoin) {
        coordinator.add_again(std::move(socket), rejoin);
    };
    listener.on_health = [&] { return coordinator.health(); };
    listener.tell_if_exposed();
    listener.on_offer = [&] { return coordinator.offer(); };
    if (listening) listening(listener.port());
    while (stop() == 0) io.run_for(milliseconds(50));
    coordinator.send_leave();
    for (int i = 0; i < 20 && !coordinator.drained(); ++i) io.run_for(milliseconds(50));
}

}  // namespace convoy
