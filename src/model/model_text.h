// model_text.h — the little language that networks are written in, and its parser.
//
//   # a comment, to the end of the line
//   input 64                                    height and width of the images, first of all; or
//                                               80x64; or with channels: 28x28x1 (1 grey, 3 RGB)
//   conv2d NAME out COUNT size W [stride W] [pad W] [bias yes|no] [init INIT]
//   linear NAME out COUNT [bias yes|no] [init INIT]
//   batchnorm NAME
//   maxpool size W [stride W] [pad W]           stride is the size if left out
//   avgpool W                                   adaptive: W is the output; avgpool 1 is global
//   dropout P                                   0 <= P < 1
//   relu
//   flatten                                     before a linear layer, unless there is one pixel
//   residual NAME … [shortcut …] end            relu(first layers + shortcut), which is the input
//                                               if left out; names inside get "NAME." in front
//
//   COUNT  output channels, or "classes": the number of classes, which the last layer must have
//   W      N or RxC (rows x columns): size 3, size 3x5
//   INIT   he       normal, deviation √(2/(out·size)); biases 0        (conv2d if left out)
//          uniform  ±1/√inputs, biases too                             (linear if left out)
//          0.01     normal with this deviation; biases 0
//
// One layer a line; options in any order. The params of a layer are NAME.weight and NAME.bias.
#pragma once

#include <string>
#include <vector>

#include "kernels/backend.h"
#include "src/base/input_size.h"

namespace convoy {

// One line of the text; what a kind does not use stays as it is here.
struct LayerText {
    enum class InitRule { kDefault, kHe, kUniform, kNormal };

    int line = 0;
    std::string kind, name;
    int out = 0;  // 0: classes
    Window window;
    bool bias = true;
    InitRule init = InitRule::kDefault;
    float deviation = 0;                    // of kNormal
    float drop = 0;                         // P
    int rows = 1, columns = 1;              // W directly after the kind
    std::vector<LayerText> main, shortcut;  // of residual
};

struct ModelText {
    std::string origin;    // for messages: "model.txt"
    InputSize input = {};  // channels 0: the text names none
    std::vector<LayerText> layers = {};
};

// Throws Error naming origin, line and word, and what was expected. Whether the layers fit one
// another is checked by the builder.
ModelText parse_model(const std::string& text, const std::string& origin);

// "model.txt line 7: …" as an Error.
template <class... Parts>
[[noreturn]] void fail_at(const std::string& origin, int line, const Parts&... parts) {
    fail(origin, " line ", line, ": ", parts...);
}

// W as it is written: "3" of 3x3, "3x5" else.
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

}  // namespace convoy
