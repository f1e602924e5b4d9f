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

Mistakes::Mistakes(int classes, const Preprocess& how, bool keeps_images)
    : pairs(classes > kMostClasses ? 0 : size_t(classes) * size_t(classes)),
      classes_(classes),
      how_(how),
      keeps_images_(keeps_images) {}

void Mistakes::add(const Batch& batch, std::span<const float> logits) {
    for (size_t n = 0; n < size_t(batch.n); ++n) {
        const auto row = logits.subspan(n * size_t(classes_), size_t(classes_));
        const auto best = std::ranges::max_element(row);
        const int truth = batch.labels[n], guess = int(best - row.begin());
        if (!pairs.empty()) ++pairs[size_t(truth * classes_ + guess)];
        if (truth == guess || !keeps_images_ || !batch.x) continue;
        float sum = 0;
        for (const float logit : row) sum += std::exp(logit - *best);
        const float probability = 1 / sum;
        if (worst_.size() == kMost && probability <= worst_.back().probability) continue;
        const float* x = batch.x + n * how_.size.elems();
        Mistake mistake{probability, truth, guess, batch.samples[n], {x, x + how_.size.elems()}};
        worst_.insert(
            std::ranges::upper_bound(worst_, probability, std::greater(), &Mistake::probability),
            std::move(mistake));
        worst_.resize(std::min(worst_.size(), kMost));
    }
}

Image Mistakes::pairs_picture() const {
    const int cell = std::max(1, 384 / classes_), side = cell * classes_;
    Image image{side, side, std::vector<uint8_t>(size_t(side) * size_t(side)), 1};
    for (int truth = 0; truth < classes_; ++truth) {
        const float* row = &pairs[size_t(truth * classes_)];
        float sum = 0;
        for (int guess = 0; guess < classes_; ++guess) sum += row[guess];
        for (int y = truth * cell; y < (truth + 1) * cell; ++y)
            for (int x = 0; x < side; ++x)
                image.pixels[size_t(y * side + x)] =
                    uint8_t(255 - std::lround(sum > 0 ? 255 * row[x / cell] / sum : 0));
    }
    return image;
}

std::string Mistakes::pairs_text(const std::vector<std::string>& classes) const {
    std::vector<size_t> order;
    for (size_t i = 0; i < pairs.size(); ++i)
        if (pairs[i] > 0 && i / size_t(classes_) != i % size_t(classes_)) order.push_back(i);
    std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return pairs[i]; });
    order.resize(std::min<size_t>(order.size(), 20));
    std::string text = "\n\n| class | taken for | images |\n| --- | --- | --- |\n";
    for (const size_t i : order)
        text += cat("| ", classes[i / size_t(classes_)], " | ", classes[i % size_t(classes_)],
                    " | ", pairs[i], " |\n");
    return text;
}

void Mistakes::show(TensorBoard& board, const std::vector<std::string>& classes,
                    const Source& source, int64_t step) const {
    if (std::ranges::any_of(pairs, [](float n) { return n > 0; }))  // none with a pipeline
        board.picture("confusion", pairs_picture(), step, true,
                      "Lines: true classes, columns: guesses. " + pairs_text(classes));
    if (worst_.empty()) return;
    std::vector<float> rows;
    std::string text = "| class | taken for | probability | image |\n| --- | --- | --- | --- |\n";
    for (const auto& [probability, truth, guess, sample, row] : worst_) {
        rows.insert(rows.end(), row.begin(), row.end());
        text += fmt::format("| {} | {} | {:.3f} | {} |\n", classes[size_t(truth)],
                            classes[size_t(guess)], probability, printable(source.name(sample)));
    }
    board.picture("mistakes", rows_picture(rows.data(), int(worst_.size()), how_), step, false,
                  "The mistakes of highest probability, line by line");
    board.text("mistakes/list", text, step);
}

}  // namespace convoy
