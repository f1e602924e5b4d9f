// source.h — where encoded images come from: a folder of class folders, or the generated set.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/log.h"

namespace convoy {

// A list of samples, in an order that depends on nothing but their names: the same on every rank.
// Read-only after construction; read() may be called by many threads at once.
class Source {
 public:
    virtual ~Source() = default;

    const std::vector<std::string>& classes() const { return classes_; }
    size_t size() const { return labels_.size(); }
    int32_t label(size_t i) const { return labels_[i]; }

    virtual std::string name(size_t i) const = 0;  // for people: "flowers/train/hat/0012.jpg"
    // Encoded bytes of sample i into `bytes` (resized). Throws Error naming the sample and the
    // cause.
    virtual void read(size_t i, std::vector<uint8_t>& bytes) const = 0;
    // Fingerprint of classes, names, sizes and order: equal on ranks that see the same data,
    // wherever it lies on each.
    virtual uint64_t fingerprint() const = 0;

 protected:
    std::vector<std::string> classes_;
    std::vector<int32_t> labels_;
};

struct DataSet {
    std::shared_ptr<const Source> train, val;  // val may be null
    std::string description;                   // one line: what was found where
};

struct DataOptions {
    std::string train = {};  // folder, or "" for the generated set
    std::string val = {};    // folder of the validation set, or ""
    float val_split = 0;     // part of each class held back for validation; needs val = ""
    std::vector<std::string> classes = {};  // keep only these, in this order; empty: all, sorted
    int generated = 3000;  // images of the generated set; a sixth of them validates
    uint64_t seed = 0;     // of the split and of the generated set
};

// Opens the training and the validation set. A folder that holds train/ and val/ (or validation/)
// is recognised. A test/ beside train/ validates only where there is neither of them, no `val` and
// no `val_split`; the log says so, or that there is no validation set. Throws Error: folder
// missing, a class without images, only one class, unknown class name (with the ones there are), a
// validation class that training does not know.
DataSet open_data(const DataOptions& options, Log& log);

// A folder of class folders for a model that knows `classes`, in the model's order: for eval. If
// the folder holds train/ and val/ (or test/), it opens the latter. Another class is an error.
std::shared_ptr<const Source> open_for_classes(const std::string& folder,
                                               const std::vector<std::string>& classes);

// Every image below a folder (or the file itself), for predict: label -1, no classes.
std::shared_ptr<const Source> open_files(const std::vector<std::string>& paths);

}  // namespace convoy
