// pictures.cpp — see pictures.h.
#include "src/run/pictures.h"

#include <algorithm>
#include <cmath>

#include "src/base/text.h"

namespace convoy {

Image rows_picture(const float* rows, int n, const Preprocess& how) {
    const auto [H, W, C] = how.size;
    const int columns = std::min(n, 8), lines = (n + columns - 1) / std::max(columns, 1);
    Image image{lines * H, columns * W, std::vector<uint8_t>(size_t(lines * H * columns * W * C)),
                C};
    for (int i = 0; i < n; ++i)
        for (int h = 0; h < H; ++h)
            for (int w = 0; w < W * C; ++w) {
                const int c = w % C;
                const float pixel = (*rows++ - how.bias(c)) / how.scale(c);
                const int line = i / columns * H + h, column = i % columns * W * C + w;
                image.pixels[size_t(line * image.W * C + column)] =
                    uint8_t(std::clamp(std::lround(pixel), 0l, 255l));
            }
    return image;
}

static Image pairs_picture(const Quality& quality) {
    const int classes = quality.classes();
    const int cell = std::max(1, 384 / classes), side = cell * classes;
    Image image{side, side, std::vector<uint8_t>(size_t(side) * size_t(side)), 1};
    for (int truth = 0; truth < classes; ++truth) {
        const float* row = &quality.pairs[size_t(truth * classes)];
        float sum = 0;
        for (int guess = 0; guess < classes; ++guess) sum += row[guess];
        for (int y = truth * cell; y < (truth + 1) * cell; ++y)
            for (int x = 0; x < side; ++x)
                image.pixels[size_t(y * side + x)] =
                    uint8_t(255 - std::lround(sum > 0 ? 255 * row[x / cell] / sum : 0));
    }
    return image;
}

// The most frequent mistakes, as Markdown.
static std::string pairs_text(const Quality& quality, const std::vector<std::string>& classes) {
    std::string text = "| class | taken for | images |\n| --- | --- | --- |\n";
    for (const auto& [truth, guess, images] : quality.confusions(20))
        text += cat("| ", classes[truth], " | ", classes[guess], " | ", images, " |\n");
    return text;
}

// Each in the middle of a square, up to eight in a line.
static Image mistakes_picture(const std::vector<Mistake>& worst) {
    constexpr int kSide = Quality::kMistakeSide;
    const int columns = std::min(int(worst.size()), 8);
    const int lines = (int(worst.size()) + columns - 1) / columns;
    Image picture{lines * kSide, columns * kSide, {}, 3};
    picture.pixels.resize(size_t(picture.H * picture.W * 3));
    Decoder decoder;
    Image image;
    for (int i = 0; i < int(worst.size()); ++i) {
        if (worst[size_t(i)].jpeg.empty()) continue;
        decoder.open(worst[size_t(i)].jpeg, "a mistake");
        decoder.read(image);
        const int top = i / columns * kSide + (kSide - image.H) / 2;
        const int left = i % columns * kSide + (kSide - image.W) / 2;
        for (int h = 0; h < image.H; ++h)
            std::copy_n(&image.pixels[size_t(h * image.W * 3)], image.W * 3,
                        &picture.pixels[size_t(((top + h) * picture.W + left) * 3)]);
    }
    return picture;
}

void show_quality(TensorBoard& board, const Quality& quality,
                  const std::vector<std::string>& classes, int64_t step) {
    if (quality.classes() <= kMostShown)
        board.picture("confusion", pairs_picture(quality), step, true,
                      "Lines: true classes, columns: guesses.\n\n" + pairs_text(quality, classes));
    if (quality.worst.empty()) return;
    std::string text = "| class | taken for | probability | image |\n| --- | --- | --- | --- |\n";
    for (const Mistake& mistake : quality.worst)
        text += fmt::format("| {} | {} | {:.3f} | {} |\n", classes[size_t(mistake.truth)],
                            classes[size_t(mistake.guess)], mistake.probability, mistake.name);
    board.picture("mistakes", mistakes_picture(quality.worst), step, false,
                  "The mistakes of highest probability, line by line");
    board.text("mistakes/list", text, step);
}

}  // namespace convoy
