// assets.h — the files of the page, which are built into the program.
#pragma once

#include <string_view>

namespace convoy {

struct Asset {
    std::string_view path, type, bytes;
    bool gzipped = false;
};
// "/", "/page.css", "/page.js", and "/charts.js" (dygraphs; empty if the build did not find it).
extern const Asset kAssets[4];

}  // namespace convoy
