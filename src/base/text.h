// text.h — helpers for text, and numbers from text. It includes check.h, so its users need not.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/check.h"

namespace convoy {

// `text` as a number; empty if any of it is not a number.
template <class T>
std::optional<T> to_number(std::string_view text) {
    T value{};
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || stop != text.data() + text.size()) return {};
    return value;
}

std::vector<std::string> split(std::string_view text, char separator);

template <class Range>
std::string join_text(const Range& parts, std::string_view separator = ", ") {
    std::string text;
    for (const auto& part : parts) text += cat(text.empty() ? "" : separator, part);
    return text;
}

// "7, 12-13": numbers in ascending order, neighbours as a range.
std::string ranges_text(const std::vector<int>& numbers);
// "a, b, c and 2 more": the first `most` names.
std::string some_of(std::vector<std::string> names, size_t most = 8);

std::string environment_variable(const char* name);  // "" if it is not set

// Why `bad` of `all` images are too many, or "". --max-bad allows this part of them, and at least 5
// or, of fewer than 20, a quarter; 0 allows none.
std::string too_many_bad(uint64_t bad, uint64_t all, double max_bad, std::string_view images);

// Removes the UTF-8 byte order mark that Windows editors write.
std::string_view without_bom(std::string_view text);

// The candidate with the smallest edit distance, where a beginning counts as close ("batchsize" is
// near "batch"); "" if none is close.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// Whether the bytes are valid UTF-8 (RFC 3629).
bool is_utf8(std::string_view text);
// Writes control characters and invalid UTF-8 as \xNN, for text from outside.
std::string printable(std::string_view text);
// Whether the text is UTF-8 without control characters.
inline bool is_plain_text(std::string_view text) { return printable(text) == text; }
// A path as one word of a command: quoted if it has blanks or the like.
std::string shell_word(const std::string& path);

// The first `width` characters of UTF-8.
std::string cut_text(const std::string& line, int width);
// Wraps lines at blanks to `width` (0: not at all), indented to the column after two blanks.
std::string wrapped(const std::string& text, int width);
// "[=====     ]", filled to `part`, with `width` characters inside.
std::string bar_text(double part, int width);

std::string clock_text(double seconds);  // "3:10" (minutes), "2:05:07" (hours)
std::string count_text(double n);        // "57.0 M", "4.2 k", "316"
std::string bytes_text(double bytes);    // "57.00 MB", "316 B"
// "1 rank", "2 ranks"
inline std::string counted(int64_t n, std::string_view what) {
    return cat(n, " ", what, n == 1 ? "" : "s");
}

}  // namespace convoy
