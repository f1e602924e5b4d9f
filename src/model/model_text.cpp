// model_text.cpp — parsing the model language: lines to words, words to LayerText.
#include "src/model/model_text.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "src/base/text.h"

namespace convoy {
namespace {

constexpr size_t kMaxText = 1 << 20;  // bytes
constexpr int kMaxLayers = 4096, kMaxDepth = 16;
constexpr int kMaxInput = 8192, kMaxOut = 1 << 17, kMaxWindow = 1024;
constexpr size_t kMaxName = 100;

struct Kind {
    bool named;
    std::vector<std::string> options;  // the required ones first
    size_t required;
};
const std::map<std::string, Kind>& kinds() {
    static const std::map<std::string, Kind> all = {
        {"conv2d", {true, {"out", "size", "stride", "pad", "bias", "init"}, 2}},
        {"linear", {true, {"out", "bias", "init"}, 1}},
        {"batchnorm", {true, {}, 0}},
        {"maxpool", {false, {"size", "stride", "pad"}, 1}},
        {"avgpool", {false, {}, 0}},
        {"dropout", {false, {}, 0}},
        {"relu", {false, {}, 0}},
        {"flatten", {false, {}, 0}},
        {"residual", {true, {}, 0}},
    };
    return all;
}

// A word as it may be shown: short, and without control characters.
std::string shown(const std::string& word) {
    std::string text = "'";
    for (char c : word.substr(0, 40)) text += (unsigned char)c < 32 || c == 127 ? '?' : c;
    return text + (word.size() > 40 ? "…'" : "'");
}

std::string hint(const std::string& word, const std::vector<std::string>& candidates) {
    const std::string close = nearest(word.substr(0, 40), candidates);
    return close.empty() ? "" : cat(" (did you mean ", close, "?)");
}

// The words of one line, taken from left to right.
struct Line {
    const std::string& origin;
    int number;
    std::vector<std::string> words;
    size_t at = 0;

