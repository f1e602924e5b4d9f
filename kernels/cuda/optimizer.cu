// optimizer.cu — one pass over slices of the arenas.   Twin: kernels/cpu/optimizer.cpp
//
//   check_finite  the first number that is not finite, and 1/images or 0: 4 bytes a number
//   sum_squares   4 bytes a number; clip: the norm, and the factor that bounds it
//   sgd    g' = scale·clip·g + decay·w;  v = momentum·v + g';  w −= lr·(a·g' + b·v)
//          20 bytes a parameter: w, g, v read, w, v written
//   adamw  m = β1·m + (1−β1)·g';  v = β2·v + (1−β2)·g'²;  w = keep·w − rate·m/(√v·root + eps)
//          28 bytes a parameter
//   axpby  y = a·x + b·y, 12 bytes; moving_mean and average likewise
//
//   grid    as in elementwise.cu: neighbouring threads take neighbouring parameters. sgd and adamw
//           are one launch for all segments of the arenas.
//   bound   by memory.
//   state   all threads read the same few numbers of the step, mostly from the cache.
//   order   sum_squares: strides of a thread, the threads of a block in a tree, then blocks; how
//           many these are depends on n alone. check_finite takes a minimum: no order changes it.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/moments.cuh"

namespace convoy::CONVOY_DEVICE {

namespace {

// Segments on the device, and n floats of the arenas from `first` on.
struct Slice {
    const Segment* segments;
    int count;
    size_t first, n;

