// music.h — ten kinds of made-up music, for models of spectrograms.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/decode.h"

namespace convoy {

const std::vector<std::string>& music_kinds();

// Segment `index` of the set of `seed`: a grey picture as tools/spectrograms makes it of 1.9 s at
// 22,050 Hz (mel.h). Kinds differ in rhythm, harmony and timbre; key, loudness, brightness, noise
// and the place in the bar are drawn alike for all of them.
Image draw_music(int number, uint64_t seed, uint64_t index);

}  // namespace convoy
