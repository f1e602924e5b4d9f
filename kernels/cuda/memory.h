// memory.h — what a backend owns on the device and in pinned host memory.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "kernels/cuda/cuda.h"

namespace convoy::CONVOY_DEVICE {

class DeviceMemory;

// Scratch blocks. Data that an op keeps while it calls another op has its own slot.
enum Slot : size_t { kSlotProduct, kSlotSums, kSlotFactors, kSlotResult, kSlotBounds, kSlots };

// The small host data that recorded ops use (graph.cu). Each piece has a fixed place on the device.
// The place is empty until refresh() copies all pieces from the host.
class PassedData {
 public:
    explicit PassedData(DeviceMemory& memory);
    PassedData(const PassedData&) = delete;
    ~PassedData();

    const void* place(const void* host, size_t bytes);
    void refresh();

 private:
    struct Piece {
        const void* host;
        size_t bytes, offset;
    };
    DeviceMemory& memory_;
    char* const there_;
    std::vector<Piece> pieces_;
    std::vector<char> collected_;  // to be copied there
};

class DeviceMemory {
 public:
    explicit DeviceMemory(const cudaStream_t& ops) : stream(ops) {}
    DeviceMemory(const DeviceMemory&) = delete;
    ~DeviceMemory();

    const cudaStream_t& stream;  // of the ops

    float* alloc(size_t elems);       // zeroed in the order of the ops
    float* alloc_host(size_t elems);  // pinned and zeroed
    size_t blocks() const { return blocks_.size(); }
    void release_after(size_t count);

    // Scratch block `slot`, at least `bytes` large. It may move: its content lasts for one op.
    void* scratch(Slot slot, size_t bytes);
    template <class T>
    T* scratch(Slot slot, size_t elems) {
        return static_cast<T*>(scratch(slot, elems * sizeof(T)));
    }

    size_t device_bytes() const { return device_bytes_; }  // in use
    int moves() const { return moves_; }                   // how often a scratch block had to move

    // Returns a device copy of small host data, for the next kernels. The copy stays valid until
    // 1 MB more has been passed. `host` may change as soon as pass() returns.
    template <class T>
    const T* pass(std::span<const T> host) {
        return static_cast<const T*>(pass_bytes(host.data(), host.size_bytes()));
    }

    // While ops are recorded (graph.cu), no scratch block may move; pass() gives places in `data`.
    void start_recording(PassedData& data) { recording_ = &data; }
    void stop_recording() { recording_ = nullptr; }
    bool is_recording() const { return recording_; }

 private:
    friend PassedData;
    void* alloc_device(size_t bytes);
    const void* pass_bytes(const void* host, size_t bytes);

    struct Block {
        void* data = nullptr;
        size_t bytes = 0;  // on the device
        bool on_host = false;
    };
    std::vector<Block> blocks_;
    std::array<Block, kSlots> scratch_;
    char *ring_ = nullptr, *ring_host_ = nullptr;
    size_t ring_bytes_ = 0, ring_used_ = 0;
    int moves_ = 0;
    size_t device_bytes_ = 0;

    PassedData* recording_ = nullptr;
};

}  // namespace convoy::CONVOY_DEVICE
