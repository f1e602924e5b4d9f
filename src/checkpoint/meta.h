// meta.h — meta.json of a checkpoint: where the run is, its options, and what vouches for the files
// beside it. Two checksums: its own, and the SHA-256 of each of the others.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "src/train/step_counters.h"

namespace convoy {

struct CheckpointMeta {
    Position position;
    double best_top1 = -1;  // of the validations so far; -1: none
    int64_t optimizer_steps = 0;
    uint64_t data_fingerprint = 0;
    std::map<std::string, std::string> settings;  // job settings of the run
    std::string order =
        {};                 // along which position counts (JobSetup::order); "": an older version's
    double peak_top1 = -1;  // for --early-stop: best_top1 of all folders, and
    int stale = 0;          // the validations since
    std::map<std::string, double> spent = {};  // by the whole job so far
};

using FileHashes = std::map<std::string, std::string>;  // SHA-256 in hexadecimal, by file name

std::string meta_text(const CheckpointMeta& meta, const FileHashes& hashes);
// Throws Error that says why the text is not what meta_text() or an older version wrote.
CheckpointMeta parse_meta(const std::string& text, FileHashes& hashes);

}  // namespace convoy
