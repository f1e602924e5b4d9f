// server_sync.h — `--sync server|async`: gradients go to servers, which hold the weights.
//
//   weights    |      slice 0      |      slice 1      | …      S servers: ranks 0 … S−1, which
//   server     |      rank 0       |      rank 1       | …      train like the others
//
//   worker     forward ─ backward: push what is complete, from the back ─ counters ┐
//   server     └ weights ◄─ update ◄─ sum over the workers (server), or each push (async) ─┘
//
// A worker pushes its gradient to each server in pieces, as the backward pass completes them. The
// server answers with its slice of the weights: in mode `server` when it has summed the pushes of
// all workers; in mode `async` after each push by itself, once no worker is more than K steps
// behind (K of async:S:K). Pushes and answers travel over direct links (net/links.h).
//
// A step sends 4·N bytes of gradients per worker, and 4·N·(W−1)/S of weights per server, for N
// floats and W ranks.
//
// Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI 2014); async:
// Downpour SGD, Dean et al., "Large Scale Distributed Deep Networks" (NIPS 2012), with the bound of
// Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server"
// (NIPS 2013). See servers.md.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "net/communicator.h"
#include "src/train/optimizer.h"
#include "src/train/sync.h"

namespace convoy {

// K of --sync async:S:K: steps, or a number that is never reached for "none". Throws Error.
int64_t parse_staleness(const std::string& text);

struct ServerOptions {
    ServerOptions(const Config& config);
    bool async;         // each push is an update by itself
    int servers;        // S of --sync server:S
    int64_t staleness;  // steps that a worker may be ahead of the slowest
};

class ServerSync final : public Sync {
 public:
    // All must outlive this. The backend's memory must be the host's. Every rank makes one, once
    // for a ring. Gradients travel in pieces of at most piece_bytes.
    ServerSync(const ServerOptions& options, size_t piece_bytes, Params& params,
               Optimizer& optimizer, Backend& backend, Communicator& communicator);
    ~ServerSync() override { close(); }

    bool is_local() const override { return options_.async; }
    bool gathers() const override { return true; }
    // The first call is collective; weights and optimizer state must be equal on all ranks. async:
    // blocks until the servers have answered the last push.
    void begin(const Batch& batch) override;
    void start(std::span<const int64_t> images) override;
    void ready(const Param& param) override;
    // Blocks until the new weights are here; async: until the gradient is on its way.
    bool finish() override;
    void add(const Counters& counters) override;
    void gather(Counters& counters) override;
    // To the weights and the optimizer state of the last gather(), or of the first begin().
    void rewind() override;
    double seconds_waited() const override { return waited_; }
    // staleness_mean, staleness_max: updates by other ranks between an answer and the update by
    // what was computed from it; ahead_max: steps ahead of the slowest rank; bytes: pushed and
    // answered.
    std::map<std::string, double> measured() const override;

 private:
    enum Channel { kGradients, kWeights };
    using Futures = std::vector<std::future<void>>;
    struct Slice {
        size_t begin, end;  // floats of the arenas
        size_t size() const { return end - begin; }
    };
    struct Piece {
        int server;
        Slice slice;
    };
    struct Worker {                 // as its server sees it
        std::vector<float> push;    // the gradient of the slice, then the StepBlock
        Futures coming;             // of it
        std::vector<float> answer;  // async
        std::future<void> answered;
        bool waits = false;                // for the answer
        int64_t steps = 0, pulled_at = 0;  // steps pushed; updates when it was last answered
    };
    struct Totals {
        int64_t updates, stale_sum, stale_max, pushes, ahead_max, bytes;
    };

    Slice slice_of(int server) const;
    int me() const { return communicator_.rank(); }
    bool serves() const { return me() < options_.servers; }
    int64_t slowest() const;
    void close();
    void send(int rank, std::span<const std::byte> bytes, Channel channel);
    void send_complete();
    void expect_push(int worker);
    void push_own();
    void expect_weights();
    void wait(Futures& futures);
    template <class Come>
    void wait_for_server(std::unique_lock<std::mutex>& lock, const Come& come);
    void sum_and_answer();
    void take_answers();
    void serve();
    void answer();
    void gather_slices(std::span<const float> own, std::span<float> all);
    void keep_weights();
    void update(std::span<Worker> workers);  // by the push of one, or by the sum of all of them

    const ServerOptions options_;
    Params& params_;
    Optimizer& optimizer_;
    Backend& backend_;
    Communicator& communicator_;
    const std::unique_ptr<Backend> server_backend_;
    const std::vector<Param*> order_;  // as the backward pass completes them
    const Slice mine_;                 // as a server; empty on other ranks
    std::vector<Piece> pieces_;        // of all slices, from the back

    // as a worker
    bool begun_ = false, pushed_ = false;  // pushed: the answers are still to come (async)
    int64_t step_ = -1;
    std::vector<bool> is_ready_;  // by order_
    size_t complete_from_ = 0;    // floats of the gradient arena
    size_t next_ = 0;             // piece to send
    double part_ = 1;             // of the images of the step
    StepBlock answered_;          // the sums of all workers, from server 0
    Futures sends_, answers_;
    Counters sums_ = {};
    Totals all_ = {};
    std::vector<float> kept_;  // the weights, for rewind(); the optimizer's arenas are of that time
    double waited_ = 0;

    // as a server: async, guarded by mutex_
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Worker> workers_;
    std::deque<int> arrived_;  // workers whose pushes wait for the update
    std::vector<float> weights_;
    std::vector<std::vector<float>> state_;  // of the optimizer; its arenas are as of gather()
    StepBlock block_;                        // of the last update
    Totals own_ = {};
    std::string failure_;
    bool closed_ = false;
    std::thread server_;

    std::shared_ptr<Links> links_;  // last: its thread writes into what is above
};

}  // namespace convoy
