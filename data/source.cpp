// source.cpp — from what the user named to a training and a validation set.
#include "data/source.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "data/folder.h"
#include "data/generated.h"
#include "src/base/check.h"
#include "src/base/random.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

std::string within(const std::string& root, const std::string& name) {
    return root + (root.ends_with('/') ? "" : "/") + name;
}

struct Roots {
    std::string train, val, test;  // "" where there is none
};

// flowers/ with flowers/train/ and flowers/val/ (or validation/) inside, or a plain folder of class
// folders. A class may be called "train": alone or with test/ only, it is taken for the split.
Roots find_roots(const std::string& folder) {
    const std::vector<std::string> names = folders_in(folder);
    const bool val = contains(names, "val"), validation = contains(names, "validation");
    const bool test = contains(names, "test");
    if (!contains(names, "train")) return {folder, "", ""};
    if (val && validation)
        fail("'", folder, "' has both val/ and validation/: name one with --val");
    if (!val && !validation && names.size() > (test ? 2 : 1)) return {folder, "", ""};
    return {within(folder, "train"),
            val          ? within(folder, "val")
            : validation ? within(folder, "validation")
                         : "",
            test ? within(folder, "test") : ""};
}

// The classes to use of those `there`, in the order of `wanted` if any are.
std::vector<std::string> choose_classes(const std::vector<std::string>& there,
                                        const std::vector<std::string>& wanted,
                                        const std::string& where) {
    for (const std::string& name : wanted) {
        if (!contains(there, name))
            fail("no class '", name, "' in ", where, "; there are: ", listed(there));
        if (std::count(wanted.begin(), wanted.end(), name) > 1)
            fail("class '", name, "' is named twice");
    }
    const std::vector<std::string>& classes = wanted.empty() ? there : wanted;
    if (classes.size() == 1)
        fail("only one class, '", classes[0], "', in ", where, ": a classifier needs two or more");
    return classes;
}

std::vector<ImageFile> files_of(const std::string& root, const std::vector<std::string>& classes,
                                bool may_lack) {
    std::vector<ImageFile> files;
    for (size_t label = 0; label < classes.size(); ++label) {
        if (may_lack && !fs::is_directory(within(root, classes[label]))) continue;
        std::vector<ImageFile> some = images_below(root, classes[label], int32_t(label));
        if (some.empty() && !may_lack)
            fail("class '", classes[label], "' has no images in '", within(root, classes[label]),
                 "'");
        files.insert(files.end(), some.begin(), some.end());
    }
    return files;
}

// Moves round(part · n) images of each class, at least one and not all, from `files` to the
// result. Which ones depends on (seed, name) alone: a new image leaves the others in their place.
std::vector<ImageFile> split_off(std::vector<ImageFile>& files, float part, uint64_t seed) {
    if (!(part > 0 && part < 1)) fail("--val-split ", part, " is not between 0 and 1");
    std::map<int32_t, std::vector<std::pair<uint64_t, std::string>>> ranked;
    for (const ImageFile& file : files)
        ranked[file.label].emplace_back(Random(seed, 0, hash_bytes(file.path), kSplit).bits64(),
                                        file.path);
    std::map<std::string, bool> held;
    for (auto& [label, names] : ranked) {
        std::sort(names.begin(), names.end());
        const size_t n = names.size(), wanted = size_t(std::lround(part * float(n)));
        const size_t most = n - 1, count = std::min(std::max(wanted, size_t(1)), most);
        for (size_t i = 0; i < count; ++i) held[names[i].second] = true;
    }
    std::vector<ImageFile> train, val;
    for (ImageFile& file : files) (held.count(file.path) ? val : train).push_back(std::move(file));
    files = std::move(train);
    return val;
}

DataSet open_generated(const DataOptions& options) {
    if (!options.val.empty()) fail("--val needs --data: the generated set brings its own");
    const std::vector<std::string> classes =
        choose_classes(GeneratedSource::all_classes(), options.classes, "the generated set");
    if (options.val_split < 0 || options.val_split >= 1)
        fail("--val-split ", options.val_split, " is not between 0 and 1");
    const size_t n = size_t(std::max(options.generated, 0));
    const size_t held = options.val_split > 0 ? size_t(float(n) * options.val_split) : n / 6;
    if (held < 1 || n - held < classes.size()) fail(n, " generated images are too few");
    DataSet set;
    set.train = std::make_shared<GeneratedSource>(classes, options.seed, 0, n - held);
    set.val = std::make_shared<GeneratedSource>(classes, options.seed, n - held, held);
    set.description = cat("generated set: ", classes.size(), " classes (", listed(classes), "), ",
                          n - held, " images for training, ", held, " for validation");
    return set;
}

