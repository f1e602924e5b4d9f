// generated.h — the built-in data set: pictures of circles, squares and triangles.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "data/decode.h"
#include "data/source.h"

namespace convoy {

// Draws picture `index` of the set of `seed`, 96×96. kind: 0 circle, 1 square, 2 triangle. Place,
// size, turn, colours, texture, light, clutter and noise have the same distribution in all three,
// so only the outline distinguishes them.
Image draw_shape(int kind, uint64_t seed, uint64_t index);

// JPEGs in memory: each is drawn and encoded when it is first read, and kept.
class GeneratedSource final : public Source {
 public:
    static const std::vector<std::string>& all_classes();  // circle, square, triangle

    // Samples first, first+1, … of the set. `classes` are some of all_classes(), used in turn.
    GeneratedSource(std::vector<std::string> classes, uint64_t seed, uint64_t first, size_t count);

    std::string name(size_t i) const override;
    void read(size_t i, std::vector<uint8_t>& bytes) const override;
    uint64_t fingerprint() const override;

 private:
    struct Lazy {
        std::once_flag drawn;
        std::vector<uint8_t> file;
    };
    uint64_t seed_, first_;
    std::vector<int> kinds_;             // of each class
    mutable std::vector<Lazy> samples_;  // a cache: read() gives the same bytes every time
};

}  // namespace convoy
