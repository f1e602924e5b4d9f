// input.cpp — see input.h.
#include "src/input.h"

#include <algorithm>

#include "src/base/check.h"

namespace convoy {

static_assert(Picture::kWeightBits == kWeightBits, "tables and the ops that read them");

size_t slot_elems(int64_t batch, int size, bool packed) {
    if (packed) return packed_block_bytes(batch, size) / sizeof(float);  // whole words
    return size_t(batch) * size_t(size) * size_t(size) * 3;
}

Picture picture_of(const PackedImage& image) {
    return {int64_t(image.pixels), int64_t(image.columns), int64_t(image.rows), image.H, image.W,
            image.column_taps,     image.row_taps};
}

Input::Input(Backend& backend, const Model& model, bool packed)
    : backend_(backend), size_(model.size()) {
    const int batch = model.max_batch();
    const Type type = backend.activations();
    const bool on_host = backend.host_visible();
    if (packed || !on_host) tensor_ = backend.alloc(Shape{batch, size_, size_, 3}, type);
    size_t staged = 0;
    if (type != Type::kFloat32) staged = slot_elems(batch, size_, false);
    if (packed && !on_host) staged = std::max(staged, slot_elems(batch, size_, true));
    if (staged > 0) staged_ = backend.alloc(staged);
    if (packed) pictures_.reserve(size_t(batch));
}

Tensor Input::take(const Batch& batch) {
    const Shape shape{batch.n, size_, size_, 3};
    // Layers only read their input; Tensor has no read-only form.
    const auto on_device = [&](const float* host, float* device, size_t elems) {
        return const_cast<float*>(backend_.to_device(host, device, elems));
    };
    if (!batch.packed && !staged_)
        return {on_device(batch.x, tensor_.floats(), shape.elems()), shape};
    ENSURE(tensor_, "a packed batch where finished ones were expected");
    const Tensor tensor = tensor_.first(batch.n);
    if (!batch.packed) {
        backend_.copy(tensor, {on_device(batch.x, staged_, shape.elems()), shape});
        return tensor;
    }
    pictures_.clear();
    for (const PackedImage& image : batch.images) pictures_.push_back(picture_of(image));
    const auto* block = reinterpret_cast<const float*>(batch.packed);
    const void* there = on_device(block, staged_, batch.packed_bytes / sizeof(float));
    backend_.resize({static_cast<const uint8_t*>(there), batch.packed_bytes}, pictures_,
                    batch.values, tensor);
    return tensor;
}

}  // namespace convoy
