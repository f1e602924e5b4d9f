// bench_allreduce.h — how fast the ring sums, beside what the link between two ranks can carry.
//
//   bytes      of the summed data
//   median     µs of one allreduce_sum, as rank 0 sees it, one after the other
//   algorithm  bytes / median
//   bus        algorithm · 2(world-1)/world: what each rank really sends (and receives); the
//              figure to compare with the link, whatever the world
//   link       what the slowest edge of the ring carries in one direction
#pragma once

#include <cstdio>
#include <vector>

#include "net/communicator.h"

namespace convoy {

struct AllreduceBench {
    std::vector<size_t> bytes;
    bool bf16_wire = false;
    double seconds = 1.0;  // for each size, about; at least 5 sums
    bool json = false;     // one object a line instead of the table
    std::FILE* out = stdout;
};

// On the ranks of a job: all call it with the same options; rank 0 prints.
void bench_allreduce(Communicator& communicator, const AllreduceBench& options);

// Starts `world` ranks as processes of this machine, joined over loopback. It forks: this process
// must have one thread.
void bench_allreduce_local(int world, const AllreduceBench& options);

}  // namespace convoy
