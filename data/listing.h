// listing.h — a set of images whose classes are known before any is chosen: class folders, shards
// or a list of files.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/class_names.h"
#include "data/files.h"
#include "data/places.h"
#include "data/source.h"

namespace convoy {

using SourcePtr = std::shared_ptr<const Source>;

struct Listing {
    std::string where;  // for people
    Names known;
    // The samples of these classes. Call once.
    std::function<SourcePtr(const Names& classes)> open;
};

// What lies at `place`, read or scanned, but not yet opened; without classes where nothing does.
// base: the classes of the training set, for a validation set. Throws Error.
Listing list_place(const Place& place, const Names& base, const DataOptions& options,
                   const Remote& remote, Log& log);

// Lines of path, tab, label; the label may be missing where none is needed.
struct FileList {
    std::string folder;  // where paths begin: that of the list
    std::vector<ImageFile> files = {};
    // Each that occurs, once; the label of a file is its place here.
    std::vector<Label> labels = {};
};
FileList read_list(const std::string& path, bool needs_labels = true);

}  // namespace convoy
