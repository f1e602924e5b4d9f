#include <archive.h>
#include <curl/curlver.h>
#include <openssl/opensslv.h>
#include <zlib.h>

#include <CLI/Version.hpp>
#include <nlohmann/json.hpp>
#include <opencv2/core/version.hpp>

#include "kernels/backend.h"
#include "src/cli/commands.h"

namespace convoy {

static constexpr const char* kVersion = "0.5.0";

std::string version_text() {
#if defined(__x86_64__)
    const char* machine = "x86-64, AVX2 and AVX-512 chosen at run time";
#else
    const char* machine = "portable vectors";
#endif
    return cat("Convoy ", kVersion, "\n", "compiler   g++ ", __VERSION__, "\n", "machine    ",
               machine, "\n", "backends   ", built_backends(), "\n",
               "images     JPEG, PNG, WebP, BMP, PNM, TIFF\n", "libraries  OpenCV ", CV_VERSION,
               ", fmt ", FMT_VERSION / 10000, ".", FMT_VERSION / 100 % 100, ".", FMT_VERSION % 100,
               ", CLI11 ", CLI11_VERSION, ", nlohmann-json ", NLOHMANN_JSON_VERSION_MAJOR, ".",
               NLOHMANN_JSON_VERSION_MINOR, ".", NLOHMANN_JSON_VERSION_PATCH,
               ",\n           libcurl ", LIBCURL_VERSION, ", OpenSSL ", OPENSSL_VERSION_STR,
               ", libarchive ", ARCHIVE_VERSION_ONLY_STRING, ", zlib ", ZLIB_VERSION, "\n");
}

}  // namespace convoy
