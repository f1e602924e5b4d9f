// mel.h — spectrograms as pictures: 80 bands, evenly spaced on the mel scale from 0 Hz to half the
// sampling rate, by 80 frames of 1024 samples, 512 apart. From the paper of the model `shallow`:
// Schindler, Lidy, Rauber (2016), who use 0.93 s at 44.1 kHz. And ten kinds of made-up music.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "data/images/decode.h"

namespace convoy {

constexpr int kMelBands = 80, kMelFrames = 80, kWindow = 1024, kHop = 512;

inline double mel(double hertz) { return 2595 * std::log10(1 + hertz / 700); }
// Where a frequency lies among the bands: band b has its centre at b, and its weight falls to 0 at
// the centres next to it. top: half the sampling rate, in Hz.
inline double band_of(double hertz, double top) {
    return (kMelBands + 1) * mel(hertz) / mel(top) - 1;
}
// Low bands are at the bottom.
inline int row_of(int band) { return kMelBands - 1 - band; }
// power: 1 of a sine of full scale. -80 dB and less are black, 0 dB and more white.
inline uint8_t grey_of(double power) {
    const double db = 10 * std::log10(std::max(power, 1e-12));
    return uint8_t(std::lround(std::clamp(255 * (1 + db / 80), 0.0, 255.0)));
}

std::vector<std::string> music_kinds();

// Segment `index` of the set of `seed`: a grey picture as tools/spectrograms makes it of 1.9 s at
// 22,050 Hz. Kinds differ in rhythm, harmony and timbre; key, loudness, brightness, noise and the
// place in the bar are drawn alike for all of them.
Image draw_music(int number, uint64_t seed, uint64_t index);

}  // namespace convoy
