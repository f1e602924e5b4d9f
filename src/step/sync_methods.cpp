// sync_methods.cpp — from the options to the way to synchronise.
#include "src/step/sync_methods.h"

#include "src/step/grad_reducer.h"

namespace convoy {

std::unique_ptr<Sync> make_sync(const SyncParts& parts) {
    const Config& config = parts.config;
    if (config.pipeline > 1) return make_pipeline(parts);
    if (config.sync != SyncKind::kRing) return make_server_sync(parts);
    if (config.sync_every > 1 && parts.communicator.world() > 1) return make_weight_average(parts);
    return std::make_unique<GradReducer>(parts.model.params(), parts.backend, parts.communicator,
                                         config, parts.bucket_bytes, parts.track, parts.device);
}

}  // namespace convoy