    bool done() const { return at == words.size(); }
    template <class... Parts>
    [[noreturn]] void error(const Parts&... parts) const {
        fail_at(origin, number, parts...);
    }
    const std::string& take(const std::string& after, const std::string& expected) {
        if (done()) error("'", after, "' ends too early; expected ", expected);
        return words[at++];
    }
    void expect_end(const std::string& after) const {
        if (!done())
            error(shown(words[at]), " is too much; expected the end of the line after ", after);
    }
};

bool parse_int(const std::string& word, int& value) {
    const char* end = word.data() + word.size();
    const auto [stop, status] = std::from_chars(word.data(), end, value);
    return status == std::errc() && stop == end;
}

int take_int(Line& line, const std::string& what, int low, int high) {
    const std::string expected = cat("a whole number from ", low, " to ", high);
    const std::string& word = line.take(what, expected);
    int value = 0;
    if (!parse_int(word, value) || value < low || value > high)
        line.error("'", what, "' cannot be ", shown(word), "; expected ", expected);
    return value;
}

// "3" or "3x5": rows and columns.
void take_pair(Line& line, const std::string& what, int low, int high, int& rows, int& columns) {
    const std::string expected =
        cat("a whole number from ", low, " to ", high, ", or two as rows x columns (3x5)");
    const std::string& word = line.take(what, expected);
    const size_t x = word.find('x');
    const std::string first = word.substr(0, x);
    const std::string second = x == std::string::npos ? first : word.substr(x + 1);
    const bool numbers = parse_int(first, rows) && parse_int(second, columns);
    if (!numbers || std::min(rows, columns) < low || std::max(rows, columns) > high)
        line.error("'", what, "' cannot be ", shown(word), "; expected ", expected);
}

float take_float(Line& line, const std::string& what, const std::string& expected, float high) {
    const std::string& word = line.take(what, expected);
    float value = 0;
    const char* end = word.data() + word.size();
    const auto [stop, status] = std::from_chars(word.data(), end, value);
    if (status != std::errc() || stop != end || !(value >= 0 && value < high))
        line.error("'", what, "' cannot be ", shown(word), "; expected ", expected);
    return value;
}

std::string take_name(Line& line, const std::string& kind) {
    const std::string& word = line.take(kind, "a name");
    for (char c : word)
        if (!isalnum((unsigned char)c) && c != '_' && c != '.' && c != '-')
            line.error(shown(word), " is not a name; expected letters, digits, '_', '.', '-'");
    if (word.size() > kMaxName) line.error(shown(word), " is longer than ", kMaxName, " letters");
    const std::vector<std::string>& options = kinds().at(kind).options;
    if (std::find(options.begin(), options.end(), word) != options.end())
        line.error("'", kind, "' is followed by '", word, "'; expected its name first");
    return word;
}

void take_init(Line& line, LayerText& layer) {
    const std::string expected = "he, uniform, or the deviation of a normal distribution (0.01)";
    if (!line.done() && line.words[line.at] == "he") {
        ++line.at, layer.init = LayerText::InitRule::kHe;
    } else if (!line.done() && line.words[line.at] == "uniform") {
        ++line.at, layer.init = LayerText::InitRule::kUniform;
    } else {
        layer.init = LayerText::InitRule::kNormal;
        layer.deviation = take_float(line, "init", expected, 1000);
    }
}

void take_option(Line& line, const std::string& option, LayerText& layer) {
    Window& window = layer.window;
    if (option == "out") {
        if (!line.done() && line.words[line.at] == "classes") {
            ++line.at;
        } else {
            layer.out = take_int(line, "out", 1, kMaxOut);
        }
    } else if (option == "size") {
        take_pair(line, option, 1, kMaxWindow, window.size_h, window.size_w);
    } else if (option == "stride") {
        take_pair(line, option, 1, kMaxWindow, window.stride_h, window.stride_w);
    } else if (option == "pad") {
        take_pair(line, option, 0, kMaxWindow, window.pad_h, window.pad_w);
    } else if (option == "bias") {
        const std::string& word = line.take(option, "yes or no");
        if (word != "yes" && word != "no")
            line.error("'bias' cannot be ", shown(word), "; expected yes or no");
        layer.bias = word == "yes";
    } else {
        take_init(line, layer);
    }
}

void take_options(Line& line, const Kind& kind, LayerText& layer) {
    std::vector<std::string> seen;
    const auto has = [&](const std::string& option) {
        return std::find(seen.begin(), seen.end(), option) != seen.end();
    };
    while (!line.done()) {
        const std::string option = line.words[line.at];
        if (std::find(kind.options.begin(), kind.options.end(), option) == kind.options.end()) {
            if (kind.options.empty()) line.expect_end(cat("'", layer.kind, "'"));
            line.error(shown(option), " is not an option of ", layer.kind, "; expected ",
                       join_text(kind.options), hint(option, kind.options));
        }
        if (has(option)) line.error("'", option, "' is given twice");
        seen.push_back(option);
        ++line.at;
        take_option(line, option, layer);
    }
    for (size_t i = 0; i < kind.required; ++i)
        if (!has(kind.options[i]))
            line.error("'", layer.kind, "' has no '", kind.options[i], "', which it needs");
    if (layer.kind == "maxpool" && !has("stride"))
        layer.window.stride_h = layer.window.size_h, layer.window.stride_w = layer.window.size_w;
}

LayerText parse_layer(Line& line) {
    LayerText layer;
    layer.line = line.number;
    layer.kind = line.words[line.at++];
    const auto found = kinds().find(layer.kind);
    if (found == kinds().end()) {
        std::vector<std::string> names;
        for (auto& [name, kind] : kinds()) names.push_back(name);
        line.error(shown(layer.kind), " is not a layer; expected ", join_text(names),
                   hint(layer.kind, names));
    }
    if (found->second.named) layer.name = take_name(line, layer.kind);
    if (layer.kind == "avgpool")
        take_pair(line, layer.kind, 1, kMaxWindow, layer.rows, layer.columns);
    if (layer.kind == "dropout")
        layer.drop = take_float(line, layer.kind, "a probability: 0 <= P < 1", 1);
    take_options(line, found->second, layer);
    return layer;
}

// Lines that are not blank, cut into words.
std::vector<Line> cut(const std::string& text, const std::string& origin) {
    if (text.size() > kMaxText) fail(origin, " is longer than ", kMaxText, " bytes");
    std::vector<Line> lines;
    int number = 0;
    for (std::string raw : split(text, '\n')) {
        Line line{origin, ++number, {}};
        raw = raw.substr(0, raw.find('#'));
        for (size_t at = 0; (at = raw.find_first_not_of(" \t\r", at)) != std::string::npos;) {
            const size_t end = std::min(raw.find_first_of(" \t\r", at), raw.size());
            line.words.push_back(raw.substr(at, end - at));
            at = end;
        }
        if (!line.words.empty()) lines.push_back(std::move(line));
    }
    if (lines.size() > size_t(kMaxLayers))
        fail(origin, " has ", lines.size(), " lines with layers; at most ", kMaxLayers);
    return lines;
}

class Parser {
 public:
    Parser(std::vector<Line> lines, const std::string& origin)
        : lines_(std::move(lines)), origin_(origin) {}

