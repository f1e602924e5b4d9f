// layers.h — the kinds of layers: each has a file, a declaration here, and an entry in kLayerKinds.
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

}  // namespace convoy
