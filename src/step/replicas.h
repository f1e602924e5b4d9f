// replicas.h — `--threads KxT`: K networks in one process train a batch together, each with a share
// of the threads. They share the weights, but not gradients and activations.
//
//   replica           0               1        …       K−1
//   forward       micro-batch 0   micro-batch 1    micro-batch K−1     Threads wait for each other
//   backward        dw 0            dw 1             dw K−1            once per step, not per op.
//                     └── gradient = dw 0 + dw 1 + … ──┘       Each replica adds a slice.
//
// Adding the large gradients of linear layers would take longer than the batch (alexnet, vgg16). So
// replicas keep x and dy of these layers, for one product with all threads at the end. The ring
// starts after that, so it does not overlap with the backward pass.
#pragma once

#include <atomic>
#include <barrier>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "src/model/model.h"
#include "src/step/micro_batch.h"

namespace convoy {

class Replicas final : public BatchPasses {
 public:
    // Creates a replica of `model`, planned for passes of `images`, on each of `backends`. `model`
    // is on `backend`, in host memory. All must outlive this.
    Replicas(Model& model, Backend& backend, std::span<const std::unique_ptr<Backend>> backends,
             int images);
    ~Replicas() override { stop(); }

    // Replica r computes the micro-batches r, r + K, … Then adds the gradients and the loss sums of
    // all of them to the model's. Rethrows the error of a pass; then the gradients are undefined.
    void run(std::span<MicroBatch> parts, const Work& forward, const Work& backward) override;
    size_t activation_bytes() const override { return activation_bytes_; }

 private:
    struct Replica {
        Backend& backend;
        std::unique_ptr<Model> model;
        std::exception_ptr failure = {};  // of its last passes
    };
    // A linear layer of the model, and the factors of its gradient: a row per image of the batch.
    struct Joined {
        Param *w, *b;  // b null: none, or frozen
        Tensor x = {}, dy = {};
    };
    class Keeper;               // stores x and dy
    void work(size_t replica);  // the thread of a replica: take_part() for each run()
    void take_part(size_t replica);
    void add_up(size_t part);
    void stop() noexcept;

    Params& params_;
    Backend& backend_;
    const int most_;  // most images of a batch
    std::vector<Replica> replicas_;
    std::vector<Joined> joined_;
    std::mutex joined_mutex_;            // guards the allocation of x and dy
    std::vector<Params::Range> summed_;  // ranges of the arenas except weights of linear layers
    size_t activation_bytes_ = 0;
    // The current run():
    std::span<MicroBatch> parts_;
    const Work *forward_ = nullptr, *backward_ = nullptr;
    std::barrier<> passed_, done_;  // after the passes; after the sums
    std::atomic<uint32_t> rounds_ = 0;
    bool stops_ = false;
    std::vector<std::thread> threads_;  // of replicas 1 … K−1
};

}  // namespace convoy