    // Calls update(i, segment) for the floats i of this thread that are in a segment.
    template <class Update>
    __device__ __forceinline__ void for_each(const Update& update) const {
        Segment segment{0, 0};
        int next = 0;
        for (size_t i = first_index(); i < n; i += grid_width()) {
            while (segment.end <= first + i) {
                if (next == count) return;
                segment = segments[next++];
            }
            if (segment.begin <= first + i) update(i, segment);
        }
    }
};

__global__ void sgd_kernel(float* __restrict__ w, const float* __restrict__ g,
                           float* __restrict__ v, Slice slice, const StepState* step,
                           float momentum, float a, float b) {
    const float scale = step->scale * step->clip, lr = step->lr;
    if (step->scale == 0) return;
    slice.for_each([&](size_t i, const Segment& segment) {
        const float grad = scale * g[i] + segment.weight_decay * w[i];
        const float velocity = momentum * v[i] + grad;
        v[i] = velocity;
        w[i] -= lr * segment.rate * (a * grad + b * velocity);
    });
}

__global__ void adamw_kernel(float* __restrict__ w, const float* __restrict__ g,
                             float* __restrict__ m, float* __restrict__ v, Slice slice,
                             const StepState* step, float beta1, float beta2, float eps) {
    const float scale = step->scale * step->clip, bias1 = step->bias1;
    const float root = 1 / sqrtf(step->bias2), step_lr = step->lr;
    if (step->scale == 0) return;
    slice.for_each([&](size_t i, const Segment& segment) {
        const float lr = step_lr * segment.rate, keep = 1 - lr * segment.weight_decay;
        const float grad = scale * g[i];
        const float first = beta1 * m[i] + (1 - beta1) * grad;
        const float second = beta2 * v[i] + (1 - beta2) * grad * grad;
        m[i] = first, v[i] = second;
        w[i] = keep * w[i] - lr / bias1 * first / (sqrtf(second) * root + eps);
    });
}

// sums: to moves by `part` towards the mean of the sums `from`. Otherwise by step->part to `from`.
__global__ void moving_mean_kernel(float* __restrict__ to, const float* __restrict__ from, size_t n,
                                   const StepState* step, bool sums, float part) {
    const float scale = sums ? step->scale : 1;
    if (step->scale == 0) return;
    if (!sums) part = step->part;
    for (size_t i = first_index(); i < n; i += grid_width())
        to[i] = (1 - part) * to[i] + part * scale * from[i];
}

__global__ void axpby_kernel(float a, const float* x, float b, float* y, size_t n) {
    for (size_t i = first_index(); i < n; i += grid_width())
        y[i] = b == 0 ? a * x[i] : a * x[i] + b * y[i];
}

// step->first_bad is -1 before; as an unsigned number that is larger than every index.
__global__ void nonfinite_kernel(const float* x, size_t n, StepState* step) {
    auto* first = reinterpret_cast<unsigned long long*>(&step->first_bad);
    for (size_t i = first_index(); i < n; i += grid_width())
        if ((__float_as_uint(x[i]) & 0x7F800000u) == 0x7F800000u)
            atomicMin(first, static_cast<unsigned long long>(i));
}

__global__ void squares_kernel(const float* x, size_t n, double* parts) {
    double sum[1] = {};
    for (size_t i = first_index(); i < n; i += grid_width()) sum[0] += double(x[i]) * x[i];
    add_threads(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum[0];
}

// One block.
__global__ void add_squares_kernel(const double* parts, int count, float* sum) {
    const int t = int(threadIdx.x);
    double all[1] = {t < count ? parts[t] : 0};
    add_threads(all);
    if (t == 0) *sum = float(all[0]);
}

__global__ void clip_kernel(const float* squares, float limit, StepState* step) {
    step->norm = step->scale * sqrtf(*squares);
    step->clip = fminf(1.0f, limit / (step->norm + 1e-6f));
}

__global__ void scale_kernel(const float* images, StepState* step) {
    step->scale = step->first_bad < 0 && *images > 0 ? 1 / *images : 0.0f;
}

Slice slice_of(const Segments& segments, size_t n, DeviceMemory& memory) {
    return {memory.pass(segments.list), int(segments.list.size()), segments.first, n};
}

}  // namespace

void CudaBackend::check_finite(const float* x, size_t n, const float* images, StepState* step) {
    CUDA_CHECK(cudaMemsetAsync(&step->first_bad, 0xFF, sizeof step->first_bad, stream_));
    nonfinite_kernel<<<blocks_for(n), kThreads, 0, stream_>>>(x, n, step);
    CUDA_LAUNCHED();
    scale_kernel<<<1, 1, 0, stream_>>>(images, step);
    CUDA_LAUNCHED();
}

void CudaBackend::sum_squares(const float* x, size_t n, float* sum) {
    const int blocks = std::clamp(ceil_div(int64_t(n), 16 * kSumThreads), 1,
                                  kSumThreads);  // at most one per thread of the second kernel
    double* parts = memory_.scratch<double>(kSlotSums, size_t(blocks));
    squares_kernel<<<blocks, kSumThreads, 0, stream_>>>(x, n, parts);
    CUDA_LAUNCHED();
    add_squares_kernel<<<1, kSumThreads, 0, stream_>>>(parts, blocks, sum);
    CUDA_LAUNCHED();
}

void CudaBackend::clip(const float* squares, float limit, StepState* step) {
    clip_kernel<<<1, 1, 0, stream_>>>(squares, limit, step);
    CUDA_LAUNCHED();
}

void CudaBackend::sgd(float* w, const float* g, float* v, size_t n, const Segments& segments,
                      const StepState* step, float momentum, bool nesterov) {
    // Both forms are w −= lr·(a·g' + b·v).
    const float a = nesterov ? 1.0f : 0.0f, b = nesterov ? momentum : 1.0f;
    sgd_kernel<<<blocks_for(n), kThreads, 0, stream_>>>(w, g, v, slice_of(segments, n, memory_),
                                                        step, momentum, a, b);
    CUDA_LAUNCHED();
}

void CudaBackend::adamw(float* w, const float* g, float* m, float* v, size_t n,
                        const Segments& segments, const StepState* step, float beta1, float beta2,
                        float eps) {
    adamw_kernel<<<blocks_for(n), kThreads, 0, stream_>>>(
        w, g, m, v, slice_of(segments, n, memory_), step, beta1, beta2, eps);
    CUDA_LAUNCHED();
}

void CudaBackend::average(float* mean, const float* w, size_t n, const StepState* step) {
    moving_mean_kernel<<<blocks_for(n), kThreads, 0, stream_>>>(mean, w, n, step, false, 0);
    CUDA_LAUNCHED();
}

void CudaBackend::moving_mean(float* w, const float* sums, size_t n, const StepState* step,
                              float part) {
    moving_mean_kernel<<<blocks_for(n), kThreads, 0, stream_>>>(w, sums, n, step, true, part);
    CUDA_LAUNCHED();
}

void CudaBackend::axpby(float a, const float* x, float b, float* y, size_t n) {
    axpby_kernel<<<blocks_for(n), kThreads, 0, stream_>>>(a, x, b, y, n);
    CUDA_LAUNCHED();
}

}  // namespace convoy::CONVOY_DEVICE
