// backend.h — every operation that a device must know, each once, with formula and shapes.
//
// `kernels/cpu/x.cpp` and `kernels/cuda/x.cu` implement the same functions under the same names.
// A layer calls these and knows no device.
//
//   =  / +=     an op writes its output (=) unless its comment says += (gradients of weights)
//   N may be 0  then nothing is read, and outputs marked += stay as they are
//   in place    allowed only where the comment says so
//   blocking    an op may return before it is done; ops run in the order of the calls, and
//               download() and synchronize() wait for all before them
//   errors      shapes that do not fit throw Error (ENSURE); nothing is allocated inside an op
//               that a first call with the same shapes did not already allocate
//   exactness   two runs with the same number of threads give the same bits
//   types       activations, their gradients and w hold what activations() says: x, y, dx, dy,
//               masks and residuals. Floats always: dw, logits, and what is passed as float*. What
//               conv2d, linear and their grad_x make may be floats as well. Sums are made in fp32.
//
// "Cost" counts multiply-adds as two operations, and numbers that must cross the memory bus.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "kernels/tensor.h"
#include "src/base/picture.h"

namespace convoy {

// The window of a convolution or a pool: rows and columns may differ.
// Outputs: P = (H + 2·pad_h − size_h) / stride_h + 1, rounded down; Q likewise.
struct Window {
    int size_h = 1, size_w = 1;
    int stride_h = 1, stride_w = 1;
    int pad_h = 0, pad_w = 0;

    static Window square(int size, int stride = 1, int pad = 0) {
        return {size, size, stride, stride, pad, pad};
    }
    int out_h(int H) const { return (H + 2 * pad_h - size_h) / stride_h + 1; }
    int out_w(int W) const { return (W + 2 * pad_w - size_w) / stride_w + 1; }
    bool operator==(const Window&) const = default;
};

// Batch norm takes its statistics over groups of images: group g is images
// [bounds[g], bounds[g+1]) of the batch; bounds.front() is 0 and bounds.back() is N.
using GroupBounds = std::span<const int>;

// The statistics of a tensor with C channels that batch norm needs: which, and where they go.
struct Moments {
    GroupBounds groups;
    float eps = 0;
    float* mean_rstd = nullptr;  // groups × 2 × C
    float* sums = nullptr;       // 2 × C
};

// What softmax_cross_entropy adds up over a batch. Floats, since they travel with the gradients;
// exact as counts up to 2^24 images.
struct BatchSums {
    static constexpr int kFloats = 3;
    enum : int { kLoss = 0, kCorrect = 1, kTop5 = 2 };  // places in the array of sums
};

// Which draws of chance an op makes: those of Random(seed, epoch, …) in src/base/random.h.
struct Draws {
    uint64_t seed = 0;
    uint32_t epoch = 0;
};

// A step as its updates see it, in device memory: the host sets the first three numbers before the
// step, check_finite() the other two.
struct StepState {
    float lr = 0;                // learning rate
    float bias1 = 1, bias2 = 1;  // AdamW's 1−β1^t and 1−β2^t, its steps t counted from 1
    float scale = 0;             // 1/images; 0 where nothing may change
    int64_t first_bad = -1;      // where the first number is that is not finite
};

// Ops that were recorded after Backend::record(), for running them again. Must be destroyed before
// its backend.
class Recording {
 public:
    virtual ~Recording() = default;  // before end(): drops what was recorded
    // Ops called from now on run again.
    virtual void end() = 0;
    // Runs them all, at the price of one, with the arguments that they had; memory of the host that
    // they were given (labels, draws, sample_ids, bounds of groups) is read anew. False, and
    // nothing is done, where memory that they work in had to grow since they were recorded.
    virtual bool replay() = 0;
};

class Backend {
 public:
    virtual ~Backend() = default;

    // ---- the device ------------------------------------------------------------------------

