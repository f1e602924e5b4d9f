// memory.cu — see memory.h.
#include "kernels/cuda/memory.h"

#include <algorithm>
#include <cstring>

namespace convoy::CONVOY_DEVICE {

// Destructors do not throw: a failure here was reported by an earlier call.
DeviceMemory::~DeviceMemory() {
    release_after(0);
    for (const Block& block : scratch_) (void)cudaFree(block.data);
    (void)cudaFree(ring_);
    (void)cudaFreeHost(ring_host_);
}

void* DeviceMemory::alloc_device(size_t bytes) {
    void* block = nullptr;
    const cudaError_t error = cudaMalloc(&block, std::max<size_t>(bytes, 1));
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();  // or the next launch would report it once more
        fail("the GPU has no room for ", (bytes + (1 << 20) - 1) >> 20,
             " MB more; a smaller --batch needs less");
    }
    CUDA_CHECK(error);
    device_bytes_ += bytes;
    return block;
}

float* DeviceMemory::alloc(size_t elems) {
    const size_t bytes = elems * sizeof(float);
    void* const block = alloc_device(bytes);
    blocks_.push_back({block, bytes, false});
    CUDA_CHECK(cudaMemsetAsync(block, 0, bytes, stream));
    return static_cast<float*>(block);
}

float* DeviceMemory::alloc_host(size_t elems) {
    void* block = nullptr;
    CUDA_CHECK(cudaMallocHost(&block, std::max<size_t>(elems * sizeof(float), 1)));
    std::memset(block, 0, elems * sizeof(float));
    blocks_.push_back({block, 0, true});
    return static_cast<float*>(block);
}

void DeviceMemory::release_after(size_t count) {
    if (blocks_.size() > count) (void)cudaDeviceSynchronize();  // kernels and copies still use it
    for (; blocks_.size() > count; blocks_.pop_back()) {
        const Block& block = blocks_.back();
        (void)(block.on_host ? cudaFreeHost(block.data) : cudaFree(block.data));
        device_bytes_ -= block.bytes;
    }
}

void* DeviceMemory::scratch(Slot slot, size_t bytes) {
    Block& block = scratch_[slot];
    if (block.bytes < bytes) {
        ENSURE(!recording_, "scratch block ", slot, " grows from ", block.bytes, " to ", bytes);
        ++moves_;
        device_bytes_ -= block.bytes;
        CUDA_CHECK(cudaFree(block.data));  // waits for the kernels that use it
        block = {};                        // if there is no room
        block = {alloc_device(bytes), bytes};
    }
    return block.data;
}

constexpr size_t kAlign = 256, kRecordedBytes = 1 << 20;
static size_t align(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

const void* DeviceMemory::pass_bytes(const void* host, size_t bytes) {
    if (recording_) return recording_->place(host, bytes);
    constexpr size_t kRingBytes = 1 << 20;
    if (bytes > ring_bytes_) {
        CUDA_CHECK(cudaStreamSynchronize(stream));
        CUDA_CHECK(cudaFree(ring_));
        device_bytes_ -= ring_bytes_;
        CUDA_CHECK(cudaFreeHost(ring_host_));
        ring_ = ring_host_ = nullptr;
        ring_bytes_ = std::max(kRingBytes, 2 * bytes), ring_used_ = 0;
        ring_ = static_cast<char*>(alloc_device(ring_bytes_));
        CUDA_CHECK(cudaMallocHost(&ring_host_, ring_bytes_));
    }
    if (ring_used_ + bytes > ring_bytes_) {
        CUDA_CHECK(cudaStreamSynchronize(stream));  // the old pieces have been read
        ring_used_ = 0;
    }
    char *to = ring_ + ring_used_, *from = ring_host_ + ring_used_;
    if (bytes) std::memcpy(from, host, bytes);
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
    ring_used_ += align(bytes);
    return to;
}

PassedData::PassedData(DeviceMemory& memory)
    : memory_(memory), there_(static_cast<char*>(memory.alloc_device(kRecordedBytes))) {}

PassedData::~PassedData() {
    (void)cudaFree(there_);  // waits for the kernels that use it
    memory_.device_bytes_ -= kRecordedBytes;
}

// The same data is passed to many ops (the bounds of groups to each batch norm): it has one place.
const void* PassedData::place(const void* host, size_t bytes) {
    for (const Piece& piece : pieces_)
        if (piece.host == host && piece.bytes == bytes) return there_ + piece.offset;
    const size_t offset = collected_.size();
    if (offset + align(bytes) > kRecordedBytes)
        fail("labels, sample numbers and groups of a step take more than ", kRecordedBytes >> 20,
             " MB");
    pieces_.push_back({host, bytes, offset});
    collected_.resize(offset + align(bytes));
    return there_ + offset;
}

void PassedData::refresh() {
    for (const Piece& piece : pieces_)
        std::memcpy(collected_.data() + piece.offset, piece.host, piece.bytes);
    const void* from = memory_.pass_bytes(collected_.data(), collected_.size());
    CUDA_CHECK(
        cudaMemcpyAsync(there_, from, collected_.size(), cudaMemcpyDeviceToDevice, memory_.stream));
}

}  // namespace convoy::CONVOY_DEVICE
