// bf16.h — bfloat16, the upper half of a float: 1 bit of sign, 8 of exponent, 7 of mantissa.
#pragma once

#include <bit>
#include <cstdint>

namespace convoy {

// Rounds to the nearest, ties to even. Every NaN becomes 0x7FFF, as on a GPU.
constexpr uint16_t to_bf16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    // Rounds by adding half of the last bit that is kept (a little less if that bit is 0).
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return uint16_t((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FFF : rounded);
}
constexpr float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

// Rounds to nearest, ties to even, when stored. Loops over it are vectorised.
struct Bf16 {
    uint16_t bits;
    Bf16() = default;
    Bf16(float value) : bits(to_bf16(value)) {}
    operator float() const { return from_bf16(bits); }
};

}  // namespace convoy
