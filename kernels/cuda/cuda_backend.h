// cuda_backend.h — the Backend of a GPU, and of its emulator on the CPU.
//
// Each op is in the file of its family, named as in kernels/cpu: conv2d.cu, linear.cu, … All ops
// run in order on one stream; download() and synchronize() wait for it. Only the thread that made
// the backend may use it: CUDA stores the current GPU per thread, and the constructor sets it.
#pragma once

#include <algorithm>
#include <array>
#include <memory>

#include "kernels/backend.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/timeline.h"

namespace convoy::CONVOY_DEVICE {

struct Strips;  // moments.cuh

class CudaBackend final : public Backend {
 public:
    CudaBackend(int index, const BackendOptions& options);
    ~CudaBackend() override;

    std::string name() const override;
    std::string description() const override;
    int threads() const override { return threads_; }
    Type activations() const override {
        return precision_ == Precision::kBf16 ? Type::kBfloat16 : Type::kFloat32;
    }

    float* alloc(size_t elems) override { return memory_.alloc(elems); }
    float* alloc_host(size_t elems) override { return memory_.alloc_host(elems); }
    size_t blocks() const override { return memory_.blocks(); }
    void release_after(size_t count) override { memory_.release_after(count); }
    const float* to_device(const float* host, float* device, size_t elems) override;
    void start_upload(const float* host, float* device, size_t elems) override;
    void wait_upload() override;
    void normalise(const uint8_t* pixels, const InputStatistics& statistics, Tensor x) override;
    void upload(void* device, const void* host, size_t bytes) override;
    void download(void* host, const void* device, size_t bytes) override;
    void copy(float* to, const float* from, size_t elems) override;
    void copy(Tensor to, Tensor from) override;
    void fill(float* to, size_t elems, float value) override;
    void synchronize() override;
    size_t device_bytes() const override { return memory_.device_bytes(); }
    bool host_visible() const override { return false; }
    int64_t start_download(float* host, const float* device, size_t elems) override;
    void wait_download(int64_t number) override;
    std::string share(std::span<float> block) override;
    std::unique_ptr<PeerSum> open_peers(std::span<float> own, std::span<const std::string> shared,
                                        int rank) override;
    bool can_record() const override { return true; }
    std::unique_ptr<Recording> record() override;
    SpanSink* trace(Track* ops, Track* uploads, Track* downloads) override;
    double measure_peak_gflops() override;

#define OP override
#include "kernels/ops_body.h"
#undef OP

 private:
    static constexpr int kThreads = 256;  // of a block with one number per thread

    // Blocks for a loop over n numbers in steps of the grid's width, at most 8 per multiprocessor.
    dim3 blocks_for(size_t n) const {
        return unsigned(std::clamp<size_t>((n + kThreads - 1) / kThreads, 1, processors_ * 8));
    }
    // The bounds of groups, in device memory. They are copied only if they have changed.
    const int* bounds(GroupBounds groups);
    // Allocates statistics for strips of `height` rows of x; finish_moments() merges the strips.
    Strips make_strips(Tensor x, GroupBounds groups, int64_t height, Slot slot);
    void finish_moments(Tensor x, Strips strips, const Moments& to);
    void depthwise(Tensor x, Tensor w, const float* b, Window window, bool relu, Tensor y);
    void depthwise_grad_x(Tensor dy, Tensor w, Window window, Tensor mask, Tensor dx);
    void depthwise_grad_w(Tensor x, Tensor dy, Window window, Tensor dw);
    // sums[c] += Σ of channel c of x over all pixels of all images.
    void add_column_sums(Tensor x, float* sums);
    template <class F>
    void map(Tensor x, Tensor y, F f);

    int index_, threads_;
    int processors_ = 1;  // multiprocessors of the GPU
    Precision precision_ = Precision::kFp32;
    int tma_ = 0;           // columns of the widest tile of tma_gemm.cuh; 0: it is not used
    std::string products_;  // what description() says of products
    cudaStream_t stream_ = nullptr;
    // A stream for uploads during the ops, and an event for the end of the last upload.
    cudaStream_t upload_stream_ = nullptr;
    cudaEvent_t uploaded_ = nullptr;
    // A stream for downloads during the ops, and an event for the end of each download. After 64
    // downloads an event belongs to a later one, so waiting for it is still correct.
    cudaStream_t copy_stream_ = nullptr;
    cudaEvent_t ops_done_ = nullptr;
    std::array<cudaEvent_t, 64> copies_done_{};
    int64_t downloads_ = 0;
    DeviceMemory memory_{stream_};
    std::vector<int> bounds_;  // of the last groups; bounds_there_: the same on the device
    const int* bounds_there_ = nullptr;
    std::unique_ptr<Timeline> timeline_;  // null: not traced
    Track *upload_track_ = nullptr, *download_track_ = nullptr;
};

}  // namespace convoy::CONVOY_DEVICE
