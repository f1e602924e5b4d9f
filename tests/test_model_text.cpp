// The model language: what is accepted, and the sentence for what is not.
#include "src/model/model_text.h"

#include <algorithm>

#include "src/base/random.h"
#include "src/model/model.h"
#include "tests/support.h"

using namespace convoy;

TEST_CASE("windows, options in any order, comments and branches are parsed") {
    const ModelText model = parse_model(
        "# a comment\n\ninput 20  # another\r\n"
        "conv2d a.0 bias no pad 1x2 stride 2 size 3x5 out 7 init 0.5 dilation 1x3\n"
        "maxpool size 2\nresidual block\n  batchnorm n\nshortcut\n  relu\nend\n"
        "avgpool 1x2\n\tdropout 0.25\nlinear fc out classes init he",
        "m.txt");
    CHECK(model.input == InputSize(20, 20, 0));
    REQUIRE(model.layers.size() == 6);
    const LayerText& conv = model.layers[0];
    CHECK(conv.line == 4);
    CHECK(conv.name == "a.0");
    CHECK(conv.out == 7);
    CHECK(conv.window == Window{3, 5, 2, 2, 1, 2, 0, 0, 1, 3});
    CHECK(window_text(conv.window) == "3x5 stride 2 pad 1x2 dilation 1x3");
    CHECK_FALSE(conv.bias);
    CHECK(conv.init == LayerText::InitRule::kNormal);
    CHECK(conv.deviation == 0.5f);
    CHECK(model.layers[1].window == Window::square(2, 2));
    CHECK(model.layers[2].branches[0][0].name == "n");
    CHECK(model.layers[2].branches[1][0].kind == "relu");
    CHECK(model.layers[3].rows == 1);
    CHECK(model.layers[3].columns == 2);
    CHECK(model.layers[4].number == 0.25f);
    CHECK(model.layers[5].out == 0);
    CHECK(model.layers[5].bias);
    CHECK(model.layers[5].init == LayerText::InitRule::kHe);
}

TEST_CASE("the input is a height, or height x width, or with channels, and back as text") {
    for (auto [text, size] : {std::pair{"8", InputSize(8, 8, 0)},
                              {"80x64", {80, 64, 0}},
                              {"28x28x1", {28, 28, 1}},
                              {"8192x1x3", {8192, 1, 3}}}) {
        CAPTURE(text);
        CHECK(parse_model(cat("input ", text, "\nrelu\n"), "m").input == size);
        CHECK(input_size_text(size) == text);
    }
}

TEST_CASE("the input's mean and deviation are ImageNet's, or the text's, of all channels or each") {
    const auto statistics = [](const char* words) {
        return parse_model(cat("input 8", words, "\nrelu\n"), "m").statistics;
    };
    CHECK(statistics("") == InputStatistics());
    CHECK(statistics(" mean 0.5 std 0.25") == InputStatistics{{0.5, 0.5, 0.5}, {0.25, 0.25, 0.25}});
    const InputStatistics each = statistics(" mean 0,0.5,1 std 0.25,0.5,0.75");
    CHECK(each == InputStatistics{{0, 0.5, 1}, {0.25, 0.5, 0.75}});
    CHECK(each.of_channels(3) == each);
    CHECK(each.of_channels(1) == InputStatistics{{0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}});
}

