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
#include <climits>
#include <optional>
#include <vector>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/step/parameter_server.h"

namespace convoy {
namespace {

class ServerSync final : public Sync {
 public:
    // The backend must compute in host memory. Every rank creates one object per ring.
    // async:S:0 is server:S. There may be fewer than S servers after ranks were lost.
    explicit ServerSync(const SyncParts& parts)
        : Sync(parts.communicator, parts.model.params(), parts.backend),
          staleness_(parts.options.config.sync == SyncKind::kAsync ? parts.options.config.staleness
                                                                   : 0),
          optimizer_(parts.optimizer),
          slices_(params_.updated_size,
                  std::min(parts.options.config.servers, communicator_.world()),
                  parts.options.bucket_bytes),
          order_(params_.backward_order()) {
        if (!backend_.host_visible())
            fail("--sync server and async work on CPUs: choose --device cpu, or --sync ring");
    }

    ~ServerSync() override { close(); }

    // The first call is collective; weights and optimizer state must be equal on all ranks. async:
    // blocks until the servers have answered the last push.
    void begin(const Batch& batch) override {
        part_ = batch.global_wanted ? double(batch.wanted) / double(batch.global_wanted) : 0;
        if (begun_) return take_answers();
        begun_ = true;
        all_.updates = optimizer_.steps_done;
        keep_weights();
        std::vector<int> ranks;
        for (int r = 0; r < communicator_.world(); ++r)
            if (r != me() && (serves() || r < slices_.servers)) ranks.push_back(r);
        if (!ranks.empty()) messenger_ = communicator_.open_messenger(ranks);
        if (!serves()) return;
        server_.emplace(communicator_, params_, optimizer_, backend_.threads(), slices_, staleness_,
                        messenger_.get());
        server_->start();
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
        if (async()) block->state.lr = float(block->state.lr * part_);
        const auto begin = Clock::now();
        complete_from_ = 0;
        send_complete();
        for (int s = 0; s < slices_.servers; ++s)
            if (s != me()) send(s, bytes_of(*block));
        if (server_) server_->push_own(params_);
        expect_answers();
        wait(sends_);  // the next step overwrites the gradient
        waited_ += seconds_since(begin);
        if (!async()) take_answers(), *block = answered_;
        return false;
    }

    bool sums_each_step() const override { return !async(); }
    Meeting meeting(int64_t) const override { return Meeting::kLater; }
    void meet(Counters& counters) override {
        const auto begin = Clock::now();
        const double before = waited_;  // take_answers() adds to it too
        communicator_.allreduce_sum(counters).get();
        take_answers();
        ParameterServer::Totals own = {};
        if (server_) own = server_->complete(step_);
        if (async())
            gather_slices(server_ ? server_->weights() : std::vector<float>(),
                          {params_.weights, params_.updated_size});
        // Separate until everything is here, because a rank may be lost meanwhile.
        std::vector<std::vector<float>> state(optimizer_.state().size(),
                                              std::vector<float>(params_.state_size));
        for (size_t i = 0; i < state.size(); ++i)
            gather_slices(server_ ? server_->state()[i] : std::vector<float>(), state[i]);
        own.bytes += bytes_;
        ParameterServer::Totals all = {};
        for (const auto& totals : gather_lists(communicator_, std::vector{own})) {
            ENSURE(totals.size() == 1, totals.size(), " totals");
            const ParameterServer::Totals& one = totals[0];
            all.updates = std::max(all.updates, one.updates);
            all.stale_sum += one.stale_sum, all.pushes += one.pushes, all.bytes += one.bytes;
            all.stale_max = std::max(all.stale_max, one.stale_max);
            all.ahead_max = std::max(all.ahead_max, one.ahead_max);
        }
        all_ = all;
        for (size_t i = 0; i < state.size(); ++i)
            std::ranges::copy(state[i], optimizer_.state()[i]);
        optimizer_.steps_done = all_.updates;
        keep_weights();
        waited_ = before + seconds_since(begin);
    }

    // Restores weights and optimizer state of the last meeting, or else of the first begin().
    void rewind() override {
        close();
        std::ranges::copy(kept_, params_.weights);
        if (!kept_.empty()) optimizer_.steps_done = all_.updates;
    }

    bool holds_all() const override { return false; }

    std::string traffic() const override {
        const double W = communicator_.world(), S = slices_.servers;
        const double mb = 4e-6 * double(params_.updated_size);
        std::string text = fmt::format(
            "{} of {} ranks {}; per step each rank sends up to {:.2f} MB of gradients, each server "
            "{:.2f} MB of weights (a ring: {:.2f} MB)",
            S, W, S == 1 ? "serves" : "serve", S == W ? mb * (W - 1) / W : mb, mb * (W - 1) / S,
            2 * mb * (W - 1) / W);
        if (async() && staleness_ < INT_MAX)
            text += fmt::format("; at most {} steps ahead of the slowest rank", staleness_);
        if (communicator_.min_world() > 0)
            text += "; if a rank is lost, the others return to the last checkpoint or epoch";
        return text;
    }

