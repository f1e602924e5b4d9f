// engine.h — what trains on this rank: model, optimizer, loaders, trainer.
//
//   Engine   backend ─ model ─ optimizer                    outlasts rings
//   build      └ loaders ─ memory of passes ─ trainer       for this rank's share of a batch
//   drop       … are freed: ranks were lost or have come; then build again
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "data/decoded_cache.h"
#include "data/loader.h"
#include "src/run/trace_file.h"
#include "src/run/usage.h"
#include "src/session/job_setup.h"
#include "src/step/evaluate.h"
#include "src/step/trainer.h"

namespace convoy {

class Engine {
 public:
    Engine(JobSetup& setup, std::function<int()> request);  // request: see Trainer

    void build();
    void drop();
    Sync& sync() { return trainer->sync(); }
    Clocks clocks() const;  // of all engines of this run
    std::string memory_text() const;

    // For others to use; only the engine replaces them.
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Model> model;
    std::unique_ptr<Optimizer> optimizer;
    std::unique_ptr<Loader> loader, val_loader;
    std::unique_ptr<Trainer> trainer;
    std::unique_ptr<Evaluator> evaluator;
    LoaderOptions sharing;  // batch, shares and rank, of both loaders
    Track* track = nullptr;
    double compute_seconds = 0;                // in steps, without waits for the network
    bool holds_all = true, may_drift = false;  // of the Sync that was built last
    struct Images {                            // the sources, with decoded images kept
        SourcePtr train, val;
        Room room;                  // of --cache-decoded
        int64_t decoded_bytes = 0;  // of all images, about
    } images;

 private:
    void open_images();
    void open_tracks();
    std::unique_ptr<Loader> make_loader(SourcePtr source, const LoaderOptions& options, int slots);

    JobSetup& setup_;
    const std::function<int()> request_;
    const TraceSteps traced_ = trace_steps(setup_.config.trace);
    std::vector<std::unique_ptr<Backend>> replica_backends_;  // --threads RxT
    SpanSink* device_track_ = nullptr;
    size_t state_blocks_ = 0;  // Backend::blocks of weights and optimizer state, which come first
    size_t activation_bytes_ = 0;
    Clocks clocks_before_;  // of the trainers and loaders that were dropped
};

}  // namespace convoy
