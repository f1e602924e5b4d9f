#include "net/membership.h"

namespace convoy {

using std::chrono::milliseconds;

namespace {
constexpr milliseconds kLastMessages{1'000};  // for them to leave this process
constexpr milliseconds kFirstCause{2'000};    // for the coordinator to name it

// By Phase, as the logs show them.
constexpr const char* kPhaseNames[] = {"",           "measuring", "data",   "forward",
                                       "backward",   "reduce",    "update", "average",
                                       "validation", "checkpoint"};
}  // namespace

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

Membership::Membership(Log& log, milliseconds heartbeat, milliseconds stall)
    : log_(log), heartbeat_(heartbeat), stall_(stall), listener_(io_, log) {
    progress_.since = heard_ = Clock::now();
    listener_.on_edge = [this](tcp::socket socket, wire::Edge edge) {
        if (incoming_edges_.size() < size_t(wire::kMaxWorld))
            incoming_edges_.push_back({std::move(socket), edge});
        news_.cancel();
    };
    listener_.on_health = [this] { return health(); };
    thread_ = std::thread([this] { io_.run(); });
}

Membership::~Membership() {
    const auto done = std::make_shared<std::promise<void>>();
    spawn(io_.get_executor(), flush(done));
    done->get_future().wait_for(2 * kLastMessages);
    io_.stop();
    thread_.join();
}

void Membership::serve(int world) {
    coordinator_ =
        std::make_unique<Coordinator>(io_, Coordinator::Options{world, heartbeat_, false}, log_);
    listener_.on_join = [this](tcp::socket socket, wire::Join join) {
        coordinator_->add(std::move(socket), std::move(join));
    };
}

void Membership::send_heartbeats(std::shared_ptr<Connection> connection) {
    spawn(io_.get_executor(), heartbeats(std::move(connection)));
}

asio::awaitable<void> Membership::heartbeats(std::shared_ptr<Connection> connection) {
    while (connection->is_open()) {
        if (connection->drained()) connection->send(wire::encode(progress_.heartbeat()));
        co_await sleep_for(heartbeat_);
        if (connection != connection_ || !connection->is_open()) continue;
        const auto quiet = std::chrono::duration_cast<milliseconds>(Clock::now() - heard_);
        if (connection->machine_is_silent(3 * heartbeat_)) {
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

void Membership::start(std::shared_ptr<Connection> connection, const wire::Welcome& welcome) {
    connection_ = std::move(connection);
    welcome_ = welcome;
    heard_ = Clock::now();
    spawn(io_.get_executor(), read_messages());
}

asio::awaitable<void> Membership::read_messages() {
    std::string why;
    try {
        for (Message message;;) {
            co_await connection_->read(message);
            heard_ = Clock::now();
            silence_logged_ = false;
            handle(message);
        }
    } catch (const std::system_error& e) {
        why = reason(e.code());
    } catch (const Error& e) {
        why = e.what();
    }
    coordinator_lost(why);
    connection_->close();
    answer_due_ = false;
    news_.cancel();
}

void Membership::handle(const Message& message) {
    using wire::Type;
    switch (message.header.type) {
        case Type::generation: ring_is_open_ = true; break;
        case Type::notice: log_.notice(wire::decode_text(message.body)); break;
        case Type::abort: {
            const wire::Abort abort = wire::decode<wire::Abort>(message.body);
            answer_due_ = false;
            status_.end(abort.why, abort.lost);
            break;
        }
        case Type::leave:
            answer_due_ = false;
            if (left_)
                status_.end("this rank has left the job", -1);
            else if (welcome_.server >= 0)
                status_.set_cause(cat(rank_name(welcome_.server, connection_->remote()),
                                      " has left the job, and the coordinator with it"));
            else
                status_.end(cat("the coordinator at ", connection_->remote(), " was stopped"), -1);
            break;
        case Type::heartbeat: stalled_ = wire::decode<wire::Heartbeat>(message.body).phase; break;
        default: break;  // STATUS: read_messages() has noted the time
    }
    news_.cancel();
}

wire::Health Membership::health() const {
    if (!connection_) return {true, cat("joining: ", joining_)};
    const wire::Heartbeat beat = progress_.heartbeat();
    const std::string me =
        cat("rank ", welcome_.rank, " of ", welcome_.world,
            fmt::format(", step {}, {} for {:.1f} s", beat.step,
                        beat.phase.empty() ? "starting" : "in " + beat.phase, beat.phase_ms / 1e3));
    if (left_) return {true, cat(me, "; it has left the job")};
    try {
        status_.throw_if_ended();
    } catch (const Error& cause) {
        return {false, cat(me, "; the job has ended: ", cause.what())};
    }
    if (!stalled_.empty()) return {false, cat(me, "; no progress: ", stalled_)};
    const auto quiet = Clock::now() - heard_;
    if (quiet > std::max(stall_, 3 * std::max(heartbeat_, milliseconds(1'000))))
        return {false, cat(me, "; the coordinator at ", connection_->remote(),
                           " has been silent for ", quiet / std::chrono::seconds(1), " s")};
    return {true, ring_is_open_ ? me : cat(me, "; waiting for the connections between the ranks")};
}

void Membership::coordinator_lost(const std::string& why) {
    if (status_.cause_known()) return;  // it has left in order
    if (welcome_.server >= 0)
        status_.end(cat(rank_name(welcome_.server, welcome_.peers[welcome_.server].address),
                        ", which served the coordinator, was lost: ", why),
                    welcome_.server);
    else
        status_.end(cat("the coordinator at ", connection_->remote(), " was lost: ", why), -1);
}

void Membership::send(std::string message) {
    asio::post(io_, [this, message = std::move(message)]() mutable {
        if (connection_) connection_->send(std::move(message));
    });
}

void Membership::send_abort(int lost, const std::string& why) noexcept {
    asio::post(io_, [this, message = wire::encode(wire::Abort{lost, why})]() mutable {
        answer_due_ = connection_->is_open();
        connection_->send(std::move(message));
    });
}

void Membership::abort(int lost, const std::string& why) noexcept {
    if (status_.ended()) return;
    send_abort(lost, why);
    end_job(lost, why);
}

void Membership::report(int lost, const std::string& why) noexcept {
    if (status_.ended()) return;
    send_abort(lost, why);
    status_.wait_for_cause(kFirstCause);
    end_job(lost, why);
}

void Membership::end_job(int lost, const std::string& why) noexcept {
    const std::string me = rank_name(welcome_.rank, welcome_.peers[welcome_.rank].address);
    status_.end(cat(me, ": ", why), lost >= 0 ? lost : welcome_.rank);
}

void Membership::leave() noexcept {
    if (status_.ended()) return;
    asio::post(io_, [this] {
        left_ = true;
        answer_due_ = connection_->is_open();
        connection_->send(wire::encode_empty(wire::Type::leave));
    });
    status_.wait_for_cause(kLastMessages);
}

asio::awaitable<void> Membership::flush(std::shared_ptr<std::promise<void>> done) {
    if (coordinator_ && left_) coordinator_->send_leave();
    const auto waiting = [this] {
        return answer_due_ || (connection_ && connection_->is_open() && !connection_->drained()) ||
               (coordinator_ && !coordinator_->drained());
    };
    for (const auto end = Clock::now() + kLastMessages; waiting() && Clock::now() < end;)
        co_await sleep_for(milliseconds(2));
    done->set_value();
}

asio::awaitable<bool> Membership::wait_for_news(milliseconds patience) {
    std::error_code cancelled;
    news_.expires_after(patience);
    co_await news_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
    co_return bool(cancelled);
}

}  // namespace convoy
