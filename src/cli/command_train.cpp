// command_train.cpp — train: set up the job, measure it, run it.
#include "src/base/check.h"
#include "src/cli/commands.h"
#include "src/plan/timing.h"
#include "src/run/train_run.h"
#include "src/session/job_setup.h"

namespace convoy {

int train_in_job(JobSession& job) {
    for (;; job.config = job.line.config) {
        try {
            JobSetup setup = set_up_job(job);
            run_preflight(setup);
            return TrainRun(setup).run();
        } catch (const RingBroken&) {
            regroup_before_start(job);
        } catch (const SetUpAgain&) {}
        if (job.lost_rank0())
            fail(
                "rank 0 was lost before training began, and only rank 0 knew the settings: start "
                "the job again");
    }
}

int command_train(const CommandLine& line, Log& log, const Stop& stop) {
    if (line.given.empty())
        log.info("no options given: training ", line.config.model,
                 " on generated images for about a minute. Ctrl-C saves and stops; `trainer "
                 "--help` lists commands and options");
    return run_in_job(line, log, stop, train_in_job);
}

}  // namespace convoy
