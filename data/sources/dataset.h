// dataset.h — opens the sets that --data, --val, --val-split and --classes describe.
//
//   name ─► find_sets.h: folders, shards, lists ─► listing.h: their classes ─► a Source of some
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/sources/remote.h"
#include "data/sources/source.h"

namespace convoy {

struct DataSet {
    SourcePtr train, val;     // val may be null
    std::string description;  // one line: what was found, and where
    bool is_stream = false;   // the images of `train`, and their labels, arrive while they are read
};

struct DataOptions {
    std::string train = {};  // folder, shards or list of files (README.md); "": the generated set
    std::string val = {};    // the validation set, or ""
    float val_split = 0;     // part of each class held back for validation; needs val = ""
    std::vector<std::string> classes = {};  // keep only these, in this order; empty: all, sorted
    bool streams = false;                   // train and val may be streams
    bool part = false;          // other ranks have the rest of the set: classes may be missing
    int generated = 3000;       // images of the generated set; a sixth of them for validation
    uint64_t seed = 0;          // of the split and of the generated set
    int64_t label_offset = 0;   // subtracted from the numbers of classes in shards and lists
    RemoteOptions remote = {};  // its cache also keeps indexes that have no other place
    int threads = 1;            // that scan shards
    bool is_check = false;      // compare shards with their SHA-256; a report tells their faults
};

// Throws Error: nothing, one class, an unknown class name, a validation class unknown to training.
DataSet open_data(const DataOptions& options, Log& log);

// For eval: opens `options.train`, or its validation set if it has one, for a model with these
// `classes`, in the model's order. Throws Error if the set has another class.
SourcePtr open_for_classes(const DataOptions& options, const std::vector<std::string>& classes,
                           Log& log);

// Opens the arguments of `predict` in their order: images, folders of images, and sets as for
// open_data (labels are ignored). Consecutive files are one source. `faults` gets the error of each
// argument that cannot be opened. Throws Error if none can.
std::vector<SourcePtr> open_images(const std::vector<std::string>& paths,
                                   const DataOptions& options, Log& log,
                                   std::vector<std::string>& faults);

}  // namespace convoy
