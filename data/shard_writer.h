// shard_writer.h — writes shards that WebDataset or TensorFlow can read.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "data/records.h"

namespace convoy {

// Writes a file of samples. The same samples give the same bytes on every machine.
class ShardWriter {
 public:
    virtual ~ShardWriter() = default;
    // key: unique in the set, without a dot. extension: "jpg". Throws Error.
    virtual void add(const std::string& key, const std::string& extension,
                     std::span<const uint8_t> image, int32_t label, const std::string& name) = 0;
    // Ends the file; returns when it is on the disk. Throws Error.
    virtual void close() = 0;
};

// format: tar or tfrecord.
std::unique_ptr<ShardWriter> make_shard_writer(ShardFormat format, const std::string& path);

// Frames the data as a record of a TFRecord file, with its length and its checksums.
std::string tfrecord(std::string_view data);

}  // namespace convoy
