// model_text.cpp — parsing the model language: lines to words, words to LayerText.
#include "src/model/model_text.h"

#include <algorithm>
#include <sstream>

#include "src/base/text.h"
#include "src/model/layers/layers.h"

namespace convoy {
namespace {

constexpr size_t kMaxText = 1 << 20;  // bytes
constexpr int kMaxLayers = 4096, kMaxDepth = 16;
constexpr int kMaxOut = 1 << 17, kMaxWindow = 1024;
constexpr size_t kMaxName = 100;

using Words = std::vector<std::string>;

bool contains(const Words& words, const std::string& word) {
    return std::ranges::find(words, word) != words.end();
}

Words words_of(const std::string& line) {
    std::istringstream stream(line.substr(0, line.find('#')));
    return {std::istream_iterator<std::string>(stream), {}};
}

// A word for an error message: short, and without control characters.
std::string shown(const std::string& word) {
    const std::string head = cut_text(word.substr(0, 160), 40);
    return cat("'", printable(head), head.size() < word.size() ? "…'" : "'");
}

std::string hint(const std::string& word, const Words& candidates) {
    const std::string close = nearest(word.substr(0, 40), candidates);
    return close.empty() ? "" : cat(" (did you mean ", close, "?)");
}

// The words of one line, which are taken from left to right.
struct Line {
    const std::string& origin;
    int number;
    Words words;
    size_t at = 0;

    template <class... Parts>
    [[noreturn]] void error(const Parts&... parts) const {
        fail_at(origin, number, parts...);
    }
    [[noreturn]] void error_of(const std::string& what, const std::string& word,
                               const std::string& expected) const {
        error("'", what, "' cannot be ", shown(word), "; expected ", expected);
    }
    bool done() const { return at == words.size(); }
    const std::string& take(const std::string& after, const std::string& expected) {
        if (done()) error("'", after, "' ends too early; expected ", expected);
        return words[at++];
    }
    bool take_if(const std::string& word) {
        if (done() || words[at] != word) return false;
        ++at;
        return true;
    }
    void expect_end(const std::string& after) const {
        if (!done())
            error(shown(words[at]), " is not expected; the line must end after '", after, "'");
    }

