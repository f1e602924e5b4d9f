// server_sync.cpp — `--sync server:S` and `async:S:K`: gradients go to servers, weights come back.
//
//   weights    |      slice 0      |      slice 1      | …      S servers: ranks 0 … S−1, which
//   server     |      rank 0       |      rank 1       | …      also train, as all ranks do
//
//   worker   forward ─ backward: the last layer … the first ─ counters ┐            ┌─ weights t+1
//                        └ bucket └ bucket      └ bucket               │            │
//   server   ────────────────────────────────────────────────────────── update of its slice
//
//   server   w' = update(w, Σ over ranks of dw)     after the pushes of all workers, in rank order
//   async    w' = update(w, dw), lr · n_r/n         after each push; the answer waits while the
//                                                   worker is over K steps ahead of the slowest
//
// Cost, N floats, W ranks: each worker sends 4·N bytes of gradients per step (less its own slice),
// each server 4·N·(W−1)/S of weights. S = W is the traffic of a ring; with S = 1 rank 0 sends and
// receives 4·N·(W−1). Memory of a server: its slice of weights, state and all workers' gradients.
//
// Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI 2014); async:
// Downpour SGD, Dean et al. (NIPS 2012), with the bound of Ho et al. (NIPS 2013). See modes.md.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/train/sync.h"

namespace convoy {

namespace {

constexpr size_t kBlockFloats = sizeof(StepBlock) / sizeof(float);
constexpr size_t kLargestBucket = 4 << 20;  // bytes
constexpr std::chrono::milliseconds kLookAtRing{200};

std::span<std::byte> bytes_of(StepBlock& block) {
    return std::as_writable_bytes(std::span(&block, 1));
}

class ServerSync final : public Sync {
 public:
    // The backend must compute in host memory. Every rank creates one object per ring.
    // async:S:0 is server:S. There may be fewer than S servers after ranks were lost.
    explicit ServerSync(const SyncParts& parts)
        : Sync(parts.communicator, parts.model.params(), parts.backend),
          async_(parts.config.sync == SyncKind::kAsync && parts.config.staleness > 0),
          servers_(std::min(parts.config.servers, communicator_.world())),
          staleness_(async_ ? parts.config.staleness : 0),
          optimizer_(parts.optimizer),
          server_backend_(serves() ? make_backend("cpu", {.threads = backend_.threads()})
                                   : nullptr),
          order_(params_.backward_order()),
          mine_(serves() ? slice_of(me()) : Slice{0, 0}) {
        if (!backend_.host_visible())
            fail("--sync server and async work on CPUs: choose --device cpu, or --sync ring");
        const size_t most =
            std::clamp<size_t>(parts.bucket_bytes, 64, kLargestBucket) / sizeof(float);
        for (int s = servers_ - 1; s >= 0; --s)
            for (auto [begin, end] = slice_of(s); end > begin;) {
                const size_t n = std::min(most, end - begin);
                buckets_.push_back({s, {end - n, end}});
                end -= n;
            }
    }

    ~ServerSync() override { close(); }

    // The first call is collective; weights and optimizer state must be equal on all ranks. async:
    // blocks until the servers have answered the last push.
    void begin(const Batch& batch) override {
        part_ = batch.global_wanted ? double(batch.wanted) / double(batch.global_wanted) : 0;
        if (begun_) return take_answers();
        begun_ = true;
        all_.updates = own_.updates = optimizer_.steps_done;
        keep_weights();
        std::vector<int> ranks;
        for (int r = 0; r < communicator_.world(); ++r)
            if (r != me() && (serves() || r < servers_)) ranks.push_back(r);
        if (!ranks.empty()) links_ = communicator_.open_links(ranks);
        if (!serves()) return;
        weights_.assign(params_.weights + mine_.begin, params_.weights + mine_.end);
        for (const float* arena : optimizer_.state())
            state_.emplace_back(arena + std::min(mine_.begin, params_.state_size),
                                arena + std::min(mine_.end, params_.state_size));
        std::lock_guard lock(mutex_);
        workers_ = std::vector<Worker>(size_t(communicator_.world()));
        for (Worker& worker : workers_) worker.push.resize(mine_.size() + kBlockFloats);
        for (int w = 0; w < communicator_.world(); ++w) expect_push(w);
        server_ = std::thread([this] { serve(); });
    }

    void start(std::span<const int64_t>) override {
        ++step_;
        next_ = 0, complete_from_ = params_.trained_size;
        is_ready_.assign(order_.size(), false);
        send_complete();
    }

    void ready(const Param& param) override {
        if (param.running || param.frozen) return;
        const auto at = std::ranges::find(order_, &param) - order_.begin();
        is_ready_[size_t(at)] = true;
        const size_t count = size_t(std::ranges::find(is_ready_, false) - is_ready_.begin());
        backend_.synchronize();
        if (count > 0) complete_from_ = order_[count - 1]->offset;
        send_complete();
    }

