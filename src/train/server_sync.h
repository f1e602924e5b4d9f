// server_sync.h — `--sync server|async`: gradients go to servers, which hold the weights.
//
//   weights    |      slice 0      |      slice 1      | …      S servers: ranks 0 … S−1, which
//   server     |      rank 0       |      rank 1       | …      train like the others
//
//   worker     pull ─ forward ─ backward: push what is complete, from the back ─ counters ┐
//   server     └ weights ◄─ update ◄─ sum over the workers (server), or each push (async) ─┘
//
// A push is the answer to a request: a server asks each worker for the gradient of its next step,
// in pieces, from the back of its slice; the worker answers when the backward pass has completed
// them. A pull is a request too, which the server answers when the weights are new enough. So both
// travel over net/fetch.h, and the one who has something to say never waits for a question.
//
// Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI 2014); async:
// Downpour SGD, Dean et al., "Large Scale Distributed Deep Networks" (NIPS 2012), with the bound of
// Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server"
// (NIPS 2013). See servers.md.
#pragma once

#include <thread>
#include <vector>

#include "net/communicator.h"
#include "src/train/answers.h"
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
    // for a ring.
    // Pushes and pulls go in pieces of at most piece_bytes.
    ServerSync(const ServerOptions& options, size_t piece_bytes, Params& params,
               Optimizer& optimizer, Backend& backend, Communicator& communicator);
    ~ServerSync() override;

    bool is_local() const override { return options_.async; }
    bool gathers() const override { return true; }
    // The first call is collective; weights and optimizer state must be equal on all ranks.
    void begin(const Batch& batch) override;
    void start(std::span<const int64_t> images) override;
    void ready(const Param& param) override;
    // Until the new weights are here; async: until the servers have the gradient.
    bool finish() override;
    void add(const Counters& counters) override;
    void gather(Counters& counters) override;
    // To the weights and the optimizer state of the last gather(), or of the first begin().
    void rewind() override;
    double seconds_waited() const override { return waited_; }
    // staleness_mean, staleness_max: updates by other ranks between a pull and the update by what
    // was computed from it; ahead_max: steps ahead of the slowest rank; bytes: pushed and pulled.
    std::map<std::string, double> measured() const override;

 private:
    enum Kind : uint32_t { kGradient, kWeights, kAllWeights, kState };  // kState + i: arena i
    struct Slice {
        size_t begin, end;  // floats of the arenas
    };
    struct Worker {  // as its server sees it
        std::thread thread;
        std::vector<float> push;           // the slice, then the StepBlock
        int64_t steps = 0, pulled_at = 0;  // steps pushed; updates when it last pulled
    };
    struct Totals {
        int64_t updates, stale_sum, stale_max, pushes, ahead_max, bytes;
    };

    Slice slice_of(int server) const;
    bool serves() const { return communicator_.rank() < options_.servers; }
    int64_t slowest() const;
    // Asks `rank` for floats of its arena, in pieces; of this rank itself: copies them.
    void ask(OnWay& on_way, int rank, uint32_t kind, int64_t step, Slice slice, float* to);
    void answer(uint32_t file, uint64_t offset, std::span<std::byte> bytes);
    void pull(uint32_t kind);
    void push_and_pull();
    void gather_all(Counters& counters);
    void keep_weights();
    [[noreturn]] void throw_cause(const std::exception& failure) const;
    void collect(size_t worker);
    // Of one worker, or of all: their sum.
    void update(std::span<Worker> workers);

    const ServerOptions options_;
    const size_t piece_;  // floats
    Params& params_;
    Optimizer& optimizer_;
    Backend& backend_;
    Communicator& communicator_;
    const std::unique_ptr<Backend> server_backend_;
    const std::vector<Param*> order_;  // as the backward pass completes them
    const Slice mine_;                 // as a server; empty on other ranks

    // as a worker; the mutex of answers_ guards this, and what is a server's
    int64_t step_ = -1;
    size_t complete_from_ = 0;  // floats of the gradient arena
    bool counted_ = false;      // so are the counters
    uint64_t taken_ = 0;        // bytes of this step that servers have
    // as a server
    std::vector<Worker> workers_;
    std::vector<float> weights_;
    std::vector<std::vector<float>> state_;  // of the optimizer; its arenas are as of gather()
    StepBlock block_;                        // of the last update
    Totals own_ = {};
    std::string failure_;

    std::vector<bool> is_ready_;  // by order_
    double part_ = 1;             // of the images of the step
    Counters sums_ = {};
    Totals all_ = {};
    std::vector<float> kept_;  // the weights, for rewind(); the optimizer's arenas are of that time
    double waited_ = 0;
    Answers answers_;  // last: it reads all else
};

}  // namespace convoy
