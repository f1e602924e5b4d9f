// bench_kernels.h — how fast each op is on each layer of the built-in models, beside the limit of
// the machine: what multiply-adds on registers reach, or what adding two arrays in memory reaches
// (on a GPU: copying one). The limit is measured in the same run, right after the op. On a GPU
// cuBLAS does the same products beside them; where it cannot be opened, a line says why.
//
//   GFLOP/s  counted as direct convolution; Winograd's method does fewer, so it may exceed 100 %
//   GB/s     the least that the op must read and write
//   layers   of the model that are such a row. After the rows their sums by op: where a step's time
//            goes (conv2d_moments is the conv2d that a batch norm follows)
#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "src/job/device_choice.h"

namespace convoy {

using MakeBackend = std::function<std::unique_ptr<Backend>(const Config&)>;

// Prints a line for each different (op, shapes) of seven built-in models of which "model op shapes"
// contains config.filter; config.json: an object. Returns how many. batch 0: 8 to 64, by the model.
// About `seconds` per row, at least 3 runs.
int bench_kernels(
    const Config& config, int batch = 0, double seconds = 0.1, std::FILE* out = stdout,
    const MakeBackend& make = [](const Config& config) { return make_backend(config); });

// ---- kernel_rows.cpp: what is timed -------------------------------------------------------------

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
// backend's memory; a row is good until it returns. The backend may be null if nothing is wanted.
void for_each_row(const std::string& model, int batch, Backend* backend, const WantedRow& wanted,
                  const MeasureRow& measure);

}  // namespace convoy
