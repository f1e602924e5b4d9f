// assets.h — the files of the page, as they were when the program was built.
#pragma once

#include <string_view>

namespace convoy {

struct Asset {
    std::string_view path, type, bytes;
    bool gzipped = false;
};
// "/", "/page.css", "/page.js", and "/charts.js", dygraphs, which is empty where the build found
// none.
extern const Asset kAssets[4];

}  // namespace convoy