// A validation class that training has never heard of is an error; one that --classes leaves out
// is left out here too.
void check_known(const std::string& root, const std::vector<std::string>& known) {
    for (const std::string& name : folders_in(root))
        if (!contains(known, name))
            fail("validation folder '", root, "' has a class '", name,
                 "' that training does not know; there are: ", listed(known));
}

std::shared_ptr<const Source> open_validation(const std::string& root,
                                              const std::vector<std::string>& classes) {
    auto source = std::make_shared<FileSource>(root, classes, files_of(root, classes, true));
    if (source->size() == 0) fail("validation folder '", root, "' has no images");
    return source;
}

}  // namespace

DataSet open_data(const DataOptions& options, Log& log) {
    if (options.train.empty()) return open_generated(options);
    Roots roots = find_roots(options.train);
    if (!options.val.empty()) {
        const Roots val = find_roots(options.val);
        roots.val = val.val.empty() ? val.train : val.val;
    } else if (roots.val.empty() && options.val_split == 0 && !roots.test.empty()) {
        roots.val = roots.test;
        log.info("validation set: '", roots.test, "', as there is no val/ beside train/");
    }
    if (options.val_split != 0 && !roots.val.empty())
        fail("--val-split with a validation set already there, '", roots.val, "': drop one");

    const std::vector<std::string> known = folders_in(roots.train);
    if (known.empty())
        fail("'", roots.train, "' has no class folders: it needs one folder of images a class");
    const std::vector<std::string> classes =
        choose_classes(known, options.classes, "'" + roots.train + "'");
    std::vector<ImageFile> files = files_of(roots.train, classes, false);

    DataSet set;
    std::string origin = roots.val;
    if (options.val_split != 0) {
        std::vector<ImageFile> held = split_off(files, options.val_split, options.seed);
        if (held.empty()) fail("--val-split: no class of '", roots.train, "' has two images");
        set.val = std::make_shared<FileSource>(roots.train, classes, std::move(held));
        origin = cat(options.val_split * 100, " % of each class");
    } else if (!roots.val.empty()) {
        check_known(roots.val, known);
        set.val = open_validation(roots.val, classes);
    } else {
        log.info("no validation set: name one with --val DIR, or hold back a part of '",
                 roots.train, "' with --val-split F");
    }
    set.train = std::make_shared<FileSource>(roots.train, classes, std::move(files));
    set.description = cat(roots.train, ": ", classes.size(), " classes, ", set.train->size(),
                          " images for training, ");
    set.description += set.val ? cat(set.val->size(), " for validation (", origin, ")")
                               : std::string("none for validation");
    return set;
}

std::shared_ptr<const Source> open_for_classes(const std::string& folder,
                                               const std::vector<std::string>& classes,
                                               bool others_too) {
    const Roots roots = find_roots(folder);
    const std::string& root = !roots.val.empty()    ? roots.val
                              : !roots.test.empty() ? roots.test
                                                    : roots.train;
    if (!others_too) check_known(root, classes);
    return open_validation(root, classes);
}

std::shared_ptr<const Source> open_files(const std::vector<std::string>& paths) {
    std::vector<ImageFile> all;
    for (const std::string& path : paths) {
        std::error_code error;
        const fs::file_status status = fs::status(path, error);
        if (!fs::exists(status)) fail("'", path, "': there is no such file or folder");
        if (!fs::is_directory(status)) {
            all.push_back({path, -1, uint64_t(fs::file_size(path, error))});
            continue;
        }
        const size_t before = all.size();
        for (ImageFile& file : images_below(path, "", -1)) {
            file.path = within(path, file.path);
            all.push_back(std::move(file));
        }
        if (all.size() == before) fail("folder '", path, "' has no images");
    }
    return std::make_shared<FileSource>("", std::vector<std::string>(), std::move(all));
}

}  // namespace convoy
