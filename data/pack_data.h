// pack_data.h — `trainer pack`: writes any data set as shards, with an index and a description.
#pragma once

#include <cstdint>
#include <string>

#include "data/sources/dataset.h"
#include "data/sources/records.h"

namespace convoy {

struct PackOptions {
    std::string out;  // folder; made if it is missing
    ShardFormat format = ShardFormat::tar;
    uint64_t shard_bytes = 0;  // a shard ends with the image that reaches this
    int max_side = 0;          // images with a longer side become JPEGs of this; 0: never
    bool keep_order = false;   // else permuted by `seed`
    uint64_t seed = 0;
    int threads = 1;     // shards written at a time
    double max_bad = 0;  // too_many_bad()
};

// Writes train-000000.tar … and val-000000.tar … (or .tfrecord), convoy.index and dataset.json:
//
//   {"format": "tar", "plan": "…", "classes": ["hat", …],
//    "train": {"images": n, "images_of_class": [n, …],
//              "shards": [{"name": "train-000000.tar", "images": n, "bytes": n, "sha256": "…"},
//              …]},
//    "val": {…}}
//
// The bytes depend on `set` and the options, but not on threads. Shards that an earlier run with
// the same set and options has finished are kept. Images that cannot be read are left out and
// named. Throws Error: the folder holds other files, the disk is full, too many are left out.
void pack_data(const DataSet& set, const PackOptions& options, Log& log);

}  // namespace convoy