    virtual std::string name() const = 0;         // "cpu", "cuda:0", "simt"
    virtual std::string description() const = 0;  // one line for the start table: what was chosen
    virtual int threads() const = 0;              // compute threads (1 where that means nothing)
    // What activations and their gradients are in memory, in the precision of the ops.
    virtual Type activations() const { return Type::kFloat32; }

    // Zeroed device memory, 64-byte aligned, owned by the backend and released with it.
    virtual float* alloc(size_t elems) = 0;
    Tensor alloc(Shape shape, Type type) {
        return {alloc((shape.elems() * bytes_of(type) + 3) / sizeof(float)), shape, type};
    }
    // Host memory which the device copies from fast; owned and released as above.
    virtual float* alloc_host(size_t elems) = 0;
    // The device's copy of `host` (from alloc_host) in `device`, or `host` itself where the device
    // reads host memory: use the returned pointer until the next call with the same `device`.
    virtual const float* to_device(const float* host, float* device, size_t elems) = 0;

    // Where to_device() copies: begins that beside the ops, those called before and those called
    // after, of which none may use `device`; after wait_upload() the ops find it there. `host`
    // stays as it is until one of these is done.
    virtual void start_upload(const float*, float*, size_t) {}
    virtual void wait_upload() {}

    virtual void upload(void* device, const void* host, size_t bytes) = 0;  // copies before return
    virtual void download(void* host, const void* device, size_t bytes) = 0;  // waits
    virtual void copy(float* to, const float* from, size_t elems) = 0;        // within the device
    // to = from, rounded to the nearest where `to` holds less of a number. The same count of them.
    virtual void copy(Tensor to, Tensor from) = 0;
    virtual void fill(float* to, size_t elems, float value) = 0;
    virtual void synchronize() = 0;
    // Memory of the device taken so far; 0 where that is the host's.
    virtual size_t device_bytes() const { return 0; }
    // Whether the CPU may read and write device memory directly (the ring then sums in place).
    virtual bool host_visible() const = 0;
    // For devices whose memory the CPU cannot read: starts copying to `host` (from alloc_host) what
    // the ops called so far leave in `device`, beside the ops that are called later.
    // wait_download(the number returned) waits for it; copies end in the order of the calls. The
    // way back is to_device().
    virtual int64_t start_download(float* host, const float* device, size_t elems) {
        download(host, device, elems * sizeof(float));
        return 0;
    }
    virtual void wait_download(int64_t) {}
    // Where can_record(): ops called from here to Recording::end() are recorded instead of run.
    // They must have run before with the same shapes, and may not wait; host memory that they are
    // given must stay where it is. One is recorded at a time; several may be kept.
    virtual bool can_record() const { return false; }
    virtual std::unique_ptr<Recording> record() { fail("device ", name(), " cannot record"); }
    // Runs multiply-adds on registers alone for about a millisecond, on all compute threads, in the
    // precision of the ops: 10⁹ floating point operations a second, what no op can exceed. 0: not
    // known.
    virtual double measure_peak_gflops() { return 0; }

    // ---- images ----------------------------------------------------------------------------

    // Picture n of `packed` resized to P×Q, and each pixel looked up in `values` (3·256 floats):
    //   across[h,q,c] = (½ + Σ_k columns[q].weight[k] · pixels[h, columns[q].first + k, c]) / 2^22
    //   down[p,q,c]   = (½ + Σ_k rows[p].weight[k] · across[rows[p].first + k, q, c]) / 2^22
    //   y[n,p,q,c]    = values[c][down[p,q,c]]       y N×P×Q×3
    // both rounded down, and 255 at most: integers, so the same bits on every device, and those of
    // data/resize.h. `packed` is device memory (from to_device), the other two are host memory.
    virtual void resize(std::span<const uint8_t> packed, std::span<const Picture> pictures,
                        const float* values, Tensor y) = 0;

    // ---- convolution -----------------------------------------------------------------------

