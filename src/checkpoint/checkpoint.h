// checkpoint.h — a run's state on disk, never half written.
//
//   RUN/step-00001200/model.safetensors   the weights: torchvision's names and layouts; class list,
//                                         preprocessing and model text in the metadata
//                     optim.safetensors   optimizer state, "momentum/<param>", our layouts; with
//                                         --ema the model is the average, and the weights are here
//                     meta.json           options, position, versions, SHA-256 of the other two
//   RUN/latest → step-00001200            swapped last
//   RUN/best   → step-00000900            highest validation accuracy so far
//
// A checkpoint is written under a temporary name, synced and renamed. meta.json is written last and
// has the checksums of the others, so a folder without a valid meta.json is not a checkpoint.
// README.md says what happens on file systems without links, fsync or renaming of folders.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/base/log.h"
#include "src/checkpoint/safetensors.h"
#include "src/step/trainer.h"

namespace convoy {

// What turns pixels into classes, except the weights: enough to use a model without its run.
struct ModelCard {
    std::string model_name, model_text;
    InputSize size;
    std::vector<std::string> classes;
    InputStatistics statistics = InputStatistics().of_channels(size.C);
    bool whole = false;  // it was trained on whole images (Augment::resize)

    ModelOptions options() const {
        return {.name = model_name, .classes = int(classes.size()), .size = size};
    }
    // The preprocessing of validation: no augmentation.
    Preprocess preprocess() const {
        Preprocess how(size, statistics);
        how.augment = whole ? Augment::resize : Augment::none;
        return how.for_validation();
    }
};

// Card ↔ metadata strings of model.safetensors.
std::map<std::string, std::string> card_to_metadata(const ModelCard& card);
// Throws Error naming `path` if the metadata lacks something.
ModelCard card_from_metadata(const std::map<std::string, std::string>& metadata,
                             const std::string& path);

// What meta.json holds.
struct CheckpointMeta {
    Position position;
    double best_top1 = -1;  // best validation accuracy so far; -1: none
    int64_t optimizer_steps = 0;
    uint64_t data_fingerprint = 0;
    std::map<std::string, std::string> settings;  // job settings of the run
    // `position` counts in this order of samples (JobSetup::order).
    std::string order = {};
    double peak_top1 = -1;                     // for --early-stop: best_top1 of all folders, and
    int stale = 0;                             // how many validations came since
    std::map<std::string, double> spent = {};  // resources that the whole job has used so far
    // SHA-256 of the other files in hexadecimal, by file name; set by save_checkpoint().
    std::map<std::string, std::string> sha256 = {};
};

// The text of meta.json, with a checksum of itself.
std::string meta_text(const CheckpointMeta& meta);
// Throws Error with the reason if meta_text() did not write the text.
CheckpointMeta parse_meta(const std::string& text);

struct Checkpoint {
    std::string folder;
    CheckpointMeta meta;
    SafeTensors model, optimizer;
};

// Writes RUN/step-<position.step> and swaps `latest`, and `best` if `is_best`. Then removes all
// checkpoints except the newest `keep` and the best. Returns the folder. On failure, such as a full
// disk, keeps the older checkpoints, removes the unfinished one and throws Error.
std::string save_checkpoint(const std::string& run, const CheckpointMeta& meta,
                            const ModelCard& card, Model& model, Optimizer& optimizer,
                            Backend& backend, bool is_best, int keep, Log& log);

// Names of the checkpoints of a run, newest first; none if there is no such folder.
std::vector<std::string> list_checkpoints(const std::string& run);

// Loads the newest valid checkpoint of a run folder, or a given checkpoint folder. Damaged ones are
// skipped, and `log` names them. Throws Error if there is no valid one.
Checkpoint load_checkpoint(const std::string& path, Log& log);
// Copies a checkpoint into model and optimizer. Throws Error if anything does not fit.
void restore(const Checkpoint& checkpoint, Model& model, Optimizer& optimizer, Backend& backend);

// Options of the run that wrote a model file, from a valid meta.json next to it; empty without one.
std::map<std::string, std::string> settings_beside(const std::string& model_file);

// The model file that PATH means: a .safetensors file itself, that of a checkpoint, or that of the
// best checkpoint of a run, else of its newest valid one. `log` names damaged ones. Throws Error.
std::string find_model_file(const std::string& path, Log& log);

}  // namespace convoy
