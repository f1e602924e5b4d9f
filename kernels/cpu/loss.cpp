// loss.cpp — softmax and cross-entropy, one image at a time. In double, because it is only a few
// thousand numbers per step, and the loss is what people compare between runs.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/elements.h"
#include "kernels/shapes.h"

namespace convoy {

// log Σ exp(x[c]), with the maximum subtracted first so that nothing overflows.
static double log_sum_exp(const float* x, int C) {
    const double top = *std::max_element(x, x + C);
    double sum = 0;
    for (int c = 0; c < C; ++c) sum += std::exp(double(x[c]) - top);
    return top + std::log(sum);
}

void CpuBackend::softmax_cross_entropy(Tensor logits, std::span<const int32_t> labels,
                                       float smoothing, Tensor dlogits, float* sums,
                                       const MixedLabels& mixed) {
    check_loss(logits, labels, dlogits, mixed);
    const int N = logits.N, C = logits.C;
    const double spread = double(smoothing) / C, whole = 1 - double(smoothing);

    const float* all = logits.floats();
    double* losses = reinterpret_cast<double*>(cpu_.shared.get(kSlotSums, size_t(N) * 4));
    double* ranks = losses + N;
    cpu_.pool.for_each(N, [&](int n, int) {
        const float* x = all + ptrdiff_t(n) * C;
        const int first = labels[n], second = mixed.second.empty() ? first : mixed.second[n];
        const double part = mixed.second.empty() ? 1 : double(mixed.first_part[n]);
        const int label = part < 0.5 ? second : first;
        const double log_sum = log_sum_exp(x, C);
        double loss = 0;
        int rank = 1;
        for (int c = 0; c < C; ++c) {
            const double log_p = double(x[c]) - log_sum;
            const double hot = (c == first ? part : 0) + (c == second ? 1 - part : 0);
            const double target = hot * whole + spread;
            if (target != 0) loss -= target * log_p;
            // !(a <= b), not a > b: if a logit is NaN, no label has rank 1.
            if (c != label && (!(x[c] <= x[label]) || (x[c] == x[label] && c < label))) ++rank;
            if (dlogits)
                with_type(dlogits.type, [&]<class T>(T) {
                    auto* to = static_cast<T*>(dlogits.data) + ptrdiff_t(n) * C;
                    to[c] = float(std::exp(log_p) - target);
                });
        }
        losses[n] = loss, ranks[n] = rank;
    });
    double loss = 0;
    int correct = 0, top5 = 0;
    for (int n = 0; n < N; ++n) loss += losses[n], correct += ranks[n] == 1, top5 += ranks[n] <= 5;
    sums[BatchSums::kLoss] += float(loss);
    sums[BatchSums::kCorrect] += float(correct);
    sums[BatchSums::kTop5] += float(top5);
}

void CpuBackend::softmax(Tensor x, Tensor y) {
    check_same("x", x, "y", y);
    const int C = int(x.shape().row_elems());
    const float* all = x.floats();
    float* out = y.floats();
    cpu_.pool.for_each(x.N, [&](int n, int) {
        const float* from = all + ptrdiff_t(n) * C;
        float* to = out + ptrdiff_t(n) * C;
        const double log_sum = log_sum_exp(from, C);
        for (int c = 0; c < C; ++c) to[c] = float(std::exp(double(from[c]) - log_sum));
    });
}

}  // namespace convoy
