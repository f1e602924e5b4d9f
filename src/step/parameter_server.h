// parameter_server.h — a server of `--sync server:S` or `async:S:K` (server_sync.cpp): a thread
// beside the training that updates one slice of the weights.
//
//   push of a worker   the gradient of the slice, in buckets; then a StepBlock with its counters
//   answer             the new slice of the weights, and from server 0 the StepBlock of the update
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "net/ring/messenger.h"
#include "src/base/check.h"
#include "src/step/sync_methods.h"

namespace convoy {

using Slice = Params::Range;

// How the weights are divided: into one slice for each server, and the slices into buckets.
struct ServerSlices {
    static constexpr size_t kLargestBucket = 4 << 20;  // bytes

    ServerSlices(size_t floats, int servers, size_t bucket_bytes)
        : floats(floats), servers(servers) {
        const size_t most = std::clamp<size_t>(bucket_bytes, 64, kLargestBucket) / sizeof(float);
        for (int s = servers - 1; s >= 0; --s)
            for (auto [begin, end] = of(s); end > begin;) {
                const size_t n = std::min(most, end - begin);
                buckets.emplace_back(s, Slice{end - n, end});
                end -= n;
            }
    }
    Slice of(int server) const {
        const size_t lines = floats / 16, S = size_t(servers);
        const auto cut = [&](size_t s) { return s == S ? floats : lines * s / S * 16; };
        return {cut(size_t(server)), cut(size_t(server) + 1)};
    }

    const size_t floats;
    const int servers;
    std::vector<std::pair<int, Slice>> buckets;  // server, part of its slice; from the back
};

enum ServerChannel { kGradients, kWeights };  // of the messages between workers and servers

inline std::span<std::byte> bytes_of(StepBlock& block) {
    return std::as_writable_bytes(std::span(&block, 1));
}

class ParameterServer {
 public:
    struct Totals {
        int64_t updates, stale_sum, stale_max, pushes, ahead_max, bytes;
    };

    // Takes the slice of this rank from the weights and the optimizer's state. staleness: K; 0 is
    // server:S. messenger: to all other ranks; null if there are none. All must outlive the object.
    ParameterServer(Communicator& communicator, const Params& params, Optimizer& optimizer,
                    int threads, const ServerSlices& slices, int64_t staleness,
                    Messenger* messenger)
        : communicator_(communicator),
          optimizer_(optimizer),
          slices_(slices),
          staleness_(staleness),
          messenger_(messenger),
          backend_(make_backend("cpu", {.threads = threads})),
          mine_(slices.of(me())),
          workers_(size_t(communicator.world())),
          weights_(params.weights + mine_.begin, params.weights + mine_.end) {
        for (const float* arena : optimizer_.state())
            state_.emplace_back(arena + std::min(mine_.begin, params.state_size),
                                arena + std::min(mine_.end, params.state_size));
        totals_.updates = optimizer_.steps_done;
    }
    ~ParameterServer() { stop(); }

    // Expects pushes from now on, and starts the thread. Even if this throws, the messenger must be
    // closed before this object ends.
    void start() {
        std::lock_guard lock(mutex_);
        for (Worker& worker : workers_) worker.push.resize(mine_.size() + kBlockFloats);
        for (int w = 0; w < communicator_.world(); ++w) expect_push(w);
        thread_ = std::thread([this] { serve(); });
    }

    // Ends the thread. The messenger may write into this object until it is destroyed.
    void stop() {
        {
            std::lock_guard lock(mutex_);
            stopped_ = true;
        }
        changed_.notify_all();
        if (thread_.joinable()) thread_.join();
    }

    // Copies this rank's own gradient and StepBlock, from params.
    void push_own(Params& params) {
        std::lock_guard lock(mutex_);
        float* const push = workers_[size_t(me())].push.data();
        std::copy(params.grads + mine_.begin, params.grads + mine_.end, push);
        std::memcpy(push + mine_.size(), params.block(), sizeof(StepBlock));
        arrive(me());
    }

    // Blocks until this rank's push of `step` is answered. Copies the slice to params, and on rank
    // 0 the StepBlock of the update.
    void take_own(int64_t step, Params& params, StepBlock& answered) {
        std::unique_lock lock(mutex_);
        const Worker& own = workers_[size_t(me())];
        wait_until(lock, [&] { return own.steps > step && !own.waits; });
        std::ranges::copy(weights_, params.weights + mine_.begin);
        if (me() == 0) answered = block_;
    }

    // Blocks until the weights contain the pushes of `step` of all workers. Until the next push,
    // weights() and state() (a vector for each arena of the optimizer) do not change.
    Totals complete(int64_t step) {
        std::unique_lock lock(mutex_);
        wait_until(lock, [&] { return slowest() > step; });
        return totals_;
    }
    const std::vector<float>& weights() const { return weights_; }
    const std::vector<std::vector<float>>& state() const { return state_; }

 private:
    static constexpr size_t kBlockFloats = sizeof(StepBlock) / sizeof(float);
    static constexpr std::chrono::milliseconds kLookAtRing{200};
    struct Worker {
        std::vector<float> push;    // the gradient of the slice, then the StepBlock
        std::vector<float> answer;  // async: a copy, because other workers change the weights
        StepBlock block;            // of the answer, also a copy
        bool waits = false;         // for the answer
        int64_t steps = 0, pulled_at = 0;  // steps pushed; updates at its last answer
    };

