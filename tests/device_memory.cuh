// device_memory.cuh — device memory that goes away, filled from and read into vectors.
#pragma once

#include <vector>

#include "kernels/cuda/cuda.h"

namespace convoy::CONVOY_DEVICE {

template <class T>
struct Device {
    T* data = nullptr;
    size_t n;
    explicit Device(size_t n) : n(n) { CUDA_CHECK(cudaMalloc(&data, n * sizeof(T))); }
    explicit Device(const std::vector<T>& x) : Device(x.size()) {
        CUDA_CHECK(cudaMemcpyAsync(data, x.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    }
    Device(const Device&) = delete;
    ~Device() { (void)cudaFree(data); }
    std::vector<T> host() const {
        std::vector<T> x(n);
        CUDA_CHECK(cudaMemcpyAsync(x.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost));
        CUDA_CHECK(cudaDeviceSynchronize());
        return x;
    }
};

}  // namespace convoy::CONVOY_DEVICE
