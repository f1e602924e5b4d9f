// state_slices.cpp — see state_slices.h.
#include "src/job/state_slices.h"

#include <algorithm>

#include "src/base/clock.h"

namespace convoy {

constexpr size_t kFirstBytes = 256 << 10;  // at least
constexpr size_t kLeastBytes = 64 << 10;

StateSlices::StateSlices(Params& params, const Optimizer& optimizer, Backend& backend,
                         Communicator& communicator, std::vector<int> newcomers, double seconds,
                         size_t first_bytes)
    : params_(params),
      arenas_(optimizer.arenas()),
      by_tensor_(optimizer.by_tensor()),
      backend_(backend),
      communicator_(communicator),
      newcomers_(std::move(newcomers)),
      seconds_(seconds),
      wanted_(std::max(first_bytes, kFirstBytes)) {}

StateSlices::~StateSlices() {
    if (notes_sent_.valid()) notes_sent_.wait();
    if (sent_.valid()) sent_.wait();
}

bool StateSlices::is_newcomer(int rank) const {
    return std::ranges::find(newcomers_, rank) != newcomers_.end();
}

size_t StateSlices::floats_of(size_t begin, size_t end) const {
    size_t floats = 0;
    for (const auto& arena : arenas_)
        floats += std::min(end, arena.size()) - std::min(begin, arena.size());
    return floats;
}

size_t StateSlices::longest() const {
    return std::ranges::max(arenas_, {}, &std::span<float>::size).size();
}

double StateSlices::bytes() const { return double(floats_of(0, end_) * sizeof(float)); }

size_t StateSlices::next_end() const {
    const size_t most = longest();
    const size_t floats = std::max<size_t>(1, wanted_ / sizeof(float) / arenas_.size());
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
    for (const auto& arena : arenas_) {
        const size_t begin = std::min(begin_, arena.size()), end = std::min(end_, arena.size());
        const size_t from = std::max(first, at), to = std::min(last, at + end - begin);
        if (from < to) copy(arena.data() + begin + (from - at), to - from, from);
        at += end - begin;
    }
}

bool StateSlices::pass(bool rest) {
    if (sent_.valid()) finish();
    const size_t size = longest();
    if (end_ == size) return false;
    begin_ = end_, end_ = rest ? size : next_end();
    ++slices_;

    const size_t world = size_t(communicator_.world()), me = size_t(communicator_.rank());
    notes_.assign(world, {});
    notes_[me] = {float(seconds_), float(took_)};
    const size_t floats = floats_of(begin_, end_), givers = world - newcomers_.size();
    buffer_.resize(floats);
    blocks_.clear();
    std::vector<std::span<float>> notes;
    for (size_t rank = 0, giver = 0; rank < world; ++rank) {
        notes.emplace_back(&notes_[rank].may_take, sizeof(Note) / sizeof(float));
        const bool gives = !is_newcomer(int(rank));
        const size_t first = floats * giver / givers, last = floats * (giver + gives) / givers;
        giver += gives;
        blocks_.emplace_back(&buffer_[first], last - first);
        if (rank == me)
            for_each_run(first, last, [&](const float* values, size_t n, size_t at) {
                backend_.download(&buffer_[at], values, n * sizeof(float));
            });
    }
    notes_sent_ = communicator_.gather(notes, /*exact=*/true);
    sent_ = communicator_.gather(blocks_, /*exact=*/true);
    if (!is_newcomer(int(me))) return true;
    notes_sent_.wait();  // all ranks are here: what follows is the way of the slice
    const auto begin = Clock::now();
    sent_.wait();
    took_ = seconds_since(begin);
    finish();
    return true;
}

// The slice is here: newcomers take it, and all find the same size of the next one.
void StateSlices::finish() {
    notes_sent_.get();
    sent_.get();
    float may_take = 1e9f, took = 0;
    for (size_t rank = 0; rank < notes_.size(); ++rank) {
        took = std::max(took, notes_[rank].took);
        if (!is_newcomer(int(rank))) may_take = std::min(may_take, notes_[rank].may_take);
    }
    if (is_newcomer(communicator_.rank()))
        for_each_run(0, buffer_.size(), [&](float* values, size_t n, size_t at) {
            backend_.upload(values, &buffer_[at], n * sizeof(float));
        });
    if (took > 0) bytes_per_second_ = double(last_bytes_) / double(took);
    last_bytes_ = buffer_.size() * sizeof(float);
    wanted_ = 4 * last_bytes_;  // at most, until a newcomer has measured a larger one
    if (bytes_per_second_ > 0)
        wanted_ = std::min(wanted_, size_t(double(may_take) * bytes_per_second_));
    wanted_ = std::max(wanted_, kLeastBytes);
}

}  // namespace convoy
