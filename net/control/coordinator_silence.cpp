// coordinator_silence.cpp — what the coordinator does as time passes: it sends heartbeats, finds
// ranks that are silent or late, and says what the job waits for.
#include "net/control/coordinator.h"

#include <algorithm>
#include <utility>

#include "src/base/text.h"

namespace convoy {

using std::chrono::milliseconds;

void Coordinator::on(const event::Tick& tick) {
    for (auto& [id, client] : clients_) client.heard = std::min(now_, client.heard + tick.late);
    if (is_again()) regroup_.excuse(tick.late);
    send_beat_ = !send_beat_;  // a tick is half a heartbeat, so that lost ranks are found in time
    wire::Heartbeat beat;
    if (stage_ == Stage::running) beat.phase = watch_.stall(now_).substr(0, kStallText);
    const std::string usual = wire::encode(beat);
    beat.done = 1;
    const std::string late_beat = wire::encode(beat);
    const auto late = beat.phase.empty() ? std::vector<int>() : watch_.waited_for(now_);
    for (Client* client : clients(Role::member)) {
        const bool is_late = std::ranges::find(late, client->rank) != late.end();
        if (send_beat_)
            actions_.push_back(action::Send{client->id, is_late ? late_beat : usual, true});
        if (client->role == Role::member) check_silence(*client);
    }
    for (Client* client : clients(Role::newcomer))
        if (send_beat_) actions_.push_back(action::Send{client->id, usual, true});
    for (const Client* client : clients(Role::former))
        if (now_ - client->heard > (client->refused ? kRefusedPatience : kFormerPatience))
            actions_.push_back(action::HangUp{client->id});
    if (stage_ == Stage::running)
        if (const auto stalled = watch_.report(now_)) notice(*stalled);
    if (stage_ == Stage::gathering && !is_again() && !is_told_) tell_status(roster_.status());
    hurry();
    decide();
    tell_wait();
}

void Coordinator::on(const event::Stopped&) {
    stopped_at_ = now_;
    for (auto& [id, client] : clients_) client.heard = now_;
    if (due_ != Time::max()) due_ = std::max(due_, now_ + kFormPatience * silence());
    waits_since_.reset();
    if (is_again()) regroup_.doubt(now_);
}

// All connected ranks hear what the new ring waits for, less and less often.
void Coordinator::tell_wait() {
    if (!is_again() || cut_off_) return waits_since_.reset();
    if (!waits_since_) waits_since_ = now_, tell_wait_ = kTellWait;
    if (now_ - *waits_since_ < tell_wait_) return;
    notice(fmt::format("no new ring for {} s: {}", tell_wait_ / std::chrono::seconds(1),
                       regroup_.waiting_text()));
    tell_wait_ *= 2;
}

// No rank may block a forming ring forever: a stranger may hold its place.
void Coordinator::hurry() {
    if (now_ < due_ || cut_off_) return;
    if (stage_ == Stage::running || (stage_ == Stage::gathering && !is_again())) return;
    due_ = Time::max();
    std::vector<int> late;
    for (const Client* client : clients(Role::member))
        if (stage_ == Stage::forming ? !client->ready : regroup_.waits_for(client->rank))
            late.push_back(client->rank);
    const std::string why = "it did not do its part of forming the ring in time";
    if (!elastic()) return stop_job(late.front(), cat(name(late.front()), ": ", why));
    lose(late, why);
}

// Handles three missed heartbeats. An elastic job loses a silent rank. Any other job loses it only
// if its machine does not answer either; else the log says so, and the job waits.
void Coordinator::check_silence(Client& client) {
    const milliseconds patience = 3 * milliseconds(client.join.heartbeat_ms);
    if (client.left || now_ - client.heard < patience) return;
    const std::string quiet = fmt::format("{:.1f} s", seconds_between(client.heard, now_));
    if (elastic()) {
        if (!is_again() && client.rank >= 0 && now_ - client.heard > silence())
            break_ring(client.rank, cat("no sign of life for ", quiet));
        return;
    }
    actions_.push_back(action::CheckMachine{client.id, patience});
    if (client.rank >= 0 && !std::exchange(client.silent, true))
        notice(cat(client.name(), " is connected but has been silent for ", quiet,
                   ": its process is stopped or starved; the job waits for it"));
}

}  // namespace convoy
