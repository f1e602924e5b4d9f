// chain.h — layers in order, each fed by the one before: a whole network, or a branch of a block.
#pragma once

#include <memory>
#include <vector>

#include "src/model/layer.h"

namespace convoy {

class Chain {
 public:
    void append(std::unique_ptr<Layer> layer) { layers_.push_back(std::move(layer)); }
    // Settles who masks for whom, and who takes statistics for whom, after the last append. Relus
    // were fused as they were appended.
    void fuse();

    bool empty() const { return layers_.empty(); }
    Layer* last() { return layers_.empty() ? nullptr : layers_.back().get(); }
    std::unique_ptr<Layer> take_last();

    Shape output(Shape x) const;
    void describe(Shape x, std::vector<LayerLine>& lines) const;
    bool trained() const;  // any of its layers is

    // As a layer's; of an empty chain the output is the input.
    Value plan_forward(Value x, MemoryPlan& plan, bool training);
    // Stops above the layers below which nothing is trained, unless dx is needed.
    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx);
    void bind(const MemoryPlan& plan, Backend& backend);
    Tensor forward(Tensor x, const Pass& pass);
    Tensor backward(Tensor dy, const Pass& pass, GradListener& listener);

 private:
    std::vector<std::unique_ptr<Layer>> layers_;
    size_t backward_from_ = 0;  // the lowest layer that runs backward
};

}  // namespace convoy
