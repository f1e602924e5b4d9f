// check.h — the program's only error type, and the two ways to throw it.
//
//   fail(what, which, why)    for the outside world: a file, a peer, an option
//   ENSURE(condition, values) for mistakes in our code: a shape, a precondition
//
// Nothing here prints or exits. An Error is caught once, in main.
#pragma once

#include <fmt/core.h>  // format.h would double the time that a file takes to compile

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace convoy {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Numbers as fmt's "{}" prints them. Not templates, so that cat() compiles quickly.
void append_number(std::string& text, int64_t number);
void append_number(std::string& text, uint64_t number);
void append_number(std::string& text, double number);
void append_number(std::string& text, float number);

template <class Part>
void append(std::string& text, const Part& part) {
    if constexpr (std::is_convertible_v<const Part&, std::string_view>)
        text += std::string_view(part);
    else if constexpr (std::is_same_v<Part, char>)
        text += part;
    else if constexpr (std::is_same_v<Part, bool>)
        text += part ? "true" : "false";
    else if constexpr (std::is_floating_point_v<Part>)
        append_number(text, part);
    else
        append_number(text, std::conditional_t<std::is_signed_v<Part>, int64_t, uint64_t>(part));
}

// Concatenates all parts to a string.
template <class... Parts>
std::string cat(const Parts&... parts) {
    std::string text;
    (append(text, parts), ...);
    return text;
}

[[noreturn]] void throw_error(const std::string& text);

// For failures of the outside world: name the thing, the cause, and what to do.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
    throw_error(cat(parts...));
}

// For mistakes in our code. Always compiled in; not for inner loops.
#define ENSURE(condition, ...)                                                               \
    do {                                                                                     \
        if (!(condition))                                                                    \
            ::convoy::fail(__FILE__, ":", __LINE__, ": need " #condition ": ", __VA_ARGS__); \
    } while (0)

}  // namespace convoy
