// command_lr_find.cpp — tune --lr: trains a short run whose learning rate rises until the loss
// diverges, and says where it falls. Smith, "Cyclical Learning Rates for Training Neural Networks"
// (2017). It suggests no rate: a third of the least loss's rate trained worse than the default.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include <stdlib.h>

#include "src/base/check.h"
#include "src/base/terminal.h"
#include "src/cli/commands.h"
#include "src/report/html_parts.h"

namespace convoy {
using nlohmann::json;

static double mean_loss(const std::vector<RatePoint>& points, size_t begin, size_t end) {
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += points[i].loss;
    return sum / double(end - begin);
}

RateSearch search_rate(const std::vector<RatePoint>& points) {
    RateSearch found;
    constexpr size_t kReach = 4;
    std::vector<RatePoint>& smooth = found.smooth;
    for (size_t i = 0; i < points.size(); ++i)
        smooth.push_back({points[i].lr, mean_loss(points, i - std::min(i, kReach),
                                                  std::min(i + kReach + 1, points.size()))});
    found.least = size_t(std::ranges::min_element(smooth, {}, &RatePoint::loss) - smooth.begin());
    // The rates of the first tenth are too small to change the loss.
    const double level = mean_loss(points, 0, std::max<size_t>(points.size() / 10, 1));
    found.fall = level - smooth[found.least].loss;
    // A difference of two losses has √2 times their deviation; its median is 0.6745 of that.
    std::vector<double> jumps;
    for (size_t i = 1; i <= std::max(found.least, (points.size() - 1) / 2); ++i)
        jumps.push_back(std::abs(points[i].loss - points[i - 1].loss));
    std::ranges::sort(jumps);
    found.scatter = jumps.empty() ? 0 : jumps[jumps.size() / 2] / 0.954;
    // Skip the noise of the flat start: from `begin` on, a quarter of the loss's fall is done.
    size_t begin = found.least;
    while (begin > 0 && smooth[begin - 1].loss < level - found.fall / 4) --begin;
    double most = 0;
    for (size_t i = found.steepest = begin; i <= found.least; ++i) {
        const double fall = smooth[i - std::min(i, kReach)].loss -
                            smooth[std::min(i + kReach, smooth.size() - 1)].loss;
        if (fall > most) most = fall, found.steepest = i;
    }
    return found;
}

// The steps of the last run that is in the log.
static std::vector<RatePoint> read_points(const std::string& path) {
    std::vector<RatePoint> points;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        const json event = json::parse(line, nullptr, /*allow_exceptions=*/false);
        if (!event.is_object()) continue;
        if (event.value("event", "") == "start") points.clear();
        if (event.value("event", "") != "step") continue;
        points.push_back({event.at("lr"), event.at("loss")});
    }
    return points;
}

static int report(const Config& config, bool keeps) {
    const std::vector<RatePoint> all = read_points(config.out + "/log.jsonl");
    if (all.size() < 20)
        fail("tune --lr has only ", all.size(),
             " steps, too few for a curve: give more --steps, or a smaller --lr if the loss "
             "diverged");
    const RateSearch search = search_rate(all);
    const std::vector<RatePoint>& points = search.smooth;
    const RatePoint least = points[search.least], steepest = points[search.steepest];
    json content = {{"event", "lr-find"},      {"is_clear", search.is_clear()},
                    {"fall", search.fall},     {"scatter", search.scatter},
                    {"steepest", steepest.lr}, {"least", least.lr},
                    {"points", json::array()}};
    for (const auto& [lr, loss] : points) content["points"].push_back({{"lr", lr}, {"loss", loss}});
    if (keeps) write_in(config.out, "lr.json", content.dump(1) + "\n");
    if (config.json)
        fmt::print("{}\n", content.dump());
    else
        fmt::print(
            "{}{}\n",
            search.is_clear()
                ? fmt::format("the loss falls fastest at --lr {:.2g} and is least at {:.2g}, with "
                              "this --batch and --optimizer; from there on it rises",
                              steepest.lr, least.lr)
                : fmt::format("no rate stands out: the loss falls by {:.3f}, and single batches "
                              "vary by {:.3f}. Keep the default --lr, or give more --steps",
                              search.fall, search.scatter),
            keeps ? cat("; curve: ", config.out, "/lr.json") : "; --out DIR keeps the curve");
    return 0;
}

int command_lr_find(const CommandLine& given, Log& log, const Stop& stop) {
    CommandLine line = given;
    line.command = kTrain;
    Config& config = line.config;
    if (!config.coord.empty() && config.rank < 0)
        fail("tune --lr on several ranks needs --rank, because rank 0 prints the result");
    config.schedule = Schedule::kRange;
    if (config.lr == 0) config.lr = config.optimizer == OptimizerKind::kAdamw ? 1 : 10;
    config.log_every = 1, config.save_every = 0, config.val_split = 0;
    const bool reports = config.rank == 0 || config.coord.empty(), keeps = !config.out.empty();
    namespace fs = std::filesystem;
    if (!keeps) {
        config.out = fs::temp_directory_path() / "convoy-lr-XXXXXX";
        if (!mkdtemp(config.out.data()))
            fail("no folder can be made in ", fs::temp_directory_path().native());
    }
    const std::shared_ptr<void> end(nullptr, [&](void*) {
        std::error_code none;
        if (!keeps) fs::remove_all(config.out, none);
    });
    log.set_quiet(!config.verbose);  // its steps are not those of a training
    try {
        const ProgressBar bar(log, "trying learning rates", 0);
        const int status = run_in_job(line, log, stop, train_in_job);
        if (status != 0 || !reports) return status;
    } catch (const Error& error) {  // the loss diverged: a normal end
        if (std::string(error.what()).find("NaN or infinity") == std::string::npos || !reports)
            throw;
    }
    return report(config, keeps);
}

}  // namespace convoy
