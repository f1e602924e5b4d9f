// backend.h — what a device implements: memory, copies, and the operations (ops) in ops_body.h.
//
// kernels/cpu/x.cpp and kernels/cuda/x.cu implement the same functions. Layers call them and know
// no device. Rules for all ops:
//
//   =  / +=     An op overwrites its output (=) unless its comment says += (gradients of weights).
//   N = 0       Allowed: nothing is read, and outputs marked += stay as they are.
//   in place    Only if the comment allows it.
//   blocking    An op may return before it is done. Ops run in the order of the calls; download()
//               and synchronize() wait for all earlier ops.
//   errors      Wrong shapes throw Error. A second call with the same shapes allocates nothing.
//   exactness   Every run gives the same bits, on any number of threads.
//   types       Activations (x, y, dx, dy, masks, residuals) and w have the type activations(). dw,
//               logits and every float* are fp32. The outputs of conv2d, linear and their grad_x
//               may be fp32 instead. Sums are accumulated in fp32.
//
// "Cost" counts a multiply-add as two operations, and the numbers read from or written to memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/tensor.h"
#include "src/base/input_size.h"

namespace convoy {

class SpanSink;  // src/base/trace.h
class Track;

// The window of a convolution or a pool. `extra` is additional padding at the end (bottom, right).
// Its taps are `dilation` pixels apart (1 in pools), so it spans (size − 1)·dilation + 1 pixels.
// Output rows P = ⌊(H + 2·pad_h + extra_h − extent_h) / stride_h⌋ + 1; columns Q likewise.
struct Window {
    int size_h = 1, size_w = 1;
    int stride_h = 1, stride_w = 1;
    int pad_h = 0, pad_w = 0;
    int extra_h = 0, extra_w = 0;
    int dilation_h = 1, dilation_w = 1;

    static Window square(int size, int stride = 1, int pad = 0) {
        return {size, size, stride, stride, pad, pad};
    }
    bool dilated() const { return dilation_h != 1 || dilation_w != 1; }
    int extent_h() const { return (size_h - 1) * dilation_h + 1; }
    int extent_w() const { return (size_w - 1) * dilation_w + 1; }
    int out_h(int H) const { return (H + 2 * pad_h + extra_h - extent_h()) / stride_h + 1; }
    int out_w(int W) const { return (W + 2 * pad_w + extra_w - extent_w()) / stride_w + 1; }
    bool operator==(const Window&) const = default;
};

// An activation function. Its gradient is computed from its output y, or from its input x.
struct Activation {
    enum Kind {
        kNone,         // x
        kRelu,         // max(0, x)
        kRelu6,        // min(6, max(0, x))
        kLeakyRelu,    // x < 0 ? slope·x : x
        kElu,          // x < 0 ? slope·(eˣ − 1) : x
        kSigmoid,      // 1/(1 + e⁻ˣ)
        kHardSigmoid,  // min(1, max(0, x/6 + 1/2))
        kSilu,         // x·sigmoid(x)                                      gradient from x
        kHardSwish,    // x·hardsigmoid(x)                                  gradient from x
        kGelu,         // x·Φ(x), Φ the normal distribution function        gradient from x
    } kind = kRelu;
    static constexpr Kind kLast = kGelu;
    float slope = 0;  // not negative
    constexpr bool needs_x() const { return kind >= kSilu; }
    // Whether batch norm can apply it to its output.
    constexpr bool fits_norm() const { return kind <= kRelu6 || (needs_x() && kind < kGelu); }
    constexpr explicit operator bool() const { return kind != kNone; }
};

// Batch norm takes its statistics over groups of images. Group g is images [bounds[g], bounds[g+1])
// of the batch; bounds.front() is 0 and bounds.back() is N.
using GroupBounds = std::span<const int>;

// Which statistics batch norm needs from a tensor with C channels, and where they are written.
struct Moments {
    GroupBounds groups;
    float eps = 0;
    float* mean_rstd = nullptr;  // groups × 2 × C
    float* sums = nullptr;       // 2 × C
};

// The sums that softmax_cross_entropy adds to. They are floats because they are summed over the
// ranks together with the gradients; counts are exact up to 2^24 images.
struct BatchSums {
    static constexpr int kFloats = 3;
    enum : int { kLoss = 0, kCorrect = 1, kTop5 = 2 };  // index in the array of sums
};

// For mixed images (mixup): the second label of each image, and the weight of the first label.
struct MixedLabels {
    std::span<const int32_t> second = {};    // N, or none
    std::span<const float> first_part = {};  // N, from 0 to 1
};

// An op draws the numbers of Random(seed, epoch, …) in src/base/random.h.
struct Draws {
    uint64_t seed = 0;
    uint32_t epoch = 0;
};

// The state of one training step for the optimizer's ops, in device memory. The host sets it before
// the step; check_finite() sets scale and first_bad, clip() sets clip and norm.
struct StepState {
    float lr = 0;                // learning rate
    float bias1 = 1, bias2 = 1;  // AdamW's 1−β1^t and 1−β2^t, its steps t counted from 1
    float scale = 0;             // 1/images; 0: the step must change nothing
    float clip = 1, norm = 0;    // a second factor of the gradients; their norm before clipping
    float part = 1;              // weight of the current weights in their moving average
    int64_t first_bad = -1;      // index of the first number that is not finite, or -1
};

// Floats [begin, end) of the arenas. All params in them have these factors.
struct Segment {
    size_t begin, end;
    float weight_decay = 0;
    float rate = 1;  // of the learning rate
};
// Segments, ascending, on the host. The slice that an op updates begins at float `first`.
struct Segments {
    std::span<const Segment> list;
    size_t first = 0;
};

// Ops recorded after Backend::record(). Must be destroyed before its backend.
class Recording {
 public:
    virtual ~Recording() = default;  // before end(): discards the recording
    virtual void end() = 0;          // later ops run again instead of being recorded
    // Runs the recorded ops in one launch. Host memory (labels, draws, sample_ids, group bounds) is
    // read again. Returns false and does nothing if scratch memory has been reallocated since.
    virtual bool replay() = 0;
};

// Sums over the GPUs of one host, which read each other's memory, in parallel to the ops. Before
// each step on a range of floats, all ranks must have ended what came before it on that range: the
// ops that write it (an event), sum() and gather() (wait), then a barrier.
class PeerSum {
 public:
    virtual ~PeerSum() = default;  // waits, then closes the blocks of the others
    // This rank's slice of floats [begin, end) = the sum over all blocks, in the order of the
    // ranks.
    virtual void sum(size_t begin, size_t end) = 0;
    // The slices of the other ranks = their sums.
    virtual void gather(size_t begin, size_t end) = 0;
    virtual void wait() = 0;  // blocks until the steps that this rank has called have ended
};

class Backend {
 public:
    virtual ~Backend() = default;

