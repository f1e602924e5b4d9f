// cuda_backend.cu — the device itself: its choice, its memory, its stream.
#include "kernels/cuda/cuda_backend.h"

#include <cstring>

#include "kernels/cuda/make_backend.h"
#include "src/base/text.h"

namespace convoy::CONVOY_DEVICE {

namespace {

// x = value, n floats; 4·n bytes written.
__global__ void fill_kernel(float* x, size_t n, float value) {
    for (size_t i = first_index(); i < n; i += grid_width()) x[i] = value;
}

}  // namespace

int count_devices(std::string* why_none) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) count = 0;
    if (count == 0) *why_none = error == cudaSuccess ? "no GPU" : cudaGetErrorString(error);
    return count;
}

#ifdef __CUDACC__
const char* architectures() { return CONVOY_ARCH; }
#endif

bool has_group_products(const cudaDeviceProp& gpu) {
    return kIsEmulator || (gpu.major == 9 && std::strstr(CONVOY_MACHINE_CODE, "90a"));
}

std::string device_identity(int index) {
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
    std::string text = kIsEmulator ? "simt" : "GPU";
    for (size_t i = 0; i < sizeof properties.uuid.bytes; ++i) {
        if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += fmt::format("{:02x}", (unsigned char)properties.uuid.bytes[i]);
    }
    return text;
}

std::unique_ptr<Backend> make_device_backend(int index, const BackendOptions& options) {
    return std::make_unique<CudaBackend>(index, options);
}

CudaBackend::CudaBackend(int index, const BackendOptions& options)
    : index_(index), threads_(options.threads > 0 ? options.threads : available_cores()) {
    ENSURE(options.threads >= 0 && options.threads <= 4096, "threads is ", options.threads);
    CUDA_CHECK(cudaSetDevice(index_));
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, index_));
    processors_ = properties.multiProcessorCount;
    // Tensor cores support tf32 and bf16 since 8.0. Older GPUs use the plain kernels.
    if (properties.major >= 8) precision_ = options.precision;
    products_ =
        cat(precision_ == Precision::kBf16 ? "activations and products in " : "products in ",
            name_of(precision_));
    if (precision_ != options.precision)
        products_ += cat(", ", name_of(options.precision), " needs compute capability 8.0");
    const std::string tma = environment_variable("CONVOY_TEST_TMA");
    if (!tma.empty() && tma != "off" && tma != "on" && tma != "wide")
        fail("CONVOY_TEST_TMA is '", tma, "'; it can be off, on or wide");
    if (precision_ == Precision::kBf16 && !tma.empty() && tma != "off") {
        if (!has_group_products(properties))
            fail("CONVOY_TEST_TMA=", tma, " needs a Hopper GPU, and code for it (make ARCH=90a)");
        tma_ = tma == "on" ? 128 : 256;
        products_ += " by TMA and wgmma";
    }
    set_workers(threads_);  // of the emulator; a GPU has its own
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    set_workers(1);
    CUDA_CHECK(cudaStreamCreateWithFlags(&upload_stream_, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&copy_stream_, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&uploaded_, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&ops_done_, cudaEventDisableTiming));
    for (cudaEvent_t& event : copies_done_)
        CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
}

CudaBackend::~CudaBackend() {
    // Memory may be freed only when no kernel uses it. Errors are ignored: no result is needed.
    for (cudaStream_t stream : {upload_stream_, copy_stream_, stream_})
        (void)cudaStreamSynchronize(stream);
    timeline_.reset();
    for (cudaEvent_t event : copies_done_) (void)cudaEventDestroy(event);
    (void)cudaEventDestroy(ops_done_);
    (void)cudaEventDestroy(uploaded_);
    for (cudaStream_t stream : {upload_stream_, copy_stream_, stream_})
        (void)cudaStreamDestroy(stream);
}

std::string CudaBackend::name() const {
    return kIsEmulator ? std::string("simt") : cat("cuda:", index_);
}

