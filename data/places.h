// places.h — what a name after --data or --val stands for: a folder of class folders, shards, or a
// list of files.
//
//   flowers/                     class folders, or train/ and val/ (or test/) of them, by any of
//                                their usual names: Training, valid, dev
//   shards/                      files that are shards: train-…, val-…, test-…; data_batch_…,
//                                test_batch of CIFAR; train-…, t10k-… of MNIST
//   shards/train-{000..012}.tar  these; also {a,b}, and for files * and ?
//   train.tar                    one shard
//   train.txt                    lines of path, tab, label
//   https://host/shards/         with the dataset.json that `trainer pack` writes; also a pattern
#pragma once

#include <string>
#include <vector>

#include "data/remote.h"

namespace convoy {

struct Place {
    std::string name;                      // for people
    std::vector<std::string> shards = {};  // paths or URLs; without them a folder of class folders
    bool is_list = false;                  // a list of files
    bool is_none() const { return name.empty(); }
};

struct Places {
    Place train, val = {};     // val: none
    bool val_is_test = false;  // "test" in place of "val"
    // All shards, also those of neither part, for predict.
    std::vector<std::string> shards = {};
};

// Throws Error where there is nothing of that name.
Places find_places(const std::string& name, const Remote& remote);

// "a{08..10}" → a08, a09, a10; "{x,y}{1..2}" → x1, x2, y1, y2.
std::vector<std::string> expand_braces(const std::string& pattern);

}  // namespace convoy
