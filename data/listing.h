// listing.h — finds all classes of a set, before some are chosen. A class comes from the name of a
// folder, or from the label of a record, which is a number or a name.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/places.h"
#include "data/records.h"

namespace convoy {

struct ClassNames {
    std::vector<std::string> names;        // of all classes, in their order
    std::map<Label, std::string> name_of;  // of each label
};

// labels: all labels of the set. Numbers count from label_offset. The name of a number comes from
// the labels, else from `given` (a file of class names), else from `base` (the classes of the
// training set, unless they are numbers too), else it is the number. Labels without numbers are
// sorted by name, or in the order of `given`. `where` is for messages. Throws Error: a number that
// cannot be a class, labels with and without numbers in one set, a name that is missing in `given`.
ClassNames name_classes(const std::set<Label>& labels, const std::vector<std::string>& given,
                        const std::vector<std::string>& base, int64_t label_offset,
                        const std::string& where);

// The names of classes that a folder or URL gives: "classes" of dataset.json, or the lines of
// classes.txt, batches.meta.txt (CIFAR-10) or fine_label_names.txt (CIFAR-100). May be empty.
std::vector<std::string> class_names_in(const std::string& folder, const Remote& remote);

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

// Lines of path, tab, label.
struct FileList {
    std::string folder;  // the folder of the list: paths are relative to it
    std::vector<ImageFile> files = {};
    // All labels that occur, each once. ImageFile::label is an index into them.
    std::vector<Label> labels = {};
};
FileList read_list(const std::string& path, bool needs_labels = true);

}  // namespace convoy
