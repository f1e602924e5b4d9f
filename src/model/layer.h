// layer.h — the interface of a layer: plan, forward, backward.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "src/base/trace.h"
#include "src/model/memory_plan.h"
#include "src/model/params.h"

namespace convoy {

// Where a pass records the times of its layers.
struct LayerTrace {
    Track* track = nullptr;
    const TraceName* names = nullptr;  // Tracer::layers
    size_t layers = 0;
    SpanSink* device = nullptr;
};

// The settings of one pass over a batch.
struct Pass {
    bool training = true;               // false: running statistics, no dropout
    Draws draws;                        // for dropout; a recorded Pass must keep its address
    std::span<const uint64_t> samples;  // N sample numbers (dropout)
    std::span<const int> groups;        // bounds of the batch norm groups
    bool refresh = true;                // the weights may have changed since the last pass
    LayerTrace trace = {};
};

// Is told which gradients are complete during the backward pass. The base class does nothing.
class GradListener {
 public:
    virtual ~GradListener() = default;
    // The gradient of this param is complete.
    virtual void ready(const Param&) {}
    // Offers x and dy of a linear layer with weights w. If true is returned, the listener computes
    // dw and db from them; the layer computes neither and does not call ready() for its params.
    virtual bool take_factors(const Param&, Tensor, Tensor) { return false; }
};

class BatchStatistics;

// A layer is planned for the largest batch; a pass may have fewer images, even 0.
class Layer {
 public:
    explicit Layer(Backend& backend) : backend_(backend) {}
    virtual ~Layer() = default;

    // Whether it has params that are not frozen.
    virtual bool trained() const { return false; }
    // Asks the layer to compute the statistics of its output for the batch norm that follows.
    virtual bool take_statistics(BatchStatistics&) { return false; }
    // Asks the layer to add its dx to this value; if `masks`, to set the sum to 0 where x <= 0.
    // Returns false if the layer cannot. If it returns true, plan_backward must be called with
    // needs_dx, and returns this value.
    virtual bool add_dx_to(Value, bool /*masks*/) { return false; }

    // Planning: forward of all layers, then backward. needs_dx: an earlier layer is trained.
    virtual Value plan_forward(Value x, MemoryPlan& plan, bool training) = 0;
    virtual Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) = 0;

    virtual Tensor forward(Tensor x, const Pass& pass) = 0;
    // Adds to the gradients of its trained params, then calls listener.ready() for each of them,
    // last param first. Returns dx, or an empty Tensor if no dx was planned.
    virtual Tensor backward(Tensor dy, const Pass& pass, GradListener& listener) = 0;
    // Whether the last backward pass computed gradients of weights.
    virtual bool computed_dw() const { return trained(); }

    // For traces, set by the builder: the layer's number, and its operations forward for one image.
    size_t number = 0;
    double flops = 0;

 protected:
    Backend& backend_;
};

// A sequence of layers: a whole network, or a branch of a block.
struct Layers : std::vector<std::unique_ptr<Layer>> {
    // Set by plan_backward. lowest: the first layer with a backward pass. adds: dx is added to sum.
    size_t lowest = 0;
    bool adds = false;

    bool trained() const {
        return std::any_of(begin(), end(), [](auto& layer) { return layer->trained(); });
    }
    // Without layers, the output is the input.
    Value plan_forward(Value x, MemoryPlan& plan, bool training) {
        for (auto& layer : *this) x = layer->plan_forward(x, plan, training);
        return x;
    }
    // Stops at the first trained layer, unless dx is needed.
    // If `sum` is given and the first layer can add its dx to it, the result is `sum`, masked as in
    // add_dx_to().
    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx, Value sum = {},
                        bool masks = false) {
        lowest = 0;
        adds = needs_dx && sum.buffer && sum.keep == Keep::kNothing && !empty() &&
               front()->add_dx_to(sum, masks);
        while (!needs_dx && lowest < size() && !at(lowest)->trained()) ++lowest;
        for (size_t i = size(); i-- > lowest;)
            dy = at(i)->plan_backward(dy, plan, needs_dx || i > lowest);
        return needs_dx ? dy : Value{};
    }
    Tensor forward(Tensor x, const Pass& pass) {
        for (auto& layer : *this) {
            const Span span = this->span(*layer, pass.trace, false, x.N);
            x = layer->forward(x, pass);
        }
        return x;
    }
    Tensor backward(Tensor dy, const Pass& pass, GradListener& listener) {
        for (size_t i = size(); i-- > lowest;) {
            Layer& layer = *at(i);
            Span span = this->span(layer, pass.trace, true, dy.N);
            dy = layer.backward(dy, pass, listener);
            span.amount *= layer.computed_dw() + (dy.data != nullptr);  // dw, dx
        }
        return dy;
    }
    static Span span(const Layer& layer, const LayerTrace& trace, bool backward, int images) {
        if (!trace.track) return {nullptr, kTraceForward};
        return {trace.track, trace.names[layer.number + backward * trace.layers], images,
                layer.flops * images, trace.device};
    }
};

}  // namespace convoy
