// layers.h — the kinds of layers there are. Each is defined in the file of its name; a new one
// needs its file, a declaration here, and its place in kLayerKinds.
#pragma once

#include "src/model/model_builder.h"

namespace convoy {

// How a layer is written in a model's text, who makes it, and what it can do for its neighbours.
struct LayerKind {
    const char* name;
    // What comes first: "NAME", "P", "A", "[W]" (rows x columns, in place of all options), nothing.
    const char* argument = "";
    const char* needs = "";  // the words that must follow, "out size"
    const char* may = "";    // the words that may follow, "stride pad"
    std::unique_ptr<Layer> (*make)(const LayerText&, const Fusion&, Builder&);  // make_layer<…>

    const char* mark = nullptr;   // of a block that ends with "end": what parts its branches
    bool stride_is_size = false;  // where the text has no stride (else 1)
    bool takes_relu = false;      // Fusion::relu
    bool masks_dx = false;        // Fusion::mask_dx
    bool ends_in_relu = false;    // as it is, without Fusion::relu
    bool keeps_sign = false;      // x > 0 is as before, or dx is 0 there: a mask may be its output
};

// The constructor of each layer checks that its line fits the layers before it, and adds its
// parameters and its line of the table to the builder.
template <class L>
std::unique_ptr<Layer> make_layer(const LayerText& text, const Fusion& fusion, Builder& builder) {
    return std::make_unique<L>(text, fusion, builder);
}

extern const LayerKind kAvgPool, kBatchNorm, kBranches, kConv2d, kDropout, kElu, kFlatten,
    kLeakyRelu, kLinear, kMaxPool, kRelu, kRelu6, kResidual;

inline constexpr const LayerKind* kLayerKinds[] = {
    &kAvgPool,   &kBatchNorm, &kBranches, &kConv2d, &kDropout, &kElu,      &kFlatten,
    &kLeakyRelu, &kLinear,    &kMaxPool,  &kRelu,   &kRelu6,   &kResidual,
};

// Null if there is no such kind.
inline const LayerKind* find_kind(const std::string& name) {
    for (const LayerKind* kind : kLayerKinds)
        if (name == kind->name) return kind;
    return nullptr;
}

}  // namespace convoy
