// eval_report.h — the quality of a trained model, as a page for people and as JSON for programs.
#pragma once

#include <string>

#include "src/checkpoint/checkpoint.h"
#include "src/run/quality.h"

namespace convoy {

struct Evaluated {
    std::string file, data;  // the model file, and the name of the images
    const ModelCard& card;
    Sums sums;
    const Quality& quality;  // of the same images, gathered
};

// Writes FOLDER/report.html and FOLDER/report.json; makes the folder. Throws Error.
void write_eval_report(const std::string& folder, const Evaluated& result);

// A sentence about the limits that the model misses; "" if it misses none. min_top1: fraction of
// all images; min_recall: fraction of the images of each class that has images. 0: no limit.
std::string missed_demands(const Evaluated& result, double min_top1, double min_recall);

}  // namespace convoy
