#include "src/step/learning_rate.h"

#include <algorithm>
#include <cmath>

namespace convoy {

double learning_rate(const Config& config, double base, int64_t step, int64_t total,
                     int64_t per_epoch) {
    if (config.schedule == Schedule::kRange)
        return base * std::pow(1e-6, 1 - double(step) / std::max(double(total - 1), 1.0));
    if (config.schedule == Schedule::kOneCycle) {
        const double up = 0.3 * double(total) - 1, down = double(total - 1) - up, at = double(step);
        const auto between = [](double from, double to, double part) {
            return to + (from - to) / 2 * (1 + std::cos(M_PI * std::min(part, 1.0)));
        };
        return at <= up ? between(base / 25, base, at / std::max(up, 1e-9))
                        : between(base, base / 25e4, (at - up) / down);
    }
    const double warmup = config.warmup * double(per_epoch);
    if (double(step) < warmup) return base * std::min(double(step + 1) / warmup, 1.0);
    if (config.schedule == Schedule::kConstant) return base;
    if (config.schedule == Schedule::kStep) {
        const double epochs = double(step) / double(std::max<int64_t>(per_epoch, 1));
        return base * std::pow(config.gamma, std::floor(epochs / config.step_epochs));
    }
    const double length = std::max(double(total) - warmup, 1.0);
    const double progress = std::min((double(step) - warmup) / length, 1.0);
    return base * 0.5 * (1 + std::cos(M_PI * progress));
}

double base_learning_rate(const Config& config, bool has_batch_norm) {
    if (config.lr > 0) return config.lr;
    if (config.optimizer == OptimizerKind::kAdamw) return 1e-3;
    if (config.optimizer == OptimizerKind::kMuon) return 0.02;
    return has_batch_norm ? 0.1 * double(config.batch) / 256 : 0.01 * double(config.batch) / 128;
}

}  // namespace convoy