    // Blocks until the new weights are here; async: until the gradient has been sent.
    bool finish() override {
        // A server sees only its slice, so each worker checks its whole gradient.
        StepBlock* block = params_.block();
        backend_.check_finite(params_.grads, params_.grads_size,
                              params_.counters() + StepCounters::kCount, &block->state);
        backend_.synchronize();
        if (async_) block->state.lr = float(block->state.lr * part_);
        const auto begin = Clock::now();
        complete_from_ = 0;
        send_complete();
        for (int s = 0; s < servers_; ++s)
            if (s != me()) send(s, bytes_of(*block));
        push_own();
        expect_answers();
        wait(sends_);  // the next step overwrites the gradient
        waited_ += seconds_since(begin);
        if (!async_) take_answers(), *block = answered_;
        return false;
    }

    bool sums_each_step() const override { return !async_; }
    Meeting meeting(int64_t) const override { return Meeting::kLater; }
    void meet(Counters& counters) override {
        const auto begin = Clock::now();
        communicator_.allreduce_sum(counters).get();
        take_answers();
        Totals own = {};
        if (serves()) {  // until all pushes are in the weights
            std::unique_lock lock(mutex_);
            wait_for_server(lock, [&] { return slowest() > step_; });
            own = own_;
        }
        if (async_) gather_slices(weights_, {params_.weights, params_.updated_size});
        // Separate until everything is here, because a rank may be lost meanwhile.
        std::vector<std::vector<float>> state(optimizer_.state().size(),
                                              std::vector<float>(params_.state_size));
        for (size_t i = 0; i < state.size(); ++i)
            gather_slices(i < state_.size() ? state_[i] : std::vector<float>(), state[i]);
        own.bytes = bytes_;
        Totals all = {};
        for (const auto& bytes : communicator_.allgather(std::as_bytes(std::span(&own, 1)))) {
            ENSURE(bytes.size() == sizeof own, bytes.size(), " bytes");
            std::memcpy(&own, bytes.data(), sizeof own);
            all.updates = std::max(all.updates, own.updates);
            all.stale_sum += own.stale_sum, all.pushes += own.pushes, all.bytes += own.bytes;
            all.stale_max = std::max(all.stale_max, own.stale_max);
            all.ahead_max = std::max(all.ahead_max, own.ahead_max);
        }
        all_ = all;
        for (size_t i = 0; i < state.size(); ++i)
            std::ranges::copy(state[i], optimizer_.state()[i]);
        optimizer_.steps_done = all_.updates;
        keep_weights();
        waited_ += seconds_since(begin);
    }

    // Restores weights and optimizer state of the last meeting, or else of the first begin().
    void rewind() override {
        close();
        std::ranges::copy(kept_, params_.weights);
        if (!kept_.empty()) optimizer_.steps_done = all_.updates;
    }

    bool holds_all() const override { return false; }

    double seconds_waited() const override { return waited_; }
    std::string traffic() const override {
        const double W = communicator_.world(), S = servers_;
        const double mb = 4e-6 * double(params_.updated_size);
        std::string text = fmt::format(
            "{} of {} ranks {}; per step each rank sends up to {:.2f} MB of gradients, each server "
            "{:.2f} MB of weights (a ring: {:.2f} MB)",
            S, W, S == 1 ? "serves" : "serve", S == W ? mb * (W - 1) / W : mb, mb * (W - 1) / S,
            2 * mb * (W - 1) / W);
        if (async_) text += fmt::format("; at most {} steps ahead of the slowest rank", staleness_);
        if (communicator_.min_world() > 0)
            text += "; if a rank is lost, the others return to the last checkpoint or epoch";
        return text;
    }

    // staleness_mean, staleness_max: updates by other ranks after a worker got weights, before its
    // gradient was applied; ahead_max: steps ahead of the slowest rank; bytes: sent by all.
    std::map<std::string, double> measured() const override {
        std::map<std::string, double> figures = {{"bytes", double(all_.bytes)}};
        if (async_)
            figures.insert({{"staleness_mean",
                             double(all_.stale_sum) / double(std::max<int64_t>(all_.pushes, 1))},
                            {"staleness_max", double(all_.stale_max)},
                            {"ahead_max", double(all_.ahead_max)}});
        return figures;
    }

