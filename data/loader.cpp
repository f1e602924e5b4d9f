// loader.cpp — decode threads over lent slots.
//
//   free ──open──► filling ──last row──► ready ──next()──► lent ──release()──► free
//
// Steps are opened in order, one to a free slot, and their rows are handed out one at a time in
// order, so all threads work on the step that is needed first. What a row holds depends on its
// sample alone; which thread made it, and when, leaves no trace.
#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "data/decode.h"
#include "data/resize.h"
#include "src/base/check.h"

namespace convoy {
namespace {

enum class State { free, filling, ready, lent };

struct Slot {
    Batch batch;
    float* memory = nullptr;  // lent
    State state = State::free;
    int64_t step = -1;
    int64_t first = 0;          // place of its first row in the epoch's order
    int claimed = 0, done = 0;  // rows taken by a thread, rows finished
    std::vector<char> good;     // a row: did it decode?
    std::optional<PackedRoom> room;
};

// What a decode thread works with.
struct Tools {
    std::vector<uint8_t> bytes;
    Decoder decoder;
    Image image;
    Resizer resizer;
    Packer packer;
};

}  // namespace

struct Loader::Impl {
    std::shared_ptr<const Source> source;
    Preprocess how;
    LoaderOptions options;
    int64_t most = 0;           // largest share of a step
    std::vector<float> values;  // of pixels, for packed batches
    std::vector<Slot> slots;

    mutable std::mutex mutex;
    std::condition_variable work;   // for threads: a row to decode, or the end
    std::condition_variable ready;  // for next(), start(): a slot became ready, a thread idle
    bool running = false, stopping = false;
    int busy = 0;                // threads that are decoding a row
    std::exception_ptr failure;  // of a thread, since start()
    uint32_t epoch = 0;
    int64_t consumed = 0, opened = 0, taken = 0;  // at start; steps opened, steps handed out
    std::vector<uint32_t> order;                  // of order_epoch
    int64_t order_epoch = -1;
    uint64_t batches = 0;  // opened since construction
    std::set<uint64_t> bad_samples;
    std::vector<std::string> bad_reasons;
    double waited = 0;
    std::vector<std::thread> threads;  // last: nothing else may still be unmade when they run

