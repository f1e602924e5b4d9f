// sha256.h — SHA-256 of a file or other bytes, as `sha256sum` prints it.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "src/base/terminal.h"

namespace convoy {

// Throws Error if the file cannot be read. bar: shows the progress.
std::string sha256_of_file(const std::string& path, ProgressBar* bar = nullptr);
std::string sha256_of(std::string_view text);
// next: returns the bytes part by part, then an empty part.
std::string sha256_of(const std::function<std::string_view()>& next);

}  // namespace convoy