    // staleness_mean, staleness_max: updates by other ranks after a worker got weights, before its
    // gradient was applied; ahead_max: steps ahead of the slowest rank; bytes: sent by all.
    std::map<std::string, double> measured() const override {
        std::map<std::string, double> figures = {{"bytes", double(all_.bytes)}};
        if (async())
            figures.insert({{"staleness_mean",
                             double(all_.stale_sum) / double(std::max<int64_t>(all_.pushes, 1))},
                            {"staleness_max", double(all_.stale_max)},
                            {"ahead_max", double(all_.ahead_max)}});
        return figures;
    }

 private:
    using Futures = std::vector<std::future<void>>;

    int me() const { return communicator_.rank(); }
    bool serves() const { return me() < slices_.servers; }
    bool async() const { return staleness_ > 0; }  // each push is an update by itself

    // Ends the server's thread and all messages. Afterwards nothing writes to this object.
    void close() {
        if (server_) server_->stop();
        messenger_.reset();
        server_.reset();
    }

    void keep_weights() {
        if (communicator_.min_world() > 0)
            kept_.assign(params_.weights, params_.weights + params_.updated_size);
    }

    void send(int rank, std::span<const std::byte> bytes) {
        sends_.push_back(messenger_->send(rank, bytes, kGradients));
        bytes_ += int64_t(bytes.size());
    }
    void send_complete() {
        for (; next_ < slices_.buckets.size(); ++next_) {
            const auto& [server, slice] = slices_.buckets[next_];
            if (slice.begin < complete_from_) return;
            if (server != me())
                send(server, std::as_bytes(std::span(params_.grads + slice.begin, slice.size())));
        }
    }

    void expect_answers() {
        pushed_ = true;
        for (int s = 0; s < slices_.servers; ++s) {
            if (s == me()) continue;
            const Slice slice = slices_.of(s);
            const std::span weights(params_.weights + slice.begin, slice.size());
            answers_.push_back(messenger_->receive(s, std::as_writable_bytes(weights), kWeights));
            if (s == 0) answers_.push_back(messenger_->receive(s, bytes_of(answered_), kWeights));
        }
    }

    // Waits for the weights after the last push; async: for weights at most K steps old.
    void take_answers() {
        if (!pushed_) return;
        const auto begin = Clock::now();
        pushed_ = false;
        wait(answers_);
        if (server_) server_->take_own(step_, params_, answered_);
        waited_ += seconds_since(begin);
    }

    void wait(Futures& futures) {
        for (std::future<void>& future : futures) messenger_->wait(future);
        futures.clear();
    }

    // all = the slices of an arena from all servers, on every rank. Collective.
    void gather_slices(std::span<const float> own, std::span<float> all) {
        std::vector<std::span<float>> blocks(size_t(communicator_.world()));
        for (int s = 0; s < slices_.servers; ++s) {
            const auto [begin, end] = slices_.of(s);
            const size_t first = std::min(begin, all.size());
            blocks[size_t(s)] = all.subspan(first, std::min(end, all.size()) - first);
        }
        if (server_) std::ranges::copy(own, blocks[size_t(me())].begin());
        communicator_.gather(std::move(blocks), /*exact=*/true).get();
    }

    const int64_t staleness_;  // K of async; 0: server:S
    Optimizer& optimizer_;
    const ServerSlices slices_;
    const std::vector<Param*> order_;  // as the backward pass completes them

    bool begun_ = false, pushed_ = false;  // pushed_: the answers have not come yet
    int64_t step_ = -1;
    std::vector<bool> is_ready_;  // by order_
    size_t complete_from_ = 0;    // floats of the gradient arena
    size_t next_ = 0;             // bucket to send
    double part_ = 1;             // of the images of the step
    StepBlock answered_;          // of server 0
    Futures sends_, answers_;
    int64_t bytes_ = 0;  // sent by this worker
    ParameterServer::Totals all_ = {};
    std::vector<float> kept_;  // the weights, for rewind(); the optimizer's arenas are of that time

    std::optional<ParameterServer> server_;  // from begin() on, if this rank serves
    std::shared_ptr<Messenger> messenger_;   // last: its thread writes into the members above
};

}  // namespace

std::unique_ptr<Sync> make_server_sync(const SyncParts& parts) {
    return std::make_unique<ServerSync>(parts);
}

}  // namespace convoy