std::string CudaBackend::description() const {
    if (kIsEmulator)
        return cat("simt, the CUDA kernels on the CPU, ", counted(threads_, "thread"), ", ",
                   products_, "; slow, to learn and to test");
    cudaDeviceProp p;
    CUDA_CHECK(cudaGetDeviceProperties(&p, index_));
    return cat(name(), ", ", p.name, ", compute capability ", p.major, ".", p.minor, ", ",
               p.multiProcessorCount, " multiprocessors, ", p.totalGlobalMem >> 30, " GB, ",
               products_, compile_notice(CONVOY_MACHINE_CODE, p.major, p.minor));
}

const float* CudaBackend::to_device(const float* host, float* device, size_t elems) {
    CUDA_CHECK(
        cudaMemcpyAsync(device, host, elems * sizeof(float), cudaMemcpyHostToDevice, stream_));
    return device;
}

SpanSink* CudaBackend::trace(Track* ops, Track* uploads, Track* downloads) {
    upload_track_ = uploads, download_track_ = downloads;
    timeline_ = ops ? std::make_unique<Timeline>(memory_, ops) : nullptr;
    return timeline_.get();
}

void CudaBackend::start_upload(const float* host, float* device, size_t elems) {
    if (timeline_) timeline_->begin(upload_stream_, upload_track_);
    CUDA_CHECK(cudaMemcpyAsync(device, host, elems * sizeof(float), cudaMemcpyHostToDevice,
                               upload_stream_));
    CUDA_CHECK(cudaEventRecord(uploaded_, upload_stream_));
    if (timeline_) timeline_->end(kTraceUpload, 0, double(elems * sizeof(float)));
}

void CudaBackend::wait_upload() { CUDA_CHECK(cudaStreamWaitEvent(stream_, uploaded_)); }

void CudaBackend::upload(void* device, const void* host, size_t bytes) {
    ENSURE(!memory_.is_recording(), "an upload is not for a recording");
    if (bytes <= 4096) {  // copied through our own pinned memory, so the host need not wait
        const void* there = memory_.pass(std::span(static_cast<const char*>(host), bytes));
        CUDA_CHECK(cudaMemcpyAsync(device, there, bytes, cudaMemcpyDeviceToDevice, stream_));
        return;
    }
    CUDA_CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));  // pinned memory would be read after we return
}

void CudaBackend::download(void* host, const void* device, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_));
    synchronize();
}

int64_t CudaBackend::start_download(float* host, const float* device, size_t elems) {
    CUDA_CHECK(cudaEventRecord(ops_done_, stream_));
    CUDA_CHECK(cudaStreamWaitEvent(copy_stream_, ops_done_));
    if (timeline_ && elems) timeline_->begin(copy_stream_, download_track_);
    if (elems)
        CUDA_CHECK(cudaMemcpyAsync(host, device, elems * sizeof(float), cudaMemcpyDeviceToHost,
                                   copy_stream_));
    CUDA_CHECK(cudaEventRecord(copies_done_[downloads_ % copies_done_.size()], copy_stream_));
    if (timeline_ && elems) timeline_->end(kTraceDownload, 0, double(elems * sizeof(float)));
    return downloads_++;
}

void CudaBackend::wait_download(int64_t number) {
    CUDA_CHECK(cudaEventSynchronize(copies_done_[number % copies_done_.size()]));
}

void CudaBackend::copy(float* to, const float* from, size_t elems) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, elems * sizeof(float), cudaMemcpyDeviceToDevice, stream_));
}

void CudaBackend::fill(float* to, size_t elems, float value) {
    fill_kernel<<<blocks_for(elems), kThreads, 0, stream_>>>(to, elems, value);
    CUDA_LAUNCHED();
}

void CudaBackend::synchronize() {
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    if (timeline_) timeline_->write();
}

}  // namespace convoy::CONVOY_DEVICE