    int me() const { return communicator_.rank(); }
    int64_t slowest() const {
        return std::ranges::min_element(workers_, {}, &Worker::steps)->steps;
    }
    void arrive(int w) {
        arrived_.push_back(w);
        changed_.notify_all();
    }

    // Blocks until come(), which the thread makes true. Throws if the thread failed.
    void wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& come) {
        communicator_.set_waiting(true);
        while (!changed_.wait_for(lock, kLookAtRing, [&] { return !failure_.empty() || come(); }))
            if (communicator_.ended()) break;
        communicator_.set_waiting(false);
        if (!failure_.empty()) throw JobError(failure_);
        if (come()) return;
        lock.unlock();
        communicator_.barrier();  // throws the first cause
    }

    // Receives the next push of a worker: its buckets in the order of sending, then its StepBlock.
    void expect_push(int w) {
        if (w == me()) return;
        const auto push = std::as_writable_bytes(std::span(workers_[size_t(w)].push));
        for (const auto& [server, slice] : slices_.buckets)
            if (server == me())
                (void)messenger_->receive(
                    w, push.subspan(4 * (slice.begin - mine_.begin), 4 * slice.size()), kGradients);
        (void)messenger_->receive(w, push.last(sizeof(StepBlock)), kGradients, [this, w] {
            std::lock_guard lock(mutex_);
            arrive(w);
        });
    }

    void serve() try {
        std::unique_lock lock(mutex_);
        for (;;) {
            const size_t wanted = staleness_ > 0 ? 1 : workers_.size();
            changed_.wait(lock, [&] { return stopped_ || arrived_.size() >= wanted; });
            if (stopped_) return;
            const size_t first = staleness_ > 0 ? size_t(arrived_.front()) : 0;
            arrived_.erase(arrived_.begin(), arrived_.begin() + ptrdiff_t(wanted));
            const auto pushed = std::span(workers_).subspan(first, wanted);
            for (Worker& worker : pushed) {
                const int64_t stale = totals_.pushes - worker.pulled_at;
                totals_.stale_sum += stale, totals_.stale_max = std::max(totals_.stale_max, stale);
                ++worker.steps, worker.waits = true;
            }
            totals_.pushes += int64_t(wanted);
            update(pushed);
            for (size_t w = first; w < first + wanted; ++w) expect_push(int(w));
            answer();
            changed_.notify_all();
        }
    } catch (const std::exception& error) {
        std::lock_guard lock(mutex_);
        failure_ = error.what();
        changed_.notify_all();
    }

    // By the sum of the workers' pushes.
    void update(std::span<Worker> workers) {
        const size_t n = mine_.size();
        float* sum = workers[0].push.data();  // of the slice; the counters follow
        int64_t bad = -1;
        for (Worker& worker : workers) {
            StepBlock block;
            std::memcpy(static_cast<void*>(&block), worker.push.data() + n, sizeof block);
            bad = std::max(bad, block.state.first_bad);
            if (&worker != workers.data())
                backend_->axpby(1, worker.push.data(), 1, sum, n + StepCounters::kSize);
        }
        std::memcpy(static_cast<void*>(&block_), sum + n, sizeof block_);
        block_.state.first_bad = bad;
        if (bad >= 0) return;  // the workers fail when they read it
        block_.state = optimizer_.next(block_.state.lr, totals_.updates);
        std::vector<float*> state;
        for (std::vector<float>& part : state_) state.push_back(part.data());
        optimizer_.update(*backend_,
                          {mine_.begin, mine_.end, weights_.data(), sum, state, &block_});
        backend_->synchronize();
        if (block_.state.first_bad >= 0)
            throw JobError(
                "the sum of the ranks' gradients is not finite; a smaller --lr usually helps");
        totals_.updates += block_.state.scale > 0;
    }

    // Answers the workers that are at most K steps ahead of the slowest.
    void answer() {
        for (size_t w = 0; w < workers_.size(); ++w) {
            Worker& worker = workers_[w];
            const int64_t ahead = worker.steps - slowest();
            if (!worker.waits || ahead > staleness_) continue;
            worker.waits = false, worker.pulled_at = totals_.pushes;
            totals_.ahead_max = std::max(totals_.ahead_max, ahead);
            if (int(w) == me()) continue;
            if (staleness_ > 0) worker.answer = weights_;  // the worker has the answer before
            const auto bytes = std::as_bytes(std::span(staleness_ > 0 ? worker.answer : weights_));
            (void)messenger_->send(int(w), bytes, kWeights);
            totals_.bytes += int64_t(bytes.size());
            if (me() != 0) continue;
            worker.block = block_;
            (void)messenger_->send(int(w), bytes_of(worker.block), kWeights);
            totals_.bytes += int64_t(sizeof worker.block);
        }
    }

    Communicator& communicator_;
    Optimizer& optimizer_;
    const ServerSlices& slices_;
    const int64_t staleness_;
    Messenger* const messenger_;
    const std::unique_ptr<Backend> backend_;
    const Slice mine_;

    std::mutex mutex_;  // guards all below
    std::condition_variable changed_;
    std::vector<Worker> workers_;
    std::deque<int> arrived_;  // workers whose pushes wait for the update
    std::vector<float> weights_;
    std::vector<std::vector<float>> state_;  // of the optimizer
    StepBlock block_;                        // of the last update
    Totals totals_ = {};
    std::string failure_;
    bool stopped_ = false;
    std::thread thread_;
};

}  // namespace convoy
