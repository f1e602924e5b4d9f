#include "net/control/coordinator.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "src/base/text.h"

namespace convoy {

using std::chrono::milliseconds;

Coordinator::Coordinator(const Options& options, uint64_t job)
    : options_(options), job_(job), roster_(options.world, options.process) {}

Coordinator::Coordinator(const Options& options, const Heritage& heritage, Time now)
    : Coordinator(options, heritage.last.job) {
    now_ = formed_ = now;
    const wire::Welcome& last = heritage.last;
    generation_ = last.generation;
    ring_ = heritage.open;
    ring_.rules = last.rules;
    break_ring(-1, heritage.why);
    for (const wire::Welcome& ring : heritage.maybe_open) {
        regroup_.maybe_open(ring, now_);
        add_newcomers(ring_, ring);
    }
    const int server = rank_of(ring_, last.peers[size_t(last.server)].process);
    if (server >= 0)
        heritage.server_left ? regroup_.left(server) : regroup_.cut(server, heritage.why);
    for (const uint64_t process : heritage.dead)
        if (const int rank = rank_of(ring_, process); rank >= 0 && regroup_.waits_for(rank))
            regroup_.gone(rank, "redial refused", now_);
    if (heritage.cut_off) regroup_.doubt(now_);
    if (server >= 0) regroup_.expect_none(server);
    for (const wire::Member& peer : ring_.peers) probe(peer);
}

std::vector<Action> Coordinator::step(Time now, const Event& event) {
    now_ = now;
    std::visit([this](const auto& one) { on(one); }, event);
    return std::exchange(actions_, {});
}

void Coordinator::on(const event::Received& event) {
    const auto found = clients_.find(event.client);
    if (found == clients_.end() || found->second.role == Role::former) return;
    Client& client = found->second;
    client.heard = now_;
    try {
        handle(client, event.message);
    } catch (const Error& error) {
        actions_.push_back(action::HangUp{client.id});
        disconnected(client, error.what());
    }
}

void Coordinator::on(const event::Disconnected& event) {
    const auto found = clients_.find(event.client);
    if (found == clients_.end()) return;
    disconnected(found->second, event.why);
    clients_.erase(event.client);
}

// ---- messages of the ranks ----------------------------------------------------------------------

void Coordinator::handle(Client& client, const wire::Message& message) {
    using wire::Type;
    switch (message.header.type) {
        case Type::heartbeat: {
            const auto beat = wire::decode<wire::Heartbeat>(message.body);
            if (client.rank >= 0 && is_again())
                regroup_.heard(client.rank, now_);
            else if (client.rank >= 0)
                watch_.heard(client.rank, beat, now_);
            if (client.silent) notice(cat(client.name(), " is back"));
            client.silent = false;
            break;
        }
        case Type::ready:
            if (stage_ == Stage::forming && message.header.generation == generation_)
                handle_ready(client);
            break;
        case Type::abort: handle_abort(client, message); break;
        case Type::leave: handle_leave(client); break;
        case Type::join:
            if (client.role == Role::newcomer) break;  // it waits already
            if (!elastic() || client.rank < 0) fail("it has no rank in an elastic job");
            client.join = wire::decode<wire::Join>(message.body, message.header.generation);
            back(client);
            break;
        default: fail("it sent ", wire::name(message.header.type), ", which no rank may send");
    }
}

void Coordinator::handle_ready(Client& client) {
    client.ready = true;
    const auto members = clients(Role::member);
    if (!std::ranges::all_of(members, &Client::ready)) return;
    stage_ = Stage::running, waits_since_.reset();
    base_ = {};
    broadcast(wire::encode_empty(wire::Type::generation, generation_));
    call_for_newcomers();
}

void Coordinator::handle_abort(Client& client, const wire::Message& message) {
    const auto abort = wire::decode<wire::Abort>(message.body);
    if (client.rank < 0) fail("it gave up: ", abort.why);
    const bool names_rank = abort.lost >= 0 && abort.lost < ring_.world;
    if (abort.end == wire::End::ring) {
        if (stage_ != Stage::forming || message.header.generation != generation_ || !names_rank ||
            std::exchange(client.accuses, true))
            return;
        accusations_.push_back({client.rank, abort.lost, abort.why});
        if (abort.lost == ring_.server)  // this process
            judge(accusations_.back(), {member(abort.lost).process, /*lives=*/true});
        else
            probe(member(abort.lost));
    } else if (abort.end == wire::End::membership && elastic()) {
        own_rank_left_ |= member(client.rank).process == options_.process;
        lose({client.rank}, abort.why);
        decide();
    } else {
        // -1: the rank itself fails. Else it blames another rank, which sent it invalid data.
        stop_job(names_rank ? abort.lost : client.rank, cat(client.name(), ": ", abort.why));
    }
}

void Coordinator::handle_leave(Client& client) {
    if (client.rank < 0 || (stage_ == Stage::forming && !elastic()))
        fail("it left before the job began");
    client.left = true;
    left_.insert(member(client.rank).process);
    own_rank_left_ |= member(client.rank).process == options_.process;
    send(client, wire::encode_empty(wire::Type::leave));
    if (std::ranges::all_of(clients(Role::member), &Client::left)) {
        end_job();
    } else if (stage_ == Stage::forming) {
        break_ring(client.rank, "it left before the ring was open");
    } else if (is_again()) {
        regroup_.left(client.rank);
        decide();
    }
}

// The connection of a client has ended, or the client sent nonsense.
void Coordinator::disconnected(Client& client, const std::string& why) {
    if (client.role != Role::member) return retire(client);
    if (client.rank < 0) {
        retire(client);
        roster_.remove(client.id);
        if (stage_ == Stage::gathering && !is_again())
            tell_status(cat(client.join.address, " has left: ", roster_.status()),
                        !refused_.line(now_, client.join.address).empty());
        return;
    }
    if (client.left) return retire(client);
    if (!elastic())
        return stop_job(client.rank,
                        cat(client.name(), " was lost: ", why,
                            stage_ == Stage::forming ? ", while the ring was being formed"
                                                     : ", " + watch_.last_seen(client.rank, now_)));
    client.heard = now_;
    if (!is_again()) break_ring(client.rank, why);
    const int rank = client.rank;  // in the ring that was open
    retire(client);
    regroup_.cut(rank, why);
    probe(member(rank));
}

// Ignores the client's messages from now on. Its connection closes later, so that it can read why.
void Coordinator::retire(Client& client, bool refused) {
    client.role = Role::former;
    client.refused = refused;
    if (!refused) return;
    const auto is_refused = [](const auto& one) { return one.second.refused; };
    if (std::ranges::count_if(clients_, is_refused) <= kMostRefused) return;
    const auto oldest = std::ranges::find_if(clients_, is_refused);
    actions_.push_back(action::HangUp{oldest->first});
    oldest->second.refused = false;
}

// ---- one ring after another ---------------------------------------------------------------------

// The ring of this generation has ended, and its ranks are asked to come back.
void Coordinator::break_ring(int lost, const std::string& why) {
    const std::string cause = lost < 0 ? why : cat(name(lost), ": ", why);
    // Ranks in the middle of a step come back when it ends; ranks that open links come at once.
    if (stage_ != Stage::forming) due_ = Time::max();
    stage_ = Stage::gathering;
    broadcast(wire::encode(wire::Abort{lost, why, wire::End::ring, generation_}));
    cut_off_.reset();
    accusations_.clear();
    if (base_.peers.empty())
        regroup_ = Regroup(ring_, cause, now_);
    else
        back_to_base(cause);
    for (const Client* client : clients(Role::member)) regroup_.heard(client->rank, client->heard);
    for (const uint64_t process : left_)  // their connections may have ended
        if (const int rank = rank_of(ring_, process); rank >= 0) regroup_.left(rank);
    if (stopped_at_ && now_ - *stopped_at_ < 2 * kSilence) regroup_.doubt(now_);
}

// A ring broke before it was open. The open ring before it decides who continues, so the ranks that
// only that open ring has are asked again.
void Coordinator::back_to_base(const std::string& why) {
    const wire::Welcome broken = std::exchange(ring_, std::exchange(base_, {}));
    ring_.rules = broken.rules;
    regroup_.again(broken, why, now_);
    add_newcomers(ring_, broken);
    std::set<int> here;
    for (Client* client : clients(Role::member)) {
        client->rank = rank_of(ring_, broken.peers[size_t(client->rank)].process);
        here.insert(client->rank);
    }
    for (int rank = 0; rank < ring_.world; ++rank)
        if (!here.contains(rank)) probe(member(rank));
}

void Coordinator::back(Client& client) {
    const wire::Join& join = client.join;
    if (!is_again())
        break_ring(-1,
                   join.why.empty() ? "as its ranks agreed" : cat(client.name(), ": ", join.why));
    generation_ = std::max(generation_, join.generation);
    regroup_.back(client.rank, join);
    regroup_.heard(client.rank, now_);
    if (cut_off_) regroup_.doubt(now_);  // if one is back, others may be soon
    decide();
}

// The next ring is formed without these ranks. If the current ring still runs, it ends.
void Coordinator::lose(const std::vector<int>& ranks, const std::string& why, bool certain) {
    std::vector<uint64_t> processes;
    for (const int rank : ranks) processes.push_back(member(rank).process);
    if (!is_again()) break_ring(ranks.empty() ? -1 : ranks.front(), why);
    for (const uint64_t process : processes) {
        const int rank = rank_of(ring_, process);
        regroup_.gone(rank, why, now_, certain);
        for (Client* client : clients(Role::member))
            if (client->rank == rank) leave_behind(*client, why);
    }
}

void Coordinator::leave_behind(Client& client, const std::string& why) {
    send(client,
         wire::encode(wire::Abort{
             client.rank,
             cat(client.name(), " was left behind: ", why,
                 ", and the job continues without it; to add it again, restart it with --join"),
             wire::End::membership}));
    retire(client);
}

void Coordinator::decide() {
    if (!is_again()) return;
    if (clients(Role::member).empty()) {
        const auto waits = [&](int rank) { return regroup_.waits_for(rank); };
        if (std::ranges::none_of(std::views::iota(0, ring_.world), waits))
            return stop_job(-1, "none of its ranks is left");
        if (waits_since_ && now_ - *waits_since_ > options_.patience)
            return stop_job(-1, "none of its ranks answers");
    }
    std::string why;
    switch (regroup_.verdict(now_, why)) {
        case Regroup::Verdict::wait: break;
        case Regroup::Verdict::behind:
            end_part(cat(why, ": this process ends (--alone continues without them)"));
            break;
        case Regroup::Verdict::cut_off: wait_for_others(why); break;
        case Regroup::Verdict::form:
            if (!own_rank_left_) form_again();
            break;
    }
}

// Some of these ranks may live, behind a switch that restarts. Probes and JOINs will tell.
void Coordinator::wait_for_others(const std::string& why) {
    if (!cut_off_) {
        notice(cat(why, ": this part of the job waits for them for at most ",
                   options_.patience / std::chrono::seconds(1),
                   " s (--alone continues without them)"));
        cut_off_ = now_;
        return regroup_.doubt(now_);
    }
    if (now_ - *cut_off_ < options_.patience) return;
    end_part(cat(why, ": this part of the job ends (--alone continues without them)"));
}

// The other ranks may be gone for good, so the lowest rank of this part saves its state.
void Coordinator::end_part(const std::string& text) {
    const int lowest = regroup_.members().front();
    for (const Client* client : clients(Role::member))
        if (client->rank == lowest)
            send(*client, wire::encode(wire::Abort{-1, text, wire::End::cut_off, generation_}));
    stop_job(-1, text, wire::End::membership);
}

// Forms the ring of the ranks that are back. They keep their order.
void Coordinator::form_again() {
    cut_off_.reset();  // the others are back, and their part of forming the ring has a limit again
    base_ = std::exchange(ring_, {});
    ++generation_;
    ring_.job = job_, ring_.rules = base_.rules;
    uint32_t& silence = ring_.rules.silence_ms;
    if (now_ - formed_ > 10 * base_.rules.silence()) silence /= 2;
    if (regroup_.is_false_alarm()) silence = 2 * base_.rules.silence_ms;
    silence = std::clamp(silence, uint32_t(kSilence.count()), uint32_t(kMostSilence.count()));
    const std::vector<int> members = regroup_.members();
    const auto new_rank = [&](int rank) {
        const auto at = std::ranges::find(members, rank);
        return at == members.end() ? -1 : int(at - members.begin());
    };
    for (const int rank : members) ring_.peers.push_back(base_.peers[size_t(rank)]);
    ring_.world = int(members.size());
    for (Client* client : clients(Role::member)) {
        const int rank = new_rank(client->rank);
        if (rank >= 0)
            client->rank = rank;
        else
            client->left ? retire(*client)
                         : leave_behind(*client, cat("it gave no sign of life for ",
                                                     base_.rules.silence_ms / 1000, " s"));
    }
    std::vector<int> order;
    for (const int rank : base_.ring)
        if (new_rank(rank) >= 0) order.push_back(new_rank(rank));
    take_in_newcomers();
    while (order.size() < ring_.peers.size()) order.push_back(int(order.size()));
    ring_.why = regroup_.news();
    ring_.ring = ring_order(ring_.peers, order);
    welcome_all();
}

void Coordinator::welcome_all() {
    ring_.generation = generation_, ring_.id = fresh_id();
    ring_.server = rank_of(ring_, options_.process);
    left_.clear();
    stage_ = Stage::forming;
    formed_ = now_, due_ = now_ + kFormPatience * silence();
    watch_ = StallWatch(ring_.peers, milliseconds(ring_.rules.stall_ms), now_);
    for (Client* client : clients(Role::member)) {
        client->ready = client->accuses = false;
        wire::Welcome welcome = ring_;
        welcome.rank = client->rank;
        send(*client, wire::encode(welcome));
    }
}

// ---- does a process live? -----------------------------------------------------------------------

void Coordinator::probe(const wire::Member& member, milliseconds after) {
    if (probed_.insert(member.process).second) actions_.push_back(action::Probe{member, after});
}

void Coordinator::on(const event::ProbeResult& result) {
    probed_.erase(result.process);
    for (Client* newcomer : clients(Role::newcomer))
        if (newcomer->join.process == result.process && !newcomer->ready)
            return visited(*newcomer, result);
    const int rank = rank_of(ring_, result.process);
    if (rank < 0) return;
    for (const Accusation& accusation : accusations_)
        if (stage_ == Stage::forming && accusation.to == rank) return judge(accusation, result);
    if (!is_again() || !regroup_.waits_for(rank)) return;
    if (result.lives && regroup_.is_behind(result.generation, options_.process))
        return stop_job(-1, kLeftBehind, wire::End::membership);
    if (result.lives)
        regroup_.lives(rank, result.seeks, now_);
    else if (!result.gone.empty())
        regroup_.gone(rank, result.gone, now_);
    decide();
    if (is_again() && regroup_.waits_for(rank)) probe(member(rank), kProbePause);
}

// A rank has no link to another rank. If this process does not reach the other rank either, the
// other rank is lost. Else the higher of the two is lost, which is the newcomer if there is one.
void Coordinator::judge(const Accusation& accusation, const event::ProbeResult& result) {
    const auto [from, to, reason] = accusation;
    const int lost = result.lives ? std::max(from, to) : to;
    lose({lost}, lost == from ? reason : cat(name(from), ": ", reason),
         result.lives || !result.gone.empty());
}

// ---- the end of a job, and small parts ----------------------------------------------------------

void Coordinator::on(const event::Closing&) { broadcast(wire::encode_empty(wire::Type::leave)); }

void Coordinator::stop_job(int lost, const std::string& why, wire::End end) {
    broadcast(wire::encode(wire::Abort{lost, why, end, generation_}));
    end_job();
}

// From now on the coordinator answers each rank that asks: the job has ended.
void Coordinator::end_job() {
    for (auto& [id, client] : clients_) {
        if (client.role == Role::newcomer)
            send(client, wire::encode(wire::Abort{-1, "the job has ended", wire::End::membership}));
        if (client.role != Role::former) client.role = Role::former, client.heard = now_;
    }
    stage_ = Stage::ended;
    due_ = Time::max();
}

std::vector<Coordinator::Client*> Coordinator::clients(Role role) {
    std::vector<Client*> found;
    for (auto& [id, client] : clients_)
        if (client.role == role) found.push_back(&client);
    return found;
}

void Coordinator::broadcast(const std::string& message) {
    for (const Client* client : clients(Role::member))
        if (!client->left) send(*client, message);
}

void Coordinator::notice(const std::string& text) {
    broadcast(wire::encode_text(wire::Type::notice, text));
}

bool Coordinator::has_rank(int client) const {
    const auto found = clients_.find(client);
    return found != clients_.end() && found->second.rank >= 0;
}

}  // namespace convoy
