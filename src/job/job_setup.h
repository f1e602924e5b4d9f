// job_setup.h — what is trained, on which images and by which shares: agreed on before step 1.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/loader.h"
#include "src/checkpoint/checkpoint.h"
#include "src/job/job_session.h"

namespace convoy {

// How a batch is cut among the ranks.
struct Shares {
    std::vector<double> weights;  // one a rank
    bool fair = false;            // --share auto: equal until the ranks are measured
    double speed = 0;             // of them all, images a second for a weight of 1; 0: not measured
    double newcomer = 0;          // this newcomer's weight: --share, or measured; 0: the mean
};
// From what each rank's --share says: rank 0's list or `auto`, else one weight of each. Where rank
// 0 decides for all, a rank that gave something else logs it on `log`. Collective.
Shares gather_shares(Communicator& communicator, const std::string& mine, Log& log);

// The inputs of a training run: the same on every rank, except device and threads.
struct JobSetup {
    JobSession& job;
    Config& config = job.config;  // complete
    std::string model_text = {};
    std::vector<std::string> classes = {};
    Shares shares = {};
    DataSet data = {};
    // --shards mine: images that each rank holds; else empty.
    std::vector<int64_t> train_parts = {}, val_parts = {};
    std::vector<size_t> cuts = {};  // --sync pipeline: the first layer of each stage
    std::string stages_text = {};   // and what is known of them, for people
    uint64_t fingerprint = 0;       // of the training set, over all ranks
    std::string order = {};  // names the order of an epoch: in another one a position means nothing
    bool fresh = true;  // every rank can draw the start weights: no --init, --resume or whitening
    std::optional<Checkpoint> resumed = {};  // on rank 0, where --resume was given

    Communicator& communicator() const { return job.communicator(); }
    int rank() const { return job.rank(); }
    int world() const { return job.world(); }
    LayerRange stage() const;  // of this rank
};

// Collective. Rank 0 decides every setting of the run (from a checkpoint where it resumes, its
// command line, the defaults), the model's text and the classes; the others take them. Throws Error
// where an option of another rank does not agree or its images are not the same.
JobSetup set_up_job(JobSession& job);

// What a newcomer must know of the job; bucket_bytes: its reducers'.
Offer make_offer(const JobSetup& setup, size_t bucket_bytes);

// Collective. Throws Error on all ranks where one sees other images than rank 0.
void compare_data(JobSession& job, const DataSet& data);

// What to open, from --data, --val, --val-split, --generated and --seed. classes: in place of
// --classes, if there are any.
DataOptions data_options(const Config& config, const std::vector<std::string>& classes = {});
// The settings of a training job as they are logged and saved: URLs without their passwords.
std::map<std::string, std::string> public_settings(const Config& config);

// The network that is trained; its text comes from rank 0.
ModelOptions model_options(const Config& config, int classes);

// How images are prepared for training at `size`. Throws Error where options do not go together.
Preprocess training_preprocess(const Config& config, InputSize size);

// --batch and --decode-threads, for rank `rank` of the ranks with these shares. The pipelines of
// --sync pipeline share a batch equally, and their first stages read the images.
LoaderOptions loader_options(const Config& config, const std::vector<double>& shares, int rank);

}  // namespace convoy
