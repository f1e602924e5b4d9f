// bench.h — the speed tables of `trainer bench train`, `allreduce` and `data`; bench_kernels.h has
// the fourth. All print one object a line with config.json.
#pragma once

#include <memory>

#include "data/loader.h"
#include "net/communicator.h"
#include "src/base/clock.h"
#include "src/base/table.h"
#include "src/job/job_session.h"

namespace convoy {

// Times config.steps training steps on random pixels, the same in every step; rank 0 prints. Every
// rank must call it. Returns the signal that ended it early, else 0.
//
// config.forward: forward passes alone, as of eval. config.compute > 0: layers sleep this
// many seconds a step instead of computing, in proportion to their operations, while gradients are
// sent as usual: the network of many hosts on a machine of few cores.
// `started`: when the command began; the times of the first step count from there.
int bench_train(const Config& config, Communicator& communicator, Log& log, const Stop& stop,
                Clock::time_point started);

// How fast the ring sums config.bytes, beside what the link between two ranks can carry. Every rank
// must call it; rank 0 prints.
//
//   median     µs of one allreduce_sum, as rank 0 sees it, one after the other
//   algorithm  bytes / median
//   bus        algorithm · 2(world-1)/world: what each rank really sends (and receives); the
//              figure to compare with the link, whatever the world
//   CPU        seconds of processors, user and system, for each 10^9 bytes that a rank sends and
//              receives
//   link       what the slowest edge of the ring carries in one direction
//   plain      the figures of the other job, of the same ranks without a token, if there is one
//
// ranks_here: ranks that this process has.
void bench_allreduce(Communicator& communicator, Communicator* plain, const Config& config,
                     const Stop& stop, int ranks_here = 1);
// The same with config.world ranks of this process (2 if it is 0), joined over loopback; with a
// token also without it.
void bench_allreduce_local(const Config& config, const Access& access);

// Times each stage of the input pipeline on one thread, in turns: read, decode, validation,
// training; beside them the floor, what libjpeg
// alone needs for the crops of training. Then the loader on 1, 2, 4 … up to `options.threads`
// threads, and, if there are `cache_bytes`, once more with decoded images kept. About `seconds`
// each.
void bench_data(std::shared_ptr<const Source> source, const Preprocess& how,
                const LoaderOptions& options, size_t cache_bytes, double seconds, Table& table);

}  // namespace convoy
