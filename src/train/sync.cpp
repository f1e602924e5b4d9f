// sync.cpp — from the options to the way to synchronise.
#include "src/train/sync.h"

#include "src/train/grad_reducer.h"
#include "src/train/pipeline.h"
#include "src/train/server_sync.h"
#include "src/train/weight_average.h"

namespace convoy {

std::unique_ptr<Sync> make_sync(const SyncParts& parts) {
    const Config& config = parts.config;
    if (config.pipeline > 1) return std::make_unique<Pipeline>(parts);
    if (config.sync != SyncKind::kRing) return std::make_unique<ServerSync>(parts);
    if (config.sync_every > 1 && parts.communicator.world() > 1)
        return std::make_unique<WeightAverage>(parts);
    return std::make_unique<GradReducer>(parts.model.params(), parts.backend, parts.communicator,
                                         reducer_options(parts));
}

}  // namespace convoy
