// job_setup.h — what is trained, on which images and by which shares: agreed on before step 1.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "data/sources/dataset.h"
#include "src/checkpoint/checkpoint.h"
#include "src/session/job_session.h"

namespace convoy {

// How a batch is cut among the ranks.
struct Shares {
    std::vector<double> weights;  // one per rank
    bool fair = false;            // --share auto: equal until the ranks are measured
    double speed = 0;             // of all ranks, images/s for a weight of 1; 0: not measured
    double newcomer = 0;          // this newcomer's weight: --share, or measured; 0: the mean
};
// Combines the --share of all ranks: rank 0's list or `auto`, else one weight from each rank. If
// rank 0 decides for all, a rank that gave another value says so on `log`. Collective.
Shares gather_shares(Communicator& communicator, const std::string& mine, Log& log);

// The inputs of a training run: the same on every rank, except device and threads.
struct JobSetup {
    JobSession& job;
    Config& config = job.config;  // complete
    JobModel model = {};
    Shares shares = {};
    DataSet data = {};
    // --shards mine: images that each rank holds; else empty.
    std::vector<int64_t> train_parts = {}, val_parts = {};
    std::vector<int64_t> class_images = {};     // for training, of each class, on all ranks
    std::vector<size_t> cuts = {};              // --sync pipeline: the first layer of each stage
    std::string stages_text = {};               // a description of the stages, for people
    std::string link_text = {};                 // on rank 0, a line about the slowest link
    size_t bucket_bytes = kDefaultBucketBytes;  // of gradients that are summed together
    uint64_t fingerprint = 0;                   // of the training set, over all ranks
    std::string order = {};  // names the order of an epoch: in another one a position means nothing
    std::optional<Checkpoint> resumed = {};  // on rank 0 with --resume

    Communicator& communicator() const { return job.communicator(); }
    int rank() const { return job.rank(); }
    int world() const { return job.world(); }
};

// Collective. Rank 0 decides every setting of the run (from its checkpoint, its command line and
// the defaults), the model's text and the classes. The other ranks take these values. Throws Error
// if an option of another rank contradicts them, or if its images differ.
JobSetup set_up_job(JobSession& job);

// The data that a newcomer needs.
Offer make_offer(const JobSetup& setup);

// Collective. A rank that sees other images than rank 0 throws Error and leaves the job; on the
// other ranks this throws RingBroken, or Error if the job cannot lose a rank.
void compare_data(JobSession& job, const DataSet& data);

// The data sets to open, from --data, --val, --val-split, --generated and --seed. classes: replaces
// --classes, unless it is empty.
DataOptions data_options(const Config& config, const std::vector<std::string>& classes = {});
// The settings of a training job for logs and checkpoints: URLs lose their passwords.
std::map<std::string, std::string> public_settings(const Config& config);

// The network that is trained; its text comes from rank 0.
ModelOptions model_options(const Config& config, int classes);

// How images are prepared for training at `size`. Throws Error if options contradict each other.
Preprocess training_preprocess(const Config& config, InputSize size,
                               const InputStatistics& statistics = {});

// --batch and --decode-threads for rank `rank`, given the shares of all ranks. With --sync
// pipeline, the pipelines share a batch equally, and only their first stages read images.
LoaderOptions loader_options(const Config& config, const std::vector<double>& shares, int rank);

}  // namespace convoy
