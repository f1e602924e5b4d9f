// eval_report.h — what a trained model is worth, as a page for people and as JSON for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "src/checkpoint/checkpoint.h"
#include "src/run/quality.h"

namespace convoy {

struct Evaluated {
    std::string file, data;  // the model's, and of what images
    const ModelCard& card;
    Sums sums;
    const Quality& quality;  // of the same images, gathered
};

// Writes FOLDER/report.html and FOLDER/report.json; makes the folder. Throws Error.
void write_eval_report(const std::string& folder, const Evaluated& result);

// Which demands the model misses, as a sentence; "" where it meets them. min_top1, min_recall:
// parts of all images, and of each class that has any; 0: no demand.
std::string missed_demands(const Evaluated& result, double min_top1, double min_recall);

}  // namespace convoy
