// input.cpp — see input.h.
#include "src/train/input.h"

#include <algorithm>

#include "src/base/check.h"

namespace convoy {

size_t slot_elems(int64_t batch, InputSize size, bool packed) {
    if (packed) return size_t(batch) * packed_image_bytes(size) / sizeof(float);  // whole words
    return size_t(batch) * size.elems();
}

Input::Input(Backend& backend, const Model& model, bool packed, bool ahead)
    : backend_(backend), size_(model.input()) {
    const int batch = model.max_batch();
    const Type type = backend.activations();
    size_t slot = slot_elems(batch, size_, false);
    if (packed) slot = std::max(slot, slot_elems(batch, size_, true));
    if (!backend.host_visible()) copies_[0] = backend.alloc(slot);
    if (!backend.host_visible() && ahead) copies_[1] = backend.alloc(slot);
    if (packed || type != Type::kFloat32) tensor_ = backend.alloc(images(batch), type);
    if (copies_[1]) backend.synchronize();  // start_upload() does not wait for alloc() to zero it
}

// The part of a slot that the batch takes up.
static std::span<const float> content(const Batch& batch, Shape shape) {
    if (batch.packed)
        return {reinterpret_cast<const float*>(batch.packed), batch.packed_bytes / sizeof(float)};
    return {batch.x, shape.elems()};
}

void Input::fetch_ahead(const Batch& next) {
    ENSURE(!ahead_, "a batch is being copied already");
    if (!copies_[1]) return;
    const auto slot = content(next, images(next.n));
    backend_.start_upload(slot.data(), copies_[1 - turn_], slot.size());
    ahead_ = &next, ahead_number_ = next.number;
}

const float* Input::on_device(const Batch& batch, Shape shape) {
    const Batch* ahead = std::exchange(ahead_, nullptr);
    if (ahead == &batch && ahead_number_ == batch.number) {
        backend_.wait_upload();
        turn_ = 1 - turn_;
        return copies_[turn_];
    }
    const auto slot = content(batch, shape);
    return backend_.to_device(slot.data(), copies_[turn_], slot.size());
}

Tensor Input::take(const Batch& batch) {
    const Shape shape = images(batch.n);
    ENSURE(tensor_ || !batch.packed, "a packed batch where finished ones were expected");
    const float* there = on_device(batch, shape);
    // Layers only read their input; Tensor has no read-only form.
    const Tensor finished(const_cast<float*>(there), shape);
    if (!batch.packed && tensor_.type == Type::kFloat32) return finished;
    const Tensor tensor = tensor_.first(batch.n);
    if (!batch.packed) {
        backend_.copy(tensor, finished);
        return tensor;
    }
    backend_.resize({reinterpret_cast<const uint8_t*>(there), batch.packed_bytes}, batch.pictures,
                    batch.values, tensor);
    return tensor;
}

std::vector<float*> lend_slots(Backend& backend, const Model& model, int count, bool packed) {
    std::vector<float*> slots;
    for (int i = 0; i < count; ++i)
        slots.push_back(backend.alloc_host(slot_elems(model.max_batch(), model.input(), packed)));
    return slots;
}

}  // namespace convoy
