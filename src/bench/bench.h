// bench.h — the four speed tables of `trainer bench`. With config.json, a row is a JSON object.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "data/loader.h"
#include "src/base/clock.h"
#include "src/base/table.h"
#include "src/session/device_choice.h"
#include "src/session/job_session.h"

namespace convoy {

// The figures that a bench prints for a repeated measurement.
struct Spread {
    double median, least, most;
};
inline Spread spread_of(const std::vector<double>& values) {
    const auto [least, most] = std::ranges::minmax(values);
    return {median(values), least, most};
}

// Times config.steps training steps on random pixels, the same in every step. Every rank must call
// it; rank 0 prints. The times of the first step count from the call.
//
// config.forward: only forward passes, as in eval. config.compute > 0: each layer sleeps
// instead of computing, this many seconds per step in all, in proportion to its operations.
// Gradients are sent as usual, so many hosts can be simulated on a machine with few cores.
int bench_train_in_job(JobSession& job);

// Times each layer of real training steps of seven built-in models, and compares it with the limit
// of the machine: multiply-adds on registers, or adding two arrays in memory (on a GPU: copying
// one), whichever takes longer. The limits are measured before each step. Prints a row for each
// pass of alike layers for which "model layer input pass" contains config.filter, then the sum of
// each kind of layer. Returns the number of rows. batch 0: 8 to 64, by the model. Runs about
// `seconds` per model, at least three steps.
//
//   GFLOP/s  counted as direct convolution; Winograd's method does fewer, so it may exceed 100 %
//   GB/s     of layers without products: the least that they must read and write
//   layers   calls of this row in one step
int bench_kernels(const Config& config, int batch = 0, double seconds = 2, std::FILE* out = stdout);

// Times how fast the ring sums arrays of config.bytes, and compares it with the link between two
// ranks. Every rank must call it; rank 0 prints.
//
//   median     µs of one allreduce_sum on rank 0; the sums run one after the other
//   algorithm  bytes / median
//   bus        algorithm · 2(world-1)/world: what each rank sends, and receives; compare this
//              figure with the link
//   CPU        processor seconds, user and system, per 10^9 bytes that a rank sends and receives
//   link       what the slowest link of the ring carries in one direction
int bench_allreduce_in_job(JobSession& job);

// Times the stages of the input pipeline on one thread, in turns: read, decode, validation row,
// training row. Then times the loader on 1, 2, 4 … up to `options.threads` threads, and if
// cache_bytes > 0 again with decoded images kept. Each takes about `seconds`.
void bench_data(std::shared_ptr<const Source> source, const Preprocess& how,
                const LoaderOptions& options, size_t cache_bytes, double seconds, Table& table);

}  // namespace convoy
