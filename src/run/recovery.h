// recovery.h — from where a rank gets its state: at the start, and between two rings.
//
//   start    a checkpoint, --init or the seed; then all ranks take rank 0's state
//
//   RingBroken ─► drop        what depends on shares goes; weights and optimizer state stay
//              ─► regroup     the next ring, newcomers in it  ◄─┐ another rank is lost
//              ─► agree       all take the state of the root   ─┘
//              ─► take_up     and the loop goes on, or waits for --min-world ranks
//
// The root is a rank that has done the most steps. If there are several, it is one that has not yet
// closed the epoch, and of these the lowest rank. A newcomer has done none, and gets progress,
// weights and optimizer state like any rank that is behind.
//
// A rank completes a step only if it has all sums of the step. It sends no sums of the next step
// before that. So ranks differ by one step at most, and a rank that lacks that step takes the state
// of the root. If no rank has completed the step, all ranks repeat it on the same samples. With
// --sync average the same holds for averages. If ranks leave (SIGTERM) or join, all ranks agree on
// that with the sums of a step, so no step is repeated then (depart).
#pragma once

#include <optional>
#include <vector>

#include "src/run/run_messages.h"
#include "src/session/sync_weights.h"

namespace convoy {

// Thrown if a rank was lost before training began, when some of the others have no state yet. Every
// rank gets it, so every rank begins again with set_up_job().
struct SetUpAgain {};
// After RingBroken in any call before TrainRun::run(): waits for the ring of the other ranks.
void regroup_before_start(JobSession& job);

class Recovery : RunPart {
 public:
    Recovery(const RunPart& run, RunMessages& messages) : RunPart(run), messages_(messages) {}

    void start();           // this rank's own state
    void start_together();  // the state of all ranks. Collective. Throws SetUpAgain.
    bool has_started() const { return agreed_; }
    // After RingBroken: blocks until this rank is in a new ring, where the job is. Returns true if
    // a rank was lost.
    bool go_on();
    // Blocks while there are fewer than --min-world ranks.
    void wait_for_ranks();

    struct Left {};  // thrown if this rank has left the job, which goes on
    // What this rank asks of the others with its next sums.
    int request();
    // All ranks have agreed that some leave or join: throws Left or RingBroken. met: StepResult.
    void depart(bool met);
    // Every --check-every steps, or `now`: compares weights and optimizer state with the other
    // ranks; those that differ take rank 0's. Collective.
    void check_weights(bool met, bool now);
    void compare_weights();  // in any case

 private:
    void whiten();
    std::vector<nlohmann::json> tell();
    size_t take_shares(const std::vector<nlohmann::json>& all);
    void agree(const std::vector<nlohmann::json>& all, size_t root);
    void follow(const nlohmann::json& root);
    void take_up();
    void cut_shares(const std::vector<int>& before);
    void take_over();
    void tell_unequal(const Difference& found, int root, int64_t step);

    RunMessages& messages_;
    int request_ = 0;                         // of this rank, as it went into the last sums
    std::optional<Clock::time_point> asked_;  // to leave, since when
    bool planned_ = false;                    // the ring ends by depart()
    bool agreed_ = false;                     // all ranks have had the same state, or get it
    int64_t checked_step_ = 0;
    bool drift_ = false;  // the ranks' weights differ by roundings: compared once per epoch
};

}  // namespace convoy
