// composite_options.cpp — options that set several fields of Config, such as --augment and --sync.
#include <algorithm>
#include <climits>

#include "data/images/augment.h"
#include "net/control/wire.h"
#include "src/base/text.h"
#include "src/config/config.h"

namespace convoy {
namespace {

// The value of an option while it is read, and what the option takes.
struct Reading {
    const std::string &text, &who;
    const char* forms;

    [[noreturn]] void refuse(const std::string& why = "") const {
        fail(who, " cannot be '", text, "': ", why.empty() ? cat("it takes ", forms) : why);
    }
    template <class T>
    T number(const std::string& word, T low, T high) const {
        const auto value = to_number<T>(word);
        if (!value || !(*value >= low && *value <= high))
            refuse(cat("'", word, "' must be a number from ", low, " to ", high));
        return *value;
    }
    // Splits "name:a:b". The name must be followed by `least` to `most` parts.
    std::vector<std::string> parts(size_t least, size_t most) const {
        std::vector<std::string> all = split(text, ':');
        if (all.size() < 1 + least || all.size() > 1 + most) refuse();
        return all;
    }
};

// In the order of the enumerations.
constexpr const char* kAugments[] = {"crop", "resize", "none"};
constexpr const char* kFlips[] = {"flip", "flip=alternating"};
constexpr const char* kPolicies[] = {"", "randaugment", "trivial"};
constexpr const char* kSchedules[] = {"constant", "step", "cosine", "onecycle", "range"};
constexpr struct {
    const char* name;
    double Config::*field;
    double most;
} kAmounts[] = {{"erase", &Config::erase, 1},
                {"mixup", &Config::mixup, 1000},
                {"cutmix", &Config::cutmix, 1000}};

// Sets `choice` if the word is one of the names.
template <class T>
bool choose(T& choice, std::span<const char* const> names, const std::string& word) {
    const auto found = std::ranges::find(names, word);
    if (word.empty() || found == names.end()) return false;
    choice = T(found - names.begin());
    return true;
}

bool is_byte_size(const std::string& text) {
    return !text.empty() && std::isdigit(text[0]) &&
           text.find_last_not_of("0123456789KMGT") == text.npos;
}

}  // namespace

static std::string augment_text(const Config& config) {
    std::string text = kAugments[int(config.augment)];
    if (config.augment != Augment::none && config.flip != Flip::off)
        text += cat(",", kFlips[int(config.flip)]);
    if (config.translate > 0) text += cat(",translate=", config.translate);
    if (!config.jitter.empty()) text += ",jitter=" + config.jitter;
    if (config.auto_augment != AutoAugment::off)
        text += cat(",", kPolicies[int(config.auto_augment)]);
    for (const auto& [name, field, most] : kAmounts)
        if (config.*field > 0) text += cat(",", name, "=", config.*field);
    return text;
}

static void set_augment(Config& config, const std::string& text, const std::string& who) {
    const Reading reading{text, who,
                          "crop, resize or none, and then flip, flip=alternating, translate=4, "
                          "jitter=0.4, randaugment, trivial, erase=0.25, mixup=0.2, cutmix=1, "
                          "separated by commas"};
    config.augment = Augment::resize, config.flip = Flip::off, config.translate = 0;
    config.jitter = "", config.auto_augment = AutoAugment::off;
    config.erase = config.mixup = config.cutmix = 0;
    bool is_first = true;
    for (const std::string& word : split(text, ',')) {
        const size_t equals = std::min(word.find('='), word.size());
        const std::string name = word.substr(0, equals),
                          value = word.substr(std::min(equals + 1, word.size()));
        const auto amount = std::ranges::find(kAmounts, name, [](const auto& a) { return a.name; });
        if (is_first && choose(config.augment, kAugments, word)) {
        } else if (choose(config.flip, kFlips, word) ||
                   choose(config.auto_augment, kPolicies, word)) {
        } else if (name == "translate") {
            config.translate = reading.number(value, 0, 8192);
        } else if (name == "jitter" && !value.empty()) {
            config.jitter = value;
        } else if (amount != std::end(kAmounts)) {
            config.*amount->field = reading.number(value, 0.0, amount->most);
        } else {
            reading.refuse();
        }
        is_first = false;
    }
    if (config.augment == Augment::none && config.flip != Flip::off)
        reading.refuse("none mirrors nothing; use resize with flip");
}

static std::string cache_text(const Config& config) {
    const bool is_default = config.cache_size.bytes == Config{}.cache_size.bytes;
    const bool ends_in_size = is_byte_size(config.cache.substr(config.cache.rfind(':') + 1));
    return config.cache.empty() || (is_default && !ends_in_size)
               ? config.cache
               : cat(config.cache, ":", byte_size_text(config.cache_size));
}

static void set_cache(Config& config, const std::string& text, const std::string& who) {
    const size_t colon = text.rfind(':');
    config.cache = text, config.cache_size = Config{}.cache_size;
    if (colon == text.npos || !is_byte_size(text.substr(colon + 1))) return;
    config.cache = text.substr(0, colon);
    config.cache_size = parse_size(text.substr(colon + 1), who);
    if (config.cache.empty() || config.cache_size.bytes < 16 << 20)
        fail(who, " cannot be '", text, "': it takes a folder and at least 16M, such as DIR:20G");
}

static std::string schedule_text(const Config& config) {
    const char* name = kSchedules[int(config.schedule)];
    return config.schedule == Schedule::kStep
               ? cat(name, ":", config.step_epochs, ":", config.gamma)
               : name;
}

static void set_schedule(Config& config, const std::string& text, const std::string& who) {
    const Reading reading{text, who, "constant, step:E:F, cosine or onecycle"};
    const std::vector<std::string> parts = reading.parts(0, 2);
    if (!choose(config.schedule, kSchedules, parts[0])) reading.refuse();
    if (parts.size() > 1 && config.schedule != Schedule::kStep) reading.refuse();
    config.step_epochs = Config{}.step_epochs, config.gamma = Config{}.gamma;
    if (parts.size() > 1) config.step_epochs = reading.number(parts[1], 1e-3, 1e6);
    if (parts.size() > 2) config.gamma = reading.number(parts[2], 0.0, 1.0);
}

static std::string sync_text(const Config& config) {
    const Config usual;
    if (config.pipeline > 1)
        return cat("pipeline:", config.pipeline,
                   config.micro == usual.micro ? "" : cat(":", config.micro));
    if (config.sync != SyncKind::kRing) {
        const bool is_async = config.sync == SyncKind::kAsync;
        const bool lags = is_async && config.staleness != usual.staleness;
        const std::string bound = config.staleness == INT_MAX ? "none" : cat(config.staleness);
        return cat(is_async ? "async" : "server",
                   lags || config.servers > 1 ? cat(":", config.servers) : "",
                   lags ? ":" + bound : "");
    }
    if (!config.outer) return config.sync_every > 1 ? cat("average:", config.sync_every) : "ring";
    const bool is_usual =
        config.outer_lr == usual.outer_lr && config.outer_momentum == usual.outer_momentum;
    return cat("diloco:", config.sync_every,
               is_usual ? "" : cat(":", config.outer_lr, ":", config.outer_momentum));
}

static void set_sync(Config& config, const std::string& text, const std::string& who) {
    const Reading reading{text, who,
                          "ring, average:H, diloco:H, server, server:S, async, async:S:K, "
                          "pipeline:S or pipeline:S:M"};
    const Config usual;
    config.sync = usual.sync, config.servers = usual.servers, config.staleness = usual.staleness;
    config.sync_every = usual.sync_every, config.outer = usual.outer;
    config.outer_lr = usual.outer_lr, config.outer_momentum = usual.outer_momentum;
    config.pipeline = usual.pipeline, config.micro = usual.micro;
    const std::string name = text.substr(0, text.find(':'));
    if (name == "ring") {
        reading.parts(0, 0);
    } else if (name == "average") {
        config.sync_every = reading.number(reading.parts(1, 1)[1], 1, 1'000'000'000);
    } else if (name == "diloco") {
        const auto parts = reading.parts(1, 3);
        config.outer = true;
        config.sync_every = reading.number(parts[1], 2, 1'000'000'000);
        if (parts.size() > 2) config.outer_lr = reading.number(parts[2], 0.0, 100.0);
        if (parts.size() > 3) config.outer_momentum = reading.number(parts[3], 0.0, 0.9999);
    } else if (name == "server" || name == "async") {
        const auto parts = reading.parts(0, name == "async" ? 2 : 1);
        config.sync = name == "async" ? SyncKind::kAsync : SyncKind::kServer;
        if (parts.size() > 1) config.servers = reading.number(parts[1], 1, int(wire::kMaxWorld));
        if (parts.size() > 2)
            config.staleness = parts[2] == "none" ? INT_MAX : reading.number(parts[2], 0, INT_MAX);
    } else if (name == "pipeline") {
        const auto parts = reading.parts(1, 2);
        config.pipeline = reading.number(parts[1], 2, 256);
        if (parts.size() > 2) config.micro = reading.number(parts[2], 1, 1'000'000);
    } else {
        reading.refuse();
    }
}

static std::string threads_text(const Config& config) {
    const int each = config.threads / config.replicas;
    return cat(config.replicas > 1 ? cat(config.replicas, "x") : "", each > 0 ? cat(each) : "auto");
}

static void set_threads(Config& config, const std::string& text, const std::string& who) {
    const Reading reading{text, who, "auto, a number of threads, or RxT: R replicas of T threads"};
    const size_t by = text.find('x');
    const std::string threads = by == text.npos ? text : text.substr(by + 1);
    config.replicas = by == text.npos ? 1 : reading.number(text.substr(0, by), 1, 1024);
    config.threads = threads == "auto" ? 0 : config.replicas * reading.number(threads, 0, 4096);
}

const Composite kAugmentOption = {augment_text, set_augment},
                kCacheOption = {cache_text, set_cache},
                kScheduleOption = {schedule_text, set_schedule},
                kSyncOption = {sync_text, set_sync}, kThreadsOption = {threads_text, set_threads};

}  // namespace convoy
