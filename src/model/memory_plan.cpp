// memory_plan.cpp — placing buffers by size, largest first.
#include "src/model/memory_plan.h"

#include <algorithm>
#include <climits>
#include <numeric>

namespace convoy {

namespace {
size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }
}  // namespace

Value MemoryPlan::make(Shape shape, Type type) {
    ENSURE(!placed_, "a buffer was planned after place()");
    buffers_.push_back(
        {padded(shape.elems() * bytes_of(type)), 0, share_ ? now_ : 0, share_ ? now_ : INT_MAX});
    return kept({int(buffers_.size()) - 1, shape, Keep::kNothing, type}, Keep::kNothing);
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
                     [&](int a, int b) { return buffers_[a].bytes > buffers_[b].bytes; });

    std::vector<const Buffer*> placed;  // by offset
    for (int index : order) {
        Buffer& buffer = buffers_[index];
        buffer.offset = 0;
        for (const Buffer* other : placed) {
            if (other->birth > buffer.death || other->death < buffer.birth) continue;
            if (buffer.offset + buffer.bytes <= other->offset) break;  // fits in the gap below it
            buffer.offset = std::max(buffer.offset, other->offset + other->bytes);
        }
        const auto by_offset = [](const Buffer* a, const Buffer* b) {
            return a->offset < b->offset;
        };
        placed.insert(std::upper_bound(placed.begin(), placed.end(), &buffer, by_offset), &buffer);
        block_bytes_ = std::max(block_bytes_, buffer.offset + buffer.bytes);
    }
    block_ = reinterpret_cast<char*>(backend.alloc(block_bytes_ / sizeof(float)));
}

Tensor MemoryPlan::at(Value value) const {
    if (value.buffer < 0) return {};
    ENSURE(placed_, "at() before place()");
    return {block_ + buffers_.at(value.buffer).offset, value.shape, value.type};
}

size_t MemoryPlan::total_bytes() const {
    size_t n = 0;
    for (const Buffer& buffer : buffers_) n += buffer.bytes;
    return n;
}

}  // namespace convoy