TEST_CASE("an error in a model names the line, the word, and what was expected") {
    const std::string conv = "input 8\nconv2d c ", net = "input 8\n";
    const std::string fc = "avgpool 1\nlinear fc out classes\n";
    struct {
        std::string text;
        std::vector<std::string> names;  // in the message
    } cases[] = {
        {"", {"m.txt line 1", "'input'"}},
        {"\nrelu", {"m.txt line 2", "'relu'", "'input'"}},
        {"input", {"line 1", "'input'"}},
        {"input 0", {"line 1", "'input'", "'0'", "80x64"}},
        {"input 8x", {"'input'", "'8x'"}},
        {"input x8", {"'input'", "'x8'"}},
        {"input 8x-8", {"'input'", "'8x-8'"}},
        {"input 8x8193", {"'input'", "'8x8193'"}},
        {"input 8x8x2", {"'input'", "'8x8x2'"}},
        {"input 8x8x3x3", {"'input'", "'8x8x3x3'"}},
        {"input 8 8", {"line 1", "'8'", "'input'"}},
        {"input 8 mean 0.5", {"line 1", "'0.5'", "'std'"}},
        {"input 8 std 0.5 mean 0.5", {"line 1", "'std'", "'mean'"}},
        {"input 8 mean 1.5 std 1", {"line 1", "'mean'", "'1.5'"}},
        {"input 8 mean 0.5 std 0", {"line 1", "'std'", "'0'"}},
        {"input 8 mean 0,0 std 1", {"line 1", "'mean'", "'0,0'"}},
        {"input 8 mean 0,0,x std 1", {"line 1", "'mean'", "'0,0,x'"}},
        {net + "input 8", {"line 2", "'input'"}},
        {net + "conv c out 3", {"line 2", "'conv'"}},
        {net + "convd c out 3", {"did you mean conv2d"}},
        {conv + "out 3 sixe 3", {"m.txt line 2", "'sixe'", "did you mean size"}},
        {conv + "out 24 size 3 init whiten\n" + fc, {"line 2", "'init whiten'", "'out 54'"}},
        {net + "relu\nconv2d c out 54 size 3 init whiten\n" + fc, {"line 3", "'init whiten'"}},
        {conv + "size 3", {"line 2", "'conv2d'", "'out'"}},
        {conv + "out 3", {"'conv2d'", "'size'"}},
        {conv + "out 3 size", {"'size'", "1", "1024"}},
        {conv + "out 3 size 3x", {"'size'", "'3x'"}},
        {conv + "out 3 size x3", {"'size'", "'x3'"}},
        {conv + "out 3 size 3x3x3", {"'size'", "'3x3x3'"}},
        {conv + "out 3 size 3 stride 0", {"'stride'", "'0'"}},
        {conv + "out 3 size 3 pad -1", {"'pad'", "'-1'"}},
        {conv + "out 3 size 3 size 3", {"'size'"}},
        {conv + "out 3 size 3 dilation 0", {"'dilation'", "'0'", "1024"}},
        {conv + "out 3 size 3 dilation 2x0", {"'dilation'", "'2x0'"}},
        {conv + "out 3 size 3 dilation -2", {"'dilation'", "'-2'"}},
        {conv + "out 3 size 3 dilation 1025", {"'dilation'", "'1025'"}},
        {conv + "out 3 size 3 dilation 4294967297", {"'dilation'", "'4294967297'"}},
        {net + "maxpool size 3 dilation 2", {"'dilation'", "maxpool"}},
        {net + "avgpool size 3 dilation 2", {"'dilation'", "avgpool"}},
        {net + "pointwise c out 3 dilation 2", {"'dilation'", "pointwise"}},
        {conv + "out 54 size 3 dilation 2 init whiten\n" + fc, {"line 2", "'init whiten'"}},
        {conv + "out 99999999999999999999 size 3", {"'out'", "'99999999999999999999'"}},
        {conv + "out 3 size 3 bias maybe", {"'bias'", "'maybe'"}},
        {conv + "out 3 size 3 init nan", {"'init'", "'nan'"}},
        {conv + "out 3 size 3 init 1e40", {"'init'", "'1e40'"}},
        {net + "conv2d out 3 size 3", {"'conv2d'", "'out'"}},
        {net + "conv2d a/b out 3 size 3", {"'a/b'"}},
        {net + "batchnorm", {"'batchnorm'"}},
        {net + "relu 3", {"'3'", "'relu'"}},
        {net + "dropout 1", {"'dropout'", "'1'"}},
        {net + "end", {"line 2", "'end'", "'residual'", "'branches'"}},
        {net + "residual b\nrelu\n", {"line 2", "'residual'", "'end'"}},
        {net + "residual b\nend", {"line 2", "'residual'"}},
        {net + "excite\nend", {"line 2", "'excite'"}},
        {net + "excite\navgpool 1\n|\nend", {"line 4", "'|'", "'excite'"}},
        {net + "excite\navgpool 1", {"'excite'", "'end'"}},
        {net + "excite\nconv2d d out 3 size 1\nend", {"line 2", "'excite'"}},
        {net + "flatten\nexcite\nrelu\nend", {"line 3", "'excite'"}},
        {net + "residual b\nrelu\nshortcut\nend", {"line 2", "'shortcut'"}},
        {net + "residual b\nrelu\nshortcut\nrelu\nshortcut\nend", {"line 2", "'shortcut'"}},
        {net + "residual b\nrelu\n|\nend", {"line 4", "'|'", "'residual'", "line 2"}},
        {net + "residual b relu maybe\n", {"'relu'", "'maybe'"}},
        {net + "branches\nrelu\n|\nrelu", {"line 2", "'branches'", "'end'"}},
        {net + "branches\nrelu\nend", {"line 2", "'branches'", "'|'"}},
        {net + "branches\n|\nshortcut\nend",
         {"line 4", "'shortcut'", "'branches'", "line 2", "'end'"}},
        {net + "branches 3\n|\nend", {"'3'"}},
        {net + "branches split maybe\n|\nend", {"'split'", "'maybe'"}},
        {net + "branches split yes\n|\nend", {"line 2", "'split yes'", "2 branches"}},
        {net + "branches shuffle yes\nconv2d a out 2 size 1\n|\nend",
         {"line 2", "8x8x3", "8x8x2", "'shuffle yes'"}},
        {net + "branches shuffle yes\nflatten\n|\nflatten\nend", {"line 2", "'branches'"}},
        {net + "flatten\nbranches split yes\n|\n|\nend", {"line 3", "'branches'"}},
        {net + "| |", {"line 2", "'|'", "'residual'", "'branches'"}},
        {net + "leaky_relu", {"'leaky_relu'", "0"}},
        {net + "leaky_relu -1", {"'leaky_relu'", "'-1'", "0"}},
        {net + "elu nan", {"'elu'", "'nan'"}},
        {net + "relu6 6", {"'6'"}},
        {net + "batchnorm b eps 1", {"'eps'", "'1'"}},
        {net + "avgpool", {"'avgpool'"}},
        {net + "avgpool 1 size 2", {"'size'"}},
        {net + "avgpool stride 2", {"'avgpool'", "'size'"}},
        {net + "maxpool size 2 ceil 1", {"'ceil'", "'1'"}},
        {conv + "out 3 size 3 groups 0", {"'groups'", "'0'"}},
        {net + "groupnorm", {"line 2", "'groupnorm'", "name"}},
        {net + "groupnorm groups 3", {"line 2", "'groupnorm'", "'groups'", "name"}},
        {net + "groupnorm g", {"line 2", "'groupnorm'", "'groups'"}},
        {net + "groupnorm g eps 0.1", {"line 2", "'groupnorm'", "'groups'"}},
        {net + "groupnorm g groups 0", {"line 2", "'groups'", "'0'", "1"}},
        {net + "groupnorm g groups -3", {"line 2", "'groups'", "'-3'"}},
        {net + "groupnorm g groups 131073", {"line 2", "'131073'", "131072"}},
        {net + "groupnorm g groups 3 eps 1", {"'eps'", "'1'"}},
        {net + "layernorm l groups 3", {"line 2", "'groups'", "layernorm"}},
        {conv + "out 3 size 3 pad some", {"'pad'", "'some'"}},
        {net + "\x01\x7f", {"line 2", "'\\x01\\x7f'"}},
        // What does not fit together:
        {net + "linear fc out classes",
         {"line 2", "'linear'", "8x8x3", "'flatten'", "'avgpool 1'"}},
        {net + "maxpool size 9\n" + fc, {"line 2", "'maxpool'", "8x8x3"}},
        {net + "maxpool size 3 pad 2\n" + fc, {"'pad'", "'size'", "1"}},
        {net + "avgpool size 3 pad 2\n" + fc, {"'pad'", "'size'", "1"}},
        {"input 99\nmaxpool size 17\n" + fc, {"289", "256"}},
        {conv + "out 3 size 3x11 pad 1\n" + fc, {"3x11", "1"}},
        {conv + "out 3 size 2x3 pad 1 dilation 3x5\n" + fc, {"line 2", "4x11", "1"}},
        {conv + "out 3 size 1024 pad 1024 dilation 1024\n" + fc, {"1047553x1047553", "1024"}},
        {net + "flatten\nconv2d c out 3 size 1\n" + fc, {"line 3", "'conv2d'", "line 2"}},
        {conv + "out 3 size 1\nbatchnorm c\n" + fc, {"line 3", "'c'", "line 2"}},
        {net + "residual b\nconv2d c out 4 size 1\nend\n" + fc,
         {"line 2", "'b'", "8x8x4", "8x8x3"}},
        {net + "residual b\nconv2d c out 4 size 1\nshortcut\nmaxpool size 2\nend\n" + fc,
         {"4x4x3"}},
        {net + "residual b\nflatten\nend\n" + fc, {"'flatten'"}},
        {conv + "out 4 size 1 groups 3\n" + fc, {"line 2", "'groups 3'", "3", "4"}},
        {net + "groupnorm g groups 2\n" + fc, {"line 2", "'groups 2'", "3 channels"}},
        {net + "groupnorm g groups 6\n" + fc, {"line 2", "'groups 6'", "3 channels"}},
        {net + "flatten\ngroupnorm g groups 2\n" + fc, {"line 3", "'groupnorm'", "line 2"}},
        {net + "avgpool size 9\n" + fc, {"line 2", "'avgpool'", "8x8x3"}},
        {"input 99\navgpool size 17\n" + fc, {"289", "256"}},
        {net + "branches\nmaxpool size 2\n|\nend\n" + fc, {"line 2", "8x8x3", "4x4"}},
        {net + "branches\nflatten\n|\navgpool 1\nend\nconv2d c out 3 size 1\n" + fc,
         {"line 7", "'conv2d'", "line 3"}},
        {net + "residual b\nbranches\nflatten\n|\nflatten\nend\nend\n" + fc, {"'flatten'"}},
        {net, {"'input'"}},
        {net + "flatten\nlinear fc out 3", {"line 3", "'out'", "'out classes'"}},
        {net + "relu", {"'out'", "'out classes'"}},
        {conv + "out classes size 1", {"line 2", "8x8x5"}},
    };
    auto backend = make_backend("cpu");
    for (auto& [text, names] : cases) {
        CAPTURE(text);
        for (const std::string& name : names)
            CHECK_FAILS(Model(text, {.name = "m.txt", .classes = 5}, *backend), name);
    }
}

