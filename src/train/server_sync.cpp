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
// Bits of a request: file = step and kind; offset = who asks, and floats into the arena.
constexpr uint32_t kServerKindBits = 3;
constexpr uint64_t kPlaceBits = 40;
constexpr std::chrono::seconds kFirstCause{3};  // until a rank that was killed is known to be lost
// Of the servers some may have been lost.
ServerOptions fitting(ServerOptions options, int world) {
    options.servers = std::min(options.servers, world);
    return options;
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
      piece_(std::clamp<size_t>(piece_bytes, 64, Fetcher::kMostBytes) / sizeof(float)),
      params_(params),
      optimizer_(optimizer),
      backend_(backend),
      communicator_(communicator),
      server_backend_(serves() ? make_backend("cpu", {.threads = backend.threads()}) : nullptr),
      order_(params.backward_order()),
      mine_(serves() ? slice_of(communicator.rank()) : Slice{0, 0}),
      answers_(communicator, [this](uint32_t file, uint64_t offset, std::span<std::byte> bytes) {
          answer(file, offset, bytes);
          std::lock_guard lock(answers_.mutex);
          const bool in_step = (file & ((1u << kServerKindBits) - 1)) <= kWeights;
          if (in_step) own_.bytes += int64_t(bytes.size());
      }) {
    if (!backend.host_visible())
        fail("--sync server and async work on CPUs: choose --device cpu, or --sync ring");
}

ServerSync::~ServerSync() {
    answers_.close();
    for (Worker& worker : workers_) worker.thread.join();
}

ServerSync::Slice ServerSync::slice_of(int server) const {
    const size_t lines = params_.updated_size / 16, S = size_t(options_.servers);
    const auto cut = [&](size_t s) { return s == S ? params_.updated_size : lines * s / S * 16; };
    return {cut(size_t(server)), cut(size_t(server) + 1)};
}

int64_t ServerSync::slowest() const {
    return std::ranges::min_element(workers_, {}, &Worker::steps)->steps;
}

void ServerSync::ask(OnWay& on_way, int rank, uint32_t kind, int64_t step, Slice slice, float* to) {
    const uint64_t who = uint64_t(communicator_.rank()) << kPlaceBits;
    const bool is_own = rank == communicator_.rank();
    const size_t most = is_own ? SIZE_MAX : piece_;
    // A gradient is long in coming: nothing else shall wait behind it.
    const int line = kind == kGradient ? 1 : 0;
    for (size_t end = slice.end; end > slice.begin;) {
        const size_t begin = end - std::min(most, end - slice.begin);
        const auto bytes =
            std::as_writable_bytes(std::span(to + (begin - slice.begin), end - begin));
        const uint32_t file = uint32_t(step) << kServerKindBits | kind;
        if (is_own)
            answer(file, who | begin, bytes);
        else
            on_way.answers.push_back(answers_.fetcher->fetch(rank, file, who | begin, bytes, line));
        end = begin;
    }
}

void ServerSync::answer(uint32_t file, uint64_t offset, std::span<std::byte> bytes) {
    const uint32_t kind = file & ((1u << kServerKindBits) - 1);
    const int64_t step = file >> kServerKindBits;
    const size_t who = offset >> kPlaceBits, begin = offset & ((uint64_t(1) << kPlaceBits) - 1);
    const size_t end = begin + bytes.size() / sizeof(float), updated = params_.updated_size;
    const bool is_block = begin == updated && bytes.size() == sizeof(StepBlock);
    const bool is_mine = mine_.begin <= begin && end <= mine_.end;
    if (bytes.size() % sizeof(float) != 0 || who >= size_t(communicator_.world()) ||
        (!is_block && end > updated) || (kind != kGradient && !serves()) ||
        (kind != kGradient && !is_block && !is_mine) ||
        (kind >= kState &&
         (kind - kState >= optimizer_.state().size() || is_block || end > params_.state_size)))
        fail("there are no floats ", begin, " to ", end, " of kind ", kind);

    std::unique_lock lock(answers_.mutex);
    const auto wait_for = [&](const auto& come) {
        answers_.wait(lock, [&] { return !failure_.empty() || come(); });
        if (!failure_.empty()) fail(failure_);
    };
    if (kind == kGradient) {
        wait_for([&] {
            return step_ == step && (is_block ? counted_ : begin >= complete_from_ || counted_);
        });
        lock.unlock();  // it stays as it is until all servers have it
        std::memcpy(bytes.data(), params_.grads + begin, bytes.size());
        lock.lock();
        taken_ += bytes.size();
        answers_.notify();
        return;
    }
    const int64_t ahead = kind == kWeights ? options_.staleness : 0;
    wait_for([&] {
        return !workers_.empty() && slowest() >= step - ahead && workers_[who].steps >= step;
    });
    const float* from = kind >= kState ? state_[kind - kState].data() + (begin - mine_.begin)
                        : is_block     ? reinterpret_cast<const float*>(&block_)
                                       : weights_.data() + (begin - mine_.begin);
    std::memcpy(bytes.data(), from, bytes.size());
    if (kind == kWeights && end == mine_.end) workers_[who].pulled_at = own_.pushes;
    if (kind == kWeights) own_.ahead_max = std::max(own_.ahead_max, step - slowest());
}

// An answer that fails may be the first sign of a ring that breaks: then this throws the cause.
// Else a server or worker failed, on which all depend.
void ServerSync::throw_cause(const std::exception& failure) const {
    const auto begin = Clock::now();
    while (!communicator_.ended() && Clock::now() - begin < kFirstCause)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (communicator_.ended()) communicator_.barrier();
    throw JobError(failure.what());
}

void ServerSync::keep_weights() {
    if (communicator_.min_world() > 0)
        kept_.assign(params_.weights, params_.weights + params_.updated_size);
}

void ServerSync::rewind() {
    std::ranges::copy(kept_, params_.weights);
    if (!kept_.empty()) optimizer_.steps_done = all_.updates;
}

void ServerSync::begin(const Batch& batch) try {
    part_ = batch.global_wanted ? double(batch.wanted) / double(batch.global_wanted) : 0;
    if (step_ < 0 && workers_.empty()) {
        communicator_.barrier();  // every rank answers
        std::lock_guard lock(answers_.mutex);
        all_.updates = own_.updates = optimizer_.steps_done;
        keep_weights();
        weights_.assign(params_.weights + mine_.begin, params_.weights + mine_.end);
        for (const float* arena : optimizer_.state())
            state_.emplace_back(arena + std::min(mine_.begin, params_.state_size),
                                arena + std::min(mine_.end, params_.state_size));
        if (serves()) workers_ = std::vector<Worker>(size_t(communicator_.world()));
        for (size_t w = 0; w < workers_.size(); ++w) {
            workers_[w].push.resize(mine_.end - mine_.begin + kBlockFloats);
            workers_[w].thread = std::thread([this, w] { collect(w); });
        }
        answers_.notify();
    }
    if (options_.async) pull(kWeights);
} catch (const std::exception& failure) {
    throw_cause(failure);
}

void ServerSync::start(std::span<const int64_t>) {
    std::lock_guard lock(answers_.mutex);
    ++step_;
    complete_from_ = params_.trained_size, counted_ = false, taken_ = 0;
    is_ready_.assign(order_.size(), false);
    answers_.notify();
}

void ServerSync::ready(const Param& param) {
    if (param.running || param.frozen) return;
    const auto at = std::ranges::find(order_, &param) - order_.begin();
    is_ready_[size_t(at)] = true;
    const size_t count = size_t(std::ranges::find(is_ready_, false) - is_ready_.begin());
    backend_.synchronize();
    std::lock_guard lock(answers_.mutex);
    if (count > 0) complete_from_ = order_[count - 1]->offset;
    answers_.notify();
}

bool ServerSync::finish() {
    // A server sees its slice alone: each worker looks for what is not finite in all of its own.
    StepBlock* block = params_.block();
    backend_.check_finite(params_.grads, params_.grads_size,
                          params_.counters() + StepCounters::kCount, &block->state);
    backend_.synchronize();
    if (options_.async) block->state.lr = float(block->state.lr * part_);
    const auto begin = Clock::now();
    try {
        push_and_pull();
    } catch (const std::exception& failure) {
        throw_cause(failure);
    }
    waited_ += seconds_since(begin);
    return false;
}

void ServerSync::push_and_pull() {
    std::unique_lock lock(answers_.mutex);
    counted_ = true;
    answers_.notify();
    if (options_.async) {
        const Waiting waiting(communicator_);
        const uint64_t all =
            params_.updated_size * sizeof(float) + uint64_t(options_.servers) * sizeof(StepBlock);
        const auto is_gone = [&] { return taken_ >= all || !failure_.empty(); };
        while (!answers_.wait_for(lock, std::chrono::milliseconds(200), is_gone))
            if (communicator_.ended()) {  // nobody will ask any more
                lock.unlock();
                communicator_.barrier();  // throws the first cause
                lock.lock();
            }
        if (!failure_.empty()) fail(failure_);
    } else {
        lock.unlock();
        pull(kWeights);
    }
}

void ServerSync::pull(uint32_t kind) {
    StepBlock sums;  // apart: another server may not have this rank's own yet
    OnWay on_way;
    const Waiting waiting(communicator_);
    const int64_t step = step_ + 1;
    for (const bool own : {false, true})  // what is copied comes last: it waits
        for (int s = 0; s < options_.servers; ++s) {
            if ((s == communicator_.rank()) != own) continue;
            const Slice slice = slice_of(s);
            ask(on_way, s, kind, step, slice, params_.weights + slice.begin);
            if (s == 0 && !options_.async)
                ask(on_way, s, kind, step,
                    {params_.updated_size, params_.updated_size + kBlockFloats},
                    reinterpret_cast<float*>(&sums));
        }
    on_way.get();
    if (!options_.async) *params_.block() = sums;
}

// The thread of a server for one of its workers.
void ServerSync::collect(size_t w) try {
    Worker& worker = workers_[w];
    float* block = worker.push.data() + (mine_.end - mine_.begin);
    const size_t updated = params_.updated_size;
    for (int64_t step = 0;; ++step) {
        {
            OnWay on_way;
            ask(on_way, int(w), kGradient, step, mine_, worker.push.data());
            ask(on_way, int(w), kGradient, step, {updated, updated + kBlockFloats}, block);
            on_way.get();
        }
        std::unique_lock lock(answers_.mutex);
        ++worker.steps;
        if (options_.async) {
            const int64_t stale = own_.pushes - worker.pulled_at;
            own_.stale_sum += stale, own_.stale_max = std::max(own_.stale_max, stale);
            ++own_.pushes;
            update({&worker, 1});
        } else if (slowest() > step) {  // all have come: summed in the order of ranks
            update(workers_);
        }
        answers_.notify();
        // The sum needs all pushes of a step.
        answers_.wait(lock,
                      [&] { return options_.async || slowest() > step || !failure_.empty(); });
        if (!failure_.empty()) return;
    }
} catch (const std::exception& error) {
    std::lock_guard lock(answers_.mutex);
    if (failure_.empty()) failure_ = error.what();
    answers_.notify();
}

void ServerSync::update(std::span<Worker> workers) {
    const size_t n = mine_.end - mine_.begin;
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
        fail("the sum of the ranks' gradients is not finite; a smaller --lr usually helps");
    own_.updates += block_.state.scale > 0;
}

void ServerSync::add(const Counters& counters) {
    for (int i = 0; i < StepCounters::kSize; ++i)
        sums_[i] = counters[i] + (i < StepCounters::kSigint ? sums_[i] : 0);  // a wish counts once
}

void ServerSync::gather(Counters& counters) try {
    const auto begin = Clock::now();
    gather_all(counters);
    waited_ += seconds_since(begin);
} catch (const std::exception& failure) {
    throw_cause(failure);
}

void ServerSync::gather_all(Counters& counters) {
    std::copy(std::begin(sums_), std::end(sums_), counters);
    std::fill(std::begin(sums_), std::end(sums_), 0.0f);
    communicator_.allreduce_sum(counters).get();
    if (options_.async) pull(kAllWeights);
    // Apart until all is here: a rank may be lost meanwhile.
    std::vector<std::vector<float>> state(optimizer_.state().size(),
                                          std::vector<float>(params_.state_size));
    OnWay on_way;
    std::optional<Waiting> waiting(communicator_);
    for (int s = 0; s < options_.servers; ++s)
        for (size_t i = 0; i < state.size(); ++i) {
            Slice slice = slice_of(s);
            slice.end = std::min(slice.end, params_.state_size);
            if (slice.begin < slice.end)
                ask(on_way, s, uint32_t(kState + i), step_ + 1, slice,
                    state[i].data() + slice.begin);
        }
    on_way.get();
    waiting.reset();
    Totals own;
    {
        std::lock_guard lock(answers_.mutex);
        own = own_;
    }
    all_ = {};
    // All ranks have what they asked for when this returns: then weights may change again.
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
