// runtime.cpp — launches, copies, streams, events and graphs of the emulator; see runtime.h.
#include "kernels/simt/runtime.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <numeric>
#include <random>

#include "kernels/simt/worker.h"

namespace convoy::simt {

namespace {

std::atomic<uint64_t> order_seed{1};
thread_local int stream_workers = 1;
thread_local cudaError_t last_error = cudaSuccess;
thread_local std::vector<cudaStream_t> own_streams;  // a stream belongs to one thread

// By kernel; of the process, as in CUDA.
std::mutex max_shared_mutex;
std::map<const void*, size_t> max_shared_bytes;
size_t max_shared(const void* kernel) {
    std::lock_guard lock(max_shared_mutex);
    return max_shared_bytes.try_emplace(kernel, kDefaultSharedBytes).first->second;
}

int64_t count(dim3 size) { return int64_t(size.x) * size.y * size.z; }
std::string text_of(dim3 size) { return cat(size.x, "x", size.y, "x", size.z); }

}  // namespace

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t failed(cudaError_t error) { return last_error = error; }

void set_workers(int workers) { stream_workers = std::max(1, workers); }
void set_seed(uint64_t seed) { order_seed = seed; }

Stream::Stream(int workers) : pool(workers) {
    for (int i = 0; i < workers; ++i) this->workers.push_back(std::make_unique<Worker>());
}
Stream& stream_of(cudaStream_t stream) {
    static Stream common(1);
    return stream ? *stream : common;
}

static void finish_copies(Stream& stream) {
    if (stream.late.empty()) return;
    for (const auto& copy : std::exchange(stream.late, {}))
        if (copy() != cudaSuccess) fail("memory was given back before a copy of it was done");
}

// Runs the step now, or keeps it for the graph.
template <class Step>
static cudaError_t submit_to(cudaStream_t stream, const Step& step) {
    Stream& its = stream_of(stream);
    if (!its.captured) {
        finish_copies(its);
        return step();
    }
    its.captured->steps.push_back(step);
    return cudaSuccess;
}

// ---- launches ------------------------------------------------------------------------------

// The limits of compute capability 7.5 to 9.0 (CUDA C++ Programming Guide, "Technical
// Specifications per Compute Capability").
void Launch::check(const void* function) const {
    const auto need = [&](bool good, const std::string& what) {
        if (!good) fail("kernel ", name_, ": ", what);
    };
    need(count(block_) >= 1 && count(block_) <= 1024,
         cat("a block of ", text_of(block_), " threads; there may be 1 to 1024"));
    need(block_.z <= 64, cat("a block of ", text_of(block_), " threads; z is at most 64"));
    need(count(grid_) >= 1 && grid_.x <= 0x7FFFFFFFu && grid_.y <= 65535 && grid_.z <= 65535,
         cat("a grid of ", text_of(grid_), " blocks; at least 1, at most 2147483647x65535x65535"));
    need(shared_bytes_ <= max_shared(function),
         cat(shared_bytes_, " bytes of dynamic shared memory; this kernel may have ",
             max_shared(function), " (cudaFuncSetAttribute raises it to at most ", kMaxSharedBytes,
             ")"));
}

void Launch::submit(const std::function<void()>& step) const {
    (void)submit_to(stream_, [step] { return step(), cudaSuccess; });
}

void Launch::run(const std::function<void()>& thread) const {
    Stream& stream = stream_of(stream_);
    std::lock_guard lock(stream.mutex);
    const uint64_t seed = order_seed * 1'000'003 + ++stream.launches;
    const int64_t blocks = count(grid_);
    // Blocks in a random order: i → (step·i + start) mod blocks, step and blocks coprime.
    Order order(seed);
    const int64_t start = order.below(uint32_t(std::min<int64_t>(blocks, 0xFFFFFFFF)));
    int64_t step = 1 + order.below(uint32_t(std::min<int64_t>(blocks, 0xFFFFFFFF)));
    while (std::gcd(step, blocks) != 1) ++step;

    std::atomic<int64_t> next{0};
    const int workers = int(std::min<int64_t>(stream.pool.size(), blocks));
    stream.pool.for_each(workers, [&](int worker, int) {
        try {
            for (int64_t i = next++; i < blocks; i = next++) {
                const int64_t b = int64_t((__int128(step) * i + start) % blocks);
                const uint3 block{unsigned(b % grid_.x), unsigned(b / grid_.x % grid_.y),
                                  unsigned(b / grid_.x / grid_.y)};
                stream.workers[worker]->run_block(*this, thread, block, seed * 31 + b);
            }
        } catch (...) {
            next = blocks;  // the others stop
            throw;
        }
    });
}

cudaError_t set_max_shared(const void* kernel, int bytes) {
    if (bytes < 0 || size_t(bytes) > kMaxSharedBytes) return failed(cudaErrorInvalidValue);
    std::lock_guard lock(max_shared_mutex);
    max_shared_bytes[kernel] = std::max(size_t(bytes), kDefaultSharedBytes);
    return cudaSuccess;
}

// ---- device --------------------------------------------------------------------------------

static constexpr struct {
    cudaError_t error;
    const char *name, *text;
} kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when captured"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "capture spoiled by an earlier call"},
};
static const auto& find_error(cudaError_t error) {
    return *std::ranges::find(kErrors, error, [](const auto& e) { return e.error; });
}
const char* cudaGetErrorName(cudaError_t error) { return find_error(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return find_error(error).text; }

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
    static const cudaUUID_t uuid = [] {  // each process has an emulated GPU of its own
        std::random_device chance;
        cudaUUID_t random;
        for (char& byte : random.bytes) byte = char(chance());
        return random;
    }();
    // Of a small GPU with the instructions of compute capability 8.0.
    *properties = {"CUDA emulator on the CPU", uuid, size_t(8) << 30, 8, 0, 4};
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    for (const cudaStream_t stream : own_streams) finish_copies(*stream);
    return cudaSuccess;
}

