// class_names.h — from what records say about their class, a number or a name, to the classes of a
// set.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "data/records.h"

namespace convoy {

struct ClassNames {
    std::vector<std::string> names;        // of all classes, in their order
    std::map<Label, std::string> name_of;  // of each label
};

// labels: all that occur. Numbers count from label_offset on. Names of numbers come
// from the labels themselves, else from `given` (a file of class names), else from `base` (the
// classes of the training set, unless those are numbers too), else they are the numbers. Labels
// without a number are sorted by name, or in the order of `given`. `where` is for messages. Throws
// Error: a number that cannot be a class, labels with and without numbers, a name that `given` does
// not have.
ClassNames name_classes(const std::set<Label>& labels, const std::vector<std::string>& given,
                        const std::vector<std::string>& base, int64_t label_offset,
                        const std::string& where);

// The names of a folder's (or URL's) classes: "classes" of dataset.json, or the lines of
// classes.txt, batches.meta.txt (CIFAR-10) or fine_label_names.txt (CIFAR-100). Empty: there are
// none.
std::vector<std::string> class_names_in(const std::string& folder, const Remote& remote);

}  // namespace convoy
