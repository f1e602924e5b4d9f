#include "net/membership.h"

#include <future>

namespace convoy {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {
constexpr milliseconds kFarewell{1'000};   // for the last messages to leave this process
constexpr milliseconds kFirstWord{2'000};  // for the coordinator to name the first cause
}  // namespace

// By Phase, as the logs show them.
constexpr const char* kPhaseNames[] = {"",           "measuring", "data",   "forward",
                                       "backward",   "reduce",    "update", "average",
                                       "validation", "checkpoint"};

wire::Beat Progress::beat() const {
    wire::Beat beat;
    beat.step = step;
    beat.phase = kPhaseNames[size_t(phase.load())];
    beat.phase_ms =
        uint32_t(std::chrono::duration_cast<milliseconds>(Clock::now() - since.load()).count());
    beat.done = done;  // before `begun`, so that done <= begun
    beat.begun = begun;
    beat.moved = moved;
    return beat;
}

Membership::Membership(Log& log, milliseconds heartbeat)
    : log_(log), heartbeat_(heartbeat), listener_(io_, log) {
    progress_.since = heard_ = Clock::now();
    listener_.on_edge = [this](tcp::socket socket, wire::Edge edge, uint32_t generation) {
        if (incoming_edges_.size() < size_t(wire::kMaxWorld))
            incoming_edges_.push_back({std::move(socket), edge, generation});
        news_.cancel();
    };
    thread_ = std::thread([this] { io_.run(); });
}

Membership::~Membership() {
    run_and_wait(2 * kFarewell, drain());
    io_.stop();
    thread_.join();
}

void Membership::serve(int world) {
    coordinator_ =
        std::make_unique<Coordinator>(io_, Coordinator::Options{world, heartbeat_, false}, log_);
    listener_.on_join = [this](tcp::socket socket, wire::Join join) {
        coordinator_->take(std::move(socket), std::move(join));
    };
}

void Membership::keep_alive(std::shared_ptr<Connection> connection) {
    spawn(io_.get_executor(), beat(std::move(connection)));
}

asio::awaitable<void> Membership::beat(std::shared_ptr<Connection> connection) {
    while (connection->is_open()) {
        if (connection->drained()) connection->send(wire::encode(progress_.beat()));
        co_await sleep_for(heartbeat_);
        if (connection != connection_ || !connection->is_open()) continue;
        const auto quiet = std::chrono::duration_cast<milliseconds>(Clock::now() - heard_);
        if (connection->machine_is_silent(3 * heartbeat_)) {
            coordinator_lost("no sign of life, and its machine does not answer");
            connection->close();
        } else if (quiet > 3 * std::max(heartbeat_, milliseconds(1'000)) && !silence_said_) {
            silence_said_ = true;
            log_.notice("no word from the coordinator at ", connection->remote(), " for ",
                        quiet.count() / 1000,
                        " s, though its machine answers: its process is stopped or starved");
        }
    }
}

void Membership::attend(std::shared_ptr<Connection> connection, const wire::Welcome& welcome) {
    connection_ = std::move(connection);
    welcome_ = welcome;
    heard_ = Clock::now();
    spawn(io_.get_executor(), listen_to_coordinator());
}

asio::awaitable<void> Membership::listen_to_coordinator() {
    std::string why;
    try {
        for (Message message;;) {
            co_await connection_->read(message);
            heard_ = Clock::now();
            silence_said_ = false;
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
        case Type::generation: stands_ = true; break;
        case Type::notice: log_.notice(wire::decode_text(message.body)); break;
        case Type::abort: {
            const wire::Abort abort = wire::decode_abort(message.body);
            answer_due_ = false;
            status_.end(abort.why, abort.lost);
            break;
        }
        case Type::leave:
            answer_due_ = false;
            if (left_)
                status_.end("this rank has left the job", -1);
            else if (welcome_.server >= 0)
                status_.prepare(cat(rank_name(welcome_.server, connection_->remote()),
                                    " has left the job, and the coordinator with it"));
            else
                status_.end(cat("the coordinator at ", connection_->remote(), " was stopped"), -1);
            break;
        default: break;  // HEARTBEAT and STATUS: to have been heard is all
    }
    news_.cancel();
}

void Membership::coordinator_lost(const std::string& why) {
    if (status_.prepared()) return;  // it has said good-bye
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
    end_here(lost, why);
}

void Membership::report(int lost, const std::string& why) noexcept {
    if (status_.ended()) return;
    send_abort(lost, why);
    status_.wait(kFirstWord);
    end_here(lost, why);
}

void Membership::end_here(int lost, const std::string& why) noexcept {
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
    status_.wait(kFarewell);
}

asio::awaitable<void> Membership::drain() {
    if (coordinator_ && left_) coordinator_->say_goodbye();
    const auto deadline = Clock::now() + kFarewell;
    while (Clock::now() < deadline &&
           (answer_due_ || (connection_ && connection_->is_open() && !connection_->drained()) ||
            (coordinator_ && !coordinator_->drained())))
        co_await sleep_for(milliseconds(2));
}

asio::awaitable<bool> Membership::wait_for_news(milliseconds patience) {
    std::error_code cancelled;
    news_.expires_after(patience);
    co_await news_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
    co_return bool(cancelled);
}

bool Membership::run_and_wait(milliseconds patience, asio::awaitable<void> work) noexcept {
    auto done = std::make_shared<std::promise<void>>();
    std::future<void> finished = done->get_future();
    asio::co_spawn(io_, std::move(work),
                   [done](std::exception_ptr) { done->set_value(); });  // late is as good as done
    return finished.wait_for(patience) == std::future_status::ready;
}

}  // namespace convoy
