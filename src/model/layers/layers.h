// layers.h — the kinds of layers: each has a file, a declaration here, and an entry in kLayerKinds;
// and the relu that many layers apply.
#pragma once

#include "src/model/model_builder.h"

namespace convoy {

// How a layer is written in a model's text, how it is constructed, and what it can fuse.
struct LayerKind {
    const char* name;
    // The first argument: "NAME", "P", "A", "[W]" (then no options are allowed), or "".
    const char* argument = "";
    const char* needs = "";  // required options, "out size"
    const char* may = "";    // other options, "stride pad"
    std::unique_ptr<Layer> (*make)(const LayerText&, const Fusion&, Builder&);  // make_layer<…>

    // For a block that ends with "end": the separator of its branches; "" if it has only one.
    const char* mark = nullptr;
    bool stride_is_size = false;                      // default of stride (else 1)
    Activation::Kind activation = Activation::kNone;  // of an activation layer
    bool takes_relu = false;  // Fusion::act is at most a relu; the reader of y may mask dy
    bool masks_dx = false;    // Fusion::mask_dx
    bool keeps_sign = false;  // where x > 0, y > 0 or dx = 0; so the mask can be read from y
};

template <class L>
std::unique_ptr<Layer> make_layer(const LayerText& text, const Fusion& fusion, Builder& builder) {
    return std::make_unique<L>(text, fusion, builder);
}

extern const LayerKind kAvgPool, kBatchNorm, kBranches, kConv2d, kDropout, kElu, kExcite, kFlatten,
    kGelu, kGroupNorm, kHardSigmoid, kHardSwish, kLayerNorm, kLeakyRelu, kLinear, kMaxPool,
    kPointwise, kRelu, kRelu6, kResidual, kScale, kSigmoid, kSilu;

inline constexpr const LayerKind* kLayerKinds[] = {
    &kAvgPool,   &kBatchNorm, &kBranches, &kConv2d,    &kDropout,     &kElu,
    &kExcite,    &kFlatten,   &kGelu,     &kGroupNorm, &kHardSigmoid, &kHardSwish,
    &kLayerNorm, &kLeakyRelu, &kLinear,   &kMaxPool,   &kPointwise,   &kRelu,
    &kRelu6,     &kResidual,  &kScale,    &kSigmoid,   &kSilu,
};

// Null if the kind does not exist.
inline const LayerKind* find_kind(const std::string& name) {
    for (const LayerKind* kind : kLayerKinds)
        if (name == kind->name) return kind;
    return nullptr;
}

// A relu fused into the layer before it, or a layer by itself, and its gradient. Forward it costs
// nothing: the kernel clamps while it stores. Backward, dy must be set to 0 where y <= 0. Usually
// the layer that reads y does this while it stores its dx (Fusion::mask_dx). Otherwise grad() does
// it in a separate pass.
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
        dy = copy.copy_of(dy, backend);
        backend.activate_grad(y, dy, f);
        return dy;
    }

    Value copy = {};  // of dy, if dy is still read later
};

}  // namespace convoy