    int take_int(const std::string& what, int low, int high) {
        const std::string expected = cat("a whole number from ", low, " to ", high);
        const std::string& word = take(what, expected);
        const auto value = to_number<int>(word);
        if (!value || *value < low || *value > high) error_of(what, word, expected);
        return *value;
    }
    // "3" or "3x5": rows and columns.
    void take_pair(const std::string& what, int low, int high, int& rows, int& columns) {
        const std::string expected =
            cat("a whole number from ", low, " to ", high, ", or two as rows x columns (3x5)");
        const std::string& word = take(what, expected);
        const size_t x = word.find('x');
        const auto first = to_number<int>(word.substr(0, x));
        const auto second = x == word.npos ? first : to_number<int>(word.substr(x + 1));
        if (!first || !second || std::min(*first, *second) < low ||
            std::max(*first, *second) > high)
            error_of(what, word, expected);
        rows = *first, columns = *second;
    }
    bool take_yes(const std::string& what) {
        if (take_if("yes")) return true;
        if (!take_if("no")) error_of(what, take(what, "yes or no"), "yes or no");
        return false;
    }
    float take_float(const std::string& what, const std::string& expected, float high) {
        const std::string& word = take(what, expected);
        const auto value = to_number<float>(word);
        if (!value || !(*value >= 0 && *value < high)) error_of(what, word, expected);
        return *value;
    }
    // "mean 0.5", or of each channel: "mean 0.485,0.456,0.406".
    void take_channels(const std::string& what, double low, std::array<float, 3>& values) {
        const std::string expected =
            cat("a number from ", low, " to 1, or three of them (0.485,0.456,0.406)");
        if (!take_if(what))
            error(done() ? "the end" : shown(words[at]), " is not expected after '", words[at - 1],
                  "'; 'input' has both 'mean' and 'std', or neither");
        const std::string& word = take(what, expected);
        const Words each = split(word, ',');
        for (size_t c = 0; c < 3; ++c) {
            values[c] = to_number<float>(each[std::min(c, each.size() - 1)]).value_or(-1);
            if (each.size() % 2 == 0 || each.size() > 3 || !(values[c] >= low && values[c] <= 1))
                error_of(what, word, expected);
        }
    }
    std::string take_name(const std::string& kind, const Words& options) {
        const std::string& word = take(kind, "a name");
        for (char c : word)
            if (!isalnum((unsigned char)c) && c != '_' && c != '.' && c != '-')
                error(shown(word), " is not a name; expected letters, digits, '_', '.', '-'");
        if (word.size() > kMaxName) error(shown(word), " is longer than ", kMaxName, " letters");
        if (contains(options, word))
            error("'", kind, "' is followed by '", word, "'; expected its name first");
        return word;
    }
};

void take_option(Line& line, const std::string& option, LayerText& layer) {
    using enum LayerText::InitRule;
    constexpr std::pair<const char*, LayerText::InitRule> kRules[] = {
        {"he", kHe}, {"he_in", kHeIn}, {"uniform", kUniform}, {"whiten", kWhiten}};
    Window& w = layer.window;
    if (option == "out")
        layer.out = line.take_if("classes") ? 0 : line.take_int(option, 1, kMaxOut);
    if (option == "size") line.take_pair(option, 1, kMaxWindow, w.size_h, w.size_w);
    if (option == "stride") line.take_pair(option, 1, kMaxWindow, w.stride_h, w.stride_w);
    if (option == "pad") layer.same = line.take_if("same");
    if (option == "pad" && !layer.same) line.take_pair(option, 0, kMaxWindow, w.pad_h, w.pad_w);
    if (option == "dilation") line.take_pair(option, 1, kMaxWindow, w.dilation_h, w.dilation_w);
    if (option == "groups") layer.groups = line.take_int(option, 1, kMaxOut);
    if (option == "start")
        layer.number = line.take_float(option, "a number from 0 on: 0.000001", 1000);
    if (option == "eps") layer.eps = line.take_float(option, "a small number: 0.00001", 1);
    if (option == "bias") layer.bias = line.take_yes(option);
    if (option == "ceil") layer.ceil = line.take_yes(option);
    if (option == "relu") layer.relu = line.take_yes(option);
    if (option == "split") layer.split = line.take_yes(option);
    if (option == "shuffle") layer.shuffle = line.take_yes(option);
    if (option != "init") return;
    for (const auto& [name, rule] : kRules)
        if (line.take_if(name)) return void(layer.init = rule);
    layer.init = kNormal;
    layer.deviation = line.take_float(
        option, "he, he_in, uniform, whiten, or the deviation of a normal distribution (0.01)",
        1000);
}

LayerText parse_layer(Line& line) {
    LayerText layer;
    layer.line = line.number;
    layer.kind = line.words[line.at++];
    const LayerKind* kind = find_kind(layer.kind);
    if (!kind) {
        Words names;
        for (const LayerKind* one : kLayerKinds) names.push_back(one->name);
        line.error(shown(layer.kind), " is not a layer; expected ", join_text(names),
                   hint(layer.kind, names));
    }
    const Words needed = words_of(kind->needs),
                options = words_of(cat(kind->needs, " ", kind->may));
    const std::string argument = kind->argument;
    if (argument == "NAME") layer.name = line.take_name(layer.kind, options);
    if (argument == "[W]" && (line.done() || !contains(options, line.words[line.at]))) {
        line.take_pair(layer.kind, 1, kMaxWindow, layer.rows, layer.columns);
        line.expect_end(layer.kind);
        return layer;
    }
    if (argument == "P") layer.number = line.take_float(layer.kind, "a probability: 0 <= P < 1", 1);
    if (argument == "A") layer.number = line.take_float(layer.kind, "a slope from 0 on: 0.3", 1000);

    Words seen;
    if (options.empty()) line.expect_end(layer.kind);
    while (!line.done()) {
        const std::string option = line.words[line.at++];
        if (!contains(options, option))
            line.error(shown(option), " is not an option of ", layer.kind, "; expected ",
                       join_text(options), hint(option, options));
        if (contains(seen, option)) line.error("'", option, "' is given twice");
        seen.push_back(option);
        take_option(line, option, layer);
    }
    for (const std::string& option : needed)
        if (!contains(seen, option)) line.error("'", layer.kind, "' needs '", option, "'");
    if (kind->stride_is_size && !contains(seen, "stride"))
        layer.window.stride_h = layer.window.size_h, layer.window.stride_w = layer.window.size_w;
    return layer;
}

class Parser {
 public:
    Parser(const std::string& text, const std::string& origin) : origin_(origin) {
        if (text.size() > kMaxText) fail(origin, " is longer than ", kMaxText, " bytes");
        int number = 0;
        for (const std::string& line : split(text, '\n')) {
            lines_.push_back({origin_, ++number, words_of(line)});
            if (lines_.back().words.empty()) lines_.pop_back();
        }
        if (lines_.size() > size_t(kMaxLayers))
            fail(origin, " has ", lines_.size(), " lines with layers; at most ", kMaxLayers);
    }