// ---- copies --------------------------------------------------------------------------------

static cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (bytes == 0) return cudaSuccess;
    if (is_device_memory(to, bytes) != to_device || is_device_memory(from, bytes) != from_device)
        return failed(cudaErrorInvalidValue);
    std::memmove(kernel_address(to), kernel_address(from), bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    const auto step = [=] { return copy(to, from, bytes, kind); };
    if (!stream || stream->captured || kind != cudaMemcpyHostToDevice || !is_pinned(from, bytes))
        return submit_to(stream, step);
    if (!is_device_memory(to, bytes)) return failed(cudaErrorInvalidValue);
    stream->late.push_back(step);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
    return submit_to(stream, [=] {
        if (bytes == 0) return cudaSuccess;
        if (!is_device_memory(to, bytes)) return failed(cudaErrorInvalidValue);
        std::memset(kernel_address(to), value, bytes);
        return cudaSuccess;
    });
}

// ---- streams and events --------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    own_streams.push_back(*stream = new Stream(stream_workers));
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    std::erase(own_streams, stream);
    return delete stream, cudaSuccess;
}
// For calls that are not allowed while a stream is captured.
static cudaError_t check_not_captured(cudaStream_t stream) {
    Graph* graph = stream_of(stream).captured.get();
    if (!graph) return cudaSuccess;
    graph->spoiled = true;
    return failed(cudaErrorStreamCaptureUnsupported);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    finish_copies(stream_of(stream));
    return check_not_captured(stream);
}

struct Event {
    std::chrono::steady_clock::time_point time;
    cudaStream_t stream = nullptr;  // it was recorded on
};
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    return *event = new Event, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    event->time = std::chrono::steady_clock::now(), event->stream = stream;
    return check_not_captured(stream);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    finish_copies(stream_of(event->stream));
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    return stream_of(event->stream).late.empty() ? cudaSuccess : failed(cudaErrorNotReady);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, unsigned) {
    return cudaEventSynchronize(event);
}

// ---- graphs --------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    if (!stream || stream->captured) return failed(cudaErrorInvalidValue);
    stream->captured = std::make_unique<Graph>();
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    *graph = nullptr;
    if (!stream || !stream->captured) return failed(cudaErrorInvalidValue);
    const std::unique_ptr<Graph> captured = std::move(stream->captured);
    if (captured->spoiled) return failed(cudaErrorStreamCaptureInvalidated);
    *graph = new Graph(std::move(*captured));
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* ready, cudaGraph_t graph,
                                          unsigned long long) {
    *ready = new Graph(*graph);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream) {
    finish_copies(stream_of(stream));
    for (const auto& step : ready->steps)
        if (const cudaError_t error = step(); error != cudaSuccess) return error;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }

}  // namespace convoy::simt
