// input_size.h — the images that a network reads: height, width, channels, and their normalisation.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace convoy {

struct InputSize {
    static constexpr int kMost = 8192;  // rows, columns

    int H = 0, W = 0;
    int C = 3;  // 3: RGB, 1: grey, 0: not given (the model decides)

    InputSize() = default;
    InputSize(int side) : H(side), W(side) {}  // square, RGB
    InputSize(int height, int width, int channels) : H(height), W(width), C(channels) {}

    size_t elems() const { return size_t(H) * size_t(W) * size_t(C); }
    bool operator==(const InputSize&) const = default;
    // Replaces C by `channels` if it is not given.
    InputSize or_channels(int channels) const { return {H, W, C ? C : channels}; }
};

// Mean and deviation of each channel, of pixels from 0 to 1: a network reads (pixel − mean) / std.
struct InputStatistics {
    std::array<float, 3> mean = {0.485f, 0.456f, 0.406f},
                         std = {0.229f, 0.224f, 0.225f};  // ImageNet

    // A pixel from 0 to 255 becomes pixel · scale(c) + bias(c): over 255, minus mean, over std.
    float scale(int c) const { return 1 / (255 * std[size_t(c)]); }
    float bias(int c) const { return -mean[size_t(c)] / std[size_t(c)]; }
    bool operator==(const InputStatistics&) const = default;
    InputStatistics of_channels(int C) const;  // of grey images: the means over the three channels
};

// "224" (square), "80x64" (height x width) or "28x28x1" (with channels; else C is 0); or empty.
std::optional<InputSize> parse_input_size(std::string_view text);
std::string input_size_text(InputSize size);
// For messages: the forms of parse_input_size().
inline constexpr const char* kInputSizeForms =
    "a height, or height x width (80x64), from 1 to 8192; x1 or x3 adds the channels (28x28x1)";

}  // namespace convoy
