// text.h — how layers name themselves in the table of the network.
#pragma once

#include <string>

#include "src/model/params.h"

namespace convoy {

// "3" of 3x3, "3x5" else.
inline std::string pair_text(int rows, int columns) {
    return rows == columns ? cat(rows) : cat(rows, "x", columns);
}

// "3x3 stride 2 pad 1"
inline std::string window_text(const Window& w) {
    std::string text = cat(w.size_h, "x", w.size_w);
    if (w.stride_h != 1 || w.stride_w != 1) text += " stride " + pair_text(w.stride_h, w.stride_w);
    if (w.pad_h != 0 || w.pad_w != 0) text += " pad " + pair_text(w.pad_h, w.pad_w);
    return text;
}

inline const char* relu_text(bool fused) { return fused ? " + relu" : ""; }

}  // namespace convoy
