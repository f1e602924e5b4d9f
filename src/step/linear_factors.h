// linear_factors.h — gradients of linear layers, sent as their factors if that is fewer bytes.
//
//   dw[k,c] = Σ_n dy[n,k] · x[n,c]     over all images n of the step, on all ranks
//
// Summing dw over a ring moves 2·(W−1)/W · K·C floats per rank. But a rank with all rows of x and
// dy can compute the sum itself. Gathering them moves (W−1)/W · B·(K+C) floats per rank (B: images
// per step over all ranks), which is less if B·(K+C) < 2·K·C: for VGG16's first linear layer and B
// = 128 it is 128·(25088+4096) = 3.7 M instead of 205 M floats. The result is exact, up to the
// order of the sums. The cost: every rank multiplies for the whole batch. Known as sufficient
// factors: Xie et al., "Lighter-Communication Distributed Machine Learning via Sufficient Factor
// Broadcasting" (UAI 2016); Zhang et al., "Poseidon" (USENIX ATC 2017) also chooses per layer.
#pragma once

#include <cstdint>
#include <future>
#include <span>
#include <string>
#include <vector>

#include "net/ring/communicator.h"
#include "src/config/config.h"
#include "src/model/params.h"

namespace convoy {

// One trained linear layer, and how its gradient is sent.
struct FactorChoice {
    Param* w = nullptr;
    Param* b = nullptr;  // null: no bias, or frozen
    // Sent by each rank per step (fp32, mean over ranks) as the gradient, or as its factors.
    double dense_bytes = 0, factor_bytes = 0;
    bool use = false;  // factors
};
// All ranks, and the ranks of the ring (Communicator::around).
struct RingSize {
    int ranks, around = ranks;
};

// The choice for every linear layer, in forward order. batch: images of a step over all ranks.
std::vector<FactorChoice> choose_factors(Params& params, int64_t batch, RingSize ring,
                                         FactorMode mode);

// The bytes that each rank sends per step, in fp32.
double sent_bytes(const Params& params, std::span<const FactorChoice> choices, RingSize ring);
// The same for people, and the layers sent as factors: "17.1 MB per rank and step: …".
std::string traffic_text(const Params& params, std::span<const FactorChoice> choices, RingSize ring,
                         bool bf16_wire);

// The rows of x and dy of one linear layer, from all ranks.
class Factors {
 public:
    // batch: the most rows of a step over all ranks. All must outlive this.
    Factors(const FactorChoice& layer, int64_t batch, Backend& backend, Communicator& communicator);

    // Starts a step with at most rows[r] images on rank r. This rank's rows are zero until put().
    void start(std::span<const int64_t> rows);
    // Copies this rank's rows: x n×1×1×C, dy n×1×1×K, n ≤ its rows.
    void put(Tensor x, Tensor dy);
    // If the network cannot read device memory: copies this rank's rows (Backend::start_download).
    int64_t start_download();
    // Starts gathering the rows of all ranks. The futures carry the communicator's Error.
    std::vector<std::future<void>> gather();
    // After gather(): dw += …, db += … over the rows of all ranks, with the same bits on each.
    void add_gradient();
    double flops() const { return 2.0 * double(first_row_.back()) * double(in_ * out_); }

 private:
    size_t first_row() const { return size_t(first_row_[size_t(communicator_.rank())]); }
    size_t own_rows() const {
        return size_t(first_row_[size_t(communicator_.rank()) + 1]) - first_row();
    }

    FactorChoice layer_;
    Backend& backend_;
    Communicator& communicator_;
    size_t in_, out_;
    float *x_, *dy_;                  // rows of rank 0, of rank 1, …
    float *x_host_, *dy_host_;        // the same memory, or copies that the network can read
    Tensor x_operand_, dy_operand_;   // the same rows as bf16, if products read bf16
    std::vector<int64_t> first_row_;  // of each rank, then the number of rows
};

}  // namespace convoy
