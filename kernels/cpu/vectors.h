// vectors.h — vectors of kWidth floats, loaded from floats or bf16; micro_*.cpp set kWidth.
// Everything is in an anonymous namespace and calls no inline function of another header. Otherwise
// the linker might use the AVX-512 copy of a shared function for the whole program.
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace convoy {
namespace {

typedef float Vec __attribute__((vector_size(kWidth * 4)));
typedef float VecAnywhere __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));
typedef int Ints __attribute__((vector_size(kWidth * 4)));
typedef unsigned Words __attribute__((vector_size(kWidth * 4)));
typedef unsigned short Halves __attribute__((vector_size(kWidth * 2)));
typedef unsigned short HalvesAnywhere
    __attribute__((vector_size(kWidth * 2), aligned(2), may_alias));
typedef unsigned char Bytes __attribute__((vector_size(kWidth)));
typedef unsigned char BytesAnywhere __attribute__((vector_size(kWidth), aligned(1), may_alias));

// Intrinsics for AVX-512: compilers convert such vectors in halves, or number by number.
inline Words load_halves(const Bf16* p) {
#ifdef __AVX512F__
    return (Words)_mm512_cvtepu16_epi32(*reinterpret_cast<const __m256i_u*>(p));
#else
    return __builtin_convertvector(*reinterpret_cast<const HalvesAnywhere*>(p), Words);
#endif
}
inline Ints load_bytes(const unsigned char* p) {
#ifdef __AVX512F__
    return (Ints)_mm512_cvtepu8_epi32(*reinterpret_cast<const __m128i_u*>(p));
#elif defined(__AVX2__)
    return (Ints)_mm256_cvtepu8_epi32(_mm_loadu_si64(p));
#else
    return __builtin_convertvector(*reinterpret_cast<const BytesAnywhere*>(p), Ints);
#endif
}
inline Vec load(const float* p) { return *reinterpret_cast<const VecAnywhere*>(p); }
inline Vec load(const Bf16* p) { return reinterpret_cast<Vec>(load_halves(p) << 16); }
inline void store(float* p, Vec v) { *reinterpret_cast<VecAnywhere*>(p) = v; }
// Rounds like to_bf16(); in hardware numbers below 2⁻¹²⁶ become 0.
inline void store(Bf16* p, Vec v) {
#ifdef __AVX512BF16__
    *reinterpret_cast<__m256i_u*>(p) = (__m256i)_mm512_cvtneps_pbh(v);
#else
    const Words bits = reinterpret_cast<Words>(v);
    const Words rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const Words all = v != v ? Words{} + 0x7FFF : rounded;
#ifdef __AVX512F__
    *reinterpret_cast<__m256i_u*>(p) = _mm512_cvtepi32_epi16((__m512i)all);
#else
    *reinterpret_cast<HalvesAnywhere*>(p) = __builtin_convertvector(all, Halves);
#endif
#endif
}
// The first n < kWidth numbers; the rest is 0. Not inlined, because every pass has several copies.
template <class T>
[[gnu::noinline]] Vec load_few(const T* p, int n) {
    T few[kWidth];
    for (int i = 0; i < kWidth; ++i) few[i] = p[i < n ? i : 0];
    return load(few);
}
template <class T>
[[gnu::noinline]] void store_few(T* p, Vec v, int n) {
    T few[kWidth];
    store(few, v);
    for (int i = 0; i < n; ++i) p[i] = few[i];
}

// Calls f(first, count) for n numbers: whole vectors with count of type All, then the remainder.
typedef std::integral_constant<int, kWidth> All;
template <class Int, class F>
inline void over_vectors(Int n, F&& f) {
    Int i = 0;
    for (; i + kWidth <= n; i += kWidth) f(i, All());
    if (i < n) f(i, int(n - i));
}
template <class T, class N>
inline Vec get(const T* p, N n) {
    if constexpr (std::is_same_v<N, All>) return load(p);
    return load_few(p, n);
}
template <class T, class N>
inline void put(T* p, Vec v, N n) {
    if constexpr (std::is_same_v<N, All>) return store(p, v);
    store_few(p, v, n);
}

// Applies the epilogue of a TileOut to sums v, which will be stored at row[j].
template <class T, class Out, class N>
inline Vec finished(Vec v, const T* row, int j, N n, const Out& out) {
    if (out.accumulate) v += get(row + j, n);
    if (out.bias) v += get(out.bias + j, n);
    if (out.relu) v = v < 0 ? Vec{} : v;  // in this form a NaN stays a NaN
    if (out.mask) v = get(row + *out.mask + j, n) <= 0 ? Vec{} : v;
    return v;
}

}  // namespace
}  // namespace convoy
