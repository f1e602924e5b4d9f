// shard_source.h — a source whose samples are in shards: it reads bytes at the offsets of an index.
#pragma once

#include <string>
#include <vector>

#include "data/index.h"
#include "data/source.h"

namespace convoy {

// class_of[s][k]: the class of samples of shards[s] with label number k; -1 leaves them out. A
// sample is called "train-000.tar, byte 1536"; its title is "train-000.tar/hat/12.jpg", without tar
// its name. Each read compares the bytes with the checksum in the index.
SourcePtr shard_source(std::vector<Shard> shards, std::vector<std::string> classes,
                       const std::vector<std::vector<int32_t>>& class_of);

}  // namespace convoy
