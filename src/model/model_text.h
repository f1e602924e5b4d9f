// model_text.h — the language in which networks are written, and its parser.
//
//   # a comment, to the end of the line
//   input 64                                    first line: height and width of the images; or
//                                               80x64; or with channels: 28x28x1 (1 grey, 3 RGB)
//         [mean M std S]                        M, S: 0.5, or of each channel: 0.485,0.456,0.406;
//                                               pixels from 0 to 1 are normalised by them
//                                               (ImageNet)
//   conv2d NAME out COUNT size W [stride W] [pad PAD] [dilation W] [groups G] [bias yes|no]
//                                               [init INIT]     dilation: taps are W pixels apart
//   linear NAME out COUNT [bias yes|no] [init INIT]
//   pointwise NAME out COUNT [bias yes|no] [init INIT]   linear on the channels of each pixel
//   batchnorm NAME [eps E]                      E is 0.00001 by default
//   layernorm NAME [eps E]                      over the channels of each pixel; E as above
//   groupnorm NAME groups G [eps E]             over all pixels and the channels of each group
//   scale NAME start V                          each channel times a weight, which starts as V
//   maxpool size W [stride W] [pad PAD] [ceil yes|no]    stride is the size by default
//   avgpool size W [stride W] [pad PAD]         padding counts as zeros
//   avgpool W                                   adaptive: W is the output; avgpool 1 is global
//   dropout P                                   0 <= P < 1
//   relu, relu6                                 max(0, x), at most 6
//   leaky_relu A, elu A                         x < 0: A·x, A·(eˣ − 1)
//   sigmoid, silu                               1/(1 + e⁻ˣ), x·sigmoid(x)
//   hardsigmoid, hardswish                      x/6 + 1/2 from 0 to 1, x·hardsigmoid(x)
//   gelu                                        x·Φ(x), Φ the normal distribution function
//   flatten                                     before a linear layer, unless there is one pixel
//   residual NAME [relu yes|no] … [shortcut …] end    relu(first layers + shortcut); without
//                                               shortcut + input; names get the prefix "NAME."
//   branches [split yes|no] [shuffle yes|no] … | … [| …] end    the outputs of all branches,
//                  concatenated along the channels; a branch without layers is its input.
//                  split yes: each branch gets an equal part of the channels of the input.
//                  shuffle yes: channel 0 of each branch, then channel 1 of each, and so on
//   excite … end                                the input, its channels times the block's output
//
//   COUNT  output channels, or "classes": the number of classes, which the last layer must have
//   W      N or RxC (rows x columns): size 3, size 3x5
//   PAD    W, or "same": pads for ⌈inputs/stride⌉ outputs; an odd number pads one more at the end
//   G      the channels are split into G groups; each group of outputs reads one group of inputs.
//          If G equals both numbers of channels of a conv2d, the convolution is depthwise
//   ceil   yes: the last window may be partly outside of the image (PyTorch's ceil_mode)
//   INIT   he       normal, deviation √(2/(out·size)); biases 0        (default of conv2d)
//          he_in    normal, deviation √(2/inputs); biases 0
//          uniform  ±1/√inputs, biases too                 (default of linear and pointwise)
//          0.01     normal with this deviation; biases 0
//          whiten   filters that make the pixels of a patch uncorrelated, from the training images
//                   (data/whiten.h); of a first conv2d with 2·size·channels outputs
//
// One layer per line; options in any order. Params are NAME.weight and NAME.bias; of a scale, NAME.
#pragma once

#include <string>
#include <vector>

#include "kernels/backend.h"
#include "src/base/input_size.h"

namespace convoy {

// One line of the text.
struct LayerText {
    enum class InitRule { kDefault, kHe, kHeIn, kUniform, kNormal, kWhiten };

    int line = 0;
    std::string kind, name;
    int out = 0;                      // 0: classes
    Window window;                    // window_of() adds the padding of "same" and "ceil"
    bool same = false, ceil = false;  // pad same; ceil yes
    int groups = 1;
    bool bias = true, relu = true, split = false, shuffle = false;
    InitRule init = InitRule::kDefault;
    float deviation = 0;        // of kNormal
    float eps = 1e-5f;          // of norms
    float number = 0;           // P, A, or V
    int rows = 0, columns = 0;  // W directly after the kind; else 0
    // Of branches and excite; of residual: its layers and, if it has one, its shortcut.
    std::vector<std::vector<LayerText>> branches;
};

// The window of a layer whose input is x, with the padding that "same" and "ceil" mean.
Window window_of(const LayerText& layer, Shape x);

struct ModelText {
    std::string origin;    // for messages: "model.txt"
    InputSize input = {};  // channels 0: not in the text
    InputStatistics statistics = {};
    std::vector<LayerText> layers = {};
};

// Throws Error with origin, line, word, and what was expected. The builder checks the shapes.
ModelText parse_model(const std::string& text, const std::string& origin);

// "model.txt line 7: …" as an Error.
template <class... Parts>
[[noreturn]] void fail_at(const std::string& origin, int line, const Parts&... parts) {
    fail(origin, " line ", line, ": ", parts...);
}

// W as it is written: "3" for 3x3, or "3x5".
inline std::string pair_text(int rows, int columns) {
    return rows == columns ? cat(rows) : cat(rows, "x", columns);
}

// "3x3 stride 2 pad 1"
inline std::string window_text(const Window& w) {
    std::string text = cat(w.size_h, "x", w.size_w);
    if (w.stride_h != 1 || w.stride_w != 1) text += " stride " + pair_text(w.stride_h, w.stride_w);
    if (w.pad_h != 0 || w.pad_w != 0) text += " pad " + pair_text(w.pad_h, w.pad_w);
    if (w.extra_h != 0 || w.extra_w != 0) text += "+" + pair_text(w.extra_h, w.extra_w);
    if (w.dilated()) text += " dilation " + pair_text(w.dilation_h, w.dilation_w);
    return text;
}

}  // namespace convoy
