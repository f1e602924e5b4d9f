// version.h — the text of --version.
#pragma once

#include <string>

namespace convoy {

inline constexpr const char* kVersion = "0.4.0";

// Lines for --version: program, compiler, instruction sets, backends, libraries.
std::string version_text();

}  // namespace convoy