    // ---- the device ------------------------------------------------------------------------

    virtual std::string name() const = 0;         // "cpu", "cuda:0", "simt"
    virtual std::string description() const = 0;  // a line for the table printed at the start
    virtual int threads() const = 0;              // compute threads; 1 on a GPU
    // The type of activations and of their gradients.
    virtual Type activations() const { return Type::kFloat32; }

    // Zeroed device memory, 64-byte aligned, owned by the backend and released with it.
    virtual float* alloc(size_t elems) = 0;
    Tensor alloc(Shape shape, Type type) {
        return {alloc((shape.elems() * bytes_of(type) + 3) / sizeof(float)), shape, type};
    }
    // Host memory that the device can copy from quickly (pinned); owned and released as above.
    virtual float* alloc_host(size_t elems) = 0;
    // The number of blocks allocated so far; release_after() frees all but the first `count`.
    virtual size_t blocks() const = 0;
    virtual void release_after(size_t count) = 0;
    // Copies `host` (from alloc_host) to `device` and returns `device`. A device that reads host
    // memory returns `host` and copies nothing. Valid until the next call with the same `device`.
    virtual const float* to_device(const float* host, float* device, size_t elems) = 0;

    // Starts the same copy in parallel to the ops. Until wait_upload() no op may use `device`, and
    // `host` must not change. Does nothing if to_device() copies nothing.
    virtual void start_upload(const float*, float*, size_t) {}
    virtual void wait_upload() {}
    // x[n,h,w,c] = pixels[n,h,w,c] · scale(c) + bias(c), for a device that has its own memory.
    virtual void normalise(const uint8_t*, const InputStatistics&, Tensor) {
        fail("device ", name(), " cannot normalise");
    }

