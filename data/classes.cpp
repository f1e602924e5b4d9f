// classes.cpp — tells classes from parts of a set, masks, copies, and folders around a set.
//
// The words of a name have roles: "cars_train" is the training part of "cars". Names that differ in
// roles and numbers alone are no classes: cars_train and cars_test, images and masks, part1 and
// part2. Nor is a folder that holds the other classes, nor are folders that hold the same folders.
#include <algorithm>
#include <map>
#include <set>

#include "data/places.h"
#include "src/base/text.h"

namespace convoy {
namespace {

// Sets of images are divided by names of folders, or by words in the names of shards.
const std::pair<Role, Names> kRoles[] = {
    {Role::train, {"train", "training"}},
    {Role::val, {"val", "valid", "validation", "validate", "dev", "eval", "evaluation"}},
    {Role::test, {"test", "testing", "t10k"}},
    {Role::images, {"image", "images", "img", "imgs", "photo", "photos", "picture", "pictures"}},
    {Role::masks,
     {"mask", "masks", "annotation", "annotations", "seg", "segs", "trimap", "truth", "labels",
      "segmentation", "segmentations", "ann", "gt", "trimaps"}},
    {Role::copies,
     {"original", "originals", "orig", "augmented", "aug", "augmentation", "resized", "cropped",
      "processed", "preprocessed"}},
    {Role::pieces, {"part", "fold", "split", "subset", "chunk", "batch"}},
    // Words that tell nothing.
    {Role::none, {"set", "data", "dataset", "ground", "class", "object", "jpeg", "jpg", "png"}}};

constexpr const char* kYes = "; if they are classes, add --classes all";

// The words of a name in lower case: "JPEGImages_2012" has jpeg, images and 2012.
Names words_of(const std::string& name) {
    const auto is = [&](int (*kind)(int), size_t i) {
        return i < name.size() && kind(static_cast<unsigned char>(name[i])) != 0;
    };
    std::string words;
    for (size_t i = 0; i < name.size(); ++i) {
        if (i > 0 && is(std::isupper, i) && (is(std::islower, i - 1) || is(std::islower, i + 1)))
            words += ' ';
        const bool is_letter = is(std::isalnum, i) || static_cast<unsigned char>(name[i]) >= 128;
        words += is_letter ? name[i] : ' ';
    }
    Names all = split(lower_case(words), ' ');
    std::erase(all, "");
    return all;
}

struct NameParts {
    std::set<Role> roles;
    std::string rest;  // the other words, without digits
    bool has(Role role) const { return roles.contains(role); }
};

NameParts parts_of(const std::string& name) {
    NameParts parts;
    for (std::string word : words_of(name)) {
        if (const Role role = role_of(word); role != Role::none) {
            parts.roles.insert(role);
        } else if (!std::ranges::count(std::end(kRoles)[-1].second, word)) {
            std::erase_if(word, [](char c) { return c >= '0' && c <= '9'; });
            parts.rest += (parts.rest.empty() || word.empty() ? "" : " ") + word;
        }
    }
    return parts;
}

bool all_have_roles(const auto& names) {
    return std::ranges::none_of(names, [](const auto& one) { return parts_of(one).roles.empty(); });
}

// Whether most images of class m have the name of an image of class c, apart from a word such as
// "_mask", and another type, or the class has this name. 64 of the images are compared.
bool are_masks_of(std::span<const ImageFile> masks, const std::string& m,
                  std::span<const ImageFile> images, const std::string& c) {
    size_t twins = 0, seen = 0;
    for (size_t i = 0; i < masks.size(); i += masks.size() / 64 + 1, ++seen) {
        const std::string& path = masks[i].path;
        std::string stem = c + path.substr(m.size(), path.rfind('.') - m.size());
        const size_t tail = stem.find_last_of("_- ");
        if (tail < stem.size() && role_of(stem.substr(tail + 1)) == Role::masks) stem.resize(tail);
        const auto twin = std::ranges::lower_bound(images, stem + ".", {}, &ImageFile::path);
        twins += twin != images.end() && twin->path.starts_with(stem + ".") &&
                 (kind_of_file(twin->path) != kind_of_file(path) ||
                  parts_of(c).rest == parts_of(m).rest);
    }
    return twins > 1 && 2 * twins > seen;
}

}  // namespace

Role role_of(std::string word) {
    word = lower_case(std::move(word));
    const auto trim = [&](const char* end) { word.erase(word.find_last_not_of(end) + 1); };
    trim("0123456789_- ");
    if (word.ends_with("set")) word.resize(word.size() - 3), trim("_- ");
    for (const auto& [role, names] : kRoles)
        if (std::ranges::count(names, word)) return role;
    return Role::none;
}

Role role_in(const std::string& name) {
    Role found = Role::none;
    for (const std::string& word : words_of(name)) found = std::min(found, role_of(word));
    return found;
}

void refuse_parts(const std::string& where, const Names& classes) {
    std::map<std::string, Names> by_rest;
    for (const std::string& name : classes)
        if (const NameParts parts = parts_of(name); !parts.roles.empty())
            by_rest[parts.rest].push_back(name);
    Names paired;
    bool is_sure = false;
    for (const auto& [rest, names] : by_rest) {
        if (names.size() < 2) continue;
        paired.insert(paired.end(), names.begin(), names.end());
        is_sure |= !rest.empty() && parts_of(names[0]).roles != parts_of(names.back()).roles;
    }
    if (paired.empty() || paired.size() * 2 + is_sure <= classes.size()) return;
    std::ranges::sort(paired, {}, role_in);
    const auto is_mask = [](const std::string& name) { return parts_of(name).has(Role::masks); };
    if (std::ranges::any_of(paired, is_mask) && !std::ranges::all_of(paired, is_mask))
        fail("'", where, "': ", some_of(paired),
             " are images and their masks or annotations by their names, not classes: give --data ",
             within(where, *std::ranges::find_if_not(paired, is_mask)), kYes);
    fail("'", where, "': ", some_of(paired),
         " are parts of a set by their names, not classes: choose two that hold class folders, "
         "such as --data ",
         within(where, paired[0]), " --val ", within(where, paired[1]),
         ", or list the images in a file of path, tab, label", kYes);
}

void refuse_folders(const std::string& root, const Names& classes, std::span<const ImageFile> files,
                    Log& log) {
    const std::set<std::string> known(classes.begin(), classes.end());
    std::map<std::string, Names> holders;                      // of each folder in a class folder
    std::string last;                                          // folder of the last image
    std::map<std::string, std::set<std::string>> below, deep;  // folders in a class, on each level
    std::map<std::string, std::span<const ImageFile>> images;
    for (size_t i = 0, begin = 0; i < files.size(); ++i) {
        const std::string& path = files[i].path;
        if (i + 1 == files.size() || files[i + 1].label != files[i].label) {
            images[classes[size_t(files[i].label)]] = files.subspan(begin, i + 1 - begin);
            begin = i + 1;
        }
        const std::string folder = path.substr(0, path.rfind('/'));
        if (std::exchange(last, folder) == folder) continue;
        const std::string& name = classes[size_t(files[i].label)];
        const Names all = split(folder.substr(std::min(name.size() + 1, folder.size())), '/');
        if (all.empty() || all[0].empty()) continue;
        if (below[name].insert(all[0]).second) holders[all[0]].push_back(name);
        deep[name].insert(all.begin(), all.end());
    }

    for (const auto& [name, folders] : deep) {
        Names same;
        for (const std::string& one : folders)
            if (one != name && known.contains(one)) same.push_back(one);
        if (same.empty() ||
            (same.size() < folders.size() && (same.size() < 2 || 2 * same.size() < folders.size())))
            continue;
        Names others = classes;
        std::erase(others, name);
        fail("'", root, "': the folder '", name, "' holds folders named like other classes (",
             some_of(same), "), so it is no class: move it elsewhere",
             others.size() > 20 ? "" : ", or leave it out by --classes " + join_text(others, ","),
             kYes);
    }

    Names common, tops;
    std::set<std::string> kinds, top_kinds;
    for (const auto& [folder, names] : holders)
        if (names.size() > 1) common.push_back(folder), kinds.insert(parts_of(folder).rest);
    for (const auto& [name, folders] : below)
        if (std::ranges::count_if(folders,
                                  [&](const auto& one) { return holders[one].size() > 1; }) *
                2 >
            std::max<ptrdiff_t>(ptrdiff_t(folders.size()), 2))
            tops.push_back(name), top_kinds.insert(parts_of(name).rest);
    if (tops.size() > 1 && tops.size() * 2 > classes.size()) {
        const std::string what =
            cat("'", root, "': ", some_of(tops), " hold the same folders (", some_of(common), ")");
        if (all_have_roles(common))
            fail(what,
                 ", which are parts or masks by their names: list the images that you want "
                 "in a file of path, tab, label",
                 kYes);
        if (all_have_roles(tops) || kinds.size() > tops.size() ||
            (top_kinds.size() == 1 && !top_kinds.begin()->empty()))
            fail(what,
                 ", so they are parts or copies of a set, not classes: give one of them, "
                 "such as --data ",
                 within(root, tops[0]), kYes);
        log.notice(what,
                   "; if these are the classes, the folders around them are not classes: "
                   "give one of them, such as --data ",
                   within(root, tops[0]));
    }

    for (const auto& [name, masks] : images) {
        const NameParts parts = parts_of(name);
        for (const auto& [other, of] : images)
            if (parts.has(Role::masks) && other != name && are_masks_of(masks, name, of, other))
                fail("'", root, "': '", name, "' holds masks or annotations of the images in '",
                     other, "', not a class: move it elsewhere", kYes);
        if (parts.rest.empty() && role_in(name) <= Role::test)
            log.notice("the folder '", within(root, name),
                       "' is a class here, not a part of the set");
    }
}

}  // namespace convoy
