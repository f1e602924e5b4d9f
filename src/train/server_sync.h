// server_sync.h — `--sync server:S` and `async:S:K`: gradients go to servers, weights come back.
//
//   weights    |      slice 0      |      slice 1      | …      S servers: ranks 0 … S−1, which
//   server     |      rank 0       |      rank 1       | …      also train, as all ranks do
//
//   worker   forward ─ backward: the last layer … the first ─ counters ┐            ┌─ weights t+1
//   ─ …
//                        └ bucket └ bucket      └ bucket               │            │
//   server   ────────────────────────────────────────────────────────── update of its slice
//
//   server   w' = update(w, Σ over ranks of dw)     after the pushes of all workers, in rank order
//   async    w' = update(w, dw), lr · n_r/n         after each push; the answer waits while the
//                                                   worker is more than K steps ahead of the
//                                                   slowest
//
// Cost, N floats, W ranks: each worker sends 4·N bytes of gradients per step (less its own slice),
// each server 4·N·(W−1)/S of weights. S = W is the traffic of a ring; with S = 1 rank 0 sends and
// receives 4·N·(W−1). Memory of a server: its slice of weights, state and all workers' gradients.
//
// Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI 2014); async:
// Downpour SGD, Dean et al. (NIPS 2012), with the bound of Ho et al. (NIPS 2013). See modes.md.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "src/train/sync.h"

namespace convoy {

class ServerSync final : public Sync {
 public:
    // The backend must compute in host memory. Every rank creates one object per ring.
    explicit ServerSync(const SyncParts& parts);
    ~ServerSync() override { close(); }

    // The first call is collective; weights and optimizer state must be equal on all ranks. async:
    // blocks until the servers have answered the last push.
    void begin(const Batch& batch) override;
    void start(std::span<const int64_t> images) override;
    void ready(const Param& param) override;
    // Blocks until the new weights are here; async: until the gradient has been sent.
    bool finish() override;

    bool sums_each_step() const override { return !async_; }
    Meeting meeting(int64_t) const override { return Meeting::kLater; }
    void meet(Counters& counters) override;
    // Restores weights and optimizer state of the last meeting, or else of the first begin().
    void rewind() override;
    bool holds_all() const override { return false; }

    double seconds_waited() const override { return waited_; }
    std::string traffic() const override;
    // staleness_mean, staleness_max: updates by other ranks after a worker got weights, before its
    // gradient was applied; ahead_max: steps ahead of the slowest rank; bytes: sent by all.
    std::map<std::string, double> measured() const override;

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
    Slice slice_of(int server) const;
    int me() const { return communicator_.rank(); }
    bool serves() const { return me() < servers_; }
    int64_t slowest() const;
    void close();
    void keep_weights();
    // as a worker
    void send(int rank, std::span<const std::byte> bytes);
    void send_complete();
    void push_own();
    void expect_answers();
    void take_answers();
    void wait(Futures& futures);
    void wait_for_server(std::unique_lock<std::mutex>& lock, const std::function<bool()>& come);
    void gather_slices(std::span<const float> own, std::span<float> all);
    // as a server
    void expect_push(int worker);
    void serve();
    void update(std::span<Worker> workers);  // by the sum of their pushes
    void answer();

    const bool async_;  // each push is an update by itself
    const int servers_;
    const int64_t staleness_;  // K
    Params& params_;
    Optimizer& optimizer_;
    Backend& backend_;
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

}  // namespace convoy
