// chain.cpp — running layers forward and backward, and stopping where nothing is trained.
#include "src/model/layers/chain.h"

#include "src/model/layers/batch_norm.h"

namespace convoy {

void Chain::fuse() {
    for (size_t i = 0; i < layers_.size(); ++i) {
        if (!layers_[i]->ends_in_relu()) continue;
        size_t reader = i + 1;
        while (reader < layers_.size() && layers_[reader]->keeps_sign()) ++reader;
        if (reader < layers_.size() && layers_[reader]->mask_dx()) layers_[i]->dy_is_masked();
    }
    for (size_t i = 1; i < layers_.size(); ++i)
        if (auto* norm = dynamic_cast<BatchNorm*>(layers_[i].get()))
            if (layers_[i - 1]->fuse_moments(*norm)) norm->moments_come();
}

std::unique_ptr<Layer> Chain::take_last() {
    std::unique_ptr<Layer> layer = std::move(layers_.back());
    layers_.pop_back();
    return layer;
}

Shape Chain::output(Shape x) const {
    for (auto& layer : layers_) x = layer->output(x);
    return x;
}

void Chain::describe(Shape x, std::vector<LayerLine>& lines) const {
    for (auto& layer : layers_) {
        layer->describe(x, lines);
        x = layer->output(x);
    }
}

bool Chain::trained() const {
    for (auto& layer : layers_)
        if (layer->trained()) return true;
    return false;
}

Value Chain::plan_forward(Value x, MemoryPlan& plan, bool training) {
    for (auto& layer : layers_) x = layer->plan_forward(x, plan, training);
    return x;
}

Value Chain::plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) {
    std::vector<bool> needed(layers_.size() + 1, needs_dx);  // is dy of layer i+1, dx of i, needed?
    for (size_t i = 0; i < layers_.size(); ++i) needed[i + 1] = needed[i] || layers_[i]->trained();
    backward_from_ = layers_.size();
    for (size_t i = layers_.size(); i-- > 0 && needed[i + 1]; backward_from_ = i)
        dy = layers_[i]->plan_backward(dy, plan, needed[i]);
    return needs_dx ? dy : Value{};
}

void Chain::bind(const MemoryPlan& plan, Backend& backend) {
    for (auto& layer : layers_) layer->bind(plan, backend);
}

Tensor Chain::forward(Tensor x, const Pass& pass) {
    for (auto& layer : layers_) x = layer->forward(x, pass);
    return x;
}

Tensor Chain::backward(Tensor dy, const Pass& pass, GradListener& listener) {
    for (size_t i = layers_.size(); i-- > backward_from_;)
        dy = layers_[i]->backward(dy, pass, listener);
    return dy;
}

}  // namespace convoy
