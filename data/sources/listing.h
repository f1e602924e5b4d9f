// listing.h — finds all classes of a set, before some are chosen. A class comes from the name of a
// folder, or from the label of a record, which is a number or a name.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/sources/dataset.h"
#include "data/sources/find_sets.h"
#include "data/sources/records.h"

namespace convoy {

struct Listing {
    std::string where;  // for people
    Names known;
    // The samples of these classes. Call once.
    std::function<SourcePtr(const Names& classes)> open;
};

// Reads or scans the set at `place`, but does not open it. `known` is empty if there is nothing.
// base: the classes of the training set, if this is a validation set. Throws Error.
Listing list_place(const Place& place, const Names& base, const DataOptions& options,
                   const Remote& remote, Log& log);

// stream.images images that arrive from now on, as tar or TFRecord (stream.cpp). A record that
// cannot be used is a bad image, and so is each one that does not come. Reading them throws
// Unreachable if the stream is silent, is none, or does not fit the cache.
SourcePtr stream_source(const Place& stream, const Names& classes, int64_t label_offset,
                        const RemoteOptions& options, Log& log);

// Lines of path, tab, label.
struct FileList {
    std::string folder;  // the folder of the list: paths are relative to it
    std::vector<ImageFile> files = {};
    // All labels that occur, each once. ImageFile::label is an index into them.
    std::vector<Label> labels = {};
};
FileList read_list(const std::string& path, bool needs_labels = true);

}  // namespace convoy
