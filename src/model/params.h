// params.h — the arenas: all weights in one flat buffer, all gradients in another.
//
//   weights    [ param 0 | param 1 | …  trained …      | running statistics | frozen params ]
//   gradients  [ param 0 | param 1 | …  same offsets … | their sums         | counters ] state
//
// Params are in forward order, so the backward pass completes gradients from the back to the front.
// Frozen params have no gradient and are never sent. The counters (sums of loss, counts, flags) are
// summed over the ranks together with the gradients; the state of the step (learning rate, result
// of check_finite()) is not. The host writes both as one block before a step and reads them after
// it. With --precision bf16 all of this stays floats; products read a bf16 copy of the weights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace convoy {

// Indices of the counters, which are summed over the ranks together with the gradients of a step.
struct StepCounters {
    enum : int {
        kLoss = 0,  // as BatchSums
        kCorrect = 1,
        kTop5 = 2,
        kCount = 3,    // images trained
        kSkipped = 4,  // images that did not decode
        kSigint = 5,   // ranks asked to stop by SIGINT
        kSigterm = 6,  // … by SIGTERM
        kNewRing = 7,  // … to form a new ring after this step
        kBad = 8,      // ranks whose stage has gradients that are not finite
        kSquares = 9,  // sum of squares of the gradients (--clip-norm), written after the sums
        kSize = 16,    // one cache line
    };
};

struct StepBlock {
    float counters[StepCounters::kSize] = {};
    StepState state;
};

// The start values of a param. kWhiten: normal numbers, until Recovery::start replaces them by
// whitening filters (data/whiten.h). Element i is draw i % 4 of block i / 4 of Random(key,
// 0, block, kInit), where the key is a hash of (seed, name): the values do not depend on other
// params.
struct Init {
    enum Kind { kConstant, kNormal, kUniform, kWhiten } kind = kConstant;
    float value = 0;  // the constant, the standard deviation, or the bound of ±bound
};

// out[i] = element i (normal or uniform), i in [0, n), for any number of threads.
void draw_start_values(const Init& init, uint64_t key, size_t n, float* out, int threads);

struct Param {
    std::string name = {};  // torchvision's: "layer1.0.conv1.weight"
    Shape shape = {};  // K×R×S×C of a conv, out×1×1×in of a linear, 1×1×1×C or C×1×1×1 of a vector
    Init init = {};
    bool decay = false;      // weight decay applies (not to biases and norms)
    bool running = false;    // a running statistic: not trained, its "gradient" is a sum
    bool frozen = false;     // --freeze: keeps its value, has no gradient
    bool joined = false;     // directly after the param before it, without padding
    int dims = 1;            // in files: 4 of a conv, 3 of a scale, 2 of a matrix, 1 of a vector
    bool is_linear = false;  // of a linear layer, which may offer its factors (GradListener)
    size_t layer = 0;        // index of its top-level layer (Model::outline)
    bool own = true;         // false: another rank's stage has it, and here it is never touched
    // After a flatten: the shapes H×W×C of the flattened images, one after the other.
    std::vector<Shape> flat = {};
    size_t offset = 0;  // in floats, in both arenas
    // Views, set by Params::allocate; grad is empty if frozen. Products read `operand`: the value,
    // or its copy in the type of the activations (Params::refresh).
    Tensor value = {}, grad = {}, operand = {};
};

// "layer1.0.conv1" of the parameter "layer1.0.conv1.weight". A scale has its layer's name.
inline std::string layer_name(const Param& param) {
    return param.dims == 3 ? param.name : param.name.substr(0, param.name.rfind('.'));
}

// A checksum of the bits of floats, in order, to compare the weights of two ranks.
uint64_t checksum(std::span<const float> values);

class Params {
 public:
    // Adds a param; the reference stays valid. After allocate() it returns the existing param.
    Param& add(Param param);
    // Allocates the arenas (params aligned to 64 bytes), sets all views, and initialises own params
    // (draw_all: all params). Once, after the last add. shared: used as weights, not initialised.
    void allocate(Backend& backend, uint64_t seed, bool draw_all = false, float* shared = nullptr);
    // All gradients and sums of own params = 0.
    void clear_grads(Backend& backend);

    // Copies the weights to the type of the activations, if it is not float. Model::forward
    // calls it, so code that changes weights need not update the copy. Moves 6 bytes per weight.
    void refresh(Backend& backend);

    size_t copies_bytes() const { return copies_ ? copies_.bytes() : 0; }

    std::vector<Param*> all();  // in arena order (before allocate: in the order of the adds)
    std::vector<Param*> backward_order();  // own trained params, in the order of the backward pass
    Param* find(const std::string& name);  // or null

    size_t model_elems = 0;    // without statistics and padding
    size_t trained_elems = 0;  // … that are not frozen
    float* weights = nullptr;
    float* grads = nullptr;
    size_t trained_size = 0;  // floats of the trained part, padding included
    size_t updated_size = 0;  // … of trained params and running statistics
    size_t state_size = 0;  // … of one state arena of the optimizer: trained_size or updated_size
    size_t weights_size = 0;  // … of the whole weight arena
    size_t grads_size = 0;    // updated_size + StepCounters::kSize
    float* counters() { return grads + updated_size; }
    // The ranges of both arenas with gradients of own params.
    struct Range {
        size_t begin, end;
        size_t size() const { return end - begin; }
    };
    std::vector<Range> owned;
    bool is_whole = true;  // all params are own
    // In device memory, like grads.
    StepBlock* block() { return reinterpret_cast<StepBlock*>(counters()); }

 private:
    std::vector<std::unique_ptr<Param>> params_;
    Tensor copies_;  // of all weights; empty if products read floats
};

}  // namespace convoy
