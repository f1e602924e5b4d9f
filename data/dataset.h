// dataset.h — from what --data, --val, --val-split and --classes say to a training and a validation
// set.
//
//   name ─► places.h: folders, shards, lists ─► listing.h: their classes ─► sources of the chosen
//   ones
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/source.h"
#include "src/base/log.h"

namespace convoy {

struct DataSet {
    std::shared_ptr<const Source> train, val;  // val may be null
    std::string description;                   // one line: what was found where
};

struct DataOptions {
    std::string train = {};  // folder, shards or list of files (README.md); "": the generated set
    std::string val = {};    // the validation set, or ""
    float val_split = 0;     // part of each class held back for validation; needs val = ""
    int64_t samples = 0, val_samples = 0;   // of an epoch, where it comes through a pipe
    uint64_t window = 0;                    // of the order; 0: a pipe's own
    std::vector<std::string> classes = {};  // keep only these, in this order; empty: all, sorted
    bool part = false;         // other ranks hold the rest of the set: it may lack classes
    int generated = 3000;      // images of the generated set; a sixth of them validates
    uint64_t seed = 0;         // of the split and of the generated set
    int64_t label_offset = 0;  // subtracted from the numbers of classes in shards and lists
    std::string cache = {};    // folder for indexes that cannot lie beside their shards, and blocks
    uint64_t cache_bytes = 10ull << 30;  // of remote shards that it may hold
    int threads = 1;                     // that scan shards
    bool tell_faults = true;             // the log hears of the first damaged records
    std::function<int()> stop = {};      // other than 0: a silent pipe is not waited for
};

// Opens the training and the validation set. Throws
// Error: nothing there, a class without images, only one class, unknown class name (with the ones
// there are), a validation class that training does not know.
DataSet open_data(const DataOptions& options, Log& log);

// The set `options.train` for a model that knows `classes`, in the model's order: for eval. Where
// it holds a validation set too, it opens that. Another class is an error.
std::shared_ptr<const Source> open_for_classes(const DataOptions& options,
                                               const std::vector<std::string>& classes, Log& log);

// Opens the arguments of `predict` in their order: images, folders of images, and sets as for
// open_data (labels are ignored). Consecutive files are one source. `faults` names each argument
// that cannot be opened. Throws Error if none can.
std::vector<std::shared_ptr<const Source>> open_images(const std::vector<std::string>& paths,
                                                       const DataOptions& options, Log& log,
                                                       std::vector<std::string>& faults);

}  // namespace convoy
