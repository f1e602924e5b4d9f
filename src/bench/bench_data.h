// bench_data.h — `trainer bench data`: images per second of each stage of the input pipeline.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "data/augment.h"
#include "data/source.h"

namespace convoy {

struct DataBenchRow {
    std::string stage;
    int threads = 1;
    double images_per_second = 0;
    double bytes = 0;  // of an image on its way to the device; 0: it is not there yet
    double limit = 0;  // what `threads` threads could do without the loader; 0: not known
};

// Times each stage on one thread: read, decode, validation, training with floats or with packed
// pixels for the device. Then the loader on 1, 2, 4 … up to `threads` threads, `packed` or not.
// About `seconds` each.
std::vector<DataBenchRow> bench_data(std::shared_ptr<const Source> source, const Preprocess& how,
                                     bool packed, int threads, double seconds);

// As a table, or as one JSON object a line.
void print_data_bench(const std::vector<DataBenchRow>& rows, bool json, std::FILE* out);

}  // namespace convoy