    ModelText parse() {
        if (first_word() != "input")
            fail_at(origin_, lines_.empty() ? 1 : lines_[0].number, "found ",
                    lines_.empty() ? "nothing" : shown(first_word()),
                    "; expected 'input' and the size of the images first, as in 'input 224'");
        ModelText model{.origin = origin_};
        Line& line = lines_[at_++];
        ++line.at;
        const std::string& size = line.take("input", kInputSizeForms);
        const std::optional<InputSize> input = parse_input_size(size);
        if (!input) line.error_of("input", size, kInputSizeForms);
        model.input = *input;
        if (!line.done()) {
            line.take_channels("mean", 0, model.statistics.mean);
            line.take_channels("std", 0.001, model.statistics.std);
        }
        line.expect_end("input");
        model.layers = parse_layers(0);
        if (at_ < lines_.size())
            lines_[at_].error(shown(first_word()),
                              " without a 'residual', 'branches' or 'excite' before it");
        return model;
    }

 private:
    // The first word of the current line; "" at the end.
    std::string first_word() const { return at_ < lines_.size() ? lines_[at_].words[0] : ""; }

    // Parses layers up to the end of the text or to a mark, which is not consumed.
    std::vector<LayerText> parse_layers(int depth) {
        std::vector<LayerText> layers;
        while (at_ < lines_.size() && !contains({"shortcut", "|", "end"}, first_word())) {
            Line& line = lines_[at_++];
            if (line.words[0] == "input") line.error("'input' is given twice");
            layers.push_back(parse_layer(line));
            if (find_kind(line.words[0])->mark) parse_block(line, layers.back(), depth + 1);
        }
        return layers;
    }

    void parse_block(const Line& start, LayerText& block, int depth) {
        const std::string mark = find_kind(block.kind)->mark, name = "'" + block.kind + "'";
        if (depth > kMaxDepth)
            start.error("residuals and branches are nested more than ", kMaxDepth, " deep");
        block.branches.push_back(parse_layers(depth));
        while (!mark.empty() && take_mark(mark)) block.branches.push_back(parse_layers(depth));
        if (mark != kBranches.mark && block.branches[0].empty())
            start.error(name, " has no layers; expected at least one");
        if (block.kind == kResidual.name) {
            if (block.branches.size() > 1 && block.branches[1].empty())
                start.error("'shortcut' has no layers; remove it to add the input");
            if (block.branches.size() > 2) start.error("'shortcut' is given twice");
        } else if (mark == kBranches.mark && block.branches.size() < 2) {
            start.error(name, " has one branch; expected '|' and another branch");
        }
        if (at_ == lines_.size()) start.error(name, " has no 'end'");
        if (!take_mark("end"))
            lines_[at_].error(shown(first_word()), " does not belong to ", name, " of line ",
                              start.number, "; expected 'end'");
    }

    bool take_mark(const std::string& mark) {
        if (first_word() != mark) return false;
        Line& line = lines_[at_++];
        ++line.at;
        line.expect_end(mark);
        return true;
    }

    const std::string& origin_;
    std::vector<Line> lines_;
    size_t at_ = 0;
};

// Sets the padding along one axis, for `inputs`.
void complete(const LayerText& layer, int inputs, int size, int stride, int& pad, int& extra) {
    if (layer.same) {
        const int all = std::max(0, (inputs - 1) / stride * stride + size - inputs);
        pad = all / 2, extra = all % 2;
    } else if (layer.ceil) {
        // One more window, if it begins before the padding at the end.
        const int rest = inputs + 2 * pad - size, beyond = rest % stride;
        if (rest > 0 && beyond > 0 && rest - beyond + stride < inputs + pad)
            extra = stride - beyond;
    }
}

}  // namespace

Window window_of(const LayerText& layer, Shape x) {
    Window w = layer.window;
    complete(layer, x.H, w.extent_h(), w.stride_h, w.pad_h, w.extra_h);
    complete(layer, x.W, w.extent_w(), w.stride_w, w.pad_w, w.extra_w);
    return w;
}

ModelText parse_model(const std::string& text, const std::string& origin) {
    return Parser(text, origin).parse();
}

}  // namespace convoy
