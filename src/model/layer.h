// layer.h — what a layer is: plan, forward, backward.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/model/memory_plan.h"
#include "src/model/params.h"

namespace convoy {

// What one pass over a batch needs to know besides the pixels.
struct Pass {
    bool training = true;               // else: running statistics, no dropout
    Draws draws;                        // of dropout; a recorded pass must stay where it is
    std::span<const uint64_t> samples;  // N sample numbers (dropout)
    std::span<const int> groups;        // bounds of the batch norm groups
};

// A line of the table of the network.
struct LayerLine {
    std::string name;  // "layer1.0.conv1", empty where there are no params
    std::string what;  // "conv2d 64 7x7 stride 2 + relu"
    Shape output;
    size_t params = 0;
    double flops = 0;  // of one image forward; multiply and add are two
    bool frozen = false;
};

// Follows the gradients while the backward pass forms them. The base class does nothing.
class GradListener {
 public:
    virtual ~GradListener() = default;
    // All additions to this param's gradient are done.
    virtual void ready(const Param&) {}
    // x and dy of a linear layer with weights w. True: the listener forms dw and db from them; the
    // layer leaves both alone and does not call ready() for its params.
    virtual bool take_factors(const Param&, Tensor, Tensor) { return false; }
};

class BatchNorm;

// Planned for the largest batch; a pass may be smaller (N of its input), also 0.
class Layer {
 public:
    virtual ~Layer() = default;

    // Output shape for an input shape. Pure; that the input fits is checked before (builder).
    virtual Shape output(Shape x) const = 0;
    // Adds this layer's lines for an input shape.
    virtual void describe(Shape x, std::vector<LayerLine>& lines) const = 0;

    // Fusion, settled once when the network is built (Chain::fuse):
    virtual bool fuse_relu() { return false; }  // takes a relu behind it into its own call?
    virtual bool ends_in_relu() const { return false; }
    // Will set dx to 0 where its input is <= 0? That is the gradient of a relu right before it,
    // which then hears dy_is_masked() and has nothing left to do.
    virtual bool mask_dx() { return false; }
    virtual void dy_is_masked() {}
    // Will take the statistics that the batch norm right behind it needs, in its own call?
    virtual bool fuse_moments(BatchNorm&) { return false; }
    // Gives its output as floats, whatever activations are? Asked of the last layer.
    virtual bool give_floats() { return false; }
    // x > 0 is as before, or dx is 0 there (flatten, dropout): masks may be taken behind it.
    virtual bool keeps_sign() const { return false; }

    // Planning, in the order of the step: forward of all layers, then backward of all layers in
    // reverse. `needs_dx` is false where nothing below is trained.
    virtual Value plan_forward(Value x, MemoryPlan& plan, bool training) = 0;
    virtual Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) = 0;
    // Takes the pointers of what was planned.
    virtual void bind(const MemoryPlan& plan, Backend& backend) = 0;

    virtual Tensor forward(Tensor x, const Pass& pass) = 0;
    // Adds to the gradients of its trained params, then calls listener.ready() for each of them,
    // last param first. Returns dx, or an empty Tensor where the plan said that nobody needs it.
    virtual Tensor backward(Tensor dy, const Pass& pass, GradListener& listener) = 0;

    virtual bool trained() const { return false; }  // has params that are not frozen
};

}  // namespace convoy
