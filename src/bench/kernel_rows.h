// kernel_rows.h — what `bench kernels` times: each op of each layer of a model, at its shapes.
#pragma once

#include <functional>
#include <string>

#include "kernels/backend.h"

namespace convoy {

// One line of the table, ready to run.
struct KernelRow {
    std::string model, op, shapes;
    double flops = 0;  // of one run; 0: bound by memory
    double bytes = 0;  // that cross the bus at least
    std::function<void(Backend&)> run = {};
    std::function<void(Backend&)> by_cublas = {};  // the same products, where a library could do it

    std::string name() const { return cat(model, " ", op, " ", shapes); }
};

using WantedRow = std::function<bool(const std::string& name)>;
using MeasureRow = std::function<void(const KernelRow&)>;

// Calls `measure` for each wanted op of a built-in model, on batches of random numbers in the
// backend's memory; a row is good until it returns.
void for_each_row(const std::string& model, int batch, Backend& backend, const WantedRow& wanted,
                  const MeasureRow& measure);

}  // namespace convoy
