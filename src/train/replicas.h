// replicas.h — `--replicas K`: K copies of the network in one process, each with its part of the
// threads, train a batch together, as PyTorch's DataParallel and the multi-threaded data
// parallelism of the literature do. The weights are shared; gradients and activations are each
// replica's own.
//
//   batch      piece 0   piece 1   …  piece K−1        an operation on K threads shares its loops
//   and replica       0         1            K−1           waits for the slowest K times; a replica
//   waits backward     dw 0      dw 1         dw K−1         once a step
//                └── gradient = dw 0 + dw 1 + … ──┘    each replica adds up a slice of the arenas
//
// The weights of linear layers are most of some models, and to add their gradients up took longer
// than the batch (alexnet, vgg16). Replicas keep x and dy of these layers in place of dw, for one
// product over all rows and with all threads in the end.
//
// The ring gets the gradients when all are added up, so it is not hidden behind the backward pass.
#pragma once

#include <atomic>
#include <barrier>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "src/model/model.h"
#include "src/train/pieces.h"

namespace convoy {

class Replicas {
 public:
    // Of `model`, which is on `backend`, has memory for passes of `images`, and whose arenas are in
    // host memory; one on each of `backends`. All must outlive this. Throws Error where a thread
    // cannot be made.
    Replicas(Model& model, Backend& backend, std::span<const std::unique_ptr<Backend>> backends,
             int images);
    ~Replicas() { stop(); }

    // A pass, forward and backward, of one piece; the last: where its loss and hits are added.
    using Train = std::function<void(Model&, Backend&, const Piece&, GradListener&, float* sums)>;
    // Gradients and loss sums of the model = those of all pieces, of which replica r trains every
    // Kth from the rth on. Blocks. Throws what a pass throws; the gradients are then undefined.
    void train(std::span<const Piece> pieces, const Train& train);

    size_t activation_bytes() const { return activation_bytes_; }  // of all

 private:
    struct Replica {
        Backend& backend;
        std::unique_ptr<Model> model;
        std::exception_ptr failure = {};  // of its last passes
    };
    // A linear layer of the model, and what goes into its product: a row an image of the batch.
    struct Joined {
        Param *w, *b;  // b null: none, or frozen
        Tensor x = {}, dy = {};
    };
    class Keeper;               // of x and dy
    void work(size_t replica);  // a thread: takes part in each train(), until stop()
    void take_part(size_t replica);
    void add_up(size_t part);
    void stop() noexcept;

    Params& params_;
    Backend& backend_;
    const int most_;  // images of a batch
    std::vector<Replica> replicas_;
    std::vector<Joined> joined_;
    std::mutex joined_mutex_;            // of what is not allocated yet
    std::vector<Params::Range> summed_;  // of the arenas: the rest
    size_t activation_bytes_ = 0;
    // Of train() under way:
    std::span<const Piece> pieces_;
    const Train* train_ = nullptr;
    std::barrier<> passed_, done_;  // of all replicas: their passes; their part of the sum
    std::atomic<uint32_t> rounds_ = 0;
    bool stops_ = false;
    std::vector<std::thread> threads_;  // of all replicas but the first
};

}  // namespace convoy
