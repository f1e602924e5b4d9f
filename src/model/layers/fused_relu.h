// fused_relu.h — a relu fused into the layer before it, or a layer by itself, and its gradient.
// Forward it costs nothing: the kernel clamps while it stores. Backward, dy must be set to 0 where
// y <= 0. Usually the layer that reads y does this while it stores its dx (Fusion::mask_dx).
// Otherwise grad() does it in a separate pass.
#pragma once

#include "src/model/layer.h"

namespace convoy {

struct FusedRelu {
    Activation f = {Activation::kNone};  // fused, it is none or relu
    bool dy_is_masked = false;           // by the reader of y

    bool needs_grad() const { return f && !dy_is_masked; }
    Keep keep(bool training) const {
        if (!training || !needs_grad() || f.needs_x()) return Keep::kNothing;
        return f.kind == Activation::kRelu ? Keep::kSign : Keep::kValues;
    }

    // Within an op that reads dy. Returns dy after the relu's gradient: in place, or a copy.
    Value plan_grad(Value dy, Value y, MemoryPlan& plan) {
        if (!needs_grad()) return dy;
        plan.use(y);
        if (dy.keep == Keep::kValues) dy = copy = plan.make(dy.shape);
        return dy;
    }
    Tensor grad(Tensor dy, Tensor y, Backend& backend) const {
        if (!needs_grad()) return dy;
        if (copy) {
            backend.copy(copy.first(dy.N), dy);
            dy = copy.first(dy.N);
        }
        backend.activate_grad(y, dy, f);
        return dy;
    }

    Value copy = {};  // of dy, if dy is still read later
};

}  // namespace convoy
