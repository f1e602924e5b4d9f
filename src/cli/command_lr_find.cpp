// command_lr_find.cpp — lr-find: a short run whose learning rate rises until the loss diverges, and
// which rate it suggests. Smith, "Cyclical Learning Rates for Training Neural Networks" (2017).
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/check.h"
#include "src/base/table.h"
#include "src/cli/commands.h"
#include "src/report/html.h"

namespace convoy {

using nlohmann::json;

namespace {

struct Point {
    double lr, loss;  // the loss is smoothed
};

// The steps of the last run that is in the log.
std::vector<Point> read_points(const std::string& path) {
    std::vector<Point> points;
    std::ifstream file(path);
    double smooth = 0;
    for (std::string line; std::getline(file, line);) {
        const json event = json::parse(line, nullptr, /*allow_exceptions=*/false);
        if (!event.is_object()) continue;
        if (event.value("event", "") == "start") points.clear();
        if (event.value("event", "") != "step") continue;
        const double loss = event.at("loss");
        smooth = points.empty() ? loss : 0.8 * smooth + 0.2 * loss;
        points.push_back({event.at("lr"), smooth});
    }
    return points;
}

// Where the loss falls most for a factor of the rate, before it is least; over four steps each way,
// since the slope from one step to the next is that of the images.
size_t steepest(const std::vector<Point>& points, size_t least) {
    constexpr size_t kReach = 4;
    size_t best = least;
    double most = 0;
    for (size_t i = kReach; i + kReach < points.size() && i <= least; ++i) {
        const double fall = points[i - kReach].loss - points[i + kReach].loss;
        if (fall > most) most = fall, best = i;
    }
    return best;
}

// The curve over the logarithm of the rate, with a line at the suggestion.
std::string picture(const std::vector<Point>& points, double suggestion) {
    const double least = std::ranges::min_element(points, {}, &Point::loss)->loss;
    const double top = 3 * points.front().loss;  // it rises far above where it diverges
    Curve curve{"loss (smoothed)", {}};
    for (const auto& [lr, loss] : points)
        curve.points.push_back({std::log10(lr), std::min(loss, top)});
    const double at = std::log10(suggestion);
    return line_chart("", "logarithm (base 10) of the learning rate",
                      {curve,
                       {fmt::format("suggestion: {:.2g}", suggestion),
                        {{at, least}, {at, points.front().loss}},
                        true,
                        1}});
}

int report(const std::string& folder, bool as_json, Log& log) {
    const std::vector<Point> points = read_points(folder + "/log.jsonl");
    if (points.size() < 20)
        fail(
            "lr-find has only ", points.size(),
            " steps, too few for a curve: give more by --steps, or less --lr if the loss diverged");
    const size_t least =
        size_t(std::ranges::min_element(points, {}, &Point::loss) - points.begin());
    const size_t steep = steepest(points, least);
    const double suggestion = std::min(points[steep].lr, points[least].lr / 3);
    constexpr int kRows = 16, kWidth = 40;
    const double most = std::ranges::max_element(points, {}, &Point::loss)->loss;
    const double lowest = points[least].loss, range = std::max(most - lowest, 1e-9);
    log.info("      lr    loss");
    for (int row = 0; row < kRows; ++row) {
        const Point& point = points[row * (points.size() - 1) / (kRows - 1)];
        log.info(fmt::format("{:>8.1e}  {:>6.3f}  {}", point.lr, point.loss,
                             std::string(1 + size_t(kWidth * (point.loss - lowest) / range), '#')));
    }
    json content = {{"event", "lr-find"},
                    {"suggestion", suggestion},
                    {"steepest", points[steep].lr},
                    {"least", points[least].lr},
                    {"points", json::array()}};
    for (const Point& point : points)
        content["points"].push_back({{"lr", point.lr}, {"loss", point.loss}});
    write_in(folder, "lr.json", content.dump(1) + "\n");
    write_in(folder, "lr.svg", picture(points, suggestion));
    if (as_json)
        fmt::print("{}\n", content.dump());
    else
        fmt::print(
            "suggestion: --lr {:.2g} (the loss falls fastest at {:.2g} and is least at "
            "{:.2g}), for this --batch and --optimizer; curve: {}/lr.svg, lr.json\n",
            suggestion, points[steep].lr, points[least].lr, folder);
    return 0;
}

}  // namespace

static int command_lr_find(const CommandLine& given, Log& log, const Stop& stop) {
    for (const char* name :
         {"resume", "schedule", "epochs", "sync-every", "early-stop", "target-top1", "warmup",
          "save-every", "val", "val-split", "log-every"})
        if (given.given.contains(name))
            fail("--", name, " does not go with lr-find, which is a short run with a rising rate");
    CommandLine line = given;
    line.command = kTrain;
    Config& config = line.config;
    if (!config.coord.empty() && config.rank < 0)
        fail("lr-find on several ranks needs --rank: rank 0 tells what was found");
    config.schedule = Schedule::kRange;
    if (config.lr == 0) config.lr = config.optimizer == OptimizerKind::kAdamw ? 1 : 10;
    if (config.steps == 0) config.steps = 120;
    if (config.out.empty()) config.out = "lr-find";
    config.log_every = 1, config.save_every = 0, config.val_split = 0;
    const bool reports = config.rank == 0 || config.coord.empty();
    try {
        const int status = run_in_job(line, log, stop, train_in_job);
        if (status != 0 || !reports) return status;
    } catch (const Error& error) {  // a NaN is an end like any other
        if (std::string(error.what()).find("NaN or infinity") == std::string::npos || !reports)
            throw;
        log.info(error.what());
    }
    return report(config.out, config.json, log);
}

const CommandRow kLrFindRow = {"lr-find", Command(kTrain | kLrFind), "[options]",
                               "try learning rates up to --lr in --steps steps, and suggest one",
                               command_lr_find};

}  // namespace convoy
