// loader.cpp — decode threads over lent slots; loader.h has the drawing.
#include "data/loader.h"

#include <algorithm>
#include <utility>

#include "data/decode.h"
#include "src/base/check.h"
#include "src/base/clock.h"

namespace convoy {

struct Loader::Buffers {
    std::vector<uint8_t> bytes;
    Decoder decoder;
    Image image;
    Resizer resizer;
    Packer packer;
};

Loader::Loader(std::shared_ptr<const Source> source, const Preprocess& how, LoaderOptions options,
               std::vector<float*> slots)
    : source_(std::move(source)), how_(how), options_(std::move(options)), slots_(slots.size()) {
    ENSURE(options_.threads >= 1 && !slots.empty() && options_.batch >= 1, options_.threads,
           " threads, ", slots.size(), " slots, batch ", options_.batch);
    if (!options_.training) how_.augment = Augment::none;
    if (options_.packed) values_ = pixel_values(how_);
    const size_t most = size_t(max_share(options_));
    for (size_t i = 0; i < slots.size(); ++i) {
        Batch& batch = slots_[i].batch;
        if (options_.packed) {
            batch.packed = reinterpret_cast<uint8_t*>(slots[i]);
            batch.values = values_.data();
            batch.pictures.reserve(most);
        } else {
            batch.x = slots[i];
        }
        batch.labels.reserve(most), batch.samples.reserve(most), batch.positions.reserve(most);
        slots_[i].good.reserve(most);
    }
    for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { decode_rows(); });
}

Loader::~Loader() {
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

// A short last slice can give a rank one more than a full one does (rounded boundaries), so every
// possible size is tried.
int64_t Loader::max_share(const LoaderOptions& options) {
    int64_t most = 0;
    for (int64_t count = 1; count <= options.batch; ++count)
        most = std::max(most, share_of(count, options.shares, options.rank).size());
    return most;
}

int64_t Loader::steps(int64_t consumed) const {
    const int64_t left = int64_t(source_->size()) - consumed;
    return left <= 0 ? 0 : (left + options_.batch - 1) / options_.batch;
}

void Loader::start(uint32_t epoch, int64_t consumed) {
    ENSURE(consumed >= 0, consumed, " samples consumed");
    std::unique_lock lock(mutex_);
    running_ = false;  // no new rows; those in progress write to slots that will be reused
    ready_.wait(lock, [&] { return busy_ == 0; });
    for (Slot& slot : slots_) slot.state = State::free;
    failure_ = nullptr;
    epoch_ = epoch, consumed_ = consumed;
    opened_ = taken_ = 0;
    if (options_.training && order_epoch_ != epoch) {
        order_ = epoch_order(source_->size(), how_.seed, epoch);
        order_epoch_ = epoch;
    }
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

void Loader::decode_rows() {
    Buffers buffers;
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
            make_row(buffers, *slot, row);
        } catch (const Error& bad_image) {
            reason = bad_image.what();
        } catch (...) {
            error = std::current_exception();
        }

        lock.lock();
        --busy_;
        slot->good[row] = reason.empty();
        if (!reason.empty() && bad_samples_.insert(slot->batch.samples[row]).second)
            bad_reasons_.push_back(reason);
        if (error && !failure_) failure_ = error;
        if (++slot->done == slot->batch.wanted) finish(*slot);
        if (failure_ || !running_) ready_.notify_all();
    }
}

// The slot whose next row is to be decoded; nullptr when there is nothing to do. Opens the next
// step when all rows of the last one are taken and its slot is free.
Loader::Slot* Loader::claim() {
    if (!running_ || failure_) return nullptr;
    for (;;) {
        Slot& last = slot_of(std::max<int64_t>(opened_ - 1, 0));
        if (last.state == State::filling && last.claimed < last.batch.wanted) return &last;
        if (opened_ == steps(consumed_) || slot_of(opened_).state != State::free) return nullptr;
        open_step(slot_of(opened_));
    }
}

// Prepares `slot` for the next step: which samples, where they are in the slice.
void Loader::open_step(Slot& slot) {
    const int64_t begin = consumed_ + opened_++ * options_.batch;
    const int64_t count = std::min(options_.batch, int64_t(source_->size()) - begin);
    const Range part = share_of(count, options_.shares, options_.rank);
    const size_t n = size_t(part.size());
    slot.state = State::filling;
    slot.claimed = slot.done = 0;
    slot.good.assign(n, 0);
    Batch& batch = slot.batch;
    batch.wanted = int(n), batch.global_wanted = count, batch.number = ++batches_;
    batch.labels.resize(n), batch.samples.resize(n), batch.positions.resize(n);
    for (size_t i = 0; i < n; ++i) {
        const size_t position = size_t(part.begin) + i, at = size_t(begin) + position;
        batch.samples[i] = options_.training ? order_[at] : at;
        batch.labels[i] = source_->label(batch.samples[i]);
        batch.positions[i] = int32_t(position);
    }
    if (options_.packed) batch.pictures.resize(n), batch.packed_bytes = 0;
    if (n == 0) finish(slot);
}

void Loader::make_row(Buffers& buffers, Slot& slot, size_t row) {
    Decoder& decoder = buffers.decoder;
    Image& image = buffers.image;
    const uint64_t sample = slot.batch.samples[row];
    source_->read(sample, buffers.bytes);
    decoder.open(buffers.bytes, source_->name(sample));
    decoder.read(input_crop(decoder.H(), decoder.W(), how_, epoch_, sample), image);
    if (!options_.packed) {
        float* out = slot.batch.x + row * size_t(how_.size) * size_t(how_.size) * 3;
        return input_row(image, how_, epoch_, sample, buffers.resizer, out);
    }
    Batch& batch = slot.batch;
    const Resizing resizing = input_resizing(image.H, image.W, how_, epoch_, sample);
    const size_t bytes = buffers.packer.prepare(view(image), resizing);
    std::unique_lock lock(mutex_);
    const size_t at = std::exchange(batch.packed_bytes, batch.packed_bytes + bytes);
    lock.unlock();
    batch.pictures[row] = buffers.packer.write(batch.packed, at);
}

// Moves the good rows together, so that the first batch.n are images. Packed images stay where
// they are: their pictures say where.
void Loader::finish(Slot& slot) {
    Batch& batch = slot.batch;
    const auto keep_good = [&](auto& items) {
        size_t n = 0;
        for (size_t row = 0; row < slot.good.size(); ++row)
            if (slot.good[row]) items[n++] = items[row];
        items.resize(n);
    };
    if (options_.packed) {
        keep_good(batch.pictures);
    } else {
        const size_t row_elems = size_t(how_.size) * size_t(how_.size) * 3;
        float* to = batch.x;
        for (size_t row = 0; row < slot.good.size(); ++row) {
            const float* from = batch.x + row * row_elems;
            if (slot.good[row]) to = from == to ? to + row_elems : std::copy_n(from, row_elems, to);
        }
    }
    keep_good(batch.labels), keep_good(batch.samples), keep_good(batch.positions);
    batch.n = int(batch.labels.size());
    slot.state = State::ready;
    ready_.notify_all();
}

}  // namespace convoy
