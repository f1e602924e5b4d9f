// command_train.cpp — train: set up the job, measure it, run it.
#include "src/cli/commands.h"
#include "src/job/job_setup.h"
#include "src/plan/preflight.h"
#include "src/run/train_run.h"

namespace convoy {

static int train_in_job(JobSession& job) {
    JobSetup setup = set_up_job(job);
    const Preflight preflight = run_preflight(setup);
    return TrainRun(setup, preflight.bucket_bytes, preflight.report).run();
}

static int command_train(const CommandLine& line, Log& log, const Stop& stop) {
    return run_in_job(line, log, stop, train_in_job);
}

const CommandRow kTrainRow = {"train", kTrain, "[options]",
                              "train a network, alone or as one of several ranks", command_train};

}  // namespace convoy
