// coordinator_time.cpp — the part of the coordinator that time drives: heartbeats, and for whom it
// waits how long.
#include <algorithm>

#include "net/communicator.h"
#include "net/coordinator.h"

namespace convoy {

using std::chrono::milliseconds;

// Runs twice in a heartbeat interval, so that lost ranks are found in time.
asio::awaitable<void> Coordinator::tick() {
    for (bool send = true;; send = !send) {
        const auto now = Clock::now();
        if (pause_.note(now)) {
            for (const ClientPtr& client : clients_) client->heard = now;
            due_ = std::max(due_, now + form_patience);
            waits_since_.reset();
            if (stage_ == Stage::regrouping) regroup_.doubt(now);
        }
        wire::Heartbeat heartbeat;
        if (stage_ == Stage::running) heartbeat.phase = watch_.stall(now).substr(0, kStallText);
        const std::string beat = wire::encode(heartbeat);
        heartbeat.done = 1;
        const std::string late_beat = wire::encode(heartbeat);
        const std::vector<int> late =
            heartbeat.phase.empty() ? std::vector<int>() : watch_.waited_for(now);
        for (const ClientPtr& client : std::vector(clients_)) {
            // A heartbeat after messages that wait to be written adds nothing.
            const bool is_late = std::ranges::find(late, client->rank) != late.end();
            if (send && client->connection->drained())
                client->connection->send(is_late ? late_beat : beat);
            if (client->job == job_) check_silence(*client, now);
        }
        for (const ClientPtr& client : newcomers_)
            if (send && client->connection->drained()) client->connection->send(beat);
        for (const ClientPtr& client : std::vector(former_))
            if (now - client->heard > (client->refused ? kRefusedPatience : kFormerPatience))
                client->connection->close();
        if (stage_ == Stage::running)
            if (const auto stalled = watch_.report(now)) notice(*stalled);
        if (stage_ == Stage::gathering && !is_told_) tell_status("", roster_.status());
        give_up(now);
        hurry(now);
        if (stage_ == Stage::regrouping) decide();
        tell_wait(now);
        co_await sleep_for(options_.heartbeat / 2);
    }
}

// All who are connected hear what the new ring waits for, ever less often.
void Coordinator::tell_wait(Clock::time_point now) {
    if (stage_ != Stage::regrouping || cut_off_) return waits_since_.reset();
    if (!waits_since_) waits_since_ = now, tell_wait_ = kTellWait;
    if (now - *waits_since_ < tell_wait_) return;
    notice(fmt::format("no new ring for {} s: {}", tell_wait_ / std::chrono::seconds(1),
                       regroup_.waiting_text()));
    tell_wait_ *= 2;
}

// CONVOY_GIVE_UP: no rank is waited for without end, though it lives.
void Coordinator::give_up(Clock::time_point now) {
    const milliseconds patience(welcome_.rules.give_up_ms), waited = watch_.longest_wait(now);
    if (stage_ != Stage::running || patience.count() == 0 || waited < patience) return;
    const std::string why = fmt::format("no progress for {:.1f} s, CONVOY_GIVE_UP={:g}",
                                        waited.count() / 1e3, patience.count() / 1e3);
    const std::vector<int> late = watch_.waited_for(now);
    if (!elastic() || late.size() == clients_.size()) {
        const int lost = late.empty() ? -1 : late.front();
        return stop_job(lost, lost < 0 ? why : cat(names()[size_t(lost)], ": ", why));
    }
    lose(late, why);
}

// No rank that forms a ring is waited for without end: a stranger may have taken its place.
void Coordinator::hurry(Clock::time_point now) {
    if (now < due_ || stage_ == Stage::gathering || stage_ == Stage::running) return;
    if (cut_off_) return;  // then the others are not late
    due_ = Clock::time_point::max();
    std::vector<int> late, away;
    for (const ClientPtr& client : clients_)
        if (stage_ == Stage::forming ? !client->ready : regroup_.waits_for(client->rank))
            late.push_back(client->rank);
    const std::string why = "it did not do its part of forming the ring in time";
    if (!elastic()) return stop_job(late.front(), cat(names()[size_t(late.front())], ": ", why));
    const bool for_all = stage_ == Stage::regrouping && welcome_.rules.give_up_ms > 0;
    lose(late, why);
    for (int rank = 0; rank < welcome_.world && for_all; ++rank)  // that are not connected
        if (regroup_.waits_for(rank)) away.push_back(rank);
    lose(away, why, /*certain=*/false);
}

// Handles three missed heartbeats. If the machine does not answer either, the rank is lost. If it
// does, its process is stopped or starved: the log says so, and the job waits.
void Coordinator::check_silence(Client& client, Clock::time_point now) {
    if (client.left || now - client.heard < 3 * milliseconds(client.join.heartbeat_ms)) return;
    const std::string quiet =
        fmt::format("{:.1f} s", std::chrono::duration<double>(now - client.heard).count());
    if (elastic()) {
        if (stage_ != Stage::regrouping && client.rank >= 0 && now - client.heard > kSilence)
            break_ring(client.rank, cat("no sign of life for ", quiet));
        return;
    }
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

}  // namespace convoy
