// memory_plan.cpp — placing buffers by size, largest first.
#include "src/model/memory_plan.h"

#include <algorithm>
#include <climits>
#include <functional>
#include <vector>

namespace convoy {

Value MemoryPlan::make(Shape shape, Type type) {
    ENSURE(!placed_, "a buffer was planned after place()");
    const size_t bytes = (shape.elems() * bytes_of(type) + 63) / 64 * 64;
    buffers_.push_back({bytes, 0, share_ ? now_ : 0, share_ ? now_ : INT_MAX});
    return kept({&buffers_.back(), shape, Keep::kNothing, type}, Keep::kNothing);
}

void MemoryPlan::use(Value value) {
    if (value && share_) value.buffer->death = now_;
}

void MemoryPlan::place(Backend& backend) {
    ENSURE(!placed_, "placed twice");
    placed_ = true;
    std::vector<PlannedBuffer*> order, placed;  // by size; by offset
    for (PlannedBuffer& buffer : buffers_) order.push_back(&buffer);
    std::ranges::stable_sort(order, std::greater(), &PlannedBuffer::bytes);
    for (PlannedBuffer* buffer : order) {
        for (const PlannedBuffer* other : placed) {
            if (other->birth > buffer->death || other->death < buffer->birth) continue;
            if (buffer->offset + buffer->bytes <= other->offset) break;  // fits in the gap below
            buffer->offset = std::max(buffer->offset, other->offset + other->bytes);
        }
        placed.insert(std::ranges::upper_bound(placed, buffer->offset, {}, &PlannedBuffer::offset),
                      buffer);
        block_bytes_ = std::max(block_bytes_, buffer->offset + buffer->bytes);
    }
    char* block = reinterpret_cast<char*>(backend.alloc(block_bytes_ / sizeof(float)));
    for (PlannedBuffer& buffer : buffers_) buffer.data = block + buffer.offset;
}

}  // namespace convoy
