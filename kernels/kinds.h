// kinds.h — from an activation to a constant of the compiler, so that loops do not ask for its
// kind.
#pragma once

#include <type_traits>
#include <utility>

#include "kernels/backend.h"

namespace convoy {

// Calls f with the kind as a constant, if kFits accepts it.
template <auto kFits, class F>
inline void with_kind(Activation act, F&& f) {
    const auto one =
        [&]<Activation::Kind kKind>(std::integral_constant<Activation::Kind, kKind> kind) {
            if constexpr (kFits(Activation{kKind}))
                if (act.kind == kKind) f(kind);
        };
    [&]<size_t... kKinds>(std::index_sequence<kKinds...>) {
        (one(std::integral_constant<Activation::Kind, Activation::Kind(kKinds)>()), ...);
    }
    (std::make_index_sequence<Activation::kLast + 1>());
}
// Calls f with the kind, unless there is no activation. (nvcc takes a lambda as a template argument
// only within a template.)
template <class F>
inline void with_any_kind(Activation act, F&& f) {
    with_kind<[](Activation a) { return bool(a); }>(act, f);
}
// Calls f with the kind and with whether there is a residual, for what batch norm can do.
template <class F>
inline void with_norm_kind(Activation act, bool residual, F&& f) {
    if (residual)
        with_kind<[](Activation a) { return a.kind <= Activation::kRelu; }>(
            act, [&](auto kind) { f(kind, std::true_type()); });
    else
        with_kind<[](Activation a) { return a.fits_norm(); }>(
            act, [&](auto kind) { f(kind, std::false_type()); });
}

}  // namespace convoy
