// fused_relu.h — the relu at the end of another layer's call, or a rectifier on its own, and its
// gradient.
//
// Forward it costs nothing: the kernel clamps as it stores. Backward, dy must be set to 0 where
// y <= 0. Mostly the reader of y does that as it stores its dx (Fusion::mask_dx); otherwise the
// layer does it with grad(), in a pass of its own.
#pragma once

#include "src/model/layer.h"

namespace convoy {

struct FusedRelu {
    bool on = false;
    bool dy_is_masked = false;  // by the reader of y
    Rectifier f = {};           // anything but max(0, ·) is a layer of its own

    bool needs_grad() const { return on && !dy_is_masked; }
    Keep keep(bool training) const {
        if (!training || !needs_grad()) return Keep::kNothing;
        return f.kind == Rectifier::kRelu ? Keep::kSign : Keep::kValues;
    }

    // In an op that reads dy: dy after the relu's gradient, or a copy where others still read dy.
    Value plan_grad(Value dy, Value y, MemoryPlan& plan) {
        if (!needs_grad()) return dy;
        plan.use(y);
        if (dy.keep == Keep::kValues) dy = copy = plan.make(dy.shape);
        return dy;
    }
    // Where needs_grad().
    Tensor grad(Tensor dy, Tensor y, Backend& backend) const {
        if (copy) {
            backend.copy(copy.first(dy.N), dy);
            dy = copy.first(dy.N);
        }
        backend.relu_grad(y, dy, f);
        return dy;
    }

    Value copy = {};  // of dy, where others still read it
};

}  // namespace convoy
