// input_size.h — height, width and channels of the images that a network reads.
#pragma once

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

// "224" (square), "80x64" (height x width) or "28x28x1" (with channels; else C is 0); or empty.
std::optional<InputSize> parse_input_size(std::string_view text);
std::string input_size_text(InputSize size);
// For messages: the forms of parse_input_size().
inline constexpr const char* kInputSizeForms =
    "a height, or height x width (80x64), from 1 to 8192; x1 or x3 adds the channels (28x28x1)";

}  // namespace convoy
