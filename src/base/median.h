// median.h — the one median of the program.
#pragma once

#include <algorithm>
#include <vector>

#include "src/base/check.h"

namespace convoy {

// The middle one; of an even count the mean of the two in the middle.
inline double median(std::vector<double> values) {
    ENSURE(!values.empty(), "a median of nothing");
    std::sort(values.begin(), values.end());
    const size_t half = values.size() / 2;
    return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace convoy
