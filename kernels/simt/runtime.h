// runtime.h — the emulator's version of the CUDA runtime calls that the backend makes.
//
// The host cannot read device memory (memory.cpp). New device memory is full of NaN. A stream does
// its work in order and at once: the submitting thread waits. But a copy from pinned memory is
// delayed until the stream gets other work or the host waits for it. So a host that changes the
// source too early, or reads the target too early, gets a wrong result. Events are moments in this
// order. A graph is the list of work that was submitted while its stream was captured.
#pragma once

#include <cstddef>

#include "kernels/simt/emulator.h"

namespace convoy::simt {

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorNotReady = 600,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
};
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
// Returns and clears the last error of this host thread. A launch that fails throws instead.
cudaError_t cudaGetLastError();
cudaError_t failed(cudaError_t error);  // returns `error`, stores it for cudaGetLastError()

enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum : unsigned { cudaStreamNonBlocking = 1 };
enum : unsigned { cudaEventDisableTiming = 2 };

struct cudaUUID_t {
    char bytes[16];
};
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem;
    int major, minor;
    int multiProcessorCount;
};
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceSynchronize();

cudaError_t allocate(void** memory, size_t bytes, bool on_device);
template <class T>
cudaError_t cudaMalloc(T** memory, size_t bytes) {
    return allocate(reinterpret_cast<void**>(memory), bytes, true);
}
template <class T>
cudaError_t cudaMallocHost(T** memory, size_t bytes) {
    return allocate(reinterpret_cast<void**>(memory), bytes, false);
}
cudaError_t cudaFree(void* memory);
cudaError_t cudaFreeHost(void* memory);
// Memory of another process, which this process can only read here (on a GPU also write).
struct cudaIpcMemHandle_t {
    char reserved[64];
};
enum : unsigned { cudaIpcMemLazyEnablePeerAccess = 1 };
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory);
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned flags);
inline cudaError_t cudaIpcCloseMemHandle(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream = nullptr);
// Whether [p, p + bytes] lies in one block of device memory, or of pinned host memory.
bool is_device_memory(const void* p, size_t bytes = 0);
bool is_pinned(const void* p, size_t bytes);
// The address at which kernels access the host's pointer p; p itself if it is no device memory.
void* kernel_address(const void* p);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);

struct Event;
using cudaEvent_t = Event*;
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);

// While a stream is captured, kernels, copies and fills are stored with their arguments instead of
// run. Waiting for the stream, or recording an event on it, invalidates the capture.
struct Graph;
using cudaGraph_t = Graph*;
using cudaGraphExec_t = Graph*;
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* ready, cudaGraph_t graph,
                                          unsigned long long flags);
// Checks the pointers again, because memory may have been freed since the capture.
cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready) { return cudaGraphDestroy(ready); }

// Sets the most bytes of dynamic shared memory that launches of this kernel may request: at first
// 48 KB, never more than kMaxSharedBytes.
constexpr size_t kDefaultSharedBytes = 48 << 10, kMaxSharedBytes = 227 << 10;
cudaError_t set_max_shared(const void* kernel, int bytes);
template <class... Params>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...), cudaFuncAttribute, int bytes) {
    return set_max_shared(reinterpret_cast<const void*>(kernel), bytes);
}

}  // namespace convoy::simt
