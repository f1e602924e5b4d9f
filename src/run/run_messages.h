// run_messages.h — what a run tells people and programs: the table at its start, its page, what it
// uses and costs, its last lines. Lines per step and events: run_log.h.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "src/page/server.h"
#include "src/run/run_folder.h"
#include "src/run/trace_file.h"

namespace convoy {

class RunMessages : RunPart {
 public:
    explicit RunMessages(const RunPart& run);

    void begin(double base_lr);  // before the first step of this process
    bool has_begun() const { return usage_.has_value(); }
    void step(const StepResult& result, double lr);
    // Called after the step is counted. With --page it is collective, about once per second.
    void after_step(const StepResult& result);
    // Collective. Logs what all ranks use of their machines, and sets RunProgress::spent.
    void tell_usage();
    void rewind();    // a rank was lost: steps since the last meeting are done again
    void new_ring();  // with other ranks
    void done();      // the last lines, when all ranks are done

 private:
    void log_job();
    void serve_page();
    void advise();
    void print_settings(double base_lr) const;
    void print_advice() const;
    void print_ranks() const;
    std::string split_groups() const;

    PageState page_state_;  // --page
    std::shared_ptr<const PageServer> page_;
    std::optional<Usage> usage_;
    Clocks pace_;              // when this ring began, after
    int64_t pace_step_ = 0;    // this step
    bool is_advised_ = false;  // whether one rank would be faster
};

}  // namespace convoy
