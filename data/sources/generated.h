// generated.h — the built-in data set: pictures of circles, squares and triangles.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/images/decode.h"
#include "data/sources/source.h"

namespace convoy {

// Draws picture `index` of the set of `seed`, 96×96. kind: 0 circle, 1 square, 2 triangle. Place,
// size, turn, colours, texture, light, clutter and noise have the same distribution in all three,
// so only the outline distinguishes them.
Image draw_shape(int kind, uint64_t seed, uint64_t index);

inline const std::vector<std::string> kGeneratedClasses = {"circle", "square", "triangle"};

// Pictures first, first+1, … of the set, as JPEGs in memory: each is drawn and encoded when it is
// first read, and kept. `classes` are some of kGeneratedClasses, used in turn.
SourcePtr generated_source(std::vector<std::string> classes, uint64_t seed, uint64_t first,
                           size_t count);

}  // namespace convoy
