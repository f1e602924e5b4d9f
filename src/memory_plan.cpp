// memory_plan.cpp — placing buffers by size, largest first.
#include "src/memory_plan.h"

#include <algorithm>
#include <climits>
#include <numeric>

namespace convoy {

namespace {
size_t padded(size_t elems) { return (elems + 15) / 16 * 16; }  // 64 bytes
}  // namespace

Value MemoryPlan::make(Shape shape) {
    ENSURE(!placed_, "a buffer was planned after place()");
    buffers_.push_back({padded(shape.elems()), 0, share_ ? now_ : 0, share_ ? now_ : INT_MAX});
    return kept({int(buffers_.size()) - 1, shape}, Keep::kNothing);
}

void MemoryPlan::use(Value value) {
    if (value.buffer >= 0 && share_) buffers_.at(value.buffer).death = now_;
}

void MemoryPlan::place(Backend& backend) {
    ENSURE(!placed_, "placed twice");
    placed_ = true;
    std::vector<int> order(buffers_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return buffers_[a].elems > buffers_[b].elems; });

    std::vector<const Buffer*> placed;  // by offset
    for (int index : order) {
        Buffer& buffer = buffers_[index];
        buffer.offset = 0;
        for (const Buffer* other : placed) {
            if (other->birth > buffer.death || other->death < buffer.birth) continue;
            if (buffer.offset + buffer.elems <= other->offset) break;  // fits in the gap below it
            buffer.offset = std::max(buffer.offset, other->offset + other->elems);
        }
        const auto by_offset = [](const Buffer* a, const Buffer* b) {
            return a->offset < b->offset;
        };
        placed.insert(std::upper_bound(placed.begin(), placed.end(), &buffer, by_offset), &buffer);
        block_elems_ = std::max(block_elems_, buffer.offset + buffer.elems);
    }
    block_ = backend.alloc(block_elems_);
}

float* MemoryPlan::at(Value value) const {
    if (value.buffer < 0) return nullptr;
    ENSURE(placed_, "at() before place()");
    return block_ + buffers_.at(value.buffer).offset;
}

size_t MemoryPlan::total_elems() const {
    size_t n = 0;
    for (const Buffer& buffer : buffers_) n += buffer.elems;
    return n;
}

}  // namespace convoy