    void decode_loop();
    Slot* claim();
    void open_step(Slot& slot);
    void make_row(Tools& tools, Slot& slot, size_t row, uint64_t sample);
    Picture pack(Tools& tools, Slot& slot, const Resizing& resizing);
    std::optional<size_t> take_room(Slot& slot, size_t bytes);
    void finish(Slot& slot);
    void note_bad(uint64_t sample, const std::string& reason);
    Slot* slot_of(int64_t step);
    int64_t steps(int64_t from) const {
        const int64_t left = int64_t(source->size()) - from;
        return left <= 0 ? 0 : (left + options.batch - 1) / options.batch;
    }
};

Slot* Loader::Impl::slot_of(int64_t step) {
    for (Slot& slot : slots)
        if (slot.state != State::free && slot.step == step) return &slot;
    return nullptr;
}

// Prepares `slot` for the next step: which samples, where they are in the slice.
void Loader::Impl::open_step(Slot& slot) {
    const int64_t begin = consumed + opened * options.batch;
    const int64_t count = std::min(options.batch, int64_t(source->size()) - begin);
    const Range part = share_of(count, options.shares, options.rank);
    const int n = int(part.size());
    slot.step = opened++;
    slot.first = begin + part.begin;
    slot.claimed = slot.done = 0;
    slot.good.assign(size_t(n), 0);
    Batch& batch = slot.batch;
    batch.n = 0, batch.wanted = n, batch.global_wanted = count;
    batch.number = ++batches;
    batch.labels.resize(size_t(n)), batch.samples.resize(size_t(n));
    batch.positions.resize(size_t(n));
    if (options.packed) {
        slot.room.emplace(most, how.size);
        batch.pictures.resize(size_t(n));
        batch.packed_bytes = 0;
    }
    for (int i = 0; i < n; ++i) {
        const size_t at = size_t(slot.first + i);
        const uint64_t sample = options.training ? order[at] : at;
        batch.samples[size_t(i)] = sample;
        batch.labels[size_t(i)] = source->label(sample);
        batch.positions[size_t(i)] = int32_t(part.begin + i);
    }
    slot.state = n ? State::filling : State::ready;
    if (!n) ready.notify_all();
}

// The slot whose next row is to be decoded, opening steps as slots are free; nullptr when there is
// nothing to do. The oldest step comes first.
Slot* Loader::Impl::claim() {
    if (!running || failure) return nullptr;
    for (;;) {
        Slot *oldest = nullptr, *free = nullptr;
        for (Slot& slot : slots) {
            if (slot.state == State::free) free = &slot;
            if (slot.state == State::filling && slot.claimed < slot.batch.wanted &&
                (!oldest || slot.step < oldest->step))
                oldest = &slot;
        }
        if (oldest || !free || opened == steps(consumed)) return oldest;
        open_step(*free);
    }
}

void Loader::Impl::make_row(Tools& tools, Slot& slot, size_t row, uint64_t sample) {
    Decoder& decoder = tools.decoder;
    Image& image = tools.image;
    source->read(sample, tools.bytes);
    decoder.open(tools.bytes, source->name(sample));
    if (options.training)
        decoder.read(training_crop(decoder.H(), decoder.W(), how, epoch, sample), image);
    else
        decoder.read(image);
    if (options.packed) {
        slot.batch.pictures[row] =
            pack(tools, slot,
                 options.training ? training_resizing(image.H, image.W, how, epoch, sample)
                                  : validation_resizing(image.H, image.W, how));
        return;
    }
    float* out = slot.batch.x + row * size_t(how.size) * size_t(how.size) * 3;
    if (options.training)
        training_row(image, how, epoch, sample, tools.resizer, out);
    else
        validation_row(image, how, tools.resizer, out);
}

Picture Loader::Impl::pack(Tools& tools, Slot& slot, const Resizing& resizing) {
    std::optional<size_t> at = take_room(slot, tools.packer.look(view(tools.image), resizing));
    if (!at) at = take_room(slot, tools.packer.resize());
    ENSURE(at, "no room for ", how.size, "x", how.size, " pixels");
    return tools.packer.write(reinterpret_cast<uint8_t*>(slot.memory), *at);
}

std::optional<size_t> Loader::Impl::take_room(Slot& slot, size_t bytes) {
    std::lock_guard lock(mutex);
    return slot.room->take(bytes);
}

void Loader::Impl::decode_loop() {
    Tools tools;
    std::unique_lock lock(mutex);
    while (!stopping) {
        Slot* slot = claim();
        if (!slot) {
            work.wait(lock);
            continue;
        }
        const size_t row = size_t(slot->claimed++);
        const uint64_t sample = slot->batch.samples[row];
        ++busy;
        lock.unlock();

        std::string reason;
        std::exception_ptr error;
        try {
            make_row(tools, *slot, row, sample);
        } catch (const Error& bad_image) {
            reason = bad_image.what();
        } catch (...) {
            error = std::current_exception();
        }

        lock.lock();
        --busy;
        slot->good[row] = reason.empty();
        if (!reason.empty()) note_bad(sample, reason);
        if (error && !failure) failure = error;
        if (++slot->done == slot->batch.wanted) finish(*slot);
        if (slot->state == State::ready || failure || !running) ready.notify_all();
    }
}

void Loader::Impl::note_bad(uint64_t sample, const std::string& reason) {
    if (bad_samples.insert(sample).second) bad_reasons.push_back(reason);
}

// Moves the good rows together, so that the first batch.n are images. Under the lock; rows are
// moved only where a file was bad. Packed images stay where they are, and are found by number.
void Loader::Impl::finish(Slot& slot) {
    Batch& batch = slot.batch;
    const size_t row_elems = size_t(how.size) * size_t(how.size) * 3;
    size_t n = 0;
    for (size_t row = 0; row < slot.good.size(); ++row) {
        if (!slot.good[row]) continue;
        if (n != row) {
            if (options.packed)
                batch.pictures[n] = batch.pictures[row];
            else
                std::copy_n(batch.x + row * row_elems, row_elems, batch.x + n * row_elems);
            batch.labels[n] = batch.labels[row];
            batch.samples[n] = batch.samples[row];
            batch.positions[n] = batch.positions[row];
        }
        ++n;
    }
    batch.n = int(n);
    batch.labels.resize(n), batch.samples.resize(n), batch.positions.resize(n);
    if (options.packed) batch.pictures.resize(n), batch.packed_bytes = slot.room->used();
    slot.state = State::ready;
}

Loader::Loader(std::shared_ptr<const Source> source, const Preprocess& how, LoaderOptions options,
               std::vector<float*> slots)
    : impl_(std::make_unique<Impl>()) {
    ENSURE(options.threads >= 1 && !slots.empty() && options.batch >= 1, options.threads,
           " threads, ", slots.size(), " slots, batch ", options.batch);
    impl_->most = max_share(options);
    const size_t most = size_t(impl_->most);
    impl_->source = std::move(source);
    impl_->how = how;
    if (options.packed) impl_->values = pixel_values(how);
    impl_->slots.resize(slots.size());
    for (size_t i = 0; i < slots.size(); ++i) {
        Slot& slot = impl_->slots[i];
        slot.memory = slots[i];
        if (options.packed)
            slot.batch.packed = reinterpret_cast<const uint8_t*>(slots[i]),
            slot.batch.values = impl_->values.data(), slot.batch.pictures.reserve(most);
        else
            slot.batch.x = slots[i];
        slot.batch.slot = int(i);
        slot.batch.labels.reserve(most), slot.batch.samples.reserve(most);
        slot.batch.positions.reserve(most), slot.good.reserve(most);
    }
    impl_->options = std::move(options);
    for (int i = 0; i < impl_->options.threads; ++i)
        impl_->threads.emplace_back([impl = impl_.get()] { impl->decode_loop(); });
}

Loader::~Loader() {
    {
        std::lock_guard lock(impl_->mutex);
        impl_->stopping = true;
    }
    impl_->work.notify_all();
    for (std::thread& thread : impl_->threads) thread.join();
}

// A short last slice can give a rank one more than a full one does (rounded boundaries), so every
// possible size is asked.
int64_t Loader::max_share(const LoaderOptions& options) {
    int64_t most = 0;
    for (int64_t count = 1; count <= options.batch; ++count)
        most = std::max(most, share_of(count, options.shares, options.rank).size());
    return most;
}

int64_t Loader::steps(int64_t consumed) const { return impl_->steps(consumed); }

void Loader::start(uint32_t epoch, int64_t consumed) {
    Impl& impl = *impl_;
    ENSURE(consumed >= 0, consumed, " samples consumed");
    std::unique_lock lock(impl.mutex);
    impl.running = false;  // no new rows; those in work write to slots that are about to be reused
    impl.ready.wait(lock, [&] { return impl.busy == 0; });
    for (Slot& slot : impl.slots) slot.state = State::free;
    impl.failure = nullptr;
    impl.epoch = epoch, impl.consumed = consumed;
    impl.opened = impl.taken = 0;
    if (impl.options.training && impl.order_epoch != epoch) {
        impl.order = epoch_order(impl.source->size(), impl.how.seed, epoch);
        impl.order_epoch = epoch;
    }
    impl.running = true;
    impl.work.notify_all();
}

Batch* Loader::next() {
    Impl& impl = *impl_;
    std::unique_lock lock(impl.mutex);
    ENSURE(impl.running, "next() before start()");
    if (impl.taken == impl.steps(impl.consumed)) return nullptr;
    Slot* slot = nullptr;
    const auto is_ready = [&] {
        slot = impl.slot_of(impl.taken);
        return impl.failure || (slot && slot->state == State::ready);
    };
    const auto begin = std::chrono::steady_clock::now();
    impl.ready.wait(lock, is_ready);
    impl.waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (impl.failure) std::rethrow_exception(impl.failure);
    slot->state = State::lent;
    ++impl.taken;
    return &slot->batch;
}

const Batch* Loader::peek() const {
    std::lock_guard lock(impl_->mutex);
    const Slot* slot = impl_->running ? impl_->slot_of(impl_->taken) : nullptr;
    return slot && slot->state == State::ready ? &slot->batch : nullptr;
}

void Loader::release(Batch* batch) {
    Impl& impl = *impl_;
    {
        std::lock_guard lock(impl.mutex);
        Slot& slot = impl.slots[size_t(batch->slot)];
        if (slot.state != State::lent) return;  // start() has taken it back already
        slot.state = State::free;
    }
    impl.work.notify_all();
}

int64_t Loader::bad() const {
    std::lock_guard lock(impl_->mutex);
    return int64_t(impl_->bad_samples.size());
}

std::vector<std::string> Loader::take_bad_reasons() {
    std::lock_guard lock(impl_->mutex);
    return std::exchange(impl_->bad_reasons, {});
}

double Loader::waited_seconds() const {
    std::lock_guard lock(impl_->mutex);
    return impl_->waited;
}

}  // namespace convoy
