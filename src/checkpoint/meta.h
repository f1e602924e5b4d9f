// meta.h — meta.json of a checkpoint: the position of the run, its options, a checksum of this, and
// the SHA-256 of the other files.
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
    // The order of samples that `position` counts along (JobSetup::order); "": an older version's.
    std::string order = {};
    double peak_top1 = -1;                     // for --early-stop: best_top1 of all folders, and
    int stale = 0;                             // how many validations came since
    std::map<std::string, double> spent = {};  // resources that the whole job has used so far
};

using FileHashes = std::map<std::string, std::string>;  // SHA-256 in hexadecimal, by file name

std::string meta_text(const CheckpointMeta& meta, const FileHashes& hashes);
// Throws Error that says why the text is not what meta_text() or an older version wrote.
CheckpointMeta parse_meta(const std::string& text, FileHashes& hashes);

}  // namespace convoy
