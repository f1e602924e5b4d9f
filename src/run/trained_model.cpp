#include "src/run/trained_model.h"

#include <nlohmann/json.hpp>

#include "src/checkpoint/weights.h"
#include "src/session/device_choice.h"
#include "src/session/rank_json.h"

namespace convoy {
using nlohmann::json;

TrainedModel load_trained_model(const Config& config, Communicator& communicator, int max_batch,
                                Log& log) {
    TrainedModel trained;
    SafeTensors content;
    json shared;
    if (communicator.rank() == 0) {
        trained.file = find_model_file(config.from, log);
        content = read_safetensors(trained.file);
        card_from_metadata(content.metadata, trained.file);  // fails here rather than on all ranks
        shared = {{"file", trained.file}, {"metadata", content.metadata}};
    }
    shared = broadcast_json(communicator, shared);
    trained.file = shared.at("file");
    trained.card = card_from_metadata(
        shared.at("metadata").get<std::map<std::string, std::string>>(), trained.file);

    const ModelCard& card = trained.card;
    trained.backend = make_backend(config);
    trained.model = std::make_unique<Model>(card.model_text, card.options(), *trained.backend);
    trained.model->plan(max_batch, /*training=*/false);
    if (communicator.rank() == 0)
        import_weights(content, *trained.model, *trained.backend, /*partial=*/false);
    if (communicator.world() > 1) {
        const Params& params = trained.model->params();
        std::vector<float> weights(params.weights_size);
        const size_t bytes = weights.size() * sizeof(float);
        trained.backend->download(weights.data(), params.weights, bytes);
        communicator.broadcast(std::as_writable_bytes(std::span(weights)));
        trained.backend->upload(params.weights, weights.data(), bytes);
    }
    return trained;
}

}  // namespace convoy
