// layer.h — what a layer is: plan, forward, backward.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/memory_plan.h"
#include "src/params.h"

namespace convoy {

// What one pass over a batch needs to know besides the pixels.
struct Pass {
    bool training = true;  // else: running statistics, no dropout
    uint64_t seed = 0;
    uint32_t epoch = 0;
    std::span<const uint64_t> samples;  // N sample numbers (dropout)
    std::span<const int> groups;        // bounds of the batch norm groups
};

// Planned for the largest batch; a pass may be smaller (N of its input), also 0.
class Layer {
 public:
    virtual ~Layer() = default;

    // "conv2d 64 7x7 stride 2", for the table of the network.
    virtual std::string describe() const = 0;
    // Output shape for an input shape; throws Error if the input does not fit. Pure.
    virtual Shape output(Shape x) const = 0;
    virtual double forward_flops(Shape x) const { return (void)x, 0; }

    // Planning, in the order of the step: forward of all layers, then backward of all layers in
    // reverse. `needs_dx` is false where nothing below is trained.
    virtual Value plan_forward(Value x, MemoryPlan& plan, bool training) = 0;
    virtual Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) = 0;
    // Takes the pointers of what was planned.
    virtual void bind(const MemoryPlan& plan, Backend& backend) = 0;

    virtual Tensor forward(Tensor x, const Pass& pass) = 0;
    // Adds to the gradients of its rows, then calls ready(row) for each of them, last row first.
    // Returns dx, or an empty Tensor where the plan said that nobody needs it.
    using Ready = std::function<void(const Param&)>;
    virtual Tensor backward(Tensor dy, const Pass& pass, const Ready& ready) = 0;

    virtual bool trained() const { return false; }  // has rows that are not frozen
};

}  // namespace convoy
