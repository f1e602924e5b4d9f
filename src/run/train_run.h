// train_run.h — a training run, from its first step to its last.
//
//   train_run.cpp        the loop: epochs, steps, validations
//   train_run_build.cpp  the state; loaders, passes and trainer, for this rank's share
//   train_run_start.cpp  before step 1: weights, and what is printed
//   train_run_save.cpp   the run folder and its checkpoints
//   train_run_trace.cpp  traces of its steps
//   train_run_again.cpp  after ranks were lost, have left or joined: the same state, other shares
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "data/decoded_cache.h"
#include "data/loader.h"
#include "src/base/clock.h"
#include "src/base/terminal.h"
#include "src/job/job_setup.h"
#include "src/job/sync_weights.h"
#include "src/page/server.h"
#include "src/run/run_log.h"
#include "src/run/trace_file.h"
#include "src/train/evaluate.h"
#include "src/train/factors.h"
#include "src/train/stages.h"
#include "src/train/trainer.h"

namespace convoy {

// --out; of a resumed run its own folder; else a new one under runs/. Creates it. Throws Error
// where another run is in it, or it cannot be written to.
std::string open_run_folder(const Config& config, int rank);

// RUN/lock, which names the process that writes to the run folder. While this object lives, no
// other process gets it; a rank that takes the run over gets it nevertheless.
class FolderLock {
 public:
    // Throws Error naming the other process, unless it takes over.
    FolderLock(const std::string& folder, bool takes_over, Log& log);
    ~FolderLock();
    bool is_mine() const { return holder().empty() || holder() == mine_; }

 private:
    std::string holder() const;
    const std::string path_;
    std::string mine_;
    const int file_;
};

// Thrown where a rank was lost before training began: some of the others have no state yet. To all
// of them it happens, so each begins again with set_up_job().
struct SetUpAgain {};
// After RingBroken out of what precedes TrainRun::run(): waits for the ring of those that are left.
void regroup_before_start(JobSession& job);

class TrainRun {
 public:
    // link: the pre-flight's line about the network. `setup` must outlive the run.
    TrainRun(JobSetup& setup, size_t bucket_bytes, std::string link = "");
    ~TrainRun();
    // Trains to the end, or to the step at which all ranks agree to stop. Returns the exit status.
    // When it fails, the other ranks get the cause and the last whole step is saved. Throws
    // SetUpAgain.
    int run();

 private:
    void make_state(bool head_only);
    void build();
    void drop();  // what build() made, if it is there
    void thaw();
    void open_sources();
    std::unique_ptr<Loader> make_loader(std::shared_ptr<const Source> source, bool training,
                                        int slots);
    void begin();
    int train();
    void train_epoch();
    bool gathers_now() const;
    void tell_when_it_stops();
    void count(const Sums& sums, bool local, double lr, std::optional<Position> upto);
    void serve_page();
    void log_job();
    void tell_usage();
    void take_usage();
    void go_to(const Position& at);
    Batch* next_batch();
    void validate();
    void keep_weights_equal();
    void tell_unequal(const Difference& found, int root, int64_t step);
    void check_bad(int64_t skipped, int64_t samples, const char* what) const;
    int finish(const Amounts& cost);
    Clocks clocks() const;
    bool over() const { return stopped_ || at_.step >= total_steps_ || has_enough(); }
    // --early-stop; the same on every rank, whose validations have the same sums.
    bool has_enough() const {
        return diverges_ || (config_.early_stop > 0 && stale_ >= config_.early_stop);
    }
    bool epoch_done() const { return at_.consumed >= loader_->samples(); }

    static constexpr int kSlots = 3;  // of the loader: the batch in training, and two ahead
    struct Left {};                   // thrown where this rank has left the job, which goes on
    int wish();
    void part(bool compare = false);
    void wait_for_ranks();
    void go_on();
    void start_together();
    std::vector<nlohmann::json> tell();
    size_t take_shares(const std::vector<nlohmann::json>& all);
    void agree(const std::vector<nlohmann::json>& all, size_t root);
    void follow(const nlohmann::json& root);
    void take_up();
    void cut_shares(const std::vector<int>& before);

    void open_tracks();
    bool wants_trace();
    void trace_step(bool meets);
    void finish_trace();
    void write_trace();
    void trace_failure();
    void watch_for_stalls();

