// weight_average.cpp — see weight_average.h.
#include "src/train/weight_average.h"

#include <algorithm>
#include <cstring>

#include "src/base/check.h"
#include "src/base/clock.h"

namespace convoy {

// The part of its own weights that a rank keeps where it takes a fragment: alpha of the source.
constexpr float kOwn = 0.5f;

AverageOptions::AverageOptions(const Config& config)
    : nesterov(config.outer == OuterKind::kNesterov),
      lr(float(config.outer_lr)),
      momentum(float(config.outer_momentum)),
      fragments(config.fragments),
      interval(config.sync_every / config.fragments) {
    if (config.fragments > 1 && config.sync_every == 1)
        fail("--fragments ", config.fragments, " works on averages: it needs --sync average:H");
    if (config.sync_every % config.fragments != 0)
        fail("--fragments ", config.fragments,
             " does not divide --sync average:", config.sync_every,
             ": a fragment is sent every H/P steps; give a divisor, such as --fragments ",
             config.sync_every);
}

WeightAverage::WeightAverage(const AverageOptions& options, const ReducerOptions& reducer,
                             Params& params, Optimizer& optimizer, Backend& backend,
                             Communicator& communicator)
    : options_(options),
      params_(params),
      optimizer_(optimizer),
      backend_(backend),
      communicator_(communicator),
      nobody_(make_single_rank()),
      alone_(params, backend, *nobody_, reducer),
      host_(backend.host_visible() ? nullptr : backend.alloc_host(params.grads_size)) {
    for (float* state : optimizer.inner())
        arenas_.push_back({state, backend.alloc(params.state_size), params.state_size});
    arenas_.push_back({params.weights, backend.alloc(params.updated_size), params.updated_size});
    travels_ = options.fragments == 1 ? params.grads : backend.alloc(fragment({}).size);
}

WeightAverage::~WeightAverage() {
    for (const std::future<void>& sum : under_way_)
        if (sum.valid()) sum.wait();
}

void WeightAverage::sum(std::span<float> values) {
    const auto begin = Clock::now();
    communicator_.allreduce_sum(values).get();
    seconds_ += seconds_since(begin);
}

void WeightAverage::begin(const Batch&) {
    if (begun_) return;
    begun_ = true;
    keep();
}

void WeightAverage::keep() {
    for (const Arena& arena : arenas_) backend_.copy(arena.kept, arena.values, arena.size);
    kept_steps_ = optimizer_.steps_done, images_ = 0;
}

void WeightAverage::rewind() {
    if (!begun_) return;
    if (options_.fragments > 1)  // the optimizer goes on: what it keeps is of the last gather()
        return backend_.copy(params_.weights, arenas_.back().kept, arenas_.back().size);
    for (const Arena& arena : arenas_) backend_.copy(arena.values, arena.kept, arena.size);
    optimizer_.steps_done = kept_steps_;
}

// out = weight · (values - kept), returned as the network reads it.
std::span<float> WeightAverage::change(const Arena& arena, float weight, float* out) {
    backend_.axpby(weight, arena.values, 0, out, arena.size);
    backend_.axpby(-weight, arena.kept, 1, out, arena.size);
    if (host_)
        backend_.download(host_, out, arena.size * sizeof(float));
    else
        backend_.synchronize();
    return {host_ ? host_ : out, arena.size};
}

// The values become their mean over the ranks, in which this rank has `weight`. The gradient arena
// is used as scratch memory.
void WeightAverage::average(const Arena& arena, float weight) {
    const auto [values, kept, n] = arena;
    float* scratch = params_.grads;
    sum(change(arena, weight, scratch));
    if (host_) backend_.to_device(host_, scratch, n);
    backend_.copy(values, kept, n);
    if (values == params_.weights)
        move(values, scratch, 1, 0, n);
    else
        backend_.axpby(1, scratch, 1, values, n);
}

// `weights` of place `begin` in their arena, n of them, go along scale · d, their mean movement.
// With DiLoCo, of what is trained:
//   v = momentum·v + scale·d; w += lr·(nesterov ? scale·d + momentum·v : v)
void WeightAverage::move(float* weights, float* d, float scale, size_t begin, size_t n) {
    size_t stepped = 0;
    if (optimizer_.outer() && begin < params_.trained_size) {
        const float momentum = options_.momentum, lr = options_.lr;
        float* v = optimizer_.outer() + begin;
        stepped = std::min(n, params_.trained_size - begin);
        backend_.axpby(scale, d, momentum, v, stepped);
        backend_.axpby(options_.nesterov ? lr * momentum : lr, v, 1, weights, stepped);
        if (options_.nesterov) backend_.axpby(scale * lr, d, 1, weights, stepped);
    }
    backend_.axpby(scale, d + stepped, 1, weights + stepped, n - stepped);
}

// Weights that travel together from step `at` on: equal parts of whole cache lines, and what is
// left.
WeightAverage::Arena WeightAverage::fragment(const Position& at) const {
    const int64_t number = at.step / options_.interval % options_.fragments;
    const auto [values, kept, n] = arenas_.back();
    const size_t part = (n / size_t(options_.fragments) + 16) / 16 * 16;
    const size_t begin = std::min(n, part * size_t(number));
    return {values + begin, kept + begin, std::min(part, n - begin)};
}

std::optional<Position> WeightAverage::stream(const Position& at, Counters& counters) {
    std::optional<Position> upto;
    if (take_fragment(counters)) upto = sent_;
    sent_ = at;
    std::copy(std::begin(sums_), std::end(sums_), beside_);
    // Wishes stay: gather() follows in this step where those that have just come are to be heeded.
    std::fill_n(sums_, int(StepCounters::kSigint), 0.0f);
    beside_[StepCounters::kImages] = images_;
    // Changes count by images: how many all have trained arrives with their sum.
    const std::span<float> sent = change(fragment(at), images_, travels_);
    under_way_.push_back(communicator_.allreduce_sum(beside_));
    under_way_.push_back(communicator_.allreduce_sum(sent));
    return upto;
}

// Waits for the fragment under way, if any: what is kept becomes the mean (or goes along it with
// DiLoCo), and this rank's weights go a part of the way to it. counters += those sent beside it.
bool WeightAverage::take_fragment(Counters& counters) {
    if (under_way_.empty()) return false;
    const auto begin = Clock::now();
    for (std::future<void>& sum : under_way_) sum.get();
    under_way_.clear();
    seconds_ += seconds_since(begin);
    for (int i = 0; i < StepCounters::kSize; ++i) counters[i] += beside_[i];
    if (beside_[StepCounters::kImages] == 0) return true;
    const auto [values, kept, n] = fragment(sent_);
    if (host_) backend_.to_device(host_, travels_, n);
    move(kept, travels_, 1 / beside_[StepCounters::kImages], size_t(values - params_.weights), n);
    backend_.axpby(1 - kOwn, kept, kOwn, values, n);
    return true;
}

void WeightAverage::add(const Counters& counters) {
    images_ += counters[StepCounters::kCount];
    for (int i = 0; i < StepCounters::kSize; ++i)
        sums_[i] = counters[i] + (i < StepCounters::kSigint ? sums_[i] : 0);  // a wish counts once
}

void WeightAverage::gather(Counters& counters) {
    std::copy(std::begin(sums_), std::end(sums_), counters);
    std::fill(std::begin(sums_), std::end(sums_), 0.0f);
    counters[StepCounters::kImages] = images_;
    Counters before = {};
    take_fragment(before);
    sum(counters);
    for (int i = 0; i < StepCounters::kSigint; ++i) counters[i] += before[i];
    // A rank without images takes no steps. AdamW corrects its means by the number of steps.
    const int64_t own = optimizer_.steps_done;
    int64_t most = own;
    for (const auto& bytes : communicator_.allgather(std::as_bytes(std::span(&own, 1)))) {
        int64_t steps = 0;
        ENSURE(bytes.size() == sizeof steps, bytes.size(), " bytes");
        std::memcpy(&steps, bytes.data(), sizeof steps);
        most = std::max(most, steps);
    }
    // The weights come last: what rewind() does not undo, DiLoCo's momentum, changes with them.
    if (counters[StepCounters::kImages] > 0) {
        const float weight = images_ / counters[StepCounters::kImages];
        for (const Arena& arena : arenas_) average(arena, weight);
    }
    optimizer_.steps_done = most;
    keep();
}

}  // namespace convoy
