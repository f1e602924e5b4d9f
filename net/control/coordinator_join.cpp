// coordinator_join.cpp — how the coordinator answers JOIN from the ranks of a new job, from ranks
// that lost their ring, and from newcomers.
#include "net/control/coordinator.h"

#include <algorithm>

#include "src/base/text.h"

namespace convoy {

void Coordinator::on(const event::Joined& event) {
    Client& client = clients_[event.client];
    client.id = event.client, client.join = event.join, client.heard = now_;
    event.join.job == 0 ? join_first(client) : join_again(client);
}

void Coordinator::join_first(Client& client) {
    if (stage_ == Stage::ended) return refuse(client, true, "the job there has ended");
    if (stage_ != Stage::gathering || is_again())
        return refuse(client, true,
                      cat("a job of ", ring_.world, " ranks is running there",
                          elastic() ? "; --join adds a rank to it" : ""));
    const auto members = clients(Role::member);
    // The same rank, or process, at the same port of the same host: the earlier one has ended,
    // though its connection has not closed here yet.
    const wire::Join& join = client.join;
    for (Client* c : members)
        if (c != &client && c->join.rank == join.rank &&
            (join.rank >= 0 || c->join.process == join.process) && c->join.host == join.host &&
            c->join.address == join.address) {
            actions_.push_back(action::HangUp{c->id});
            disconnected(*c, "it joined again");
        }
    for (const Roster::Refusal& refusal : roster_.add(client.id, join))
        refuse(clients_.at(refusal.id), false, refusal.why);
    if (client.refused) return;
    const std::string status = roster_.status();
    if (!tell_status(status, roster_.complete()))
        send(client, wire::encode_text(wire::Type::status, status));
    const auto is_here = [this](const Client* c) { return c->join.process == options_.process; };
    if (!roster_.complete() || std::ranges::none_of(clients(Role::member), is_here)) return;
    const Roster::Assignment assignment = roster_.assign_ranks();
    ring_ = assignment.welcome;
    ring_.job = job_;
    for (int rank = 0; rank < ring_.world; ++rank) {
        Client& one = clients_.at(assignment.ids[size_t(rank)]);
        one.rank = one.number = rank;
    }
    welcome_all();
}

void Coordinator::refuse(Client& client, bool again, const std::string& reason) {
    const std::string why = reason.substr(0, kRefusalText);
    if (!again && !refused_.line(now_, why).empty())
        broadcast(wire::encode_text(wire::Type::status, cat("refused: ", why)));
    send(client, wire::encode(wire::Refuse{again, why}));
    retire(client, /*refused=*/true);
}

// Tells all ranks which ranks are missing, with `now` at once, else at most once per kTellMissing.
bool Coordinator::tell_status(const std::string& status, bool now) {
    is_told_ = now || !told_at_ || now_ - *told_at_ >= kTellMissing;
    if (is_told_) broadcast(wire::encode_text(wire::Type::status, status)), told_at_ = now_;
    return is_told_;
}

// Answers JOIN of a rank that lost its ring, or of a newcomer.
void Coordinator::join_again(Client& client) {
    const wire::Join& join = client.join;
    client.rank = rank_of(ring_, join.process);
    if (client.rank >= 0) client.number = member(client.rank).number;
    const auto newcomers = clients(Role::newcomer);
    // The rank was dropped for silence. It must try again, as the ring without it may fail to form.
    const bool is_left =
        client.rank < 0 && stage_ == Stage::forming && rank_of(base_, join.process) >= 0;
    const bool is_new = client.rank < 0 && !is_left && join.newcomer;
    const bool is_full = is_new && (newcomers.size() >= kMostNewcomers ||
                                    ring_.world + int(newcomers.size()) >= wire::kMaxWorld);
    // This process has restarted and has no ring: the coordinator that the rank looks for is dead.
    const bool is_anew = ring_.world == 0;
    if (is_anew || !elastic() || join.job != job_ || stage_ == Stage::ended || is_full ||
        (client.rank < 0 && !is_new)) {
        const std::string why = is_anew ? cat("no job trains there yet: ", roster_.status())
                                : is_full
                                    ? cat("the job has ", ring_.world, " ranks and ",
                                          newcomers.size(), " newcomers, the most at one time")
                                : is_new ? std::string("the job that it asked for has ended")
                                         : kLeftBehind;
        send(client, wire::encode(wire::Refuse{is_anew || is_left, why, is_anew}));
        return retire(client, /*refused=*/true);
    }
    for (Client* c : is_new ? newcomers : clients(Role::member))  // by a connection that broke
        if (c != &client && (is_new ? c->join.process == join.process : c->rank == client.rank)) {
            actions_.push_back(action::HangUp{c->id});
            retire(*c);
        }
    send(client, wire::encode_text(wire::Type::status,
                                   is_new ? "the ranks add this rank after their current step"
                                          : "back in the job"));
    if (!is_new) return back(client);
    client.role = Role::newcomer;
    probed_.insert(join.process);
    actions_.push_back(action::Probe{{join.host, join.address, join.process}, {}});
}

// The newcomers that were reached and give signs of life get the highest ranks.
void Coordinator::take_in_newcomers() {
    for (Client* client : clients(Role::newcomer)) {
        if (!client->ready) continue;
        if (now_ - client->heard > silence()) {
            actions_.push_back(action::HangUp{client->id});
            continue;
        }
        client->role = Role::member;
        client->rank = ring_.world++;
        // Numbers ascend, and none of a rank that the last ring lost is used again.
        client->number = std::max(base_.peers.back().number, ring_.peers.back().number) + 1;
        const wire::Join& join = client->join;
        ring_.peers.push_back({join.host, join.address, join.process, client->number});
        regroup_.joins(client->name());
    }
}

void Coordinator::call_for_newcomers() {
    if (stage_ == Stage::running && std::ranges::any_of(clients(Role::newcomer), &Client::ready))
        broadcast(wire::encode_empty(wire::Type::newcomer, generation_));
}

// A newcomer that cannot be reached must not break a ring.
void Coordinator::visited(Client& newcomer, const event::ProbeResult& result) {
    const wire::Join& join = newcomer.join;
    if (result.lives) {
        newcomer.ready = true;
        return call_for_newcomers();
    }
    if (++newcomer.visits < kVisits)
        return probe({join.host, join.address, join.process}, kVisitPause);
    send(newcomer, wire::encode(wire::Abort{
                       -1,
                       cat("the coordinator does not reach this rank at ", join.address,
                           result.why.empty() ? "" : ": ", result.why,
                           "; is a firewall in the way, or --port or --advertise wrong?"),
                       wire::End::membership}));
    retire(newcomer, /*refused=*/true);
}

}  // namespace convoy