    void start_weights();
    void count_steps();
    void print_start() const;
    void print_settings() const;
    void print_ranks() const;
    void print_advice() const;
    void advise();
    std::string split_groups() const;
    std::string memory_text() const;
    size_t averaged_floats() const;  // with --sync average
    std::string server_text() const;
    std::string traffic() const;  // what a rank sends, for people
    std::vector<FactorChoice> factor_choices() const;

    // --save-every: whether a checkpoint of this step is wanted.
    bool save_is_due() const { return save_steps_ > 0 && at_.step % save_steps_ == 0; }
    void save(const Position& at, bool is_best);
    void try_to_save(const Position& at, bool is_best);
    bool open_folder();
    void move_folder();
    void yield_folder();
    bool save_after_failure(const std::exception& failure);

    JobSetup& setup_;
    const Config& config_ = setup_.config;
    Log& log_ = setup_.job.log;
    Communicator& communicator_ = setup_.communicator();
    const size_t bucket_bytes_;
    const std::string link_;
    std::shared_ptr<const Source> train_source_, val_source_;  // with decoded images kept
    std::unique_ptr<Backend> backend_;
    std::vector<std::unique_ptr<Backend>> replica_backends_;  // --threads RxT
    size_t state_blocks_ = 0;  // Backend::blocks of weights and optimizer state, which come first
    std::unique_ptr<Model> model_;
    Room room_;                  // of --cache-decoded
    int64_t decoded_bytes_ = 0;  // of all images, where some are kept; about
    Clocks clocks_before_;       // of what was rebuilt since
    double compute_seconds_ = 0;
    LoaderOptions sharing_;  // batch, shares and rank: of every loader; parts: of training
    std::string folder_;     // the run's, on the rank that saves
    std::unique_ptr<FolderLock> lock_;
    const TraceSteps trace_steps_ = trace_steps(config_.trace);
    Track* track_ = nullptr;
    SpanSink* device_track_ = nullptr;
    std::atomic<bool> trace_asked_{false}, stalled_{false};  // by SIGUSR2 or --trace
    std::optional<nlohmann::json> trace_;  // this rank's part of one that is to be written
    bool trace_due_ = false;               // all ranks write one before they go on
    std::unique_ptr<Optimizer> optimizer_;
    std::unique_ptr<Trainer> trainer_;
    std::unique_ptr<Evaluator> evaluator_;
    std::unique_ptr<Loader> loader_, val_loader_;
    PageState page_state_;  // --page
    std::unique_ptr<RunLog> run_log_;
    std::unique_ptr<PageServer> page_;  // on rank 0, or its heir
    std::unique_ptr<CostMeter> costs_;
    std::unique_ptr<Utilisation> usage_;
    // Where all ranks are; at_ is ahead of it in local steps.
    Position at_, committed_;
    double base_lr_ = 0, best_top1_ = -1;
    double peak_top1_ = -1;  // of all validations, and how many came after it
    int stale_ = 0;
    double smooth_loss_ = 0, least_loss_ = 0;  // with --schedule range, and whether the first is
    bool diverges_ = false;                    // four times the second
    Position last_val_at_;
    Amounts spent_before_;  // of the checkpoint that it goes on from
    // Of the epoch: so far, and up to committed_. step_sums_: of the last step up to there.
    Sums last_val_, epoch_sums_, committed_sums_, step_sums_;
    double step_lr_ = 0;
    int64_t logged_epoch_ = -1, checked_step_ = 0;
    bool agreed_ = false;     // all ranks have had the same state, or get it
    Clocks pace_;             // as this ring began, after a step
    int64_t pace_step_ = 0;   // which one
    bool head_only_ = false;  // --freeze-epochs: the model as it was built last
    bool drift_ = false;      // the ranks' weights differ by roundings: compared once an epoch
    const int first_rank_ = setup_.rank();
    int64_t steps_per_epoch_ = 0, total_steps_ = 0;
    int64_t save_steps_ = 0, saved_step_ = -1;  // steps between checkpoints; step of the newest
    size_t activation_bytes_ = 0;
    int stopped_ = 0;                         // the signal that all ranks stop for
    int wish_ = 0;                            // of this rank, as it went into the last sums
    std::optional<Clock::time_point> asked_;  // to leave, since when
    bool planned_ = false;                    // the ring ends by part()
    bool is_advised_ = false;                 // whether one rank would be faster
    bool told_to_wait_ = false;               // that a signal waits for the next average
    bool is_done_ = false;                    // nothing is left to do but to save and to say so
    std::atomic<bool> writes_stall_{false};
    std::jthread stall_writer_;  // the disk may be what stalls, and heartbeats must not wait for it
};

}  // namespace convoy
