// meta.cpp — meta.json of a checkpoint: the position of the run, its options, and checksums.
#include "src/checkpoint/checkpoint.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/check.h"
#include "src/base/random.h"

namespace convoy {
using nlohmann::json;

// The checksum of everything in meta.json except the checksum itself.
static std::string checksum_of(json content) {
    content.erase("checksum");
    return fmt::format("{:016x}", hash_bytes(content.dump()));
}

// Checks the range, because nlohmann::json converts even 1e100 to some int64_t.
static void take_count(const json& number, auto& count) {
    if (!number.is_number_unsigned() ||
        !std::in_range<std::decay_t<decltype(count)>>(number.get<uint64_t>()))
        fail(number.dump(-1, ' ', true), " is not a count");
    number.get_to(count);
}

std::string meta_text(const CheckpointMeta& meta) {
    json content = {{"format", 2},
                    {"program", "convoy"},
                    {"epoch", meta.position.epoch},
                    {"samples_consumed", meta.position.consumed},
                    {"step", meta.position.step},
                    {"optimizer_steps", meta.optimizer_steps},
                    {"best_top1", meta.best_top1},
                    {"data_fingerprint", fmt::format("{:016x}", meta.data_fingerprint)},
                    {"order", meta.order},
                    {"peak_top1", meta.peak_top1},
                    {"stale_validations", meta.stale},
                    {"spent", meta.spent},
                    {"options", meta.settings},
                    {"sha256", meta.sha256}};
    content["checksum"] = checksum_of(content);
    return content.dump(2) + "\n";
}

CheckpointMeta parse_meta(const std::string& text) {
    try {
        CheckpointMeta meta;
        const json content = json::parse(text);
        if (content.at("checksum") != checksum_of(content))
            fail("it was changed or cut short after it was written");
        take_count(content.at("epoch"), meta.position.epoch);
        take_count(content.at("samples_consumed"), meta.position.consumed);
        take_count(content.at("step"), meta.position.step);
        take_count(content.at("optimizer_steps"), meta.optimizer_steps);
        meta.best_top1 = content.at("best_top1");
        meta.data_fingerprint =
            std::stoull(content.at("data_fingerprint").get<std::string>(), nullptr, 16);
        content.at("order").get_to(meta.order);
        content.at("peak_top1").get_to(meta.peak_top1);
        take_count(content.at("stale_validations"), meta.stale);
        for (const auto& [name, value] : content.at("spent").items())  // other values are ignored
            if (value.is_number() && value >= 0) meta.spent[name] = value;
        meta.settings = content.at("options").get<std::map<std::string, std::string>>();
        content.at("sha256").get_to(meta.sha256);
        return meta;
    } catch (const std::exception& error) {
        fail(error.what());
    }
}

}  // namespace convoy
