// trained_model.h — a model with its weights and its model card, ready to use by eval and predict.
#pragma once

#include <memory>
#include <string>

#include "net/ring/communicator.h"
#include "src/checkpoint/checkpoint.h"

namespace convoy {

struct TrainedModel {
    ModelCard card;
    std::string file;  // where it came from
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Model> model;  // planned for batches of max_batch, forward only
};

// Loads the model that --from names (find_model_file). With several ranks only rank 0 reads the
// file; the others get card and weights over the network. Throws Error.
TrainedModel load_trained_model(const Config& config, Communicator& communicator, int max_batch,
                                Log& log);

}  // namespace convoy
