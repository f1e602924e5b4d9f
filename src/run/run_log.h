// run_log.h — what a run tells: lines for people, log.jsonl for programs.
#pragma once

#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "src/base/log.h"
#include "src/train/trainer.h"

namespace convoy {

// Clocks of a run at one moment, in seconds since its start.
struct Clocks {
    double data_wait = 0, net_wait = 0, net_busy = 0;
};

// "loss 0.0617  top1 99.00 %  top5 99.90 %"; of up to five classes top5 says nothing.
std::string quality_text(const Sums& sums, int classes);

class RunLog {
 public:
    // `folder`: where log.jsonl is appended to; "" keeps no file. speaks: whether this rank prints
    // step and validation lines (rank 0 does).
    RunLog(Log& log, const std::string& folder, int rank, bool speaks, int log_every, int classes);
    ~RunLog();

    // The run's extent, for epoch counts and the time left; clocks as they stand before it.
    void plan(int64_t epochs, int64_t steps_per_epoch, int64_t total_steps, int64_t first_step,
              const Clocks& clocks);

    // After each step. Prints every log_every steps; on a terminal redraws a bar in between.
    void step(const Position& at, int64_t step_in_epoch, const Sums& sums, double lr,
              const Clocks& clocks);
    void epoch(const Position& at);  // the training sums of the epoch that ended
    void validation(const Position& at, const Sums& sums, bool is_best);
    void done(const Position& at, const std::string& how);
    // Any other event, with its fields: {"event": "error", "cause": …}.
    void event(const char* name, const nlohmann::json& fields);

    double images_per_second() const;  // of the whole run so far
    double seconds() const;

 private:
    using Time = std::chrono::steady_clock::time_point;
    void print_step(const Position& at, int64_t step_in_epoch, double lr, bool whole_line);

    Log& log_;
    std::FILE* file_ = nullptr;
    std::string path_;
    int rank_, log_every_, classes_;
    bool speaks_, terminal_, line_due_ = false;
    int64_t epochs_ = 0, steps_per_epoch_ = 0, total_steps_ = 0, first_step_ = 0;
    Sums window_, epoch_, run_;
    Clocks window_clocks_, clocks_;
    Time begin_, window_begin_, drawn_, epoch_begin_;
};

}  // namespace convoy
