#include "src/train/input.h"

#include <algorithm>

#include "src/base/check.h"

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

}  // namespace convoy
