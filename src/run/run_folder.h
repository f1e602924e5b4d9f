// run_folder.h — the folder of a run, on the rank that saves: lock, log and checkpoints.
//
// Rank 0 has it. If rank 0 is lost, the next rank takes the folder over (--out), or opens its own.
#pragma once

#include <memory>
#include <string>

#include "src/run/engine.h"
#include "src/run/progress.h"
#include "src/run/run_log.h"

namespace convoy {

// What all parts of a run work on; they derive from it.
struct RunState {
    JobSetup& setup_;
    Engine& engine_;
    RunProgress& progress_;
    const Config& config_ = setup_.config;
    Log& log_ = setup_.job.log;
    Communicator& communicator_ = setup_.communicator();
};

class RunFolder : RunState {
 public:
    // On rank 0: --out, else the folder of the resumed run, else a new folder in runs/. Throws
    // Error if another run is in the folder, or if the folder is not writable.
    explicit RunFolder(const RunState& run);

    const std::string& path() const { return path_; }  // "": this rank does not save
    // For a rank without a folder. open() throws Error. try_to_open() returns false instead.
    void open();
    bool try_to_open();
    // If another rank has taken the folder over, because it lost this rank: uses a new folder.
    void yield();

    // --save-every: whether a checkpoint of this step is wanted.
    bool is_due(int64_t step) const { return save_steps_ > 0 && step % save_steps_ == 0; }
    // Saves the state after step at.step, unless it is saved already. Does nothing without a folder
    // or with --schedule range.
    void save(const Position& at, bool is_best = false);
    // The same during a run: if the disk is full, logs it and returns false, and the run continues.
    bool try_to_save(const Position& at, bool is_best = false);
    // After an error: saves the last complete step, if this rank has it and no other rank saves it.
    // Does not throw. Returns true if this rank has lost only its contact with the other ranks.
    bool save_after_failure(const std::exception& failure);
    void set_saved(int64_t step) { saved_step_ = step; }

 private:
    void move();

    const int first_rank_ = setup_.rank();
    std::string path_;
    std::shared_ptr<class FolderLock> lock_;    // while this rank writes there
    int64_t save_steps_ = 0, saved_step_ = -1;  // steps between checkpoints; step of the newest

 public:
    RunLog log;
};

// The other parts use the folder too.
struct RunPart : RunState {
    RunFolder& folder_;
};

}  // namespace convoy
