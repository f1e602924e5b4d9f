// train_run.h — a training run, from its first step to its last.
//
//   train_run.cpp        the loop: epochs, steps, validations
//   train_run_start.cpp  before step 1: weights, and what is printed
//   train_run_save.cpp   the run folder and its checkpoints
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/loader.h"
#include "src/job/job_setup.h"
#include "src/run/run_log.h"
#include "src/train/evaluate.h"
#include "src/train/factors.h"
#include "src/train/trainer.h"

namespace convoy {

// --out; of a resumed run its own folder; else a new one under runs/. Creates it. Throws Error
// where another run is in it, or it cannot be written to.
std::string open_run_folder(const Config& config, int rank);

class TrainRun {
 public:
    // expectations: lines of the pre-flight for the log. `setup` must outlive the run.
    TrainRun(JobSetup& setup, size_t bucket_bytes, std::vector<std::string> expectations);
    // Trains to the end, or to the step at which all ranks agree to stop. Returns the exit status.
    // When it fails, the other ranks get the cause and the last whole step is saved.
    int run();

 private:
    std::unique_ptr<Loader> make_loader(std::shared_ptr<const Source> source, bool training,
                                        int slots);
    int train();
    void train_epoch();
    bool averages_now() const;
    void tell_when_it_stops();
    void validate();
    void check_bad(int64_t skipped, const Source& source, const char* what) const;
    int finish(const JobCost& cost);
    Clocks clocks() const;
    bool over() const { return stopped_ || at_.step >= total_steps_; }
    bool epoch_done() const { return at_.consumed >= int64_t(setup_.data.train->size()); }

    void start_weights();
    void take_state_of_rank0();
    void keep_weights_equal();
    void count_steps();
    void print_start() const;
    void print_settings() const;
    void print_ranks() const;
    std::string memory_text() const;
    std::vector<FactorChoice> factor_choices() const;

    // --save-every: whether a checkpoint of this step is wanted.
    bool save_is_due() const { return save_steps_ > 0 && at_.step % save_steps_ == 0; }
    void save(const Position& at, bool is_best);
    void try_to_save(const Position& at, bool is_best);
    void save_after_failure();

    JobSetup& setup_;
    const Config& config_ = setup_.config;
    Log& log_ = setup_.job.log;
    Communicator& communicator_ = setup_.communicator();
    const std::vector<std::string> expectations_;
    std::unique_ptr<Backend> backend_;
    std::unique_ptr<Model> model_;
    LoaderOptions sharing_;  // batch, shares and rank: of every loader
    std::string folder_;     // the run's, on the rank that saves
    std::unique_ptr<Optimizer> optimizer_;
    std::unique_ptr<Trainer> trainer_;
    std::unique_ptr<Evaluator> evaluator_;
    std::unique_ptr<Loader> loader_, val_loader_;
    std::unique_ptr<RunLog> run_log_;
    std::unique_ptr<CostMeter> costs_;
    Position at_;
    double base_lr_ = 0, best_top1_ = -1;
    Sums last_val_, epoch_sums_;
    int64_t steps_per_epoch_ = 0, total_steps_ = 0;
    int64_t save_steps_ = 0, saved_step_ = -1;  // steps between checkpoints; step of the newest
    size_t activation_bytes_ = 0;
    int stopped_ = 0;            // the signal that all ranks stop for
    bool told_to_wait_ = false;  // that a signal waits for the next average
};

}  // namespace convoy