    // y[n,p,q,k] = act(b[k] + Σ_rsc x[n, p·stride+r−pad, q·stride+s−pad, c] · w[k,r,s,c])
    //   x N×H×W×C, w K×R×S×C, b K or null, y N×P×Q×K; act is max(0,·) if relu, else nothing.
    //   Pixels outside of x count as 0.            Cost 2·N·P·Q·K·R·S·C; x, w read, y written.
    // With of_y also moments(y, *of_y), where the device can from the numbers it is about to store.
    virtual void conv2d(Tensor x, Tensor w, const float* b, Window window, bool relu, Tensor y,
                        const Moments* of_y = nullptr) = 0;

    // dx[n,h,w,c] = Σ over (p,q,k,r,s) that read it: dy[n,p,q,k] · w[k,r,s,c]
    //   then, with a mask (a tensor of x's shape): dx is set to 0 where mask <= 0. The mask is x
    //   itself where x came out of a relu; this saves a pass.                  Cost as conv2d.
    virtual void conv2d_grad_x(Tensor dy, Tensor w, Window window, Tensor mask, Tensor dx) = 0;

    // dw[k,r,s,c] += Σ_npq dy[n,p,q,k] · x[n, p·stride+r−pad, q·stride+s−pad, c]
    // db[k]       += Σ_npq dy[n,p,q,k]           (skipped if db is null)        Cost as conv2d.
    virtual void conv2d_grad_w(Tensor x, Tensor dy, Window window, Tensor dw, float* db) = 0;

    // ---- linear ----------------------------------------------------------------------------

    // y[n,k] = act(b[k] + Σ_c x[n,c] · w[k,c])   x N×(H·W·C seen as one row), w K×1×1×(H·W·C),
    //   b K or null, y N×1×1×K.                              Cost 2·N·K·C; w read once a batch.
    virtual void linear(Tensor x, Tensor w, const float* b, bool relu, Tensor y) = 0;
    // dx[n,c] = Σ_k dy[n,k] · w[k,c], masked as in conv2d_grad_x.
    virtual void linear_grad_x(Tensor dy, Tensor w, Tensor mask, Tensor dx) = 0;
    // dw[k,c] += Σ_n dy[n,k] · x[n,c]; db[k] += Σ_n dy[n,k] (skipped if db is null).
    virtual void linear_grad_w(Tensor x, Tensor dy, Tensor dw, float* db) = 0;

    // ---- batch norm ------------------------------------------------------------------------

    // For each group g of images and each channel c, over the M = (images of g)·H·W values:
    //   mean = Σ x / M    var = Σ (x − mean)² / M
    //   mean_rstd[g][0][c] = mean    mean_rstd[g][1][c] = rstd = 1/√(var + eps)
    //   sums[c]     += (images of g) · mean
    //   sums[C + c] += (images of g) · var · M/(M−1)             (M−1 taken as 1 if M is 1)
    // The sums over all ranks, divided by the global count of images, feed the running statistics
    // (a plain mean over images, so the same on one rank as on many). What mean_rstd holds of a
    // group without images is not said.                                     Cost 1 read of x.
    virtual void moments(Tensor x, const Moments& to) = 0;

    // With what moments(x) left in mean_rstd for the same groups:
    //   y = act(gamma·(x − mean)·rstd + beta + residual)         residual may be null (no addend)
    //   x, y, residual N×H×W×C. y may be x or residual (in place); x must then not be needed in
    //   the backward pass.                                     Cost 1 read of x, 1 write of y.
    virtual void batch_norm(Tensor x, GroupBounds groups, const float* mean_rstd,
                            const float* gamma, const float* beta, Tensor residual, bool relu,
                            Tensor y) = 0;

