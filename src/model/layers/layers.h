// layers.h — all layers there are, each made by one function and told in one file.
//
// Rows (weights and their gradients) belong to Params; a layer holds views. What a layer may assume
// about shapes is checked by the builder (model_builder.cpp).
#pragma once

#include <memory>

#include "src/model/layers/chain.h"

namespace convoy {

// y = act(b + x * w), b may be null. w K×R×S×C.
std::unique_ptr<Layer> make_conv2d(Window window, Param& w, Param* b);
// y = act(b + w·x), b may be null. w out×1×1×in.
std::unique_ptr<Layer> make_linear(Param& w, Param* b);
// y = act(gamma·(x − mean)/√(var + eps) + beta). var is the row joined to mean.
std::unique_ptr<Layer> make_batch_norm(Param& gamma, Param& beta, Param& mean, Param& var);
// y = max(0, x), where no layer before it takes it into its own call.
std::unique_ptr<Layer> make_relu();
std::unique_ptr<Layer> make_max_pool(Window window);
// Averages to P×Q pixels.
std::unique_ptr<Layer> make_avg_pool(int P, int Q);
// purpose: kLayer + the number of this dropout in the model.
std::unique_ptr<Layer> make_dropout(float p, uint16_t purpose);
std::unique_ptr<Layer> make_flatten();
// y = relu(main(x) + shortcut(x)); an empty shortcut is x itself. Both are fused already.
std::unique_ptr<Layer> make_residual(Chain main, Chain shortcut, bool fuse);

}  // namespace convoy