TEST_CASE("a hostile model is refused before anything of its size is allocated") {
    auto backend = make_backend("cpu");
    const auto refused = [&](const std::string& text, const char* says) {
        CHECK_FAILS(Model(text, {.name = "m"}, *backend), says);
    };
    refused(std::string(2 << 20, '#'), "1048576 bytes");
    std::string many = "input 8\n", deep = "input 8\n";
    for (int i = 0; i < 5000; ++i) many += "relu\n";
    for (int i = 0; i < 1000; ++i) deep += "residual b\n";
    refused(many, "5001");
    refused(deep, "16");
    refused("input 8192\nconv2d c out 131072 size 1\n", "268435456");
    refused("input 8\nconv2d c out 131072 size 1\nconv2d d out 131072 size 1\n", "2147483648");
    refused("input 8\nconv2d c out 131072 size 1024 pad 1024\n", "2147483648");
    refused("input 8\navgpool 1024\nconv2d " + std::string(5000, 'x') + " out 3 size 1",
            "100 letters");
}

TEST_CASE("a valid text with random damage is an Error or a model, never anything else") {
    const std::string good =
        "input 8\nconv2d c out 4 size 3 pad 1\nrelu\nresidual r\nconv2d c out 4 size 1\nend\n"
        "branches\n|\nmaxpool size 3 stride 1 pad same\nend\n"
        "avgpool 1\nlinear fc out classes\n";
    auto backend = make_backend("cpu");
    CHECK_NOTHROW(Model(good, {}, *backend));
    int refused = 0;
    Random random(5, 0, 0, kTest);
    for (int turn = 0; turn < 2000; ++turn) {
        std::string bad = good;
        for (uint64_t changes = 1 + random.below(3); changes > 0; --changes) {
            const size_t at = random.below(bad.size());
            if (random.below(2)) {
                bad.erase(at, 1 + random.below(4));
            } else {
                bad[at] = char(random.below(256));
            }
        }
        try {
            const ModelText text = parse_model(bad, "m");
            CHECK(std::min(text.input.H, text.input.W) >= 1);
        } catch (const Error&) {
            ++refused;
        }
    }
    CHECK(refused > 1000);
}
