// number.h — numbers from text.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace convoy {

// `text` as a number; empty if any of it is not a number.
template <class T>
std::optional<T> to_number(std::string_view text) {
    T value{};
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || stop != text.data() + text.size()) return {};
    return value;
}

}  // namespace convoy
