// meta.h — meta.json of a checkpoint: the position of the run, its options, the SHA-256 of other
// files, and a checksum of meta.json itself.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "src/train/step_counters.h"

namespace convoy {

struct CheckpointMeta {
    Position position;
    double best_top1 = -1;  // best validation accuracy so far; -1: none
    int64_t optimizer_steps = 0;
    uint64_t data_fingerprint = 0;
    std::map<std::string, std::string> settings;  // job settings of the run
    // `position` counts in this order of samples (JobSetup::order); "" in older versions' files.
    std::string order = {};
    double peak_top1 = -1;                     // for --early-stop: best_top1 of all folders, and
    int stale = 0;                             // how many validations came since
    std::map<std::string, double> spent = {};  // resources that the whole job has used so far
};

using FileHashes = std::map<std::string, std::string>;  // SHA-256 in hexadecimal, by file name

std::string meta_text(const CheckpointMeta& meta, const FileHashes& hashes);
// Throws Error with the reason if neither meta_text() nor an older version wrote the text.
CheckpointMeta parse_meta(const std::string& text, FileHashes& hashes);

}  // namespace convoy
