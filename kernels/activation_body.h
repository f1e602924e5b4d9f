// activation_body.h — the activation functions and their gradients, for a number of a GPU (a float)
// or of the CPU (a vector of floats). To be included in a namespace with FORMULA, the specifiers of
// a function, and with clamped(), sigmoid(), elu(), normal_below() and normal_slope() of a Number.
using Kind = Activation::Kind;

static_assert(Activation::kLast == Kind::kGelu, "a new kind needs a formula in both functions");
template <Kind kKind, class Number>
FORMULA Number activated(Number x, float slope = 0) {
    if constexpr (kKind == Kind::kRelu) return x < 0 ? Number{} : x;
    if constexpr (kKind == Kind::kRelu6) return clamped(x, 6);
    if constexpr (kKind == Kind::kLeakyRelu) return x < 0 ? slope * x : x;
    if constexpr (kKind == Kind::kElu) return elu(x, slope);
    if constexpr (kKind == Kind::kSigmoid) return sigmoid(x);
    if constexpr (kKind == Kind::kHardSigmoid) return clamped(x * (1 / 6.0f) + 0.5f, 1);
    if constexpr (kKind == Kind::kSilu) return x * sigmoid(x);
    if constexpr (kKind == Kind::kHardSwish) return x * clamped(x * (1 / 6.0f) + 0.5f, 1);
    if constexpr (kKind == Kind::kGelu) return x * normal_below(x);
    return x;
}
// dy times the derivative, from y = f(x), or from x if Activation::needs_x(). The kinds that batch
// norm applies may always take x.
template <Kind kKind, class Number>
FORMULA Number activated_grad(Number y, Number dy, float slope = 0) {
    if constexpr (kKind == Kind::kRelu) return y <= 0 ? Number{} : dy;
    if constexpr (kKind == Kind::kRelu6) return ((y <= 0) | (y >= 6)) ? Number{} : dy;
    if constexpr (kKind == Kind::kLeakyRelu) return y <= 0 ? slope * dy : dy;
    if constexpr (kKind == Kind::kElu) return y <= 0 ? (y + slope) * dy : dy;
    if constexpr (kKind == Kind::kSigmoid) return dy * y * (1 - y);
    if constexpr (kKind == Kind::kHardSigmoid)
        return ((y <= 0) | (y >= 1)) ? Number{} : dy * (1 / 6.0f);
    if constexpr (kKind == Kind::kSilu) return dy * sigmoid(y) * (1 + y * (1 - sigmoid(y)));
    if constexpr (kKind == Kind::kHardSwish)
        return y <= -3 ? Number{} : y >= 3 ? dy : dy * (y * (1 / 3.0f) + 0.5f);
    if constexpr (kKind == Kind::kGelu) return dy * (normal_below(y) + normal_slope(y));
    return dy;
}
