// server_sync.cpp — see server_sync.h.
#include "src/train/server_sync.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/number.h"

namespace convoy {

namespace {
constexpr size_t kBlockFloats = sizeof(StepBlock) / sizeof(float);
constexpr size_t kLargestPiece = 4 << 20;  // bytes
constexpr std::chrono::milliseconds kLookAtRing{200};
// Of the servers some may have been lost.
ServerOptions fitting(ServerOptions options, int world) {
    options.servers = std::min(options.servers, world);
    return options;
}
std::span<std::byte> bytes_of(StepBlock& block) {
    return std::as_writable_bytes(std::span(&block, 1));
}
}  // namespace

int64_t parse_staleness(const std::string& text) {
    if (text == "none") return std::numeric_limits<int32_t>::max();
    const auto steps = to_number<int32_t>(text);
    if (!steps || *steps < 0)
        fail("--sync async:S:K cannot have K = '", text,
             "': it takes a number of steps, 0 or more, or none");
    return *steps;
}

ServerOptions::ServerOptions(const Config& config)
    : async(config.sync == SyncKind::kAsync && parse_staleness(config.staleness) > 0),
      servers(config.servers),
      staleness(async ? parse_staleness(config.staleness) : 0) {}

ServerSync::ServerSync(const ServerOptions& options, size_t piece_bytes, Params& params,
                       Optimizer& optimizer, Backend& backend, Communicator& communicator)
    : options_(fitting(options, communicator.world())),
      params_(params),
      optimizer_(optimizer),
      backend_(backend),
      communicator_(communicator),
      server_backend_(serves() ? make_backend("cpu", {.threads = backend.threads()}) : nullptr),
      order_(params.backward_order()),
      mine_(serves() ? slice_of(me()) : Slice{0, 0}) {
    if (!backend.host_visible())
        fail("--sync server and async work on CPUs: choose --device cpu, or --sync ring");
    const size_t most = std::clamp<size_t>(piece_bytes, 64, kLargestPiece) / sizeof(float);
    for (int s = options_.servers - 1; s >= 0; --s)
        for (auto [begin, end] = slice_of(s); end > begin;) {
            const size_t n = std::min(most, end - begin);
            pieces_.push_back({s, {end - n, end}});
            end -= n;
        }
}

// Ends the server's thread, and all messages; nothing of this object is written any more.
void ServerSync::close() {
    {
        std::lock_guard lock(mutex_);
        closed_ = true;
    }
    changed_.notify_all();
    if (server_.joinable()) server_.join();
    links_.reset();
}

ServerSync::Slice ServerSync::slice_of(int server) const {
    const size_t lines = params_.updated_size / 16, S = size_t(options_.servers);
    const auto cut = [&](size_t s) { return s == S ? params_.updated_size : lines * s / S * 16; };
    return {cut(size_t(server)), cut(size_t(server) + 1)};
}

int64_t ServerSync::slowest() const {
    return std::ranges::min_element(workers_, {}, &Worker::steps)->steps;
}

void ServerSync::keep_weights() {
    if (communicator_.min_world() > 0)
        kept_.assign(params_.weights, params_.weights + params_.updated_size);
}

void ServerSync::rewind() {
    close();
    std::ranges::copy(kept_, params_.weights);
    if (!kept_.empty()) optimizer_.steps_done = all_.updates;
}

// ---- a worker -----------------------------------------------------------------------------------

void ServerSync::begin(const Batch& batch) {
    part_ = batch.global_wanted ? double(batch.wanted) / double(batch.global_wanted) : 0;
    if (begun_) return take_answers();
    begun_ = true;
    all_.updates = own_.updates = optimizer_.steps_done;
    keep_weights();
    weights_.assign(params_.weights + mine_.begin, params_.weights + mine_.end);
    for (const float* arena : optimizer_.state())
        state_.emplace_back(arena + std::min(mine_.begin, params_.state_size),
                            arena + std::min(mine_.end, params_.state_size));
    if (serves()) workers_ = std::vector<Worker>(size_t(communicator_.world()));
    for (Worker& worker : workers_) worker.push.resize(mine_.size() + kBlockFloats);
    if (communicator_.world() > 1) {
        std::vector<int> ranks;
        for (int r = 0; r < communicator_.world(); ++r)
            if (r != me() && (serves() || r < options_.servers)) ranks.push_back(r);
        links_ = communicator_.open_links(ranks);
    }
    if (!serves() || !options_.async) return;
    {
        std::lock_guard lock(mutex_);
        for (int w = 0; w < communicator_.world(); ++w) expect_push(w);
    }
    server_ = std::thread([this] { serve(); });
}

void ServerSync::start(std::span<const int64_t>) {
    ++step_;
    next_ = 0, complete_from_ = params_.trained_size;
    is_ready_.assign(order_.size(), false);
    if (!options_.async)
        for (size_t w = 0; w < workers_.size(); ++w) expect_push(int(w));
    send_complete();
}

void ServerSync::ready(const Param& param) {
    if (param.running || param.frozen) return;
    const auto at = std::ranges::find(order_, &param) - order_.begin();
    is_ready_[size_t(at)] = true;
    const size_t count = size_t(std::ranges::find(is_ready_, false) - is_ready_.begin());
    backend_.synchronize();
    if (count > 0) complete_from_ = order_[count - 1]->offset;
    send_complete();
}

void ServerSync::send(int rank, std::span<const std::byte> bytes, Channel channel) {
    sends_.push_back(links_->send(rank, bytes, channel));
    std::lock_guard lock(mutex_);
    own_.bytes += int64_t(bytes.size());
}

void ServerSync::send_complete() {
    for (; next_ < pieces_.size() && pieces_[next_].slice.begin >= complete_from_; ++next_) {
        const auto& [server, slice] = pieces_[next_];
        if (server != me())
            send(server, std::as_bytes(std::span(params_.grads + slice.begin, slice.size())),
                 kGradients);
    }
}

bool ServerSync::finish() {
    // A server sees its slice alone: each worker looks for what is not finite in all of its own.
    StepBlock* block = params_.block();
    backend_.check_finite(params_.grads, params_.grads_size,
                          params_.counters() + StepCounters::kCount, &block->state);
    backend_.synchronize();
    if (options_.async) block->state.lr = float(block->state.lr * part_);
    const auto begin = Clock::now();
    complete_from_ = 0;
    send_complete();
    for (int s = 0; s < options_.servers; ++s)
        if (s != me()) send(s, bytes_of(*block), kGradients);
    push_own();
    expect_weights();
    pushed_ = options_.async;
    if (!options_.async) {
        sum_and_answer();
        wait(answers_);
        wait(sends_);
        *block = answered_;
    } else {
        wait(sends_);  // the next step overwrites the gradient
    }
    waited_ += seconds_since(begin);
    return false;
}

// To this rank's own server.
void ServerSync::push_own() {
    if (!serves()) return;
    std::lock_guard lock(mutex_);
    Worker& worker = workers_[size_t(me())];
    float* const push = worker.push.data();
    std::copy(params_.grads + mine_.begin, params_.grads + mine_.end, push);
    std::memcpy(push + mine_.size(), params_.block(), sizeof(StepBlock));
    if (!options_.async) return;
    arrived_.push_back(me());
    changed_.notify_all();
}

void ServerSync::expect_weights() {
    for (int s = 0; s < options_.servers; ++s) {
        if (s == me()) continue;
        const Slice slice = slice_of(s);
        const std::span weights(params_.weights + slice.begin, slice.size());
        answers_.push_back(links_->receive(s, std::as_writable_bytes(weights), kWeights));
        if (s == 0 && !options_.async)
            answers_.push_back(links_->receive(s, bytes_of(answered_), kWeights));
    }
}

void ServerSync::wait(Futures& futures) {
    for (std::future<void>& future : futures) links_->wait(future);
    futures.clear();
}

// Blocks until come(), which this rank's server brings about. Throws if the server failed.
template <class Come>
void ServerSync::wait_for_server(std::unique_lock<std::mutex>& lock, const Come& come) {
    const auto has_come = [&] { return !failure_.empty() || come(); };
    communicator_.set_waiting(true);
    while (!changed_.wait_for(lock, kLookAtRing, has_come))
        if (communicator_.ended()) break;
    communicator_.set_waiting(false);
    if (!failure_.empty()) throw JobError(failure_);
    if (come()) return;
    lock.unlock();
    communicator_.barrier();  // throws the first cause
}

// async: the weights after the last push, as new as K of async:S:K allows.
void ServerSync::take_answers() {
    if (!pushed_) return;
    const auto begin = Clock::now();
    pushed_ = false;
    wait(answers_);
    if (serves()) {
        std::unique_lock lock(mutex_);
        const Worker& own = workers_[size_t(me())];
        wait_for_server(lock, [&] { return own.steps > step_ && !own.waits; });
        std::ranges::copy(weights_, params_.weights + mine_.begin);
    }
    waited_ += seconds_since(begin);
}

// ---- a server -----------------------------------------------------------------------------------

// The next push of a worker: in pieces, as it sends them, then its counters.
void ServerSync::expect_push(int w) {
    if (w == me()) return;
    Worker& worker = workers_[size_t(w)];
    worker.coming.clear();
    for (const auto& [server, slice] : pieces_)
        if (server == me()) {
            const std::span floats(worker.push.data() + (slice.begin - mine_.begin), slice.size());
            worker.coming.push_back(links_->receive(w, std::as_writable_bytes(floats), kGradients));
        }
    std::function<void()> then;
    if (options_.async)
        then = [this, w] {
            std::lock_guard lock(mutex_);
            arrived_.push_back(w);
            changed_.notify_all();
        };
    const std::span block(worker.push.data() + mine_.size(), kBlockFloats);
    worker.coming.push_back(
        links_->receive(w, std::as_writable_bytes(block), kGradients, std::move(then)));
}

// server: the pushes of all workers, in the order of ranks, are one update.
void ServerSync::sum_and_answer() {
    if (!serves()) return;
    for (Worker& worker : workers_) wait(worker.coming);
    update(workers_);
    for (int w = 0; w < communicator_.world(); ++w) {
        if (w == me()) continue;
        send(w, std::as_bytes(std::span(weights_)), kWeights);
        if (me() == 0) send(w, bytes_of(block_), kWeights);
    }
    std::ranges::copy(weights_, params_.weights + mine_.begin);
    if (me() == 0) answered_ = block_;
}

// async: the thread of a server. Each push is an update by itself.
void ServerSync::serve() try {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return closed_ || !arrived_.empty(); });
        if (closed_) return;
        const int w = arrived_.front();
        arrived_.pop_front();
        Worker& worker = workers_[size_t(w)];
        const int64_t stale = own_.pushes - worker.pulled_at;
        own_.stale_sum += stale, own_.stale_max = std::max(own_.stale_max, stale);
        ++own_.pushes, ++worker.steps, worker.waits = true;
        update({&worker, 1});
        expect_push(w);
        answer();
        changed_.notify_all();
    }
} catch (const std::exception& error) {
    std::lock_guard lock(mutex_);
    failure_ = error.what();
    changed_.notify_all();
}

