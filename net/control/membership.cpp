#include "net/control/membership.h"

#include <ranges>

#include "net/control/addresses.h"
#include "net/control/ask_health.h"

namespace convoy {

using std::chrono::milliseconds;

// By Phase, as the logs show them.
static constexpr const char* kPhaseNames[] = {"",           "measuring", "data",   "forward",
                                              "backward",   "reduce",    "update", "average",
                                              "validation", "checkpoint"};

wire::Heartbeat Progress::heartbeat() const {
    wire::Heartbeat beat;
    beat.step = step;
    beat.phase = kPhaseNames[size_t(phase.load())];
    beat.phase_ms = uint32_t(1e3 * seconds_since(since));
    beat.done = done;  // before `begun`, so that done <= begun
    beat.begun = begun;
    beat.moved = moved;
    return beat;
}

Membership::Membership(Log& log, const JoinOptions& options)
    : log_(log),
      heartbeat_(options.heartbeat),
      stall_(options.stall),
      patience_(options.join_timeout),
      listener_(io_, log_, options.access) {
    heard();
    progress_.since = moved_at_ = heard_;
    listener_.on_link = [this](Socket socket, wire::Link link) {
        // More come from ranks that dial again, or from strangers.
        const bool is_wanted = state_ != RankState::kOpen || link.is_alongside(welcome_);
        const size_t most = kMostWaitingLinks + 2 * welcome_.peers.size();
        if (!is_wanted || incoming_links_.size() >= most)
            return listener_.log_refusal(cat("refused a link from rank ", link.from));
        incoming_links_.push_back({std::move(socket), link});
        news_.cancel();
    };
    listener_.on_health = [this] { return health(); };
    listener_.on_offer = [this] { return offer_message(); };
    listener_.is_calm = [this] {
        return state_ == RankState::kOpen && connected() && !status_.ended();
    };
    listener_.coordinator_at = [this] {
        if (!connection_ || welcome_.peers.empty()) return std::string();
        return cat(", which is at ", welcome_.peers[size_t(welcome_.server)].address);
    };
    spawn(io_.get_executor(), watch_clock());
    thread_ = std::thread([this] { io_.run(); });
}

Membership::~Membership() {
    asio::co_spawn(io_, flush(), asio::use_future).wait_for(2 * kLastMessages);
    io_.stop();
    thread_.join();
}

void Membership::serve(Coordinator coordinator) {
    coordinator_ = std::make_shared<CoordinatorShell>(io_, std::move(coordinator), first_);
    coordinator_->start(listener_);
}

void Membership::serve(int world) {
    serve(Coordinator({world, fresh_id(), process_, heartbeat_, patience_}));
}

void Membership::succeed(const std::string& why) {
    if (coordinator_ || (is_newcomer_ && !open_)) return;
    const auto now = Clock::now();
    note_pause();
    // A rank that has waited for long may have been with a part of the job that was cut off.
    const bool cut_off = now - in_ring_ > kSilence || pause_.lately(now);
    const wire::Welcome& base = open_                 ? *open_
                                : maybe_open_.empty() ? welcome_
                                                      : maybe_open_.front();
    serve(Coordinator({0, fresh_id(), process_, heartbeat_, patience_},
                      {welcome_, base, maybe_open_, why, server_left_, cut_off, dead_}, now));
}

void Membership::retire() {
    if (coordinator_) coordinator_->close();
    coordinator_.reset();
}

void Membership::note_pause() {
    if (pause_.note(Clock::now())) heard();
}

void Membership::heard() {
    heard_ = Clock::now();
    silent_at_ = heard_ + silence();
}

// Runs also while there is no coordinator.
asio::awaitable<void> Membership::watch_clock() {
    for (;; co_await sleep_for(kSilence / 6)) note_pause(), end_on_signal();
}

// A signal counts at the end of a step. If this rank waits for others too long, it ends without
// them: in a step for longer than ever before, or while a ring is formed. The lowest rank saves.
void Membership::end_on_signal() {
    const auto now = Clock::now();
    const uint64_t moved = progress_.moved + progress_.done;
    if (moved != moved_ || progress_.begun == progress_.done) {
        longest_wait_ = std::max(longest_wait_, now - moved_at_);
        moved_ = moved, moved_at_ = now;
    }
    const int signal = stop_ ? stop_() : 0;
    if (signal != 0 && !signal_at_) signal_at_ = now;
    const bool waits =
        state_ != RankState::kOpen || now - moved_at_ > kSignalPatience + 2 * longest_wait_;
    if (!signal_at_ || now - *signal_at_ < kSignalPatience || !waits) return;
    status_.end(cat("stopped by signal ", signal, " while it waited for other ranks"), -1,
                wire::End::cut_off);
    news_.cancel();
}

asio::awaitable<void> Membership::heartbeats(std::shared_ptr<Connection> connection) {
    while (connection->is_open()) {
        if (connection->drained()) connection->send(wire::encode(progress_.heartbeat()));
        const auto slept = Clock::now();
        co_await sleep_for(heartbeat_);
        const auto late = Clock::now() - slept - heartbeat_;
        if (late > heartbeat_ / kLateness) silent_at_ += late;
        if (connection != connection_ || !connection->is_open()) continue;
        const auto now = Clock::now();
        note_pause();
        const auto quiet = std::chrono::duration_cast<milliseconds>(now - heard_);
        if (welcome_.rules.elastic && coordinator_is_silent()) {
            coordinator_lost(
                fmt::format("no sign of life for {:.1f} s", seconds_between(heard_, now)));
            connection->close();
        } else if (connection->machine_is_silent(3 * heartbeat_)) {
            coordinator_lost("no sign of life, and its machine does not answer");
            connection->close();
        } else if (quiet > 3 * std::max(heartbeat_, milliseconds(1'000)) && !silence_logged_) {
            silence_logged_ = true;
            log_.notice("the coordinator at ", connection->remote(), " has been silent for ",
                        quiet.count() / 1000,
                        " s, though its machine answers: its process is stopped or starved");
        }
    }
}

void Membership::enter(const wire::Welcome& welcome) {
    welcome_ = welcome;
    state_ = RankState::kConnecting, server_left_ = false;
    if (welcome.server != welcome.rank) retire();  // another coordinator serves this ring
}

void Membership::use(std::shared_ptr<Connection> connection, const Message& first) {
    if (connection_) connection_->close();
    connection_ = std::move(connection);
    heard();
    if (has_no_ring()) first_ = connection_->remote_endpoint(), refusal_ = {true, ""};
    spawn(io_.get_executor(), heartbeats(connection_));
    spawn(io_.get_executor(), read_messages(connection_));
    handle(first);
}

void Membership::visit(const wire::Welcome& job, const tcp::endpoint& first) {
    is_newcomer_ = true;
    welcome_ = job, first_ = first;
    heard();
}

void Membership::offer(std::string what) {
    is_newcomer_ = false;
    asio::post(io_, [this, what = std::move(what)]() mutable { what_ = std::move(what); });
}

std::string Membership::leave_ring() {
    std::string why = status_.begin_again();
    newcomer_waits_ = false;
    state_ = RankState::kJoining;
    // A newcomer has prepared its data, and has heard nothing meanwhile.
    if (welcome_.ring.empty()) heard();
    in_ring_ = heard_;
    if (open_ && open_->id != welcome_.id) back_to_base();
    incoming_links_.clear();
    return why;
}

// This rank never saw its newest ring open, so it falls back to the last one that it did: any rank
// of that one may serve the next coordinator.
void Membership::back_to_base() {
    const wire::Welcome ring = std::exchange(welcome_, *open_);
    add_newcomers(welcome_, ring);
    welcome_.generation = ring.generation, welcome_.id = ring.id, welcome_.rules = ring.rules;
    welcome_.rank = rank_of(welcome_, process_);
    welcome_.server = rank_of(welcome_, ring.peers[size_t(ring.server)].process);
}

wire::Join Membership::join_message(int64_t step, const std::string& why) const {
    const wire::Member& me = welcome_.peers[size_t(welcome_.rank)];
    wire::Join join;
    join.rank = welcome_.rank, join.world = welcome_.world;
    join.host = me.host, join.address = me.address, join.process = process_;
    join.heartbeat_ms = uint32_t(heartbeat_.count());
    join.job = welcome_.job, join.generation = welcome_.generation;
    join.step = step, join.why = why;
    join.newcomer = is_newcomer_;
    if (open_) join.open = open_->id, join.open_generation = open_->generation;
    size_t members = 0;
    for (const wire::Welcome& ring : maybe_open_ | std::views::reverse)
        if ((members += ring.peers.size()) <= wire::kMostAttempted)
            join.maybe_open.push_back(ring_id(ring));
    return join;
}

void Membership::ready() {
    maybe_open_.push_back(welcome_);
    if (state_ == RankState::kConnecting) state_ = RankState::kReady;
    send(wire::encode_empty(wire::Type::ready, welcome_.generation));
}

asio::awaitable<void> Membership::read_messages(std::shared_ptr<Connection> connection) {
    std::string why;
    try {
        for (Message message;;) {
            co_await connection->read(message);
            if (connection != connection_) co_return;
            heard();
            silence_logged_ = false;
            handle(message);
        }
    } catch (const std::system_error& e) {
        why = reason(e.code());
    } catch (const Error& e) {
        why = e.what();
    }
    connection->close();
    if (connection != connection_) co_return;
    coordinator_lost(why);
    answer_due_ = false;
    news_.cancel();
    co_await note_deaths();
}

// The coordinator's process has hung up. This rank may compute for longer than the other ranks
// wait. So it notes now which processes die: these have never been in a ring without this rank.
asio::awaitable<void> Membership::note_deaths() {
    const wire::Welcome ring = welcome_;
    const auto heard = heard_;
    for (co_await sleep_for(kSilence / 6); const wire::Member& peer : ring.peers) {
        if (!ring.rules.elastic || state_ == RankState::kJoining ||
            Clock::now() - heard >= kSilence)
            co_return;
        if (peer.process == process_) continue;
        const event::ProbeResult result = co_await probe_process(peer, first_, tls());
        if (state_ != RankState::kJoining && !result.gone.empty()) note_death(peer.process, heard);
    }
}

void Membership::note_death(uint64_t process, Clock::time_point in_touch) {
    const auto now = Clock::now();
    note_pause();
    if (now - in_touch < kSilence && !pause_.lately(now)) dead_.insert(process);
}

void Membership::handle(const Message& message) {
    using wire::Type;
    switch (message.header.type) {
        case Type::generation:
            if (maybe_open_.empty() || message.header.generation != maybe_open_.back().generation)
                break;
            if (state_ == RankState::kReady) state_ = RankState::kOpen;
            open_ = maybe_open_.back(), maybe_open_.clear(), dead_.clear();
            break;
        case Type::newcomer:
            newcomer_waits_ =
                state_ != RankState::kJoining && message.header.generation == welcome_.generation;
            break;
        case Type::notice:  // once per job
            if (coordinator_) log_.notice(wire::decode_text(message.body));
            break;
        case Type::abort:
            handle_abort(wire::decode<wire::Abort>(message.body, message.header.generation));
            break;
        case Type::welcome:
            if (state_ == RankState::kJoining)
                enter(wire::decode<wire::Welcome>(message.body, message.header.generation));
            break;
        case Type::leave: handle_leave(); break;
        case Type::status:
            joining_ = wire::decode_text(message.body);
            if (coordinator_ && has_no_ring()) log_.info(joining_);  // once per job
            break;
        case Type::refuse:
            if (!has_no_ring()) break;
            refusal_ = wire::decode<wire::Refuse>(message.body);
            connection_->close();
            break;
        case Type::heartbeat: {
            const bool stood = !stalled_.empty();
            const auto beat = wire::decode<wire::Heartbeat>(message.body);
            stalled_ = beat.phase, is_late_ = beat.done > 0;
            std::lock_guard lock(stall_mutex_);
            if (!stood && !stalled_.empty() && on_stall_) on_stall_(stalled_);
            break;
        }
        default: break;
    }
    news_.cancel();
}

void Membership::handle_abort(const wire::Abort& abort) {
    answer_due_ = false;
    if (abort.end != wire::End::ring) return status_.end(abort.why, abort.lost, abort.end);
    // If this coordinator ends a ring before it has sent GENERATION, the ring was never open.
    if (state_ != RankState::kJoining && !maybe_open_.empty() &&
        maybe_open_.back().generation == abort.generation)
        maybe_open_.pop_back();
    ring_broken(abort.generation, abort.why, abort.lost);
}

void Membership::handle_leave() {
    answer_due_ = false;
    if (state_ == RankState::kLeft)
        status_.end("this rank has left the job", -1);
    else if (server_left_ = true; state_ != RankState::kJoining)  // or a later ring gets this cause
        status_.set_cause(cat(rank_name(welcome_.peers[size_t(welcome_.server)]),
                              " has left the job, and the coordinator with it"));
}

// Only the first cause counts, and no cause of an earlier ring.
void Membership::ring_broken(uint32_t generation, const std::string& why, int lost) noexcept {
    if (state_ == RankState::kJoining || generation != welcome_.generation) return;
    status_.end(why, lost, wire::End::ring);
    news_.cancel();
}

std::string Membership::offer_message() const {
    if (what_.empty() || status_.job_has_ended())
        return wire::encode(wire::Refuse{true, "no job trains there now", true});
    if (!welcome_.rules.elastic)
        return wire::encode(wire::Refuse{false,
                                         "no rank can join this job: its rank 0 says --elastic "
                                         "off, --shards mine, --sync pipeline "
                                         "or --schedule range"});
    return wire::encode(wire::Offer{welcome_.job, welcome_.server, welcome_.rules, welcome_.peers,
                                    what_, welcome_.generation});
}

wire::Health Membership::health() const {
    wire::Health health = state_of_health();
    health.process = process_, health.seeks = state_ == RankState::kJoining;
    if (open_) health.generation = open_->generation;
    if (health.text.size() > kHealthText) health.text = health.text.substr(0, kHealthText) + " …";
    return health;
}

wire::Health Membership::state_of_health() const {
    if (!connection_ || has_no_ring()) return {true, cat("joining: ", joining_)};
    const wire::Heartbeat beat = progress_.heartbeat();
    const std::string me =
        cat("rank ", welcome_.rank, " of ", welcome_.world,
            fmt::format(", step {}, {} for {:.1f} s", beat.step,
                        beat.phase.empty() ? "starting" : "in " + beat.phase, beat.phase_ms / 1e3));
    if (state_ == RankState::kLeft) return {true, cat(me, "; it has left the job")};
    try {
        status_.throw_if_ended();
    } catch (const RingBroken& cause) {
        return {true, cat(me, "; a new ring is to be formed: ", cause.what())};
    } catch (const Error& cause) {
        return {false, cat(me, "; the job has ended: ", cause.what())};
    }
    if (!stalled_.empty()) return {!is_late_, cat(me, "; no progress: ", stalled_)};
    const auto quiet = Clock::now() - heard_;
    if (quiet > std::max(stall_, 3 * std::max(heartbeat_, milliseconds(1'000))))
        return {true, cat(me, "; the coordinator at ", connection_->remote(),
                          " has been silent for ", quiet / std::chrono::seconds(1), " s")};
    if (state_ == RankState::kJoining)
        return {true, cat(me, "; the coordinator decides which ranks continue")};
    const bool is_open = state_ == RankState::kOpen;
    return {true, is_open ? me : cat(me, "; waiting for the connections between the ranks")};
}

void Membership::coordinator_lost(const std::string& why) {
    if (has_no_ring()) {
        if (refusal_.why.empty()) refusal_.why = cat(why, " by ", connection_->remote());
        return;
    }
    if (status_.cause_known()) return;  // it has left in order
    if (welcome_.rules.elastic) return ring_broken(welcome_.generation, why, welcome_.server);
    status_.end(cat(rank_name(welcome_.peers[size_t(welcome_.server)]),
                    ", which served the coordinator, was lost: ", why),
                welcome_.server);
}

void Membership::send(std::string message) {
    asio::post(io_, [this, message = std::move(message)]() mutable {
        if (connection_) connection_->send(std::move(message));
    });
}

// Sends a message that the coordinator answers before this process may end. Runs at once if on the
// control thread: a posted call could run after another thread's later post, such as flush().
void Membership::send_last(std::string message) noexcept {
    asio::dispatch(io_, [this, message = std::move(message)]() mutable {
        answer_due_ = connection_->is_open();
        connection_->send(std::move(message));
    });
}

void Membership::abort(const std::string& why) noexcept {
    if (status_.ended()) return;
    if (!is_newcomer_) send_last(wire::encode(wire::Abort{-1, why}));
    end_job(-1, why);
}

void Membership::report(int lost, const std::string& why) noexcept {
    if (status_.ended()) return;
    if (is_newcomer_) return end_job(-1, why);  // the others see its connections end
    send_last(wire::encode(wire::Abort{lost, why}));
    status_.wait_for_cause(kFirstCause);
    end_job(lost, why);
}

void Membership::fail_alone(const std::string& why) noexcept {
    if (!welcome_.rules.elastic || is_newcomer_) return report(-1, why);
    if (status_.job_has_ended()) return;
    send_last(wire::encode(wire::Abort{-1, why, wire::End::membership, welcome_.generation}));
    end_job(-1, why);
}

void Membership::link_lost(const std::string& why) noexcept {
    // The cause is known soon if a rank died or an error ends the job, but not if only this link
    // broke.
    status_.wait_for_cause(welcome_.rules.elastic ? kFirstCause / 4 : kFirstCause);
    if (!welcome_.rules.elastic) return report(-1, why);  // does nothing if the job has ended
    asio::post(io_, asio::use_future([&] { ring_broken(welcome_.generation, why, -1); })).get();
}

void Membership::end_job(int lost, const std::string& why) noexcept {
    const std::string me = rank_name(welcome_.peers[size_t(welcome_.rank)]);
    status_.end(cat(me, ": ", why), lost >= 0 ? lost : welcome_.rank);
}

void Membership::leave() noexcept {
    if (status_.job_has_ended()) return;
    asio::post(io_, [this] {
        state_ = RankState::kLeft;
        send_last(wire::encode_empty(wire::Type::leave));
    });
    status_.wait_for_cause(kLastMessages);
}

asio::awaitable<void> Membership::flush() {
    if (coordinator_ && state_ == RankState::kLeft) coordinator_->step(event::Closing{});
    const auto waiting = [this] {
        return answer_due_ || (connection_ && connection_->is_open() && !connection_->drained()) ||
               (coordinator_ && !coordinator_->drained());
    };
    for (const auto end = Clock::now() + kLastMessages; waiting() && Clock::now() < end;)
        co_await sleep_for(milliseconds(2));
}

asio::awaitable<bool> Membership::wait_for_news(milliseconds patience) {
    std::error_code cancelled;
    news_.expires_after(patience);
    co_await news_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
    co_return bool(cancelled);
}

}  // namespace convoy
