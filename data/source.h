// source.h — where encoded images come from: folders, shards, lists of files, the generated set.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

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

struct DataSet {
    std::shared_ptr<const Source> train, val;  // val may be null
    std::string description;                   // one line: what was found where
};

struct Shard;  // index.h

struct DataOptions {
    std::string train = {};  // folder, shards or list of files (README.md); "": the generated set
    std::string val = {};    // the validation set, or ""
    float val_split = 0;     // part of each class held back for validation; needs val = ""
    int64_t samples = 0, val_samples = 0;   // of an epoch, where it comes through a pipe
    uint64_t window = 0;                    // of the order; 0: a pipe's own
    std::vector<std::string> classes = {};  // keep only these, in this order; empty: all, sorted
    bool part = false;         // other ranks hold the rest of the set: it may lack classes
    int generated = 3000;      // images of the generated set; a sixth of them validates
    bool music = false;        // it has music (music.h), not shapes
    uint64_t seed = 0;         // of the split and of the generated set
    int64_t label_offset = 0;  // subtracted from the numbers of classes in shards and lists
    std::string cache = {};    // folder for indexes that cannot lie beside their shards, and blocks
    uint64_t cache_bytes = 10ull << 30;  // of remote shards that it may hold
    int threads = 1;                     // that scan shards
    bool tell_faults = true;             // the log hears of the first damaged records
    std::function<int()> stop = {};      // other than 0: a silent pipe is not waited for
};

// Opens the training and the validation set; open_data.cpp says how a name is understood. Throws
// Error: nothing there, a class without images, only one class, unknown class name (with the ones
// there are), a validation class that training does not know.
DataSet open_data(const DataOptions& options, Log& log);

// The set `options.train` for a model that knows `classes`, in the model's order: for eval. Where
// it holds a validation set too, it opens that. Another class is an error.
std::shared_ptr<const Source> open_for_classes(const DataOptions& options,
                                               const std::vector<std::string>& classes, Log& log);

// What predict is given, in that order: images, folders of them, and sets as of open_data, whose
// labels do not count and may be missing. Consecutive files are one source. What cannot be opened
// is named in `faults`. Throws Error where nothing can.
std::vector<std::shared_ptr<const Source>> open_images(const std::vector<std::string>& paths,
                                                       const DataOptions& options, Log& log,
                                                       std::vector<std::string>& faults);

}  // namespace convoy
