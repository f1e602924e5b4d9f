#include "src/report/eval_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "src/base/text.h"
#include "src/report/html_parts.h"

namespace convoy {
using nlohmann::json;
namespace {

constexpr int kMostInTable = 32;  // the most classes for a table of all pairs

std::string percent(double part) { return fmt::format("{:.1f} %", 100 * part); }
std::string percent(Interval interval) {
    return fmt::format("{:.1f}–{:.1f} %", 100 * interval.low, 100 * interval.high);
}

// The classes that have images, by their recall.
std::multimap<double, int> by_recall(const Quality& quality) {
    std::multimap<double, int> all;
    for (int c = 0; c < quality.classes; ++c)
        if (const auto q = quality.of_class(c); q.images > 0) all.emplace(q.recall(), c);
    return all;
}

std::string tiles(const Evaluated& result) {
    const Sums& sums = result.sums;
    const auto tile = [](const std::string& number, const std::string& what) {
        return cat("<div><b>", number, "</b>", what, "</div>\n");
    };
    const Interval sure = wilson_interval(double(sums.correct), double(sums.count));
    return cat("<div class=\"tiles\">\n",
               tile(percent(sums.top1_part()), "top-1; 95 % interval: " + percent(sure)),
               tile(percent(sums.top5_part()), "top-5"),
               tile(fmt::format("{:.4f}", sums.mean_loss()), "loss"),
               tile(percent(result.quality.calibration_error()), "calibration error"),
               tile(cat(sums.count), cat("images, ", sums.skipped, " left out")), "</div>\n");
}

std::string class_table(const Evaluated& result) {
    std::vector<std::vector<std::string>> rows;
    for (const auto& [recall, c] : by_recall(result.quality)) {
        const ClassQuality q = result.quality.of_class(c);
        rows.push_back({html_text(result.card.classes[size_t(c)]), cat(q.images), percent(recall),
                        percent(wilson_interval(q.right, q.images)), percent(q.precision()),
                        fmt::format("{:.3f}", q.f1())});
    }
    return html_table({"class", "images", "recall", "95 % interval", "precision", "F1"}, rows);
}

std::string pairs_table(const Evaluated& result) {
    const Quality& quality = result.quality;
    const std::vector<std::string>& classes = result.card.classes;
    std::vector<std::vector<std::string>> rows;
    if (quality.classes > kMostInTable) {
        for (const auto& [truth, guess, images] : quality.confusions(50))
            rows.push_back({html_text(classes[truth]), html_text(classes[guess]), cat(images)});
        return html_table({"class", "guess", "images"}, rows);
    }
    std::vector<std::string> heads = {"class"};
    for (size_t truth = 0; truth < classes.size(); ++truth) {
        heads.push_back(html_text(classes[truth]));
        rows.push_back({html_text(classes[truth])});
        const double images = quality.of_class(int(truth)).images;
        for (size_t guess = 0; guess < classes.size(); ++guess) {
            const float n = quality.pairs[truth * classes.size() + guess];
            const double part = images > 0 ? n / images : 0;
            rows.back().push_back(
                n == 0
                    ? ""
                    : fmt::format(
                          R"(<span style="background: rgb({0} {1} / {2:.2f}); padding: .15em .45em">{3}</span>)",
                          truth == guess ? "43 147" : "193 41", truth == guess ? 72 : 46,
                          0.1 + 0.7 * part, n));
        }
    }
    return cat(
        "<p>Rows: the true class. Columns: the guess of the model.</p>\n<div class=\"pairs\">",
        html_table(heads, rows), "</div>\n");
}

std::string calibration_table(const Quality& quality) {
    std::vector<std::vector<std::string>> rows;
    for (const Quality::Bin& bin : quality.bins)
        if (bin.images > 0)
            rows.push_back({percent(bin.probability / bin.images), percent(bin.right / bin.images),
                            cat(bin.images)});
    return html_table({"mean probability of the guess", "right guesses", "images"}, rows);
}

std::string mistakes(const Evaluated& result) {
    std::string text = "<div class=\"tiles\">\n";
    for (const Mistake& mistake : result.quality.worst)
        text += cat("<figure>", html_image(mistake.jpeg, mistake.name), "<figcaption>",
                    html_text(result.card.classes[size_t(mistake.truth)]), ", guessed <b>",
                    html_text(result.card.classes[size_t(mistake.guess)]), "</b> (",
                    percent(mistake.probability), ")<br>", html_text(mistake.name),
                    "</figcaption></figure>\n");
    return text + "</div>\n";
}

json as_json(const Evaluated& result) {
    const auto pair = [](Interval interval) { return json{interval.low, interval.high}; };
    const Sums& sums = result.sums;
    const Quality& quality = result.quality;
    json classes = json::array(), bins = json::array(), mistakes = json::array();
    for (int c = 0; c < quality.classes; ++c) {
        const ClassQuality q = quality.of_class(c);
        classes.push_back({{"class", result.card.classes[size_t(c)]},
                           {"images", q.images},
                           {"guessed", q.guessed},
                           {"right", q.right},
                           {"recall", q.recall()},
                           {"recall_95", pair(wilson_interval(q.right, q.images))},
                           {"precision", q.precision()},
                           {"f1", q.f1()}});
    }
    for (const Quality::Bin& bin : quality.bins)
        bins.push_back(
            {{"images", bin.images}, {"right", bin.right}, {"probabilities", bin.probability}});
    for (const Mistake& m : quality.worst)
        mistakes.push_back({{"image", m.name},
                            {"class", result.card.classes[size_t(m.truth)]},
                            {"guess", result.card.classes[size_t(m.guess)]},
                            {"probability", m.probability}});
    json pairs = json::array();
    for (auto row = quality.pairs.begin(); row != quality.pairs.end(); row += quality.classes)
        pairs.push_back(std::vector<int64_t>(row, row + quality.classes));
    return {{"model", result.file},
            {"data", result.data},
            {"images", sums.count},
            {"skipped", sums.skipped},
            {"loss", sums.mean_loss()},
            {"top1", sums.top1_part()},
            {"top1_95", pair(wilson_interval(double(sums.correct), double(sums.count)))},
            {"top5", sums.top5_part()},
            {"calibration_error", quality.calibration_error()},
            {"classes", classes},
            {"confusion", pairs},
            {"calibration", bins},
            {"mistakes", mistakes}};
}

}  // namespace

void write_eval_report(const std::string& folder, const Evaluated& result) {
    const std::string body = cat(
        "<p>", html_text(result.file), ", on ", html_text(result.data), "</p>\n", tiles(result),
        "<h2>Classes, the lowest recall first</h2>\n", class_table(result), "<h2>Confusions</h2>\n",
        pairs_table(result), "<h2>Calibration</h2>\n", calibration_table(result.quality),
        "<h2>The wrong guesses with the highest probability</h2>\n", mistakes(result));
    write_in(folder, "report.html", html_page("Evaluation of " + result.card.model_name, body));
    write_in(folder, "report.json",
             as_json(result).dump(1, ' ', false, json::error_handler_t::replace) + "\n");
}

std::string missed_demands(const Evaluated& result, double min_top1, double min_recall) {
    std::vector<std::string> missed;
    if (result.sums.top1_part() < min_top1)
        missed.push_back(cat("top-1 is ", percent(result.sums.top1_part()),
                             ", --min-top1 asks for ", percent(min_top1)));
    std::vector<std::string> classes;
    if (min_recall > 0)
        for (const auto& [recall, c] : by_recall(result.quality))
            if (recall < min_recall)
                classes.push_back(
                    cat("'", printable(result.card.classes[size_t(c)]), "' ", percent(recall)));
    if (!classes.empty())
        missed.push_back(cat("--min-recall asks for ", percent(min_recall),
                             " of each class: ", some_of(classes)));
    return join_text(missed, "; ");
}

}  // namespace convoy
