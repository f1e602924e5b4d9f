// run_log.h — what a training run reports: lines for people, log.jsonl for programs.
#pragma once

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/page/state.h"
#include "src/run/quality.h"
#include "src/run/tensorboard.h"
#include "src/run/usage.h"
#include "src/step/trainer.h"

namespace convoy {

// "loss 0.0617  top1 99.00 %  top5 99.90 %"; top5 only with more than five classes.
std::string quality_text(const Sums& sums, int classes);

class RunLog {
 public:
    // Appends events to `folder`/log.jsonl; "" for no file. Only rank 0 prints lines for people.
    // tensorboard: writes curves too.
    RunLog(Log& log, const std::string& folder, int rank, int log_every, int classes,
           bool tensorboard = false);

    // Sets the length of the run, for the time left. `clocks`: their values before the run.
    void plan(int64_t epochs, int64_t steps_per_epoch, int64_t total_steps, int64_t first_step,
              const Clocks& clocks);

    // Called after each step. Prints a line every log_every steps. local: the sums are this rank's
    // own, as Trainer::local says; the line says so too, and the event is "local_step". The sums of
    // all ranks follow at the next average. norm: Trainer::gradient_norm(), logged if it is not 0.
    void step(const Position& at, int64_t step_in_epoch, const Sums& sums, bool local, double lr,
              const Clocks& clocks, double norm = 0);
    // commit(): the steps so far are final. rewind(): steps since the last commit are repeated.
    void commit() { kept_ = all_, kept_run_ = run_; }
    void rewind() { all_ = kept_, run_ = kept_run_, own_ = {.clocks = clocks_}; }
    // The sums of the epoch that ended; `cost` of the run so far.
    void epoch(const Position& at, const Sums& sums, const Amounts& cost);
    // by_class: of all ranks, if they are known.
    void validation(const Position& at, const Sums& sums, bool is_best,
                    const std::vector<ClassQuality>& by_class = {},
                    const std::vector<std::string>& classes = {});
    void done(const Position& at, const std::string& how, const Amounts& cost);
    // Any other event, with its fields: {"event": "error", "cause": …}. From any thread.
    void event(const char* name, const nlohmann::json& fields);

    // This rank has a new number. From now on events go to `folder`, unless it is "". next_step:
    // the first step to log there, unless the log of the rank before already has it.
    void become(int rank, const std::string& folder, int64_t next_step);
    // Gives `page` the events of the file, which a resumed run continues, and every event from now
    // on. Every rank does this: it may become rank 0.
    void show_on(PageState* page);
    // From now on events in the file go to standard output too.
    void print_events(bool prints) { prints_ = prints; }

    double images_per_second() const;  // of the whole run so far
    double seconds() const;

 private:
    void event_at(const char* name, const Position& at, nlohmann::json fields);
    struct Window {  // the steps that a line sums up
        Sums sums = {};
        int64_t steps = 0;
        Clocks clocks = {};  // at their begin
        Clock::time_point begin = Clock::now();
    };
    void print_step(const Position& at, int64_t step_in_epoch, const Window& window, double lr,
                    bool whole_line);

    Log& log_;
    std::mutex mutex_;  // guards the file, and whatever else gets events
    void open(const std::string& folder);
    bool open_file();
    bool write(const std::string& text);
    void open_tensorboard(int64_t next_step);
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, std::fclose};
    std::string folder_, path_;
    const bool shows_curves_;
    std::unique_ptr<TensorBoard> tensorboard_;
    PageState* page_ = nullptr;
    int rank_, log_every_, classes_;
    bool line_due_ = false, prints_ = false, fails_ = false;
    double norm_ = 0;
    int64_t known_step_ = -1;  // the last step that another rank has logged in this file
    int64_t epochs_ = 0, steps_per_epoch_ = 0, total_steps_ = 0, first_step_ = 0;
    Window all_, kept_;    // of all ranks, since their last line; kept_: at the last commit
    Window own_;           // of this rank alone, since the last line or average
    Sums run_, kept_run_;  // in the run
    Clocks clocks_;
    Clock::time_point begin_ = Clock::now(), drawn_ = begin_, epoch_begin_ = begin_;
};

}  // namespace convoy
