// answers.h — what a rank answers others over net/fetch.h while it trains, and what it has asked.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "net/communicator.h"

namespace convoy {

// Answers requests by `answer`, on threads of the fetcher, as long as it lives. Requests may come
// before and after that time.
class Answers {
 public:
    // Opens the communicator's fetcher, in a world of several ranks; a barrier makes sure that the
    // others answer.
    Answers(Communicator& communicator, ServeBytes answer) : mutex(gate_->mutex) {
        if (communicator.world() > 1)
            fetcher = &communicator.open_fetcher(
                [gate = gate_, answer = std::move(answer)](uint32_t file, uint64_t offset,
                                                           std::span<std::byte> bytes) {
                    const Visit visit(*gate);
                    answer(file, offset, bytes);
                });
    }
    ~Answers() { close(); }
    // Ends all wait()s, which throw; returns when no answer is under way.
    void close() {
        std::unique_lock lock(gate_->mutex);
        gate_->closed = true;
        gate_->changed.notify_all();
        gate_->changed.wait(lock, [&] { return gate_->inside == 0; });
    }
    void notify() { gate_->changed.notify_all(); }
    // Blocks until come(), under the lock; throws Error once closed.
    template <class Come>
    void wait(std::unique_lock<std::mutex>& lock, const Come& come) {
        gate_->changed.wait(lock, [&] { return gate_->closed || come(); });
        if (gate_->closed) fail("it no longer trains");
    }
    // The same for at most so long. Returns come().
    template <class Come>
    bool wait_for(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds time,
                  const Come& come) {
        return gate_->changed.wait_for(lock, time, come);
    }

 private:
    struct Gate {
        std::mutex mutex;
        std::condition_variable changed;
        bool closed = false;
        int inside = 0;
    };
    struct Visit {
        explicit Visit(Gate& g) : gate(g) {
            std::lock_guard lock(gate.mutex);
            if (gate.closed) fail("it no longer trains");
            ++gate.inside;
        }
        ~Visit() {
            std::lock_guard lock(gate.mutex);
            --gate.inside;
            gate.changed.notify_all();
        }
        Gate& gate;
    };
    const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();

 public:
    Fetcher* fetcher = nullptr;
    std::mutex& mutex;  // guards what answers read; notify() after each change of it
};

// A wait for other ranks beside collectives, for as long as this lives.
struct Waiting {
    explicit Waiting(Communicator& c) : communicator(c) { communicator.set_waiting(true); }
    ~Waiting() { communicator.set_waiting(false); }
    Waiting(const Waiting&) = delete;
    Communicator& communicator;
};

// Answers that are written into our memory: nobody leaves before they are here.
struct OnWay {
    std::vector<std::future<void>> answers = {};

    OnWay() = default;
    OnWay(OnWay&&) = default;
    OnWay& operator=(OnWay&&) = default;
    ~OnWay() {
        for (std::future<void>& answer : answers)
            if (answer.valid()) answer.wait();
    }
    // Blocks. Throws what the fetcher's futures carry.
    void get() {
        for (std::future<void>& answer : answers) answer.get();
        answers.clear();
    }
};

}  // namespace convoy