    // With dz = dy, or where relu: dz = dy where y > 0, else 0; x̂ = (x − mean)·rstd
    //   dgamma += Σ dz·x̂     dbeta += Σ dz     (each may be null: frozen)
    //   dx = gamma·rstd·(dz − mean_g(dz) − x̂·mean_g(dz·x̂))    mean_g over the M values of the group
    //   dresidual = dz                                          (skipped if null; may be dy)
    //   y is read only if relu. dx may be dy, not when dresidual is dy as well.
    virtual void batch_norm_grad(Tensor x, Tensor y, Tensor dy, GroupBounds groups,
                                 const float* gamma, bool relu, const float* mean_rstd, Tensor dx,
                                 Tensor dresidual, float* dgamma, float* dbeta) = 0;

    // The same with fixed statistics: y = act(gamma·(x − mean)/√(var + eps) + beta + residual).
    virtual void batch_norm_eval(Tensor x, const float* gamma, const float* beta, const float* mean,
                                 const float* var, Tensor residual, bool relu, float eps,
                                 Tensor y) = 0;
    // dx = dz·gamma/√(var + eps), dz and dresidual as in batch_norm_grad; for frozen layers.
    virtual void batch_norm_eval_grad(Tensor y, Tensor dy, const float* gamma, const float* var,
                                      bool relu, float eps, Tensor dx, Tensor dresidual) = 0;

    // ---- elementwise and pooling -----------------------------------------------------------

    // x = max(0, x), in place.
    virtual void relu(Tensor x) = 0;
    // dy = dy where y > 0, else 0, in place. y is the relu's output.
    virtual void relu_grad(Tensor y, Tensor dy) = 0;
    // x += y, the same shape.
    virtual void add(Tensor x, Tensor y) = 0;

    // y[n,p,q,c] = max over the window (padding never wins; every window must meet x, so pad ≤
    // size/2)
    //   argmax[n,p,q,c] = r·S + s of the first maximum in row order, a byte: S·R ≤ 256.
    virtual void max_pool(Tensor x, Window window, Tensor y, uint8_t* argmax) = 0;
    // dx[n,h,w,c] = Σ of dy over the windows whose argmax it is, masked as in conv2d_grad_x.
    virtual void max_pool_grad(Tensor dy, const uint8_t* argmax, Window window, Tensor mask,
                               Tensor dx) = 0;

    // Adaptive average: y[n,p,q,c] = mean of x over rows [⌊p·H/P⌋, ⌈(p+1)·H/P⌉), columns likewise.
    // P = Q = 1 is global average pooling.
    virtual void avg_pool(Tensor x, Tensor y) = 0;
    virtual void avg_pool_grad(Tensor dy, Tensor dx) = 0;

    // Dropout, in place: x[n,i] = keep(n,i) ? x[n,i]/(1−p) : 0, where keep(n,i) is
    //   uniform draw i of Random(seed, epoch, sample_ids[n], purpose) >= p.
    // The same mask wherever sample n is trained. Applied to dy with the same arguments it is its
    // own gradient, so no mask is kept. In host memory: draws, and sample_ids, N numbers.
    virtual void dropout(Tensor x, float p, const Draws& draws,
                         std::span<const uint64_t> sample_ids, uint16_t purpose) = 0;

    // ---- loss ------------------------------------------------------------------------------

    // For each image with label t: target = (1−s)·onehot(t) + s/C, s the label smoothing;
    //   loss_n   = −Σ_c target[c]·log softmax(logits[n])[c]
    //   dlogits  = softmax(logits[n]) − target                (of the sum over images, not the
    //   mean) sums[0] += Σ loss_n, sums[1] += images whose label has rank 1, sums[2] += rank ≤ 5
    //   (rank = 1 + number of classes with a greater logit, or an equal one and a smaller number)
    // logits N×1×1×C; labels N numbers in host memory; dlogits may be null data (evaluation).
    virtual void softmax_cross_entropy(Tensor logits, std::span<const int32_t> labels,
                                       float smoothing, Tensor dlogits, float* sums) = 0;
    // y[n,c] = softmax(x[n])[c]; in place allowed.
    virtual void softmax(Tensor x, Tensor y) = 0;

