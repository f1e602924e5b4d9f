// memory.h — blocks of floats that own themselves, and scratch that grows once.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>

namespace convoy {

struct ReleaseMemory {
    size_t mapped_bytes = 0;  // 0: from the heap
    void operator()(float* p) const;
};

// Zeroed floats, 64-byte aligned; large blocks come from the system in huge pages where it has
// them (a walk through the page table costs more than the cache miss it serves).
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

// Numbered scratch blocks. get() may move the block: its content lasts for one op only. Not to be
// called by a worker: an op takes what it needs before it starts its threads.
class Scratch {
 public:
    float* get(size_t slot, size_t elems) {
        while (blocks_.size() <= slot) blocks_.emplace_back();
        if (blocks_[slot].size() < elems) {
            blocks_[slot] = Memory();  // give back first: the peak counts
            blocks_[slot] = Memory(elems);
        }
        return blocks_[slot].data();
    }

 private:
    std::deque<Memory> blocks_;
};

}  // namespace convoy
