// state_slices.cpp — see state_slices.h.
#include "src/job/state_slices.h"

#include <algorithm>
#include <cstring>

#include "src/base/clock.h"

namespace convoy {

constexpr size_t kFirstBytes = 256 << 10;  // before anybody knows how fast the ring is
constexpr size_t kLeastBytes = 64 << 10;

static std::vector<float*> arenas_of(const Params& params, const Optimizer& optimizer) {
    std::vector<float*> arenas{params.weights};
    arenas.insert(arenas.end(), optimizer.state().begin(), optimizer.state().end());
    return arenas;
}

static std::vector<size_t> sizes_of(const Params& params, const Optimizer& optimizer) {
    std::vector<size_t> sizes(1 + optimizer.state().size(), params.state_size);
    sizes[0] = params.weights_size;
    return sizes;
}

StateSlices::StateSlices(Params& params, const Optimizer& optimizer, Backend& backend,
                         Communicator& communicator, std::vector<int> newcomers, double seconds)
    : params_(params),
      arenas_(arenas_of(params, optimizer)),
      sizes_(sizes_of(params, optimizer)),
      by_tensor_(optimizer.by_tensor()),
      backend_(backend),
      communicator_(communicator),
      newcomers_(std::move(newcomers)),
      seconds_(seconds),
      wanted_(kFirstBytes) {}

StateSlices::~StateSlices() {
    if (sent_.valid()) sent_.wait();
}

bool StateSlices::is_newcomer(int rank) const {
    return std::ranges::find(newcomers_, rank) != newcomers_.end();
}

size_t StateSlices::floats_of(size_t begin, size_t end) const {
    size_t floats = 0;
    for (const size_t size : sizes_) floats += std::min(end, size) - std::min(begin, size);
    return floats;
}

double StateSlices::bytes() const { return double(floats_of(0, end_) * sizeof(float)); }

size_t StateSlices::next_end() const {
    const size_t most = std::ranges::max(sizes_);
    const size_t floats = std::max<size_t>(1, wanted_ / sizeof(float) / sizes_.size());
    const size_t end = end_ + std::min(floats, most - end_);
    if (!by_tensor_) return end;
    size_t bound = most;
    for (const Param* param : params_.all())
        if (param->offset >= end) bound = std::min(bound, param->offset);
    return bound;
}

// copy(values, floats, i): the floats [first, last) of the slice, in runs that each lie in one
// arena at `values`; i: where a run begins in the slice.
template <class Copy>
void StateSlices::for_each_run(size_t first, size_t last, Copy copy) {
    size_t at = 0;  // of this arena's floats, in the slice
    for (size_t arena = 0; arena < arenas_.size(); ++arena) {
        const size_t begin = std::min(begin_, sizes_[arena]), end = std::min(end_, sizes_[arena]);
        const size_t from = std::max(first, at), to = std::min(last, at + end - begin);
        if (from < to) copy(arenas_[arena] + begin + (from - at), to - from, from);
        at += end - begin;
    }
}

bool StateSlices::pass() {
    if (sent_.valid()) finish();
    if (end_ == std::ranges::max(sizes_)) return false;
    begin_ = end_, end_ = next_end();

    const int world = communicator_.world(), me = communicator_.rank();
    const size_t floats = floats_of(begin_, end_), givers = size_t(world) - newcomers_.size();
    buffer_.resize(size_t(world) * kNote + floats);
    blocks_.clear();
    float* out = buffer_.data();
    for (size_t rank = 0, giver = 0; rank < size_t(world); ++rank) {
        const bool gives = !is_newcomer(int(rank));
        const size_t first = floats * giver / givers, last = floats * (giver + gives) / givers;
        giver += gives;
        blocks_.emplace_back(out, kNote + last - first);
        out += blocks_.back().size();
        if (int(rank) != me) continue;
        const Note note{float(seconds_), float(took_)};
        std::memcpy(blocks_.back().data(), &note, sizeof note);
        float* const part = blocks_.back().data() + kNote;
        for_each_run(first, last, [&](const float* values, size_t n, size_t at) {
            backend_.download(part + (at - first), values, n * sizeof(float));
        });
    }
    ++slices_;
    const auto begin = Clock::now();
    sent_ = communicator_.gather(blocks_, /*exact=*/true);
    if (!is_newcomer(me)) return true;
    sent_.wait();
    took_ = seconds_since(begin);
    finish();
    return true;
}

// The slice is here: newcomers take it, and all find the same size of the next one. What the slice
// before it took comes with this one.
void StateSlices::finish() {
    sent_.get();
    double may_take = 1e9, took = 0;
    size_t first = 0;
    for (size_t rank = 0; rank < blocks_.size(); ++rank) {
        Note note;
        std::memcpy(&note, blocks_[rank].data(), sizeof note);
        if (is_newcomer(int(rank)))
            took = std::max(took, double(note.took));
        else
            may_take = std::min(may_take, double(note.may_take));
        const float* const part = blocks_[rank].data() + kNote;
        const size_t last = first + blocks_[rank].size() - kNote;
        if (is_newcomer(communicator_.rank()))
            for_each_run(first, last, [&](float* values, size_t n, size_t at) {
                backend_.upload(values, part + (at - first), n * sizeof(float));
            });
        first = last;
    }
    if (took > 0) per_second_ = double(bytes_before_) / took;
    bytes_before_ = first * sizeof(float);
    wanted_ = 4 * bytes_before_;  // at most: a guess may be wrong
    if (per_second_ > 0) wanted_ = std::min(wanted_, size_t(may_take * per_second_));
    wanted_ = std::max(wanted_, kLeastBytes);
}

}  // namespace convoy
