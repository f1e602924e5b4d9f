// bench_allreduce.h — how fast the ring sums, beside what the link between two ranks can carry.
//
//   bytes      of the summed data
//   median     µs of one allreduce_sum, as rank 0 sees it, one after the other
//   algorithm  bytes / median
//   bus        algorithm · 2(world-1)/world: what each rank really sends (and receives); the
//              figure to hold against the link, whatever the world
//   link       what one edge of the ring carries in one direction, the slowest of all
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "net/communicator.h"

namespace convoy {

struct AllreduceBench {
    int world = 2;  // local processes (bench_allreduce_local)
    std::vector<size_t> bytes{1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 244 << 20};
    bool bf16_wire = false;
    double seconds = 1.0;  // for each size, about; at least 5 sums
    bool json = false;     // one object a line instead of the table
    std::FILE* out = stdout;
};

struct AllreduceResult {
    size_t bytes;
    int sums;
    double median_us, min_us, max_us;
    double algorithm_gbps, bus_gbps, link_gbps;  // 10⁹ bits a second
};

// On the ranks of a job; all call it with the same options. Rank 0 prints, every rank returns.
std::vector<AllreduceResult> bench_allreduce(Communicator& communicator,
                                             const AllreduceBench& options);

// Starts `world` ranks as processes of this machine, joined over loopback. To be called while this
// process has one thread: it forks.
std::vector<AllreduceResult> bench_allreduce_local(const AllreduceBench& options);

}  // namespace convoy
