// source.h — where encoded images come from: folders, shards, lists of files, the generated set.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/order.h"
#include "src/base/log.h"

namespace convoy {

// Files and members that are not samples, by what they are (".heic"): how many of each.
using LeftOut = std::map<std::string, uint64_t>;
// "3 .heic, 1 .txt"
std::string left_out_text(const LeftOut& left_out);

// Thrown by read() of a stream that ended before the sample came: there is none, and no fault.
struct NoSample {};

// A list of samples, in an order that depends on nothing but their names: the same on every rank.
// Read-only after construction; read() may be called by many threads at once.
class Source {
 public:
    virtual ~Source() = default;

    const std::vector<std::string>& classes() const { return classes_; }
    size_t size() const { return labels_.size(); }
    int32_t label(size_t i) const { return labels_[i]; }

    virtual std::string name(size_t i) const = 0;  // for people: "flowers/train/hat/0012.jpg"
    // The file's name as it is, with the name that a sample has in its shard: any bytes. May read;
    // does not throw.
    virtual std::string title(size_t i) const { return name(i); }
    // Whether samples come in their order, an epoch after begin_epoch() (pipe_source.h). A label is
    // known once its sample has been read.
    virtual bool is_stream() const { return false; }
    virtual void begin_epoch() const {}
    // Encoded bytes of sample i into `bytes` (resized). Throws Error naming the sample and the
    // cause.
    virtual void read(size_t i, std::vector<uint8_t>& bytes) const = 0;
    // Samples in each shard; they are numbered one shard after the other. Loose files are one.
    std::vector<uint64_t> shard_sizes() const {
        if (shard_begins_.empty()) return {size()};
        std::vector<uint64_t> sizes;
        for (size_t s = 0; s < shard_begins_.size(); ++s)
            sizes.push_back((s + 1 < shard_begins_.size() ? shard_begins_[s + 1] : size()) -
                            shard_begins_[s]);
        return sizes;
    }
    // A hint that sample i will be read soon (storage.h).
    virtual void expect(size_t /*i*/) const {}
    // Hints for shards that are fetched whole. An epoch will read at `position` and behind, by
    // these visits, or without any one shard after the other. Throws Error where the shards that
    // are read at a time do not fit the cache.
    virtual void plan(std::vector<Visit> /*visits*/, uint64_t /*position*/) const {}
    // All positions before this one have been read.
    virtual void pass(uint64_t /*position*/) const {}
    // Fingerprint of classes, names, sizes and order: equal on ranks that see the same data,
    // wherever it lies on each.
    virtual uint64_t fingerprint() const = 0;
    // Size of the encoded bytes of sample i.
    virtual uint64_t bytes(size_t i) const {
        std::vector<uint8_t> all;
        read(i, all);
        return all.size();
    }
    // A number of sample i alone, which stays when other samples come or go: what --val-split draws
    // by.
    virtual uint64_t key(size_t i) const { return i; }

    const std::vector<uint64_t>& shard_begins() const { return shard_begins_; }
    // Samples that are left out because their record is damaged, or has no label or no image.
    uint64_t damaged() const { return damaged_; }
    // Which, and why; the first ones of each shard.
    virtual std::vector<std::string> faults() const { return {}; }
    // What lies among the samples and is none. No fault, but the user may expect otherwise.
    const LeftOut& left_out() const { return left_out_; }

 protected:
    std::vector<std::string> classes_;
    mutable std::vector<int32_t> labels_;  // a stream learns them as it is read
    std::vector<uint64_t> shard_begins_;   // the first sample of each; empty: loose files
    uint64_t damaged_ = 0;
    LeftOut left_out_;
};

}  // namespace convoy
