// step_counters.h — what a step counts: loss, images, requests to stop. The counters follow
// the gradients (params.h) and are summed over the ranks with them.
#pragma once

#include <signal.h>

#include <algorithm>

#include "data/loader.h"
#include "src/model/params.h"

namespace convoy {

using Counters = float[StepCounters::kSize];

// Where a run is: epoch, images of the epoch done, steps done.
struct Position {
    int64_t epoch = 0, consumed = 0, step = 0;
};

// Sums over the images of batches, of one rank or of all ranks.
struct Sums {
    double loss = 0;
    int64_t correct = 0, top5 = 0, count = 0, skipped = 0;

    void operator+=(const Sums& other) {
        loss += other.loss, correct += other.correct, top5 += other.top5;
        count += other.count, skipped += other.skipped;
    }
    double mean_loss() const { return count ? loss / double(count) : 0; }
    double top1_part() const { return count ? double(correct) / double(count) : 0; }
    double top5_part() const { return count ? double(top5) / double(count) : 0; }
};

inline Sums sums_of(const Counters& counters) {
    return {counters[StepCounters::kLoss], int64_t(counters[StepCounters::kCorrect]),
            int64_t(counters[StepCounters::kTop5]), int64_t(counters[StepCounters::kCount]),
            int64_t(counters[StepCounters::kSkipped])};
}

// Added to a rank's signal: the rank requests a new ring without the ranks that have SIGTERM.
constexpr int kNewRing = 256;

// Sets the counters before a step. The loss and the hits are 0; an empty batch counts no images.
// request: SIGINT, SIGTERM or 0, perhaps with kNewRing.
inline void set_counters(Counters& counters, const Batch& batch, int request) {
    std::fill(std::begin(counters), std::end(counters), 0.0f);
    counters[StepCounters::kCount] = float(batch.n);
    counters[StepCounters::kSkipped] = float(batch.wanted - batch.n);
    counters[StepCounters::kSigint] = request % kNewRing == SIGINT;
    counters[StepCounters::kSigterm] = request % kNewRing == SIGTERM;
    counters[StepCounters::kNewRing] = (request & kNewRing) != 0;
}

// What all ranks do after these sums: stop with this signal, form a new ring (kNewRing), or nothing
// (0). An elastic job continues while any rank has no SIGTERM.
inline int agreed_request(const Counters& counters, int world, bool elastic) {
    const int leaving = int(counters[StepCounters::kSigterm]);
    if (leaving > 0 && (!elastic || leaving == world)) return SIGTERM;
    if (counters[StepCounters::kSigint] > 0) return SIGINT;
    return counters[StepCounters::kNewRing] > 0 ? kNewRing : 0;
}

}  // namespace convoy
