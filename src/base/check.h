// check.h — the one error type of the program, and the two ways to throw it.
//
//   fail(what, which, why)    the outside world did something: a file, a peer, a flag
//   ENSURE(condition, came)   we did something: a shape, a precondition
//
// Nothing here prints or exits: an Error travels up and is caught once, in main.
#pragma once

#include <fmt/core.h>  // not format.h, which costs each file four seconds of compiling

#include <stdexcept>
#include <string>

namespace convoy {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// All parts one after the other, each as fmt's "{}" prints it.
template <class... Parts>
std::string cat(const Parts&... parts) {
    std::string text;
    (fmt::format_to(std::back_inserter(text), "{}", parts), ...);
    return text;
}

// For failures of the outside world: name the thing, the cause, and what to try.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
    throw Error(cat(parts...));
}

// For our own mistakes. Always compiled in; not for inner loops.
#define ENSURE(condition, ...)                                                               \
    do {                                                                                     \
        if (!(condition))                                                                    \
            ::convoy::fail(__FILE__, ":", __LINE__, ": need " #condition ": ", __VA_ARGS__); \
    } while (0)

}  // namespace convoy
