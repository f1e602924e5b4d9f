// sha256.h — SHA-256 of a file or a text, as `sha256sum` prints it.
#pragma once

#include <string>
#include <string_view>

namespace convoy {

// Throws Error where the file cannot be read.
std::string sha256_of_file(const std::string& path);
std::string sha256_of(std::string_view text);

}  // namespace convoy
