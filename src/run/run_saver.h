// run_saver.h — a run's checkpoints: when they are due, and what a full disk or a lost rank means.
#pragma once

#include <string>

#include "src/job/job_setup.h"
#include "src/model/model.h"
#include "src/run/run_log.h"
#include "src/train/optimizer.h"

namespace convoy {

class RunSaver {
 public:
    // Into `folder`; "" on ranks that save only where rank 0 cannot. All must outlive the saver.
    RunSaver(JobSetup& setup, Model& model, Optimizer& optimizer, Backend& backend, RunLog& run_log,
             Log& log, std::string folder, int64_t steps_per_epoch);

    // --save-every: whether a checkpoint of this step is wanted.
    bool due(int64_t step) const { return every_steps_ > 0 && step % every_steps_ == 0; }
    // The state as it is after step at.step, unless that is saved already. Nothing without a
    // folder.
    void save(const Position& at, double best_top1, bool is_best);
    // A full disk in mid-run costs a checkpoint, not the run; the last one must succeed.
    void save_or_go_on(const Position& at, double best_top1, bool is_best);
    // Weights and optimizer state are those of the last whole step: worth keeping. Rank 0 saves, or
    // rank 1 where rank 0 is the one that was lost. Does not throw.
    void save_after_failure(const Position& at, double best_top1);

 private:
    JobSetup& setup_;
    const Config& config_ = setup_.config;
    Model& model_;
    Optimizer& optimizer_;
    Backend& backend_;
    RunLog& run_log_;
    Log& log_;
    std::string folder_;
    int64_t every_steps_ = 0, saved_step_ = -1;
};

}  // namespace convoy
