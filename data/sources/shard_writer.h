// shard_writer.h — writes shards that WebDataset or TensorFlow can read.
#pragma once

#include <archive.h>

#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "data/sources/records.h"

namespace convoy {

// Writes a file of samples. The same samples give the same bytes on every machine.
class ShardWriter {
 public:
    // format: tar or tfrecord. Throws Error.
    ShardWriter(ShardFormat format, const std::string& path);
    // key: unique in the set, without a dot. extension: "jpg". Throws Error.
    void add(const std::string& key, const std::string& extension, std::span<const uint8_t> image,
             int32_t label, const std::string& name);
    // Ends the file; returns when it is on the disk. Throws Error.
    void close();

 private:
    [[noreturn]] void give_up(int error) const;
    void check(int state) const;  // of libarchive
    void add_member(const std::string& name, std::span<const uint8_t> bytes);

    const std::string path_;
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
    const std::unique_ptr<archive, int (*)(archive*)> tar_;  // null: a TFRecord
};

// Frames the data as a record of a TFRecord file, with its length and its checksums.
std::string tfrecord(std::string_view data);

}  // namespace convoy
