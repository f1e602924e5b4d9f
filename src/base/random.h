// random.h — the only source of random numbers: Philox 4x32-10, a counter-based generator.
//
// Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). The numbers
// are a pure function of (seed, epoch, index, purpose, draw). No generator is shared or saved, so a
// sample gets the same crop, flip and dropout mask on every thread, rank and world.
//
//   key      (seed low, seed high)
//   counter  (block of four draws, index low, epoch, purpose | index high << 16)
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

namespace convoy {

// c[j][i] is word j of block i: its counter before the call, its random numbers after it. The loop
// over blocks is vectorised at -O3. constexpr, because CUDA kernels call it too.
template <int kBlocks>
constexpr void philox4x32(uint32_t (&c)[4][kBlocks], uint64_t key) {
    uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
        for (int i = 0; i < kBlocks; ++i) {
            const uint64_t a = uint64_t(0xD2511F53u) * c[0][i];
            const uint64_t b = uint64_t(0xCD9E8D57u) * c[2][i];
            const uint32_t x = uint32_t(b >> 32) ^ c[1][i] ^ k0;
            const uint32_t y = uint32_t(a >> 32) ^ c[3][i] ^ k1;
            c[0][i] = x, c[1][i] = uint32_t(b), c[2][i] = y, c[3][i] = uint32_t(a);
        }
}

// What a number is drawn for. Different purposes have independent numbers. Never change a value:
// runs would no longer be reproducible. At most 65,535; layers use kLayer + their position.
using Purpose = uint16_t;
inline constexpr Purpose kOrder = 1, kCrop = 2, kFlip = 3, kInit = 4, kGenerate = 5, kTest = 6,
                         kBench = 7, kSplit = 8, kJitter = 16, kPolicy = 17, kErase = 18,
                         kTranslate = 19, kMix = 20, kLayer = 1024;

// The sequence of draws for one (seed, epoch, index, purpose). Cheap to construct where it is used.
class Random {
 public:
    Random(uint64_t seed, uint32_t epoch, uint64_t index, Purpose purpose)
        : key_(seed),
          counter_{0, uint32_t(index), epoch, uint32_t(purpose) | uint32_t(index >> 32) << 16} {}

    uint32_t bits() {
        if (used_ == 4) {
            for (int j = 0; j < 4; ++j) block_[j][0] = counter_[j];
            philox4x32(block_, key_);
            ++counter_[0], used_ = 0;
        }
        return block_[used_++][0];
    }
    uint64_t bits64() {
        const uint64_t low = bits();
        return low | uint64_t(bits()) << 32;
    }
    // In [0, 1), with 24 bits, which a float holds exactly.
    float uniform() { return float(bits() >> 8) * 0x1p-24f; }
    float uniform(float low, float high) { return low + (high - low) * uniform(); }
    // In [0, n), n > 0, by multiply-shift on 64 bits; the bias is below n / 2^64.
    uint64_t below(uint64_t n) { return uint64_t((__uint128_t(bits64()) * n) >> 64); }
    // Standard normal (Box–Muller), two draws per number.
    float normal() {
        const double u = 1.0 - double(bits() >> 8) * 0x1p-24;  // in (0, 1], so the log is finite
        return float(std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * uniform()));
    }

 private:
    uint64_t key_;
    uint32_t counter_[4], block_[4][1] = {};
    int used_ = 4;
};

// FNV-1a, 64 bits (www.isthe.com/chongo/tech/comp/fnv), for fingerprints and hashes of names.
inline uint64_t hash_bytes(std::string_view bytes, uint64_t hash = 0xcbf29ce484222325ull) {
    for (unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3ull;
    return hash;
}

}  // namespace convoy