    virtual void upload(void* device, const void* host, size_t bytes) = 0;  // host may change after
    virtual void download(void* host, const void* device, size_t bytes) = 0;  // blocks
    virtual void copy(float* to, const float* from, size_t elems) = 0;        // within the device
    // to = from, the same number of elements; rounded to nearest, ties to even, if `to` is bf16.
    virtual void copy(Tensor to, Tensor from) = 0;
    virtual void fill(float* to, size_t elems, float value) = 0;
    virtual void synchronize() = 0;
    // Bytes of device memory allocated so far; 0 if the device uses host memory.
    virtual size_t device_bytes() const { return 0; }
    // Whether the CPU may read and write device memory (the ring then sums in place).
    virtual bool host_visible() const = 0;
    // Starts copying `device`, after the ops called so far, to `host` (from alloc_host), in
    // parallel to later ops. wait_download(the number) blocks until it and earlier copies end; a
    // copy of 0 floats ends when the ops called so far have ended.
    virtual int64_t start_download(float* host, const float* device, size_t elems) {
        download(host, device, elems * sizeof(float));
        return 0;
    }
    virtual void wait_download(int64_t) {}
    // Bytes by which other processes can open a block (from alloc) until it changes; "" if the
    // device has no memory of its own. open_peers(block, the bytes of every rank, this rank) opens
    // them all. Both throw Error if the driver cannot.
    virtual std::string share(std::span<float> /*block*/) { return ""; }
    virtual std::unique_ptr<PeerSum> open_peers(std::span<float>, std::span<const std::string>,
                                                int /*rank*/) {
        return nullptr;
    }
    // If can_record(): ops from here to Recording::end() are recorded instead of run. They must
    // have run before with the same shapes and must not block; their host memory must stay alive.
    virtual bool can_record() const { return false; }
    virtual std::unique_ptr<Recording> record() { fail("device ", name(), " cannot record"); }
    // For a device that runs ops after the calls: writes its times to these tracks; ops null:
    // stops. Returns the sink that assigns ops to spans until the next call; other devices null.
    virtual SpanSink* trace(Track* ops, Track* uploads, Track* downloads) {
        return (void)ops, (void)uploads, (void)downloads, nullptr;
    }
    // Measures the upper bound for every op: multiply-adds on registers on all compute threads, in
    // 10⁹ operations per second and the precision of the ops; 0: not known. Takes about 1 ms.
    virtual double measure_peak_gflops() { return 0; }

#define OP = 0
#include "kernels/ops_body.h"
#undef OP
};

// How 3x3 and 5x5 convolutions of stride 1 are computed: by Winograd's method, directly, or by the
// method that the backend expects to be faster (CPU: use_winograd() in kernels/cpu/conv2d.cpp).
enum class ConvMethod { kAuto, kWinograd, kDirect };

// The type in which convolutions and linear layers multiply. tf32 (10 bits of mantissa, GPU only)
// rounds the operands of each product. With bf16 (7 bits) the activations and a copy of the weights
// are bf16 in memory. Sums, weights and gradients of weights are always fp32.
enum class Precision { kFp32, kTf32, kBf16 };
constexpr const char* name_of(Precision precision) {
    return precision == Precision::kFp32 ? "fp32" : precision == Precision::kTf32 ? "tf32" : "bf16";
}

struct BackendOptions {
    int threads = 0;  // compute threads; 0: one for each core that this process may use
    ConvMethod conv = ConvMethod::kAuto;
    Precision precision = Precision::kFp32;
    bool idle = false;  // CPU: ops compute nothing, for simulations (bench train --compute)
};

// device: "cpu", "cuda", "cuda:1", "simt", or "" for a GPU if there is one, else the CPU.
std::unique_ptr<Backend> make_backend(const std::string& device,
                                      const BackendOptions& options = {});

// GPUs that this process may use (see CUDA_VISIBLE_DEVICES). If 0, *why_none is the reason.
int count_gpus(std::string* why_none = nullptr);
// The UUID of a GPU, as `nvidia-smi -L` prints it: the same under any index and in any container.
// "" for the CPU; unique to this process for "simt". Does not allocate on the GPU.
std::string device_identity(const std::string& device);

// Processors this process may use: the smaller of affinity mask and cgroup quota (rounded up).
int available_cpus();
// The same in physical cores, since hyperthreads share multipliers: the default of --threads.
int available_cores();
// The cores of these processors, from the lists of siblings in `folder`; without a list, each one.
int count_cores(std::span<const int> cpus, const std::string& folder = "/sys/devices/system/cpu");
// Which backends this program was linked with, for --version.
std::string built_backends();

}  // namespace convoy
