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
    std::function<void()> run;
    std::function<void()> by_cublas;  // the same products; empty where there is no library
};

using WantedRow = std::function<bool(const std::string& name)>;  // "model op shapes"
using MeasureRow = std::function<void(const KernelRow&)>;

// Calls `measure` for each wanted op of a built-in model, on batches of random numbers; a row is
// good until it returns. cublas: a backend of the same device whose linear layers are the
// library's; may be null.
void for_each_row(const std::string& model, int batch, Backend& backend, Backend* cublas,
                  const WantedRow& wanted, const MeasureRow& measure);

}  // namespace convoy
