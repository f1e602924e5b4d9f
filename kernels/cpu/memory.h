// memory.h — blocks of floats that own themselves, and scratch that grows.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>

namespace convoy {

struct ReleaseMemory {
    size_t mapped_bytes = 0;  // 0: from malloc
    void operator()(float* p) const;
};

// Zeroed floats, 64-byte aligned; blocks of 2 MB and more lie in huge pages where the system has
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

// Numbered scratch blocks. get() may move the block: its content lasts for one op only. Workers
// must not call it: an op takes what it needs before it starts its threads.
class Scratch {
 public:
    float* get(size_t slot, size_t elems) {
        while (blocks_.size() <= slot) blocks_.emplace_back();
        if (blocks_[slot].size() < elems) {
            blocks_[slot] = Memory();  // free first: the peak counts
            blocks_[slot] = Memory(elems);
        }
        return blocks_[slot].data();
    }

 private:
    std::deque<Memory> blocks_;
};

}  // namespace convoy