 private:
    enum Channel { kGradients, kWeights };
    using Futures = std::vector<std::future<void>>;
    struct Slice {
        size_t begin, end;  // floats of the arenas
        size_t size() const { return end - begin; }
    };
    struct Bucket {
        int server;
        Slice slice;
    };
    struct Worker {                 // as its server sees it
        std::vector<float> push;    // the gradient of the slice, then the StepBlock
        std::vector<float> answer;  // async: a copy, because other workers change the weights
        StepBlock block;            // likewise
        bool waits = false;         // for the answer
        int64_t steps = 0, pulled_at = 0;  // steps pushed; updates at its last answer
    };
    struct Totals {
        int64_t updates, stale_sum, stale_max, pushes, ahead_max, bytes;
    };
    Slice slice_of(int server) const {
        const size_t lines = params_.updated_size / 16, S = size_t(servers_);
        const auto cut = [&](size_t s) {
            return s == S ? params_.updated_size : lines * s / S * 16;
        };
        return {cut(size_t(server)), cut(size_t(server) + 1)};
    }

    int me() const { return communicator_.rank(); }
    bool serves() const { return me() < servers_; }
    int64_t slowest() const {
        return std::ranges::min_element(workers_, {}, &Worker::steps)->steps;
    }

    // Ends the server's thread and all messages. Afterwards nothing writes to this object.
    void close() {
        {
            std::lock_guard lock(mutex_);
            closed_ = true;
        }
        changed_.notify_all();
        if (server_.joinable()) server_.join();
        links_.reset();
    }

    void keep_weights() {
        if (communicator_.min_world() > 0)
            kept_.assign(params_.weights, params_.weights + params_.updated_size);
    }

    // ---- as a worker

    void send(int rank, std::span<const std::byte> bytes) {
        sends_.push_back(links_->send(rank, bytes, kGradients));
        bytes_ += int64_t(bytes.size());
    }
    void send_complete() {
        for (; next_ < buckets_.size() && buckets_[next_].slice.begin >= complete_from_; ++next_) {
            const auto& [server, slice] = buckets_[next_];
            if (server != me())
                send(server, std::as_bytes(std::span(params_.grads + slice.begin, slice.size())));
        }
    }

    // Gives the gradient to the server in this process.
    void push_own() {
        if (!serves()) return;
        std::lock_guard lock(mutex_);
        float* const push = workers_[size_t(me())].push.data();
        std::copy(params_.grads + mine_.begin, params_.grads + mine_.end, push);
        std::memcpy(push + mine_.size(), params_.block(), sizeof(StepBlock));
        arrived_.push_back(me());
        changed_.notify_all();
    }

    void expect_answers() {
        pushed_ = true;
        for (int s = 0; s < servers_; ++s) {
            if (s == me()) continue;
            const Slice slice = slice_of(s);
            const std::span weights(params_.weights + slice.begin, slice.size());
            answers_.push_back(links_->receive(s, std::as_writable_bytes(weights), kWeights));
            if (s == 0) answers_.push_back(links_->receive(s, bytes_of(answered_), kWeights));
        }
    }

    // Waits for the weights after the last push; async: for weights at most K steps old.
    void take_answers() {
        if (!pushed_) return;
        const auto begin = Clock::now();
        pushed_ = false;
        wait(answers_);
        if (serves()) {
            std::unique_lock lock(mutex_);
            const Worker& own = workers_[size_t(me())];
            wait_for_server(lock, [&] { return own.steps > step_ && !own.waits; });
            std::ranges::copy(weights_, params_.weights + mine_.begin);
            if (me() == 0) answered_ = block_;
        }
        waited_ += seconds_since(begin);
    }

    void wait(Futures& futures) {
        for (std::future<void>& future : futures) links_->wait(future);
        futures.clear();
    }

    // Blocks until come(), which becomes true by this rank's server. Throws if the server failed.
    void wait_for_server(std::unique_lock<std::mutex>& lock, const std::function<bool()>& come) {
        communicator_.set_waiting(true);
        while (!changed_.wait_for(lock, kLookAtRing, [&] { return !failure_.empty() || come(); }))
            if (communicator_.ended()) break;
        communicator_.set_waiting(false);
        if (!failure_.empty()) throw JobError(failure_);
        if (come()) return;
        lock.unlock();
        communicator_.barrier();  // throws the first cause
    }

    // ---- where all meet

    // all = the slices of an arena from all servers, on every rank. Collective.
    void gather_slices(std::span<const float> own, std::span<float> all) {
        std::vector<std::span<float>> blocks(size_t(communicator_.world()));
        for (int s = 0; s < servers_; ++s) {
            const auto [begin, end] = slice_of(s);
            const size_t first = std::min(begin, all.size());
            blocks[size_t(s)] = all.subspan(first, std::min(end, all.size()) - first);
        }
        if (serves()) std::ranges::copy(own, blocks[size_t(me())].begin());
        communicator_.gather(std::move(blocks), /*exact=*/true).get();
    }

    // ---- as a server: a thread

