// train_run.h — a training run, from its first step to its last: the loop of epochs, steps and
// validations. README.md draws its parts.
#pragma once

#include "src/run/recovery.h"
#include "src/run/run_traces.h"

namespace convoy {

class TrainRun {
 public:
    explicit TrainRun(JobSetup& setup);  // which must outlive the run
    // Trains to the end, or to the step at which all ranks agree to stop. Returns the exit status.
    // If it fails, the other ranks get the cause, and the last complete step is saved. Throws
    // SetUpAgain.
    int run();

 private:
    void begin();
    int train();
    void train_epoch();
    StepResult train_step(const Batch& batch, double lr);
    void count(const StepResult& result, double lr);
    void save_within_epoch(bool met);
    void end_epoch();
    void validate();
    int finish();
    double learning_rate_now() const;
    void count_steps();
    void say_that_it_stops();
    void check_bad(int64_t skipped, int64_t samples, const char* what) const;
    bool over() const { return progress_.over(config_); }
    bool epoch_done() const { return progress_.at.consumed >= engine_.loader->samples(); }

    JobSetup& setup_;
    const Config& config_ = setup_.config;
    Log& log_ = setup_.job.log;
    Communicator& communicator_ = setup_.communicator();
    RunProgress progress_;
    Engine engine_;
    RunFolder folder_;
    RunMessages messages_;
    RunTraces traces_;
    Recovery recovery_;
    const double base_lr_;
    bool told_to_wait_ = false;                // has said that a signal waits for a meeting
    double smooth_loss_ = 0, least_loss_ = 0;  // with --schedule range
};

}  // namespace convoy
