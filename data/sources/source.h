// source.h — where encoded images come from: folders, shards, lists of files, the generated set.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "data/order.h"
#include "data/sources/storage.h"
#include "src/base/log.h"
#include "src/base/random.h"

namespace convoy {

// How many files or members of each kind (".heic") are not samples.
using LeftOut = std::map<std::string, uint64_t>;
// "3 .heic, 1 .txt"
std::string left_out_text(const LeftOut& left_out);

// A list of samples. Their order depends on nothing but their names, so it is the same on every
// rank. Read-only after construction; read() may be called by many threads at once.
class Source {
 public:
    virtual ~Source() = default;

    const std::vector<std::string>& classes() const { return classes_; }
    size_t size() const { return labels_.size(); }
    int32_t label(size_t i) const { return labels_[i]; }

    virtual std::string name(size_t i) const = 0;  // for people: "flowers/train/hat/0012.jpg"
    // The name of the file, or of the sample in its shard, unchanged: any bytes. May read the
    // shard; does not throw.
    virtual std::string title(size_t i) const { return name(i); }
    // Reads sample i's encoded bytes into `bytes` (resized). Throws Error with sample and cause.
    virtual void read(size_t i, std::vector<uint8_t>& bytes) const = 0;
    // Samples per shard, which are numbered shard after shard. Loose files are one shard.
    std::vector<uint64_t> shard_sizes() const {
        std::vector<uint64_t> sizes;
        for (const Visit& visit : in_order()) sizes.push_back(visit.end - visit.begin);
        return sizes.empty() ? std::vector<uint64_t>{size()} : sizes;
    }
    // A visit to each shard, one after the other.
    std::vector<Visit> in_order() const {
        std::vector<Visit> visits;
        for (size_t s = 0; s < shard_begins_.size(); ++s)
            visits.push_back({s, shard_begins_[s],
                              s + 1 < shard_begins_.size() ? shard_begins_[s + 1] : size()});
        return visits;
    }
    // Hints, for shards that are fetched whole. plan(): an epoch will read from `position` on, by
    // these visits. Throws Error if shards that are read at the same time do not fit the cache.
    // pass(): all positions before this were read.
    virtual void plan(std::vector<Visit> /*visits*/, uint64_t /*position*/) const {}
    virtual void pass(uint64_t /*position*/) const {}
    // A hash of classes, names, sizes and order: equal on ranks that see the same data, even if it
    // is in other folders.
    uint64_t fingerprint() const { return fingerprint_; }
    // Size of the encoded bytes of sample i.
    virtual uint64_t bytes(size_t i) const {
        std::vector<uint8_t> all;
        read(i, all);
        return all.size();
    }
    // A number that depends on sample i alone. --val-split uses it to choose.
    virtual uint64_t key(size_t i) const { return i; }

    const std::vector<uint64_t>& shard_begins() const { return shard_begins_; }
    // How many samples are left out because their record is damaged, or has no label or no image.
    uint64_t damaged() const { return damaged_; }
    // Which samples, and why; the first ones of each shard.
    virtual std::vector<std::string> faults() const { return {}; }
    // Files among the samples that are not samples. This is no fault, but users may not expect it.
    const LeftOut& left_out() const { return left_out_; }

 protected:
    void set_classes(std::vector<std::string> classes, std::string_view kind) {
        classes_ = std::move(classes), fingerprint_ = hash_bytes(kind);
        for (const std::string& name : classes_)
            fingerprint_ = hash_bytes(name + '\n', fingerprint_);
    }

    std::vector<std::string> classes_;
    std::vector<int32_t> labels_;
    uint64_t fingerprint_ = 0;
    std::vector<uint64_t> shard_begins_;  // the first sample of each; empty: loose files
    uint64_t damaged_ = 0;
    LeftOut left_out_;
};

using SourcePtr = std::shared_ptr<const Source>;

// A source that wraps another source. All calls that are not overridden go to the other source.
class ChangedSource : public Source {
 public:
    explicit ChangedSource(const SourcePtr& source) : Source(*source), source_(source) {}
    std::string name(size_t i) const override { return source_->name(at(i)); }
    std::string title(size_t i) const override { return source_->title(at(i)); }
    void read(size_t i, std::vector<uint8_t>& bytes) const override { source_->read(at(i), bytes); }
    void plan(std::vector<Visit> visits, uint64_t position) const override {
        source_->plan(std::move(visits), position);
    }
    void pass(uint64_t position) const override { source_->pass(position); }
    uint64_t bytes(size_t i) const override { return source_->bytes(at(i)); }
    uint64_t key(size_t i) const override { return source_->key(at(i)); }
    std::vector<std::string> faults() const override { return source_->faults(); }

 protected:
    virtual size_t at(size_t i) const { return i; }  // the number of sample i in the other source

    const SourcePtr source_;
};

// Runs `work`, which reads and decodes sample i. Returns why the image is bad, or "". Passes on
// other exceptions, such as Unreachable.
template <class Work>
std::string image_fault(const Source& source, size_t i, const Work& work) try {
    work();
    return "";
} catch (const Unreachable&) {
    throw;
} catch (const Error& error) {
    return error.what();
} catch (const std::bad_alloc&) {
    return source.name(i) + ": takes more memory than there is";
}

}  // namespace convoy
