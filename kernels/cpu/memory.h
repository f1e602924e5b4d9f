// memory.h — blocks of floats (RAII), and scratch memory that grows.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>

namespace convoy {

struct ReleaseMemory {
    size_t mapped_bytes = 0;  // 0: from malloc
    void operator()(float* p) const;
};

// Zeroed floats, 64-byte aligned. Blocks of 2 MB and more use huge pages if the system has them,
// because a page table walk costs more than the cache miss behind it.
class Memory {
 public:
    Memory() = default;
    explicit Memory(size_t elems);
    float* data() const { return data_.get(); }
    size_t size() const { return size_; }

 private:
    std::unique_ptr<float, ReleaseMemory> data_;
    size_t size_ = 0;
};

// Numbered scratch blocks. get() may move a block, so its content is valid for one op only. An op
// calls get() before it starts its threads, never on a worker.
class Scratch {
 public:
    float* get(size_t slot, size_t elems) {
        while (blocks_.size() <= slot) blocks_.emplace_back();
        if (blocks_[slot].size() < elems) {
            blocks_[slot] = Memory();  // free first, for a lower peak
            blocks_[slot] = Memory(elems);
        }
        return blocks_[slot].data();
    }

 private:
    std::deque<Memory> blocks_;
};

}  // namespace convoy
