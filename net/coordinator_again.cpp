// coordinator_again.cpp — the part of the coordinator that makes one ring out of another: ranks
// were lost, have left, or come as newcomers. Who goes on is decided in regroup.h.
//
//   break_ring ─ ABORT to all ─► add_again, back: REJOIN of each ─► decide ─► form_again ─ WELCOME
//     probe: does the process of a rank that is not connected live?
#include <algorithm>
#include <ranges>

#include "net/communicator.h"
#include "net/coordinator.h"
#include "net/health.h"
#include "net/rendezvous.h"

namespace convoy {

using std::chrono::milliseconds;

namespace {

const char* const kLeftBehind =
    "the job went on without this rank, which was not heard of for too long; started again with "
    "--join it takes part again";

}  // namespace

// From here on the ring of this generation is no more, and its ranks are asked to come back.
void Coordinator::break_ring(int lost, const std::string& why) {
    const std::string cause = lost < 0 ? why : cat(names()[size_t(lost)], ": ", why);
    log(cat("ring ", generation_, " ends: ", cause));
    // Who computes comes back when the step is done, who opened edges at once.
    if (stage_ != Stage::forming) due_ = Clock::time_point::max();
    stage_ = Stage::regrouping;
    ++broken_;
    broadcast(wire::encode(wire::Abort{lost, why, wire::End::ring, generation_}));
    cut_off_.reset();
    if (base_.peers.empty())
        regroup_ = Regroup(welcome_, cause, Clock::now());
    else
        back_to_base(cause);
    for (const ClientPtr& client : clients_) {
        regroup_.heard(client->rank, client->heard);
        if (client->left) regroup_.left(client->rank);
    }
    if (pause_.lately(Clock::now())) regroup_.doubt(Clock::now());
}

// A ring that was not open yet has broken: who goes on is decided by the one before. Those whom
// that had and this one had not are asked again.
void Coordinator::back_to_base(const std::string& why) {
    const wire::Welcome ring = std::exchange(welcome_, std::exchange(base_, {}));
    regroup_.failed(ring, why, Clock::now());
    add_newcomers(welcome_, ring);
    for (const ClientPtr& client : clients_)
        client->rank = rank_of(welcome_, ring.peers[size_t(client->rank)].process);
    for (int rank = 0; rank < welcome_.world; ++rank)
        if (regroup_.waits_for(rank) &&
            std::ranges::count(clients_, rank, [](auto& c) { return c->rank; }) == 0)
            spawn(io_.get_executor(), probe(rank, broken_));
}

// The ring ends, or has ended, and the next one does without these ranks.
void Coordinator::lose(const std::vector<int>& ranks, const std::string& why, bool certain) {
    std::vector<uint64_t> processes;
    for (const int rank : ranks) processes.push_back(welcome_.peers[size_t(rank)].process);
    if (stage_ != Stage::regrouping) break_ring(ranks.empty() ? -1 : ranks.front(), why);
    for (const uint64_t process : processes) {
        const int rank = rank_of(welcome_, process);
        regroup_.gone(rank, why, Clock::now(), certain);
        for (const ClientPtr& client : std::vector(clients_))
            if (client->rank == rank) leave_behind(*client, why);
    }
}

void Coordinator::add_again(Socket socket, const wire::Rejoin& rejoin) {
    auto client = std::make_shared<Client>();
    client->id = next_id_++;
    client->heard = Clock::now();
    client->connection = std::make_shared<Connection>(std::move(socket));
    const int rank = rank_of(welcome_, rejoin.process);
    // It was silent, and the ring that is formed without it may fail: it is to ask again.
    const bool is_left =
        rank < 0 && stage_ == Stage::forming && rank_of(base_, rejoin.process) >= 0;
    const bool is_new = rank < 0 && !is_left && !rejoin.address.empty();
    const bool is_full = is_new && (newcomers_.size() >= kMostNewcomers ||
                                    welcome_.world + int(newcomers_.size()) >= wire::kMaxWorld);
    const bool is_anew = stage_ == Stage::gathering && generation_ == 1;  // in a killed one's place
    if (is_anew || !elastic() || rejoin.job != job_ || is_full || (!is_new && rank < 0)) {
        std::string why = kLeftBehind;
        if (is_new) why = "the job that it asked for has ended";
        if (is_full)
            why = cat("the job has ", welcome_.world, " ranks and ", newcomers_.size(),
                      " newcomers: it takes no more now");
        if (is_anew) why = wire::kNoJobYet;
        client->connection->send(wire::encode(wire::Refuse{is_anew || is_left, why}));
        spawn(io_.get_executor(), serve(client));
        return turn_out(std::move(client));
    }
    if (is_new) {
        for (const ClientPtr& c : std::vector(newcomers_))  // by a connection that broke
            if (c->join.process == rejoin.process)
                c->connection->close(), std::erase(newcomers_, c);
        client->job = job_;
        client->join.host = rejoin.host, client->join.address = rejoin.address;
        client->join.process = rejoin.process;
        newcomers_.push_back(client);
        client->connection->send(wire::encode_text(
            wire::Type::status, "the ranks take this one in after the step that they do now"));
        spawn(io_.get_executor(), serve(client));
        return spawn(io_.get_executor(), visit(client));
    }
    const wire::Member& member = welcome_.peers[size_t(rank)];
    client->rank = rank;
    client->job = job_;
    client->join.host = member.host, client->join.address = member.address;
    for (const ClientPtr& c : std::vector(clients_))
        if (c->rank == client->rank) c->connection->close(), remove(*c);
    clients_.push_back(client);
    client->connection->send(wire::encode_text(wire::Type::status, "back in the job"));
    spawn(io_.get_executor(), serve(client));
    back(*client, rejoin);
}

void Coordinator::back(Client& client, const wire::Rejoin& rejoin) {
    const bool agreed = rejoin.why.empty(), planned = agreed && rejoin.step >= 0;
    if (stage_ != Stage::regrouping)
        break_ring(-1, agreed ? "as its ranks agreed" : cat(client.name(), ": ", rejoin.why));
    generation_ = std::max(generation_, rejoin.generation);
    regroup_.back(client.rank, rejoin.step, planned, rejoin.known);
    regroup_.heard(client.rank, Clock::now());
    if (cut_off_) regroup_.doubt(Clock::now());  // where one is back, others may be soon
    const milliseconds give_up(welcome_.rules.give_up_ms);
    if (give_up.count() > 0) due_ = std::min(due_, Clock::now() + give_up);
    decide();
}

void Coordinator::decide() {
    std::string why;
    if (pause_.note(Clock::now())) regroup_.doubt(Clock::now());
    const auto waits = [&](int rank) { return regroup_.waits_for(rank); };
    if (clients_.empty() && std::ranges::none_of(std::views::iota(0, welcome_.world), waits))
        return stop_job(-1, "none of its ranks is left");
    if (clients_.empty() && waits_since_ && Clock::now() - *waits_since_ > options_.patience)
        return stop_job(-1, "none of its ranks answers");
    const Regroup::Verdict verdict = regroup_.verdict(Clock::now(), why);
    if (verdict == Regroup::Verdict::behind)
        return end_part(cat(why, ": this process ends; --alone would let it go on"));
    if (verdict == Regroup::Verdict::cut_off) wait_for_others(why);
    if (verdict == Regroup::Verdict::form && !own_rank_left()) form_again();
}

// Some may live, behind a switch that starts again: probes and REJOINs will tell.
void Coordinator::wait_for_others(const std::string& why) {
    const auto now = Clock::now();
    if (!cut_off_) {
        notice(cat(why, ": this part of the job waits for them, for ",
                   options_.patience / std::chrono::seconds(1),
                   " s at most; --alone would let it go on"));
        cut_off_ = now;
        return regroup_.doubt(now);
    }
    if (now - *cut_off_ < options_.patience) return;
    end_part(cat(why, ": this part of the job ends; --alone would let it go on"));
}

// The others may be gone for good: the lowest rank saves what it has.
void Coordinator::end_part(const std::string& text) {
    const int lowest = regroup_.members().front();
    for (const ClientPtr& client : clients_)
        if (client->rank == lowest)
            client->connection->send(
                wire::encode(wire::Abort{-1, text, wire::End::cut_off, generation_}));
    stop_job(-1, text, wire::End::membership);
}

void Coordinator::retire() {
    for (const auto* list : {&clients_, &newcomers_})
        for (const ClientPtr& client : *list) client->connection->close();
    clients_.clear(), newcomers_.clear();
    job_ = fresh_id();
    stage_ = Stage::gathering;
}

// Then this process ends soon, and the next rank serves the coordinator.
bool Coordinator::own_rank_left() const {
    return own_rank_failed_ || std::ranges::any_of(clients_, [&](const ClientPtr& c) {
               return options_.process != 0 && c->left &&
                      welcome_.peers[size_t(c->rank)].process == options_.process;
           });
}

// The ring of the ranks that are back, in the order that they had.
void Coordinator::form_again() {
    base_ = std::move(welcome_);
    const wire::Welcome& last = base_;
    ++generation_;
    welcome_ = {};
    welcome_.job = job_, welcome_.rules = last.rules;
    const std::vector<int> members = regroup_.members();
    welcome_.world = int(members.size());
    for (int rank : members) {
        welcome_.peers.push_back(last.peers[size_t(rank)]);
        if (options_.process != 0 && last.peers[size_t(rank)].process == options_.process)
            welcome_.server = int(welcome_.peers.size()) - 1;
    }
    for (const ClientPtr& client : std::vector(clients_)) {
        const auto at = std::ranges::find(members, client->rank);
        if (at == members.end())
            client->left        ? former_.push_back(client),
                remove(*client) : leave_behind(*client, "it gave no sign of life for 3 s");
        else
            client->rank = int(at - members.begin());
    }
    std::vector<int> order;
    for (const int rank : last.ring)
        if (const auto at = std::ranges::find(members, rank); at != members.end())
            order.push_back(int(at - members.begin()));
    take_in_newcomers();
    while (order.size() < welcome_.peers.size()) order.push_back(int(order.size()));
    welcome_.why = regroup_.news();
    welcome_.ring = ring_order(welcome_.peers, order);
    log(cat("ring ", generation_, ": ", welcome_.why));
    welcome_all();
}

// A newcomer that cannot be reached must not cost a ring.
asio::awaitable<void> Coordinator::visit(ClientPtr newcomer) {
    const wire::Join& join = newcomer->join;
    const wire::Member member{join.host, join.address, join.process};
    std::string why;
    for (int attempt = 0; attempt < kVisits && !newcomer->ready; ++attempt) {
        if (attempt > 0) co_await sleep_for(kVisitPause);
        const PeerHealth answer = co_await ask_health(member, options_.first, options_.tls);
        newcomer->ready = answer.health.process == member.process, why = answer.why;
    }
    if (newcomer->ready) co_return call_for_newcomers();
    if (std::erase(newcomers_, newcomer) == 0) co_return;
    newcomer->job = 0;
    newcomer->connection->send(wire::encode(wire::Abort{
        -1,
        cat("the coordinator does not reach this rank at ", join.address, why.empty() ? "" : ": ",
            why, "; is a firewall in the way, or --port or --advertise wrong?"),
        wire::End::membership}));
    turn_out(newcomer);
}

// Those that were reached and are heard of get the ranks after the others'.
void Coordinator::take_in_newcomers() {
    for (const ClientPtr& client : std::exchange(newcomers_, {})) {
        if (!client->ready) {
            newcomers_.push_back(client);
            continue;
        }
        if (Clock::now() - client->heard > kSilence) {
            client->connection->close();
            continue;
        }
        client->rank = welcome_.world++;
        welcome_.peers.push_back({client->join.host, client->join.address, client->join.process});
        regroup_.joins(client->name());
        clients_.push_back(client);
    }
}

void Coordinator::call_for_newcomers() {
    if (stage_ == Stage::running && std::ranges::any_of(newcomers_, &Client::ready))
        broadcast(wire::encode_empty(wire::Type::newcomer, generation_));
}

void Coordinator::leave_behind(Client& client, const std::string& why) {
    client.connection->send(wire::encode(wire::Abort{
        client.rank,
        cat(client.name(), " was left behind: ", why,
            ", and the job goes on without it; started again with --join it takes part again"),
        wire::End::membership}));
    former_.push_back(*std::ranges::find(clients_, client.id, [](auto& c) { return c->id; }));
    remove(client);
}

// Rank `from` has no edge to rank `to`, because of `why`. One that this process does not reach
// either is lost; else the higher of the two, which is the newcomer where there is one.
asio::awaitable<void> Coordinator::judge(int from, int to, uint32_t generation, std::string why) {
    const wire::Member member = welcome_.peers[size_t(to)];
    PeerHealth answer;
    if (to != welcome_.server) answer = co_await ask_health(member, options_.first, options_.tls);
    const bool answers = to == welcome_.server || answer.health.process == member.process;
    if (stage_ != Stage::forming || generation_ != generation) co_return;
    const int lost = answers ? std::max(from, to) : to;
    if (lost != from) why = cat(names()[size_t(from)], ": ", why);
    lose({lost}, why, answers || !why_gone(member, answer).empty());
}

// Whether the process of a rank that is not connected lives, asked at its own port.
asio::awaitable<void> Coordinator::probe(int rank, int broken) {
    const wire::Member member = welcome_.peers[size_t(rank)];
    const auto matters = [&] {
        return stage_ == Stage::regrouping && broken_ == broken && regroup_.waits_for(rank);
    };
    if (round_trip.count() > 0) co_await sleep_for(round_trip);
    for (; matters(); co_await sleep_for(kProbePause)) {
        const PeerHealth answer = co_await ask_health(member, options_.first, options_.tls);
        const wire::Health& health = answer.health;
        if (!matters()) co_return;
        if (pause_.note(Clock::now())) regroup_.doubt(Clock::now());
        if (health.process == member.process &&
            regroup_.is_behind(health.ring, health.generation, options_.process))
            stop_job(-1, kLeftBehind, wire::End::membership);
        else if (health.process == member.process)
            regroup_.heard(rank, Clock::now());
        else if (const std::string gone = why_gone(member, answer); !gone.empty())
            regroup_.gone(rank, gone, Clock::now());
        if (stage_ == Stage::regrouping) decide();
    }
}

}  // namespace convoy
