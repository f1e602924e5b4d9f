// memory.cu — see memory.h.
#include "kernels/cuda/memory.h"

#include <algorithm>
#include <cstring>

namespace convoy::CONVOY_DEVICE {

// Destructors do not throw: a failure here was reported by an earlier call, or ends with the
// process.
DeviceMemory::~DeviceMemory() {
    for (void* block : device_) (void)cudaFree(block);
    for (void* block : host_) (void)cudaFreeHost(block);
    for (const Block& block : scratch_) (void)cudaFree(block.data);
    (void)cudaFree(ring_);
    (void)cudaFreeHost(ring_host_);
}

static void* alloc_device(size_t bytes) {
    void* block = nullptr;
    const cudaError_t error = cudaMalloc(&block, std::max<size_t>(bytes, 1));
    if (error == cudaErrorMemoryAllocation)
        fail("the GPU has no room for ", (bytes + (1 << 20) - 1) >> 20,
             " MB more; a smaller --batch needs less");
    CUDA_CHECK(error);
    return block;
}

float* DeviceMemory::alloc(size_t elems, cudaStream_t stream) {
    device_.push_back(alloc_device(elems * sizeof(float)));
    CUDA_CHECK(cudaMemsetAsync(device_.back(), 0, elems * sizeof(float), stream));
    return static_cast<float*>(device_.back());
}

float* DeviceMemory::alloc_host(size_t elems) {
    void* block = nullptr;
    CUDA_CHECK(cudaMallocHost(&block, std::max<size_t>(elems * sizeof(float), 1)));
    std::memset(block, 0, elems * sizeof(float));
    host_.push_back(block);
    return static_cast<float*>(block);
}

void* DeviceMemory::scratch(size_t slot, size_t bytes) {
    if (scratch_.size() <= slot) scratch_.resize(slot + 1);
    Block& block = scratch_[slot];
    if (block.bytes < bytes) {
        CUDA_CHECK(cudaFree(block.data));  // waits for the kernels that use it
        block = {};
        block.data = alloc_device(bytes);
        block.bytes = bytes;
    }
    return block.data;
}

const void* DeviceMemory::pass_bytes(const void* host, size_t bytes, cudaStream_t stream) {
    constexpr size_t kRingBytes = 1 << 20, kAlign = 256;
    if (bytes > ring_bytes_) {
        CUDA_CHECK(cudaStreamSynchronize(stream));
        CUDA_CHECK(cudaFree(ring_));
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
    ring_used_ += (bytes + kAlign - 1) / kAlign * kAlign;
    return to;
}

}  // namespace convoy::CONVOY_DEVICE