    // Receives the next push of a worker: its buckets in the order of sending, then its StepBlock.
    void expect_push(int w) {
        if (w == me()) return;
        float* const push = workers_[size_t(w)].push.data();
        for (const auto& [server, slice] : buckets_)
            if (server == me())
                (void)links_->receive(w,
                                      std::as_writable_bytes(std::span(
                                          push + slice.begin - mine_.begin, slice.size())),
                                      kGradients);
        (void)links_->receive(w,
                              std::as_writable_bytes(std::span(push + mine_.size(), kBlockFloats)),
                              kGradients, [this, w] {
                                  std::lock_guard lock(mutex_);
                                  arrived_.push_back(w);
                                  changed_.notify_all();
                              });
    }

    void serve() try {
        std::unique_lock lock(mutex_);
        for (;;) {
            const size_t wanted = async_ ? 1 : workers_.size();
            changed_.wait(lock, [&] { return closed_ || arrived_.size() >= wanted; });
            if (closed_) return;
            const size_t first = async_ ? size_t(arrived_.front()) : 0;
            arrived_.erase(arrived_.begin(), arrived_.begin() + ptrdiff_t(wanted));
            const auto pushed = std::span(workers_).subspan(first, wanted);
            for (Worker& worker : pushed) {
                const int64_t stale = own_.pushes - worker.pulled_at;
                own_.stale_sum += stale, own_.stale_max = std::max(own_.stale_max, stale);
                ++worker.steps, worker.waits = true;
            }
            own_.pushes += int64_t(wanted);
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
                server_backend_->axpby(1, worker.push.data(), 1, sum, n + StepCounters::kSize);
        }
        std::memcpy(static_cast<void*>(&block_), sum + n, sizeof block_);
        block_.state.first_bad = bad;
        if (bad >= 0) return;  // the workers fail when they read it
        block_.state = optimizer_.next(block_.state.lr, own_.updates);
        std::vector<float*> state;
        for (std::vector<float>& part : state_) state.push_back(part.data());
        optimizer_.update(*server_backend_,
                          {mine_.begin, mine_.end, weights_.data(), sum, state, &block_});
        server_backend_->synchronize();
        if (block_.state.first_bad >= 0)
            throw JobError(
                "the sum of the ranks' gradients is not finite; a smaller --lr usually helps");
        own_.updates += block_.state.scale > 0;
    }

    // Answers the workers that are not too far ahead of the slowest.
    void answer() {
        for (size_t w = 0; w < workers_.size(); ++w) {
            Worker& worker = workers_[w];
            const int64_t ahead = worker.steps - slowest();
            if (!worker.waits || ahead > staleness_) continue;
            worker.waits = false, worker.pulled_at = own_.pushes;
            own_.ahead_max = std::max(own_.ahead_max, ahead);
            if (int(w) == me()) continue;
            if (async_) worker.answer = weights_;  // the worker has received the answer before
            const auto bytes = std::as_bytes(std::span(async_ ? worker.answer : weights_));
            (void)links_->send(int(w), bytes, kWeights);
            bytes_ += int64_t(bytes.size());
            if (me() != 0) continue;
            worker.block = block_;
            (void)links_->send(int(w), bytes_of(worker.block), kWeights);
            bytes_ += int64_t(sizeof worker.block);
        }
    }

    const bool async_;  // each push is an update by itself
    const int servers_;
    const int64_t staleness_;  // K
    Optimizer& optimizer_;
    const std::unique_ptr<Backend> server_backend_;
    const std::vector<Param*> order_;  // as the backward pass completes them
    const Slice mine_;                 // as a server; empty on other ranks
    std::vector<Bucket> buckets_;      // of all slices, from the back

    bool begun_ = false, pushed_ = false;  // pushed_: the answers have not come yet
    int64_t step_ = -1;
    std::vector<bool> is_ready_;  // by order_
    size_t complete_from_ = 0;    // floats of the gradient arena
    size_t next_ = 0;             // bucket to send
    double part_ = 1;             // of the images of the step
    StepBlock answered_;          // of server 0
    Futures sends_, answers_;
    std::atomic<int64_t> bytes_ = 0;
    Totals all_ = {};
    std::vector<float> kept_;  // the weights, for rewind(); the optimizer's arenas are of that time
    double waited_ = 0;

    std::mutex mutex_;  // guards the members of the server
    std::condition_variable changed_;
    std::vector<Worker> workers_;
    std::deque<int> arrived_;  // workers whose pushes wait for the update
    std::vector<float> weights_;
    std::vector<std::vector<float>> state_;  // of the optimizer
    StepBlock block_;                        // of the last update
    Totals own_ = {};
    std::string failure_;
    bool closed_ = false;
    std::thread server_;
    std::shared_ptr<Links> links_;  // last: its thread writes into the members above
};

}  // namespace

std::unique_ptr<Sync> make_server_sync(const SyncParts& parts) {
    return std::make_unique<ServerSync>(parts);
}

}  // namespace convoy
