// input.cpp — see input.h.
#include "src/input.h"

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
    if (packed || !backend.host_visible()) tensor_ = backend.alloc(slot_elems(batch, size_, false));
    if (packed && !backend.host_visible()) packed_ = backend.alloc(slot_elems(batch, size_, true));
    if (packed) pictures_.reserve(size_t(batch));
}

Tensor Input::take(const Batch& batch) {
    const Shape shape{batch.n, size_, size_, 3};
    // Layers only read their input; Tensor has no read-only form.
    if (!batch.packed)
        return {const_cast<float*>(backend_.to_device(batch.x, tensor_, shape.elems())), shape};
    ENSURE(tensor_, "a packed batch where finished ones were expected");
    pictures_.clear();
    for (const PackedImage& image : batch.images) pictures_.push_back(picture_of(image));
    const auto* block = reinterpret_cast<const float*>(batch.packed);
    const void* there = backend_.to_device(block, packed_, batch.packed_bytes / sizeof(float));
    backend_.resize({static_cast<const uint8_t*>(there), batch.packed_bytes}, pictures_,
                    batch.values, {tensor_, shape});
    return {tensor_, shape};
}

}  // namespace convoy