    // ---- optimizer: over a slice of the arenas, n floats -------------------------------------

    // Whether a step may change anything. x: its summed gradients, and what else must be finite.
    //   step->first_bad = the first i in [0, n) for which x[i] is NaN or infinite, or -1
    //   step->scale     = first_bad < 0 and *images > 0 ? 1 / *images : 0
    // `images` and `step` are device memory, here and below, so that the host need not wait to know
    // what comes next: the updates leave everything as it was where step->scale is 0.
    virtual void check_finite(const float* x, size_t n, const float* images, StepState* step) = 0;
    // SGD as PyTorch's: g' = scale·g + weight_decay·w; v = momentum·v + g'
    //   w −= lr·(nesterov ? g' + momentum·v : v)               One pass: w, g, v read, w, v
    //   written.
    // v starts as 0, which equals PyTorch's start (v = g' at the first step).
    virtual void sgd(float* w, const float* g, float* v, size_t n, const StepState* step,
                     float momentum, float weight_decay, bool nesterov) = 0;
    // AdamW (Loshchilov, Hutter 2019) as PyTorch's:
    //   w −= lr·weight_decay·w; g' = scale·g; m = β1·m + (1−β1)·g'; v = β2·v + (1−β2)·g'²
    //   w −= lr · (m/bias1) / (√(v/bias2) + eps)
    virtual void adamw(float* w, const float* g, float* m, float* v, size_t n,
                       const StepState* step, float beta1, float beta2, float eps,
                       float weight_decay) = 0;
    // w = (1−part)·w + part·scale·sums: running statistics, from their sums over images.
    virtual void moving_mean(float* w, const float* sums, size_t n, const StepState* step,
                             float part) = 0;
    // y = a·x + b·y, n floats; y is not read where b is 0. y may be x.
    virtual void axpby(float a, const float* x, float b, float* y, size_t n) = 0;
};

// How 3x3 and 5x5 convolutions of stride 1 are computed: by Winograd's method, directly, or as the
// backend's rule says which is faster (CPU: winograd_pays in kernels/cpu/winograd.cpp).
enum class ConvMethod { kAuto, kWinograd, kDirect };

// What convolutions and linear layers multiply in, on the tensor cores of a GPU where it is not
// fp32: numbers rounded to tf32 (10 bits of mantissa) on their way there, or bf16 (7 bits), as
// which activations then lie in memory, and a copy of the weights. Sums, weights and their
// gradients are fp32 in all of them.
enum class Precision { kFp32, kTf32, kBf16 };

// Who multiplies in linear layers on a GPU: kernels/cuda, or NVIDIA's library, where it is
// installed.
enum class Gemm { kOwn, kCublas };

struct BackendOptions {
    int threads = 0;  // compute threads; 0: as many as this process may use (affinity and cgroup)
    ConvMethod conv = ConvMethod::kAuto;
    Precision precision = Precision::kFp32;
    Gemm gemm = Gemm::kOwn;
};

// device: "cpu", "cuda", "cuda:1", "simt", or "" for the best there is. Throws if it is not there.
std::unique_ptr<Backend> make_backend(const std::string& device,
                                      const BackendOptions& options = {});

// GPUs that this process may use (CUDA_VISIBLE_DEVICES counts); where there are none, why.
int count_gpus(std::string* why_none = nullptr);
// What tells a GPU from all others, under whatever number and in whatever container: its UUID, as
// `nvidia-smi -L` prints it. "" for the CPU; for "simt" one of this process. `device` is as in
// make_backend, and so are the errors; no memory of the GPU is touched.
std::string device_identity(const std::string& device);

// Processors this process may use: the smaller of its affinity mask and its cgroup's quota
// (rounded up), at least 1.
int available_cpus();
// Which backends this program was linked with, for --version.
std::string built_backends();

}  // namespace convoy
