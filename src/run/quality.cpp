#include "src/run/quality.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "src/base/text.h"
#include "src/session/rank_json.h"

namespace convoy {

Interval wilson_interval(double right, double n) {
    if (n <= 0) return {0, 1};
    constexpr double kZ = 1.959964;  // of the normal distribution, 2.5 % lie above
    const double p = right / n, z2 = kZ * kZ / n;
    const double middle = p + z2 / 2, reach = kZ * std::sqrt(p * (1 - p) / n + z2 / (4 * n));
    return {right > 0 ? (middle - reach) / (1 + z2) : 0,
            right < n ? (middle + reach) / (1 + z2) : 1};
}

Quality::Quality(int classes)
    : classes(classes),
      pairs(classes > kMostClasses ? 0 : size_t(classes) * size_t(classes)),
      bins(kBins) {}

static void keep_worst(std::vector<Mistake>& worst, Mistake&& mistake) {
    if (worst.size() == Quality::kMostMistakes && mistake.probability <= worst.back().probability)
        return;
    worst.insert(
        std::ranges::upper_bound(worst, mistake.probability, std::greater(), &Mistake::probability),
        std::move(mistake));
    worst.resize(std::min(worst.size(), Quality::kMostMistakes));
}

void Quality::add(const Batch& batch, std::span<const float> logits) {
    for (size_t n = 0; n < size_t(batch.n); ++n) {
        const auto row = logits.subspan(n * size_t(classes), size_t(classes));
        const auto best = std::ranges::max_element(row);
        const int truth = batch.labels[n], guess = int(best - row.begin());
        float sum = 0;
        for (const float logit : row) sum += std::exp(logit - *best);
        const float probability = std::isfinite(sum) ? 1 / sum : 0;
        if (!pairs.empty()) ++pairs[size_t(truth) * size_t(classes) + size_t(guess)];
        Bin& bin = bins[std::min(size_t(probability * kBins), kBins - 1)];
        ++bin.images, bin.right += truth == guess, bin.probability += probability;
        if (truth != guess)
            keep_worst(worst, {probability, truth, guess, batch.samples[n], {}, {}});
    }
}

// Empty if the image cannot be read again.
static std::vector<uint8_t> small_jpeg(const Source& source, uint64_t sample) try {
    std::vector<uint8_t> bytes;
    source.read(sample, bytes);
    Decoder decoder;
    Image image;
    decoder.open(bytes, source.name(sample));
    decoder.read(image);
    Resizer resizer;
    const auto [H, W] = fitted(image.H, image.W, Quality::kMistakeSide);
    return encoded(resized(resizer, image, H, W));
} catch (const Error&) {
    return {};
}

// The numbers of bins or classes, which are floats.
static std::span<float> floats_of(auto& all) {
    return {reinterpret_cast<float*>(all.data()), all.size() * sizeof all[0] / sizeof(float)};
}

void Quality::gather(Communicator& communicator, const Source& source) {
    nlohmann::json mine = nlohmann::json::array();
    for (const auto& [probability, truth, guess, sample, name, jpeg] : worst) {
        const std::string shown = printable(source.title(sample));
        mine.push_back({probability, truth, guess, sample, is_utf8(shown) ? shown : cat(sample),
                        small_jpeg(source, sample)});
    }
    worst.clear();
    for (const auto& rank : gather_json(communicator, mine))
        for (const auto& m : rank) keep_worst(worst, {m[0], m[1], m[2], m[3], m[4], m[5]});
    communicator.allreduce_sum(pairs).get();
    communicator.allreduce_sum(floats_of(bins)).get();
}

ClassQuality Quality::of_class(int c) const {
    ENSURE(!pairs.empty(), classes, " classes are too many");
    const size_t C = size_t(classes), own = size_t(c);
    ClassQuality quality{0, 0, pairs[own * C + own]};
    for (size_t i = 0; i < C; ++i)
        quality.images += pairs[own * C + i], quality.guessed += pairs[i * C + own];
    return quality;
}

std::vector<ClassQuality> Quality::classes_of_all(Communicator& communicator) const {
    std::vector<ClassQuality> all;
    for (int c = 0; !pairs.empty() && c < classes; ++c) all.push_back(of_class(c));
    communicator.allreduce_sum(floats_of(all)).get();
    return all;
}

nlohmann::json class_fields(const std::vector<ClassQuality>& all) {
    double least = INFINITY, most = 0, f1 = 0, count = 0;
    nlohmann::json recall = nlohmann::json::array();
    for (const ClassQuality& one : all) {
        recall.push_back(one.recall());
        if (one.images == 0) continue;
        least = std::min<double>(least, one.images), most = std::max<double>(most, one.images);
        f1 += one.f1(), ++count;
    }
    if (most <= 3 * least) return nlohmann::json::object();
    return {{"macro_f1", f1 / count}, {"recall", recall}};
}

std::string class_text(const std::vector<ClassQuality>& all,
                       const std::vector<std::string>& names) {
    const nlohmann::json fields = class_fields(all);
    if (fields.empty()) return "";
    std::multimap<double, std::string> by_recall;
    std::vector<std::string> texts;
    for (size_t c = 0; c < all.size(); ++c)
        if (const double recall = all[c].recall(); all[c].images > 0)
            by_recall.emplace(recall,
                              fmt::format("{} {:.1f} %", printable(names[c]), 100 * recall));
    for (const auto& [_, text] : by_recall) texts.push_back(text);
    return fmt::format("macro F1 {:.3f}  recall {}", fields["macro_f1"].get<double>(),
                       some_of(texts));
}

std::vector<Quality::Confusion> Quality::confusions(size_t most) const {
    std::vector<Confusion> all;
    const size_t C = size_t(classes);
    for (size_t i = 0; i < pairs.size(); ++i)
        if (pairs[i] > 0 && i / C != i % C) all.push_back({i / C, i % C, pairs[i]});
    std::ranges::stable_sort(all, std::greater(), &Confusion::images);
    all.resize(std::min(all.size(), most));
    return all;
}

double Quality::calibration_error() const {
    double images = 0, error = 0;
    for (const Bin& bin : bins)
        images += bin.images, error += std::abs(double(bin.right) - double(bin.probability));
    return images > 0 ? error / images : 0;
}

}  // namespace convoy
