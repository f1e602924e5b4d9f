// fused_relu.h — the relu at the end of another layer's call, and who undoes it.
//
// Forward it costs nothing: the producer's kernel clamps as it stores. Backward, dy must be set to
// 0 where y <= 0. Mostly the reader of y does that as it stores its dx (Layer::mask_dx); otherwise
// the producer does it here, in a pass of its own.
#pragma once

#include "src/model/layer.h"

namespace convoy {

struct FusedRelu {
    bool on = false;
    bool masked = false;  // dy comes masked

    bool reads_y() const { return on && !masked; }
    Keep keep(bool training) const { return training && reads_y() ? Keep::kSign : Keep::kNothing; }

    // dy after the mask: itself, or a copy where others still read dy.
    Value plan_grad(Value dy, Value y, MemoryPlan& plan) {
        plan.use(dy);
        if (!reads_y()) return dy;
        plan.use(y);
        if (dy.keep != Keep::kValues) return dy;
        copy_ = plan.make(dy.shape);
        return copy_;
    }
    void bind(const MemoryPlan& plan) { copy_room_ = plan.at(copy_); }
    Tensor grad(Tensor dy, Tensor y, Backend& backend) const {
        if (!reads_y()) return dy;
        if (copy_room_) {
            backend.copy(copy_room_.first(dy.N), dy);
            dy = copy_room_.first(dy.N);
        }
        backend.relu_grad(y, dy);
        return dy;
    }

 private:
    Value copy_;
    Tensor copy_room_;
};

}  // namespace convoy
