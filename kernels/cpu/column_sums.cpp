// column_sums.cpp — sums of columns: the gradient of a bias.   Twin: kernels/cuda/column_sums.cu
#include <algorithm>

#include "kernels/cpu/elements.h"
#include "kernels/cpu/gemm.h"

namespace convoy {

// Sums slabs of rows separately, then adds the slabs in order: the bits do not depend on the number
// of threads, and chains of additions stay short.
template <class T>
void add_column_sums(Cpu& cpu, const T* dy, int64_t rows, int K, float* db) {
    if (rows == 0) return;
    const int slabs = int(std::clamp<int64_t>(rows / 256, 1, 256));
    float* sums = cpu.shared.get(kSlotSums, size_t(slabs) * K);
    cpu.pool.for_each(slabs, [&](int slab, int) {
        float* sum = sums + size_t(slab) * K;
        std::fill_n(sum, K, 0.0f);
        for (int64_t row = rows * slab / slabs; row < rows * (slab + 1) / slabs; ++row)
            for (int k = 0; k < K; ++k) sum[k] += dy[row * K + k];
    });
    for (int k = 0; k < K; ++k) {
        double sum = 0;
        for (int slab = 0; slab < slabs; ++slab) sum += sums[size_t(slab) * K + k];
        db[k] += float(sum);
    }
}
template void add_column_sums(Cpu&, const float*, int64_t, int, float*);
template void add_column_sums(Cpu&, const Bf16*, int64_t, int, float*);

}  // namespace convoy
