#include "src/step/input.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/random.h"

namespace convoy {

Input::Input(Backend& backend, const Model& model, bool ahead)
    : backend_(backend),
      size_(model.input()),
      statistics_(model.statistics().of_channels(size_.C)),
      max_batch_(model.max_batch()),
      count_(backend.host_visible() ? 0 : 1 + ahead) {
    const Type type = backend.activations();
    if (count_ > 0 || type != Type::kFloat32) tensor_ = backend.alloc(images(max_batch_), type);
}

void Input::alloc_copies(size_t elem_bytes) {
    elem_bytes_ = elem_bytes;
    for (int i = 0; i < count_; ++i) copies_[i] = backend_.alloc(floats_of(max_batch_, elem_bytes));
    if (count_ > 1) backend_.synchronize();  // start_upload() does not wait for alloc() to zero it
}

void Input::fetch_ahead(const Batch& next) {
    ENSURE(!ahead_, "a batch is being copied already");
    if (count_ < 2) return;
    if (next.elem_bytes() > elem_bytes_) alloc_copies(next.elem_bytes());
    backend_.start_upload(next.x, copies_[1 - turn_], floats_of(next.n, next.elem_bytes()));
    ahead_ = &next, ahead_number_ = next.number;
}

const float* Input::on_device(const Batch& batch) {
    const Batch* ahead = std::exchange(ahead_, nullptr);
    if (ahead == &batch && ahead_number_ == batch.number) {
        backend_.wait_upload();
        turn_ = 1 - turn_;
        return copies_[turn_];
    }
    if (batch.elem_bytes() > elem_bytes_) alloc_copies(batch.elem_bytes());
    return backend_.to_device(batch.x, copies_[turn_], floats_of(batch.n, batch.elem_bytes()));
}

Tensor Input::take(const Batch& batch) {
    const float* there = on_device(batch);
    // Layers only read their input; Tensor has no read-only form.
    const Tensor finished(const_cast<float*>(there), images(batch.n));
    if (!batch.bytes && backend_.activations() == Type::kFloat32) return finished;
    const Tensor tensor = tensor_.first(batch.n);
    if (batch.bytes)
        backend_.normalise(reinterpret_cast<const uint8_t*>(there), statistics_, tensor);
    else
        backend_.copy(tensor, finished);
    return tensor;
}

std::vector<float*> lend_slots(Backend& backend, const Model& model, int count) {
    std::vector<float*> slots;
    for (int i = 0; i < count; ++i)
        slots.push_back(backend.alloc_host(size_t(model.max_batch()) * model.input().elems()));
    return slots;
}

Batch random_batch(Backend& backend, int64_t global, std::span<const double> shares, int rank,
                   InputSize size, int classes, uint64_t seed) {
    const Range part = share_of(global, shares, rank);
    const size_t image = size.elems();
    float* pixels = backend.alloc_host(size_t(std::max<int64_t>(part.size(), 1)) * image);
    auto* bytes = reinterpret_cast<uint8_t*>(pixels);
    Batch batch;
    batch.x = pixels, batch.bytes = !backend.host_visible();
    batch.n = batch.wanted = int(part.size());
    batch.global_wanted = global;
    for (int r = 0; r < int(shares.size()); ++r)
        batch.wanted_by.push_back(share_of(global, shares, r).size());
    for (int64_t i = part.begin; i < part.end; ++i) {
        Random random(seed, 0, uint64_t(i), kBench);
        batch.samples.push_back(uint64_t(i));
        batch.positions.push_back(int32_t(i));
        batch.labels.push_back(int32_t(random.below(uint64_t(classes))));
        for (size_t p = 0; p < image; ++p) {
            const float pixel = random.uniform(-2, 2);
            if (batch.bytes)
                *bytes++ = uint8_t(64 * (pixel + 2));
            else
                *pixels++ = pixel;
        }
    }
    return batch;
}

}  // namespace convoy
