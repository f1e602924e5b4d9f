// shard_source.h — a source whose samples are in shards: it reads bytes at the offsets of an index.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "data/index.h"
#include "data/source.h"

namespace convoy {

class ShardSource final : public Source {
 public:
    // class_of[s][k]: the class of samples of shards[s] with label number k; -1 leaves them out.
    ShardSource(std::vector<Shard> shards, std::vector<std::string> classes,
                const std::vector<std::vector<int32_t>>& class_of);

    std::string name(size_t i) const override;   // "train-000.tar, byte 1536"
    std::string title(size_t i) const override;  // "train-000.tar/hat/12.jpg"; without tar: name(i)
    // Compares the bytes with the checksum in the index.
    void read(size_t i, std::vector<uint8_t>& bytes) const override;
    void plan(std::vector<Visit> visits, uint64_t position) const override;
    void pass(uint64_t position) const override;
    uint64_t fingerprint() const override { return fingerprint_; }
    uint64_t bytes(size_t i) const override;
    uint64_t key(size_t i) const override;
    std::vector<std::string> faults() const override;

 private:
    struct Place {
        size_t shard, sample;  // which of the shard's samples
    };
    Place place(size_t i) const;  // of sample i

    std::vector<Shard> shards_;  // their label_of is empty: labels_ has it
    uint64_t fingerprint_;
    mutable std::mutex mutex_;           // guards what follows
    mutable std::vector<Visit> visits_;  // of the epoch
    mutable size_t passed_ = 0;          // visits that are over
};

}  // namespace convoy
