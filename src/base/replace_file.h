// replace_file.h — a file that is there whole or not at all.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include "src/base/check.h"

namespace convoy {

// Writes `bytes` under another name, PATH.PID.part, which then becomes `path`. Readers see the old
// content or the new one. Throws Error.
inline void replace_file(const std::string& path, std::string_view bytes) {
    const std::string part = cat(path, ".", getpid(), ".part");
    std::ofstream out(part, std::ios::binary);
    out.write(bytes.data(), std::streamsize(bytes.size()));
    out.close();
    if (out && std::rename(part.c_str(), path.c_str()) == 0) return;
    const int error = errno;
    std::remove(part.c_str());
    fail(path, ": cannot be written: ", std::strerror(error));
}

}  // namespace convoy
