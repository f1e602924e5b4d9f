// math.h — the functions that CUDA declares for device code and the C++ library does not.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace convoy::simt {

using std::isfinite, std::isinf, std::isnan;

template <class A, class B>
constexpr auto min(A a, B b) {
    return b < a ? b : a;
}
template <class A, class B>
constexpr auto max(A a, B b) {
    return a < b ? b : a;
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(unsigned(x)); }
inline int __ffs(int x) { return x ? std::countr_zero(unsigned(x)) + 1 : 0; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
template <class T>
T __ldg(const T* p) {
    return *p;
}

}  // namespace convoy::simt
