// sha256.h — SHA-256 of a file or a text, as `sha256sum` prints it.
#pragma once

#include <string>
#include <string_view>

#include "src/base/terminal.h"

namespace convoy {

// Throws Error if the file cannot be read. bar: shows the progress.
std::string sha256_of_file(const std::string& path, ProgressBar* bar = nullptr);
std::string sha256_of(std::string_view text);

}  // namespace convoy
