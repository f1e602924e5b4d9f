// loader.cpp — decode threads over lent slots; loader.h has the drawing.
#include "data/loader.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "data/images/large_image.h"
#include "src/base/check.h"
#include "src/base/clock.h"

namespace convoy {

Loader::Loader(SourcePtr source, const Preprocess& how, LoaderOptions options,
               std::vector<float*> slots)
    : source_(std::move(source)), how_(how), options_(std::move(options)), slots_(slots.size()) {
    ENSURE(options_.threads >= 1 && !slots.empty() && options_.batch >= 1, options_.threads,
           " threads, ", slots.size(), " slots, batch ", options_.batch);
    if (!options_.training) how_ = how_.for_validation();
    if (!options_.pixels) how_.changes = {};
    const std::vector<int64_t>& parts = options_.parts;
    const auto own = parts.begin() + (parts.empty() ? 0 : options_.rank);
    ENSURE(parts.empty() || size_t(*own) == source_->size(), *own, " of ", source_->size());
    first_sample_ = std::accumulate(parts.begin(), own, int64_t(0));
    samples_ =
        parts.empty() ? int64_t(source_->size()) : std::accumulate(own, parts.end(), first_sample_);
    for (size_t i = 0; i < slots.size(); ++i) {
        Batch& batch = slots_[i].batch;
        batch.x = slots[i];
        batch.bytes = options_.bytes && !how_.changes.to_floats();
        if (how_.changes.mix()) slots_[i].partner.resize(how_.size.elems());
    }
    for (size_t i = 0; i < size_t(options_.threads); ++i) try {
            Track* const track = i < options_.tracks.size() ? options_.tracks[i] : nullptr;
            threads_.emplace_back([this, track] { decode_rows(track); });
        } catch (...) {
            stop();
            throw;
        }
}

void Loader::stop() {
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

// Boundaries are rounded, so a short last slice can give a rank one more sample than a full slice
// does. Every possible size is tried.
int64_t Loader::max_share(const LoaderOptions& options) {
    if (!options.parts.empty()) return most_dealt(options.batch, options.parts, options.rank);
    int64_t most = 0;
    for (int64_t count = 1; count <= options.batch; ++count)
        most = std::max(most, share_of(count, options.shares, options.rank).size());
    return most;
}

int64_t Loader::steps(int64_t consumed) const {
    const int64_t left = samples_ - consumed;
    return left <= 0 ? 0 : (left + options_.batch - 1) / options_.batch;
}

void Loader::start(uint32_t epoch, int64_t consumed) {
    ENSURE(consumed >= 0, consumed, " samples consumed");
    std::unique_lock lock(mutex_);
    running_ = false;  // no new rows; rows in progress still write to the slots
    ready_.wait(lock, [&] { return busy_ == 0; });
    for (Slot& slot : slots_) slot.state = State::free;
    failure_ = nullptr;
    epoch_ = epoch, consumed_ = consumed;
    opened_ = taken_ = 0;
    if (options_.training)
        order_.emplace(source_->shard_sizes(), options_.window, how_.seed, epoch);
    if (options_.pixels && steps(consumed) > 0)
        source_->plan(order_ ? order_->visits() : source_->in_order(), slice(0).place);
    running_ = true;
    work_.notify_all();
}

Batch* Loader::next() {
    std::unique_lock lock(mutex_);
    ENSURE(running_, "next() before start()");
    if (taken_ == steps(consumed_)) return nullptr;
    Slot& slot = slot_of(taken_);
    const auto begin = Clock::now();
    ready_.wait(lock, [&] { return failure_ || slot.state == State::ready; });
    waited_ += seconds_since(begin);
    if (failure_) std::rethrow_exception(failure_);
    slot.state = State::lent;
    ++taken_;
    return &slot.batch;
}

const Batch* Loader::peek() const {
    std::lock_guard lock(mutex_);
    const Slot& slot = slots_[size_t(taken_) % slots_.size()];
    return slot.state == State::ready ? &slot.batch : nullptr;
}

void Loader::release(Batch* batch) {
    std::lock_guard lock(mutex_);
    for (Slot& slot : slots_)  // not lent: start() has taken it back already
        if (&slot.batch == batch && slot.state == State::lent) slot.state = State::free;
    work_.notify_all();
}

std::vector<std::string> Loader::take_bad_reasons() {
    std::lock_guard lock(mutex_);
    return std::exchange(bad_reasons_, {});
}

double Loader::waited_seconds() const {
    std::lock_guard lock(mutex_);
    return waited_;
}

void Loader::decode_rows(Track* track) {
    std::unique_ptr<ImageBuffers> buffers;
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        Slot* slot = claim();
        if (!slot) {
            work_.wait(lock);
            continue;
        }
        const size_t row = size_t(slot->claimed++);
        ++busy_;
        lock.unlock();

        std::string reason;
        std::exception_ptr error;
        try {
            LargeImage large(&buffers, how_.size.C);
            const Span span(track, kTraceDecode, int64_t(slot->batch.samples[row]));
            reason = image_fault(*source_, slot->batch.samples[row] - uint64_t(first_sample_),
                                 [&] { make_row(*buffers, *slot, row); });
        } catch (...) {
            error = std::current_exception();
        }
        lock.lock();
        slot->good[row] = reason.empty();
        // Another rank reports the partner of row 0.
        if (!reason.empty() && int(row) < slot->batch.wanted &&
            bad_samples_.insert(slot->batch.samples[row]).second)
            bad_reasons_.push_back(reason);
        if (error && !failure_) failure_ = error;
        if (++slot->done == int(slot->good.size())) {
            if (how_.changes.mix()) {
                lock.unlock();
                mix(*slot);
                lock.lock();
            }
            finish(*slot);
        }
        --busy_;
        if (failure_ || !running_) ready_.notify_all();
    }
}

// The slot whose next row is to be decoded; nullptr if there is nothing to do. Opens the next step
// if all rows of the last one are taken and its slot is free.
Loader::Slot* Loader::claim() {
    if (!running_ || failure_) return nullptr;
    for (;;) {
        Slot& last = slot_of(std::max<int64_t>(opened_ - 1, 0));
        if (last.state == State::filling && last.claimed < int(last.good.size())) return &last;
        if (opened_ == steps(consumed_) || slot_of(opened_).state != State::free) return nullptr;
        open_step(slot_of(opened_));
    }
}

Loader::Slice Loader::slice(int64_t step) const {
    const int64_t begin = consumed_ + step * options_.batch;
    const int64_t end = std::min(begin + options_.batch, samples_);
    Slice slice{end - begin, {}, {}, 0, uint64_t(begin)};
    const std::vector<double>& shares = options_.shares;
    const size_t world = std::max(options_.parts.size(), shares.size());
    int64_t at = 0;
    for (int rank = 0; rank < int(world); ++rank) {
        Range part;
        if (options_.parts.empty()) {
            const Range share = share_of(slice.size, shares, rank);
            part = {begin + share.begin, begin + share.end};
        } else {
            part = {dealt(begin, options_.parts, rank), dealt(end, options_.parts, rank)};
        }
        if (rank == options_.rank) slice.own = part, slice.first = at;
        slice.by_rank.push_back(part.size());
        at += part.size();
    }
    if (!options_.parts.empty()) slice.place = uint64_t(slice.own.begin);
    return slice;
}

// Prepares `slot` for the next step: its samples, and their positions in the slice. After this
// rank's samples comes the first one's partner: the one before it, or the slice's last. If each
// rank has other samples, images are mixed within a rank.
void Loader::open_step(Slot& slot) {
    Slice step = slice(opened_++);
    if (const int64_t done = opened_ - int64_t(slots_.size()); done > 0)  // their slots are free
        source_->pass(slice(done).place);
    const size_t n = size_t(step.own.size());
    const bool has_partner =
        how_.changes.mix() && options_.parts.empty() && n > 0 && int64_t(n) < step.size;
    const size_t rows = n + has_partner;
    slot.state = State::filling;
    slot.claimed = slot.done = 0;
    slot.good.assign(rows, 0);
    Batch& batch = slot.batch;
    batch.wanted = int(n), batch.global_wanted = step.size, batch.number = ++batches_;
    batch.labels.resize(rows), batch.samples.resize(rows), batch.positions.resize(rows);
    for (size_t i = 0; i < rows; ++i) {
        const int64_t before = (step.first + step.size - 1) % step.size - step.first;
        const uint64_t at = uint64_t(step.own.begin + (i < n ? int64_t(i) : before));
        batch.samples[i] = uint64_t(first_sample_) + (order_ ? (*order_)(at) : at);
        batch.positions[i] = int32_t(step.first + int64_t(i));
    }
    batch.wanted_by = std::move(step.by_rank);
    if (n == 0) finish(slot);
}

void Loader::make_row(ImageBuffers& buffers, Slot& slot, size_t row) {
    Decoder& decoder = buffers.decoder;
    Image& image = buffers.image;
    const uint64_t sample = slot.batch.samples[row];
    const size_t place = sample - uint64_t(first_sample_);
    if (!options_.pixels) return;
    source_->read(place, buffers.bytes);
    slot.batch.labels[row] = source_->label(place);
    decoder.open(buffers.bytes, source_->name(place));
    const Crop crop = input_crop(decoder.H(), decoder.W(), how_, epoch_, sample);
    decoder.read(crop, image);
    const bool own = int(row) < slot.batch.wanted;
    if (slot.batch.bytes)
        return input_row(image, how_, epoch_, sample, buffers.row,
                         reinterpret_cast<uint8_t*>(slot.batch.slot()) + row * how_.size.elems());
    float* out = own ? slot.batch.x + row * how_.size.elems() : slot.partner.data();
    input_row(image, how_, epoch_, sample, buffers.row, out);
}

// Mixes each row with the one before it. The last row comes first: its partner is not mixed yet.
void Loader::mix(Slot& slot) {
    Batch& batch = slot.batch;
    const auto [H, W, C] = how_.size;
    const size_t n = size_t(batch.wanted), elems = how_.size.elems();
    size_t of_first = n;  // the row of its partner
    if (slot.good.size() == n) {
        of_first = n - 1;
        std::copy_n(batch.x + of_first * elems, elems, slot.partner.data());
    }
    batch.second_labels.assign(batch.labels.begin(), batch.labels.begin() + batch.wanted);
    batch.first_parts.assign(n, 1);
    for (size_t row = n; row-- > 0;) {
        const size_t partner = row > 0 ? row - 1 : of_first;
        if (!slot.good[row] || !slot.good[partner]) continue;
        const Mix mix = draw_mix(how_.changes.mixup, how_.changes.cutmix, H, W,
                                 {how_.seed, epoch_, batch.samples[row], kMix});
        mix_rows(mix, H, W, C, row > 0 ? batch.x + partner * elems : slot.partner.data(),
                 batch.x + row * elems);
        batch.second_labels[row] = batch.labels[partner], batch.first_parts[row] = mix.own;
    }
}

// Moves the good rows to the front: the first batch.n rows.
void Loader::finish(Slot& slot) {
    Batch& batch = slot.batch;
    slot.good.resize(size_t(batch.wanted));
    const auto keep_good = [&](auto& items) {
        size_t n = 0;
        for (size_t row = 0; row < slot.good.size(); ++row)
            if (slot.good[row]) items[n++] = items[row];
        items.resize(n);
    };
    if (options_.pixels) {
        const size_t row_bytes = how_.size.elems() * batch.elem_bytes();
        char *to = batch.slot(), *from = to;
        for (const char good : slot.good) {
            if (good) to = from == to ? to + row_bytes : std::copy_n(from, row_bytes, to);
            from += row_bytes;
        }
    }
    keep_good(batch.labels), keep_good(batch.samples), keep_good(batch.positions);
    if (how_.changes.mix()) keep_good(batch.second_labels), keep_good(batch.first_parts);
    batch.n = int(batch.labels.size());
    slot.state = State::ready;
    ready_.notify_all();
}

}  // namespace convoy
