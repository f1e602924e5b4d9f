// progress.h — how far a run is: its state except tensors. After a meeting it is the same on
// every rank; a rank that is behind gets it from another rank as JSON (recovery.cpp).
#pragma once

#include "src/config/config.h"
#include "src/run/usage.h"
#include "src/step/step_counters.h"

namespace convoy {

struct RunProgress {
    // at: where this rank is; committed: where all ranks met last. Between meetings `at` is ahead.
    Position at, committed;
    Sums epoch_sums, committed_sums;  // of the epoch, up to `at` and `committed`
    Sums step_sums;                   // of the last committed step
    double step_lr = 0;
    double best_top1 = -1;  // top1 of RUN/best
    double peak_top1 = -1;  // best top1 of all validations
    int stale = 0;          // validations since peak_top1
    int stopped = 0;        // the signal that all ranks stop for
    bool diverges = false;  // --schedule range: the loss is four times the least loss
    bool is_done = false;   // nothing is left to do except to save and to report
    Sums last_val;          // of the last validation, and where it was
    Position last_val_at;
    Amounts spent;  // cost of the whole job at the last Usage::tell()
    int64_t steps_per_epoch = 0, total_steps = 0;
    int64_t logged_epoch = -1;  // the last epoch with an event in the log

    // Where the next step begins. All ranks are there.
    void go_to(const Position& next) {
        if (next.epoch != at.epoch) epoch_sums = {};
        at = next;
        commit();
    }
    void commit() { committed = at, committed_sums = epoch_sums; }
    // A rank was lost: goes back to the last meeting.
    void rewind() { at = committed, epoch_sums = committed_sums; }

    bool has_enough(const Config& config) const {
        return diverges || (config.early_stop > 0 && stale >= config.early_stop);
    }
    // Whether the run ends. The same on every rank, because validations have the same sums.
    bool over(const Config& config) const {
        return stopped || at.step >= total_steps || has_enough(config);
    }
    int64_t step_in_epoch(const Config& config) const {
        return (at.consumed + config.batch - 1) / config.batch;
    }
};

}  // namespace convoy
