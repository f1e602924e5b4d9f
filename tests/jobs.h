// jobs.h — runs of the trainer as users start them: one process, or one per rank of a job; and what
// a run has logged.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "src/base/text.h"
#include "tests/process.h"

namespace convoy {

using Words = std::vector<std::string>;

// The words of a command line.
inline Words typed(const std::string& line) { return split(line, ' '); }

inline Words operator+(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
}

inline std::string at(uint16_t port) { return cat("127.0.0.1:", port); }

// What a run prints, which must end with this status.
inline std::string output_of(const Words& words, int wanted = 0) {
    const auto [status, output] = run_trainer(words);
    CAPTURE(output);
    CHECK(status == wanted);
    return output;
}

// The ranks of a job; `first` are the words of rank 0.
struct Cluster {
    Cluster(const TempDir& folder, int world, const Words& first,
            const Words& others = {"--threads", "1"}) {
        for (int rank = 0; rank < world; ++rank) {
            Words words =
                (rank == 0 ? first : others) + Words{"--coord", at(port), "--rank", cat(rank)};
            if (rank == 0) words = words + Words{"--world", cat(world)};
            all.push_back(std::make_unique<Process>(folder, cat("rank", rank), words));
        }
    }
    Process& operator[](int rank) { return *all[size_t(rank)]; }
    // Waits for all; returns what rank 0 printed.
    std::string end(int status = 0) {
        for (const auto& rank : all) {
            const int ended = rank->wait();
            CAPTURE(rank->output());
            CHECK(ended == status);
        }
        return all[0]->output();
    }
    const uint16_t port = free_port();
    std::vector<std::unique_ptr<Process>> all;
};

// Each line that begins an object; the others are notices.
inline std::vector<nlohmann::json> json_lines(const std::string& text) {
    std::vector<nlohmann::json> all;
    for (const std::string& line : split(text, '\n'))
        if (line.starts_with('{')) all.push_back(nlohmann::json::parse(line));
    return all;
}

// The events of a run. Each line must be JSON.
inline std::vector<nlohmann::json> read_log(const std::string& folder) {
    std::vector<nlohmann::json> events;
    std::ifstream file(folder + "/log.jsonl");
    for (std::string line; std::getline(file, line);) events.push_back(nlohmann::json::parse(line));
    return events;
}

// The losses that a run's log has of each event of these kinds.
inline std::vector<double> losses_of(const std::string& folder, const Words& kinds) {
    std::vector<double> losses;
    for (const nlohmann::json& event : read_log(folder))
        if (std::ranges::count(kinds, event["event"].get<std::string>()))
            losses.push_back(event["loss"]);
    return losses;
}

}  // namespace convoy
