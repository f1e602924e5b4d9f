#include "src/step/input.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/random.h"

namespace convoy {

Input::Input(Backend& backend, const Model& model, bool ahead)
    : backend_(backend), size_(model.input()) {
    const int batch = model.max_batch();
    const Type type = backend.activations();
    const size_t slot = images(batch).elems();
    if (!backend.host_visible()) copies_[0] = backend.alloc(slot);
    if (!backend.host_visible() && ahead) copies_[1] = backend.alloc(slot);
    if (type != Type::kFloat32) tensor_ = backend.alloc(images(batch), type);
    if (copies_[1]) backend.synchronize();  // start_upload() does not wait for alloc() to zero it
}

void Input::fetch_ahead(const Batch& next) {
    ENSURE(!ahead_, "a batch is being copied already");
    if (!copies_[1]) return;
    backend_.start_upload(next.x, copies_[1 - turn_], images(next.n).elems());
    ahead_ = &next, ahead_number_ = next.number;
}

const float* Input::on_device(const Batch& batch, Shape shape) {
    const Batch* ahead = std::exchange(ahead_, nullptr);
    if (ahead == &batch && ahead_number_ == batch.number) {
        backend_.wait_upload();
        turn_ = 1 - turn_;
        return copies_[turn_];
    }
    return backend_.to_device(batch.x, copies_[turn_], shape.elems());
}

Tensor Input::take(const Batch& batch) {
    const Shape shape = images(batch.n);
    const float* there = on_device(batch, shape);
    // Layers only read their input; Tensor has no read-only form.
    const Tensor finished(const_cast<float*>(there), shape);
    if (!tensor_) return finished;
    const Tensor tensor = tensor_.first(batch.n);
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
    Batch batch;
    batch.x = pixels;
    batch.n = batch.wanted = int(part.size());
    batch.global_wanted = global;
    for (int r = 0; r < int(shares.size()); ++r)
        batch.wanted_by.push_back(share_of(global, shares, r).size());
    for (int64_t i = part.begin; i < part.end; ++i) {
        Random random(seed, 0, uint64_t(i), kBench);
        batch.samples.push_back(uint64_t(i));
        batch.positions.push_back(int32_t(i));
        batch.labels.push_back(int32_t(random.below(uint64_t(classes))));
        for (size_t p = 0; p < image; ++p) *pixels++ = random.uniform(-2, 2);
    }
    return batch;
}

}  // namespace convoy
