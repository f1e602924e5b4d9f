// loss.cu — softmax and cross-entropy.   Twin: kernels/cpu/loss.cpp
//
//   log_p[c] = x[c] − top − log Σ_c exp(x[c] − top)          top = max x
//   loss_n   = −Σ_c target[c]·log_p[c]     dlogits = exp(log_p) − target
//
//   grid    one warp an image, 4 warps a block; lane l takes the classes l, l+32, …
//   bytes   3 reads and 1 write of N·C floats (dlogits may be bf16), all but the first read from
//           the cache.
//   order   lanes first, then a tree over the warp (shuffles); over images, a tree over 256
//           partial sums. All in double: it is little work, and people compare losses.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/moments.cuh"
#include "kernels/shapes.h"

namespace convoy::CONVOY_DEVICE {

namespace {

constexpr int kWarps = 4;

// log Σ exp(x[c]), shifted by the largest so that nothing overflows. The same on all lanes.
__device__ double log_sum_exp(const float* x, int C, int lane) {
    float top = -INFINITY;
    for (int c = lane; c < C; c += 32) top = fmaxf(top, x[c]);
    for (int by = 16; by > 0; by /= 2) top = fmaxf(top, __shfl_xor_sync(kAll, top, by));
    double sum = 0;
    for (int c = lane; c < C; c += 32) sum += exp(double(x[c]) - double(top));
    return double(top) + log(warp_sum(sum));
}

// second_labels, first_parts: null where labels are not mixed.
template <class T>
__global__ void cross_entropy_kernel(const float* logits, const int32_t* labels,
                                     const int32_t* second_labels, const float* first_parts, int N,
                                     int C, double whole, double spread, T* dlogits, double* losses,
                                     int* ranks) {
    const int n = blockIdx.x * kWarps + threadIdx.y, lane = threadIdx.x;
    if (n >= N) return;  // a whole warp
    const float* x = logits + size_t(n) * C;
    const int first = labels[n], second = second_labels ? second_labels[n] : first;
    const double part = second_labels ? double(first_parts[n]) : 1;
    const int label = part < 0.5 ? second : first;
    const double log_sum = log_sum_exp(x, C, lane);
    double loss = 0;
    int above = 0;  // classes that rank before the label's
    for (int c = lane; c < C; c += 32) {
        const double log_p = double(x[c]) - log_sum;
        const double hot = (c == first ? part : 0) + (c == second ? 1 - part : 0);
        const double target = hot * whole + spread;
        if (target != 0) loss -= target * log_p;
        // !(<=) instead of >: if any logit is NaN, no label has rank 1.
        above += c != label && (!(x[c] <= x[label]) || (x[c] == x[label] && c < label));
        if (dlogits) store(dlogits + size_t(n) * C + c, float(exp(log_p) - target));
    }
    loss = warp_sum(loss), above = warp_sum(above);
    if (lane == 0) losses[n] = loss, ranks[n] = above + 1;
}

// sums += over all images; one block of kSumThreads.
__global__ void loss_sums_kernel(const double* losses, const int* ranks, int N, float* sums) {
    double own[BatchSums::kFloats] = {};
    for (int n = threadIdx.x; n < N; n += kSumThreads) {
        own[BatchSums::kLoss] += losses[n];
        own[BatchSums::kCorrect] += ranks[n] == 1, own[BatchSums::kTop5] += ranks[n] <= 5;
    }
    add_threads(own);
    for (int e = 0; e < BatchSums::kFloats && threadIdx.x == 0; ++e) sums[e] += float(own[e]);
}

// y may be x: a lane writes what only it reads.
__global__ void softmax_kernel(const float* x, int N, int C, float* y) {
    const int n = blockIdx.x * kWarps + threadIdx.y, lane = threadIdx.x;
    if (n >= N) return;  // a whole warp
    x += size_t(n) * C, y += size_t(n) * C;
    const double log_sum = log_sum_exp(x, C, lane);
    for (int c = lane; c < C; c += 32) y[c] = float(exp(double(x[c]) - log_sum));
}

}  // namespace

void CudaBackend::softmax_cross_entropy(Tensor logits, std::span<const int32_t> labels,
                                        float smoothing, Tensor dlogits, float* sums,
                                        const MixedLabels& mixed) {
    check_loss(logits, labels, dlogits, mixed);
    const int N = logits.N, C = logits.C;
    if (N == 0) return;
    const double spread = double(smoothing) / C, whole = 1 - double(smoothing);
    const int32_t* labels_there = memory_.pass(labels);
    const bool mixing = !mixed.second.empty();
    const int32_t* second_there = mixing ? memory_.pass(mixed.second) : nullptr;
    const float* parts_there = mixing ? memory_.pass(mixed.first_part) : nullptr;
    auto* losses = memory_.scratch<double>(kSlotSums, size_t(N) * 2);
    int* ranks = reinterpret_cast<int*>(losses + N);
    with_type(dlogits.type, [&]<class T>(T) {
        cross_entropy_kernel<T><<<ceil_div(N, kWarps), dim3(32, kWarps), 0, stream_>>>(
            logits.floats(), labels_there, second_there, parts_there, N, C, whole, spread,
            elements<T>(dlogits), losses, ranks);
        CUDA_LAUNCHED();
    });
    loss_sums_kernel<<<1, kSumThreads, 0, stream_>>>(losses, ranks, N, sums);
    CUDA_LAUNCHED();
}

void CudaBackend::softmax(Tensor x, Tensor y) {
    check_same("x", x, "y", y);
    if (x.elems() == 0) return;
    const int C = int(x.shape().row_elems());
    softmax_kernel<<<ceil_div(x.N, kWarps), dim3(32, kWarps), 0, stream_>>>(x.floats(), x.N, C,
                                                                            y.floats());
    CUDA_LAUNCHED();
}

}  // namespace convoy::CONVOY_DEVICE