    ModelText parse() {
        if (lines_.empty() || lines_[0].words[0] != "input")
            fail_at(origin_, lines_.empty() ? 1 : lines_[0].number,
                    lines_.empty() ? "the end" : shown(lines_[0].words[0]),
                    " is too early; expected 'input' and the height and width of the images first");
        ModelText model;
        model.origin = origin_;
        Line& line = lines_[at_++];
        ++line.at;
        model.input = take_int(line, "input", 1, kMaxInput);
        line.expect_end("'input'");
        model.layers = parse_layers(0);
        if (at_ < lines_.size())
            lines_[at_].error(shown(lines_[at_].words[0]), " without a 'residual' before it");
        return model;
    }

 private:
    // Layers up to the end of the text, or to a "shortcut" or "end", which stays.
    std::vector<LayerText> parse_layers(int depth) {
        std::vector<LayerText> layers;
        for (; at_ < lines_.size();) {
            Line& line = lines_[at_];
            const std::string word = line.words[0];
            if (word == "shortcut" || word == "end") break;
            if (word == "input") line.error("'input' is given twice");
            ++at_;
            layers.push_back(parse_layer(line));
            if (word == "residual") parse_block(line, layers.back(), depth + 1);
        }
        return layers;
    }

    void parse_block(const Line& start, LayerText& block, int depth) {
        if (depth > kMaxDepth) start.error("more than ", kMaxDepth, " residuals in one another");
        block.main = parse_layers(depth);
        if (block.main.empty()) start.error("'residual' has no layers; expected one at least");
        if (take_mark("shortcut")) {
            const int line = lines_[at_ - 1].number;
            block.shortcut = parse_layers(depth);
            if (block.shortcut.empty())
                fail_at(origin_, line, "'shortcut' has no layers; leave it out to add the input");
        }
        if (at_ < lines_.size() && lines_[at_].words[0] == "shortcut")
            lines_[at_].error("'shortcut' is given twice; expected 'end'");
        if (!take_mark("end")) start.error("'residual' has no 'end'");
    }

    bool take_mark(const std::string& mark) {
        if (at_ == lines_.size() || lines_[at_].words[0] != mark) return false;
        Line& line = lines_[at_++];
        ++line.at;
        line.expect_end(cat("'", mark, "'"));
        return true;
    }

    std::vector<Line> lines_;
    const std::string& origin_;
    size_t at_ = 0;
};

}  // namespace

ModelText parse_model(const std::string& text, const std::string& origin) {
    return Parser(cut(text, origin), origin).parse();
}

}  // namespace convoy
