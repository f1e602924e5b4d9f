// backend.h — every operation (op) that a device implements, declared once with formula and shapes.
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

    // ---- convolution -----------------------------------------------------------------------

    // y[n,p,q,k] = act(b[k] + Σ_rsc x[n, p·stride+r−pad, q·stride+s−pad, c] · w[k,r,s,c])
    //   x N×H×W×C, w K×R×S×C, b K or null, y N×P×Q×K. act is max(0,·) if relu, else nothing.
    //   Pixels outside of x count as 0.            Cost 2·N·P·Q·K·R·S·C; x, w read, y written.
    //   With a dilation, r·dilation and s·dilation are added to the pixel, in all three ops.
    // Depthwise if w has one channel and x has K: channel k of y reads only channel k of x, in all
    // three ops. Then y and dx have the type activations(), and the ops are bound by memory.
    // If of_y is given, also computes moments(y, *of_y); a GPU does so before y leaves registers.
    virtual void conv2d(Tensor x, Tensor w, const float* b, Window window, bool relu, Tensor y,
                        const Moments* of_y = nullptr) = 0;

    // dx[n,h,w,c] = Σ dy[n,p,q,k] · w[k,r,s,c] over all (p,q,k,r,s) that read x[n,h,w,c]
    //   If add: dx += instead of =, for a w that is not depthwise; bf16 products may be rounded
    //   before the sum. With a mask (of x's shape) dx, or the sum, is 0 where mask <= 0. If x is
    //   the output of a relu, x is the mask: this saves the pass of activate_grad. Cost as conv2d.
    virtual void conv2d_grad_x(Tensor dy, Tensor w, Window window, Tensor mask, Tensor dx,
                               bool add = false) = 0;

    // dw[k,r,s,c] += Σ_npq dy[n,p,q,k] · x[n, p·stride+r−pad, q·stride+s−pad, c]
    // db[k]       += Σ_npq dy[n,p,q,k]           (skipped if null)              Cost as conv2d.
    virtual void conv2d_grad_w(Tensor x, Tensor dy, Window window, Tensor dw, float* db) = 0;

    // ---- linear ----------------------------------------------------------------------------

    // y[n,k] = act(b[k] + Σ_c x[n,c] · w[k,c])   x N×C (an image H×W×C is a row of H·W·C numbers),
    //   w K×1×1×C, b K or null, y N×1×1×K.                       Cost 2·N·K·C; w read once.
    virtual void linear(Tensor x, Tensor w, const float* b, bool relu, Tensor y) = 0;
    // dx[n,c] = Σ_k dy[n,k] · w[k,c], masked as in conv2d_grad_x.
    virtual void linear_grad_x(Tensor dy, Tensor w, Tensor mask, Tensor dx) = 0;
    // dw[k,c] += Σ_n dy[n,k] · x[n,c]; db[k] += Σ_n dy[n,k] (skipped if null).
    virtual void linear_grad_w(Tensor x, Tensor dy, Tensor dw, float* db) = 0;

    // ---- batch norm ------------------------------------------------------------------------

    // For each group g of images and each channel c, over the M = (images of g)·H·W values:
    //   mean = Σ x / M    var = Σ (x − mean)² / M
    //   mean_rstd[g][0][c] = mean    mean_rstd[g][1][c] = rstd = 1/√(var + eps)
    //   sums[c]     += (images of g) · mean
    //   sums[C + c] += (images of g) · var · M/(M−1)             (M−1 taken as 1 if M is 1)
    // The running statistics are computed from these sums over all ranks, so they are the same on
    // one rank as on many. mean_rstd of an empty group is undefined.    Cost 1 read of x.
    virtual void moments(Tensor x, const Moments& to) = 0;

    // y = act(gamma·(x − mean)·rstd + beta + residual)         residual may be null (not added)
    //   mean_rstd from moments(x) for the same groups; x, y, residual N×H×W×C. y may be
    //   residual, or x if no gradient is needed.              Cost 1 read of x, 1 write of y.
    //   act.fits_norm(), and is none or relu if there is a residual.
    virtual void batch_norm(Tensor x, GroupBounds groups, const float* mean_rstd,
                            const float* gamma, const float* beta, Tensor residual, Activation act,
                            Tensor y) = 0;

    // With x̂ = (x − mean)·rstd and z = gamma·x̂ + beta:
    //   dz = dy·act'(z), computed again from x; with a residual dz = dy·act'(y)
    //   dgamma += Σ dz·x̂     dbeta += Σ dz     (each may be null: frozen)
    //   dx = gamma·rstd·(dz − mean_g(dz) − x̂·mean_g(dz·x̂))    mean_g over the M values of the group
    //   dresidual = dz                          (null: there was no residual; may be dy)
    //   y is read only with act and dresidual. dx may be dy, unless dresidual is dy.
    virtual void batch_norm_grad(Tensor x, Tensor y, Tensor dy, GroupBounds groups,
                                 const float* gamma, const float* beta, Activation act,
                                 const float* mean_rstd, Tensor dx, Tensor dresidual, float* dgamma,
                                 float* dbeta) = 0;

    // y = act(gamma·(x − mean)/√(var + eps) + beta + residual): batch_norm with fixed statistics.
    virtual void batch_norm_eval(Tensor x, const float* gamma, const float* beta, const float* mean,
                                 const float* var, Tensor residual, Activation act, float eps,
                                 Tensor y) = 0;
    // dx = dz·gamma/√(var + eps), dz and dresidual as in batch_norm_grad; for frozen layers.
    virtual void batch_norm_eval_grad(Tensor x, Tensor y, Tensor dy, const float* gamma,
                                      const float* beta, const float* mean, const float* var,
                                      Activation act, float eps, Tensor dx, Tensor dresidual) = 0;

    // ---- group norm ------------------------------------------------------------------------

    // Over the H·W pixels and C/groups channels of each group of each image (layer norm: images of
    // one pixel, one group). A depthwise conv2d of 1x1 applies gamma and beta:
    //   y = (x − mean)·rstd   rstd = 1/√(var + eps), N×groups floats, null: not wanted. y may be x.
    virtual void group_norm(Tensor x, int groups, float eps, Tensor y, float* rstd) = 0;
    // dx = rstd·(dy − mean(dy) − y·mean(dy·y)); dx may be dy.
    virtual void group_norm_grad(Tensor y, int groups, const float* rstd, Tensor dy, Tensor dx) = 0;

    // ---- elementwise and pooling -----------------------------------------------------------

    // x = f(x), in place.
    virtual void activate(Tensor x, Activation f = {}) = 0;
    // dy = dy·f'(x), in place. of: y = f(x), or x if f.needs_x(). For max(0, x): dy where y > 0.
    virtual void activate_grad(Tensor of, Tensor dy, Activation f = {}) = 0;
    // y[n,h,w,c] = x[n,h,w,c]·s[n,c]                     x, y N×H×W×C, s N×1×1×C
    virtual void scale_channels(Tensor x, Tensor s, Tensor y) = 0;
    // dx[n,h,w,c] = dy[n,h,w,c]·s[n,c]     ds[n,c] = Σ_hw dy[n,h,w,c]·x[n,h,w,c]. dx may be dy.
    virtual void scale_channels_grad(Tensor x, Tensor s, Tensor dy, Tensor dx, Tensor ds) = 0;
    // x += y, the same shape.
    virtual void add(Tensor x, Tensor y) = 0;
    // to = from, or to += from if add. Both have the same N, H, W; the tensor with fewer channels
    // corresponds to channels [first, first + its C) of the other.
    virtual void copy_channels(Tensor to, Tensor from, int first, bool add = false) = 0;

    // y[n,p,q,c] = max of x over the window; padding never wins, and pad ≤ size/2.
    //   argmax[n,p,q,c] = r·S + s of the first maximum in row order, in a byte: R·S ≤ 256.
    virtual void max_pool(Tensor x, Window window, Tensor y, uint8_t* argmax) = 0;
    // dx[n,h,w,c] = Σ dy over the windows whose maximum is x[n,h,w,c]; mask as in conv2d_grad_x.
    virtual void max_pool_grad(Tensor dy, const uint8_t* argmax, Window window, Tensor mask,
                               Tensor dx) = 0;

    // Adaptive average: y[n,p,q,c] = mean of x over rows [⌊p·H/P⌋, ⌈(p+1)·H/P⌉), columns likewise.
    virtual void avg_pool(Tensor x, Tensor y) = 0;
    // If add: dx += instead of =.
    virtual void avg_pool_grad(Tensor dy, Tensor dx, bool add = false) = 0;

    // Dropout, in place: x[n,i] = keep(n,i) ? x[n,i]/(1−p) : 0, where keep(n,i) is
    //   uniform draw i of Random(seed, epoch, sample_ids[n], purpose) >= p.
    // A sample has the same mask on every rank. The gradient is the same call on dy, so no mask is
    // stored. draws and sample_ids (N numbers) are in host memory.
    virtual void dropout(Tensor x, float p, const Draws& draws,
                         std::span<const uint64_t> sample_ids, uint16_t purpose) = 0;

    // ---- loss ------------------------------------------------------------------------------

    // For each image with label t: target = (1−s)·onehot(t) + s/C, s the label smoothing. For mixed
    // images onehot(t) is part·onehot(first) + (1−part)·onehot(second), and t below is the label
    // with the larger part (the first label if both are equal):
    //   loss_n   = −Σ_c target[c]·log softmax(logits[n])[c]
    //   dlogits  = softmax(logits[n]) − target          the gradient of the sum, not of the mean
    //   sums[0] += Σ loss_n, sums[1] += images whose label has rank 1, sums[2] += rank ≤ 5
    //   (rank = 1 + classes with a greater logit, or with an equal logit and a smaller index)
    // logits N×1×1×C; labels and mixed (N numbers each) in host memory; dlogits null in evaluation.
    virtual void softmax_cross_entropy(Tensor logits, std::span<const int32_t> labels,
                                       float smoothing, Tensor dlogits, float* sums,
                                       const MixedLabels& mixed = {}) = 0;
    // y[n,c] = softmax(x[n])[c]; in place allowed.
    virtual void softmax(Tensor x, Tensor y) = 0;

    // ---- optimizer: over a slice of the arenas, n floats -------------------------------------

    // Decides whether this step may change the weights. x: the numbers that must be finite.
    //   step->first_bad = the first i in [0, n) for which x[i] is NaN or infinite, or -1
    //   step->scale     = first_bad < 0 and *images > 0 ? 1 / *images : 0
    // The updates below change nothing if step->scale is 0. `images` and `step` are in device
    // memory, so the host need not wait for the result.
    virtual void check_finite(const float* x, size_t n, const float* images, StepState* step) = 0;
    // *sum = Σ x², in an order that does not depend on the number of threads.
    virtual void sum_squares(const float* x, size_t n, float* sum) = 0;
    // Like PyTorch's clip_grad_norm_; `squares` is the sum of squares of the gradient sums:
    //   step->norm = scale·√squares; step->clip = min(1, limit/(norm + 1e-6))
    virtual void clip(const float* squares, float limit, StepState* step) = 0;
    // SGD as in PyTorch: g' = scale·clip·g + weight_decay·w; v = momentum·v + g'
    //   w −= lr·(nesterov ? g' + momentum·v : v)     One pass: reads w, g, v, writes w, v.
    // lr is step->lr · rate, also in adamw(). v starts as 0, so v = g' at the first step. Floats
    // outside of the segments stay as they are. A GPU updates all segments in one launch.
    virtual void sgd(float* w, const float* g, float* v, size_t n, const Segments& segments,
                     const StepState* step, float momentum, bool nesterov) = 0;
    // AdamW (Loshchilov, Hutter 2019) as in PyTorch:
    //   w −= lr·weight_decay·w; g' = scale·clip·g; m = β1·m + (1−β1)·g'; v = β2·v + (1−β2)·g'²
    //   w −= lr · (m/bias1) / (√(v/bias2) + eps)
    virtual void adamw(float* w, const float* g, float* m, float* v, size_t n,
                       const Segments& segments, const StepState* step, float beta1, float beta2,
                       float eps) = 0;
    // mean += step->part·(w − mean): a moving average of weights.
    virtual void average(float* mean, const float* w, size_t n, const StepState* step) = 0;
    // w = (1−part)·w + part·scale·sums: running statistics from their sums over images.
    virtual void moving_mean(float* w, const float* sums, size_t n, const StepState* step,
                             float part) = 0;
    // y = a·x + b·y, n floats; y is not read if b is 0. y may be x.
    virtual void axpby(float a, const float* x, float b, float* y, size_t n) = 0;
};

// How 3x3 and 5x5 convolutions of stride 1 are computed: by Winograd's method, directly, or by the
// method that the backend expects to be faster (CPU: winograd_pays in kernels/cpu/winograd.cpp).
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
