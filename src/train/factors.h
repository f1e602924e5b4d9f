// factors.h — gradients of linear layers, sent as their factors where that is fewer bytes.
//
//   dw[k,c] = Σ_n dy[n,k] · x[n,c]     over all images n of the step, whoever trained them
//
// Summing dw over a ring moves 2·(W−1)/W · K·C floats a rank. But dw is a product of two skinny
// matrices: a rank that has all rows of x and dy can form the sum itself. Collecting them moves
// (W−1)/W · B·(K+C) floats a rank, B images a step over all ranks: less where B·(K+C) < 2·K·C. It
// is exact, up to the order of the sums. For VGG16 with B = 128 the first linear layer has
// 128·(25088+4096) = 3.7 M against 205 M floats. The price: every rank multiplies for the whole
// batch. Known as sufficient factors: Xie et al., "Lighter-Communication Distributed Machine
// Learning via Sufficient Factor Broadcasting" (UAI 2016); Zhang et al., "Poseidon" (USENIX ATC
// 2017) also chooses by layer.
#pragma once

#include <cstdint>
#include <future>
#include <span>
#include <string>
#include <vector>

#include "net/communicator.h"
#include "src/model/params.h"
#include "src/train/buckets.h"

namespace convoy {

// One trained linear layer, and how its gradient travels.
struct FactorChoice {
    Param* w = nullptr;
    Param* b = nullptr;  // or null: none, or frozen
    LinearTraffic traffic = {};
    bool use = false;  // factors
};

// Every linear layer, in forward order. batch: images of a step over all ranks. kAuto uses factors
// where they are fewer bytes; nothing travels in a world of one.
std::vector<FactorChoice> choose_factors(Params& params, int64_t batch, RingSize ring,
                                         FactorMode mode);

// That of the linear layer which has this param; null: none has.
inline const FactorChoice* choice_of(std::span<const FactorChoice> choices, const Param* param) {
    for (const FactorChoice& layer : choices)
        if (layer.w == param || layer.b == param) return &layer;
    return nullptr;
}

// What a rank sends in a step, and which layers go as factors: "17.1 MB a rank and step: …".
std::string traffic_text(const Params& params, std::span<const FactorChoice> choices, RingSize ring,
                         bool bf16_wire);

// The rows of x and dy of one linear layer, of all ranks.
class Factors {
 public:
    // batch: the most rows of a step over all ranks. All must outlive this.
    Factors(const FactorChoice& layer, int64_t batch, Backend& backend, Communicator& communicator);

    // A step in which rank r has at most rows[r] images, the same list on every rank. This rank's
    // rows are zero until put().
    void start(std::span<const int64_t> rows);
    // Copies this rank's rows: x n×1×1×C, dy n×1×1×K, n ≤ its rows.
    void put(Tensor x, Tensor dy);
    // Where the network cannot read the device's memory: starts copying this rank's rows to the
    // host. For Backend::wait_download.
    int64_t start_download();
    // Starts gathering the rows of all ranks. The futures carry the communicator's Error.
    std::vector<std::future<void>> gather();
    // After that: dw += …, db += … over the rows of all ranks, the same on each rank if their
    // kernels add in the same order.
    void add_gradient();
    double gradient_flops() const { return 2.0 * double(first_row_.back()) * double(in_ * out_); }

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
    float *x_host_, *dy_host_;        // the same, or copies which the network can read
    Tensor x_operand_, dy_operand_;   // the same as bf16, where products read that
    std::vector<int64_t> first_row_;  // of each rank, and the number of rows
};

}  // namespace convoy
