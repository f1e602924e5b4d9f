// models.h — parts of the texts of built-in networks, for models.cpp and models_mobile.cpp.
#pragma once

#include <map>

#include "src/base/text.h"

namespace convoy {

inline std::string conv_norm(const std::string& conv, const std::string& norm, int out, int size,
                             int stride, int groups = 1) {
    return cat("  conv2d ", conv, " out ", out, " size ", size,
               stride > 1 ? cat(" stride ", stride) : "", size > 1 ? cat(" pad ", size / 2) : "",
               groups > 1 ? cat(" groups ", groups) : "", " bias no\n  batchnorm ", norm, "\n");
}

inline std::string conv_norm_act(const std::string& at, int out, const std::string& window,
                                 const std::string& act = "", const std::string& eps = "") {
    return cat("  conv2d ", at, ".0 out ", out, window, " bias no\n  batchnorm ", at, ".1", eps,
               "\n", act.empty() ? "" : cat("  ", act, "\n"));
}

// Hu, Shen, Sun, "Squeeze-and-Excitation Networks" (2018), of `channels`.
inline std::string excite(const std::string& at, int channels, int squeezed, const char* act,
                          const char* gate) {
    return cat("  excite\n    avgpool 1\n    conv2d ", at, "fc1 out ", squeezed, " size 1\n    ",
               act, "\n    conv2d ", at, "fc2 out ", channels, " size 1\n    ", gate, "\n  end\n");
}

using ModelTexts = std::map<std::string, std::string>;  // by name
ModelTexts with_mobile_models(ModelTexts others);

}  // namespace convoy