// Answers the workers that are not too far ahead of the slowest.
void ServerSync::answer() {
    for (size_t w = 0; w < workers_.size(); ++w) {
        Worker& worker = workers_[w];
        const int64_t ahead = worker.steps - slowest();
        if (!worker.waits || ahead > options_.staleness) continue;
        worker.waits = false, worker.pulled_at = own_.pushes;
        own_.ahead_max = std::max(own_.ahead_max, ahead);
        if (int(w) == me()) continue;
        worker.answer = weights_;  // the worker has taken the answer before
        worker.answered = links_->send(int(w), std::as_bytes(std::span(worker.answer)), kWeights);
        own_.bytes += int64_t(mine_.size() * sizeof(float));
    }
}

void ServerSync::update(std::span<Worker> workers) {
    const size_t n = mine_.size();
    float* sum = workers[0].push.data();  // of the slice; counters follow it
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
    if (bad >= 0) return;  // the worker, or all of them, will say so
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

// ---- where all meet -----------------------------------------------------------------------------

void ServerSync::add(const Counters& counters) {
    for (int i = 0; i < StepCounters::kSize; ++i)
        sums_[i] = counters[i] + (i < StepCounters::kSigint ? sums_[i] : 0);  // a wish counts once
}

// all = what each server holds of an arena, on every rank. Collective.
void ServerSync::gather_slices(std::span<const float> own, std::span<float> all) {
    std::vector<std::span<float>> blocks(size_t(communicator_.world()));
    for (int s = 0; s < options_.servers; ++s) {
        const auto [begin, end] = slice_of(s);
        const size_t first = std::min(begin, all.size());
        blocks[size_t(s)] = all.subspan(first, std::min(end, all.size()) - first);
    }
    if (serves()) std::ranges::copy(own, blocks[size_t(me())].begin());
    communicator_.gather(std::move(blocks), /*exact=*/true).get();
}

void ServerSync::gather(Counters& counters) {
    const auto begin = Clock::now();
    std::copy(std::begin(sums_), std::end(sums_), counters);
    std::fill(std::begin(sums_), std::end(sums_), 0.0f);
    communicator_.allreduce_sum(counters).get();
    take_answers();
    if (options_.async && serves()) {  // until all pushes are in the weights
        std::unique_lock lock(mutex_);
        wait_for_server(lock, [&] { return slowest() > step_; });
    }
    if (options_.async) gather_slices(weights_, {params_.weights, params_.updated_size});
    // Apart until all is here: a rank may be lost meanwhile.
    std::vector<std::vector<float>> state(optimizer_.state().size(),
                                          std::vector<float>(params_.state_size));
    for (size_t i = 0; i < state.size(); ++i)
        gather_slices(i < state_.size() ? state_[i] : std::vector<float>(), state[i]);
    Totals own;
    {
        std::lock_guard lock(mutex_);
        own = own_;
    }
    all_ = {};
    for (const auto& bytes : communicator_.allgather(std::as_bytes(std::span(&own, 1)))) {
        ENSURE(bytes.size() == sizeof own, bytes.size(), " bytes");
        std::memcpy(&own, bytes.data(), sizeof own);
        all_.updates = std::max(all_.updates, own.updates);
        all_.stale_sum += own.stale_sum, all_.pushes += own.pushes, all_.bytes += own.bytes;
        all_.stale_max = std::max(all_.stale_max, own.stale_max);
        all_.ahead_max = std::max(all_.ahead_max, own.ahead_max);
    }
    for (size_t i = 0; i < state.size(); ++i) std::ranges::copy(state[i], optimizer_.state()[i]);
    optimizer_.steps_done = all_.updates;
    keep_weights();
    waited_ += seconds_since(begin);
}

std::map<std::string, double> ServerSync::measured() const {
    std::map<std::string, double> figures = {{"bytes", double(all_.bytes)}};
    if (options_.async)
        figures.insert(
            {{"staleness_mean", double(all_.stale_sum) / double(std::max<int64_t>(all_.pushes, 1))},
             {"staleness_max", double(all_.stale_max)},
             {"ahead_max", double(all_.ahead_max)}});
    return figures;
}

}  // namespace convoy
