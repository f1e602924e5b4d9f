// classes.cpp — tells classes from parts of a set, masks, copies, and folders around a set.
//
// The words of a name have roles: "cars_train" is the training part of "cars". Names that differ in
// roles and numbers alone are no classes: cars_train and cars_test, images and masks, part1 and
// part2. Nor is a folder that holds the other classes, nor are folders that hold the same folders.
#include <algorithm>
#include <map>
#include <utility>

#include "data/sources/find_sets.h"
#include "src/base/text.h"

namespace convoy {
namespace {

const std::pair<Role, Names> kRoles[] = {
    {Role::train, split("train training", ' ')},
    {Role::val, split("val valid validation validate dev eval evaluation", ' ')},
    {Role::test, split("test testing t10k", ' ')},
    {Role::masks, split("mask masks annotation annotations annot seg segs segmentation "
                        "segmentations trimap trimaps truth gt labels",
                        ' ')},
    {Role::images, split("image images img imgs photo photos picture pictures", ' ')},
    {Role::copies, split("original originals orig augmented aug augmentation resized cropped "
                         "processed preprocessed",
                         ' ')},
    {Role::pieces, split("part fold split subset chunk batch", ' ')},
    {Role::filler, split("set data ground class object jpeg jpg png", ' ')}};

constexpr const char* kList = "list the images that you want in a file of path, tab, label";

[[noreturn]] void refuse(const std::string& where, const Names& names, const std::string& why,
                         const std::string& advice) {
    fail("'", where, "': ", some_of(names), " ", why, ": ", advice,
         "; if these are classes, add --classes all");
}

std::string without_digits(std::string name) {
    std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
    return name;
}

// The words of a name: "JPEGImages_2012" has jpeg, images and 2012.
Names words_of(const std::string& name) {
    std::string words;
    for (size_t i = 0; i < name.size(); ++i) {
        const uint8_t c = uint8_t(name[i]);
        if (i > 0 && std::isupper(c) &&
            (std::islower(uint8_t(name[i - 1])) || std::islower(uint8_t(name[i + 1]))))
            words += ' ';
        words += std::isalnum(c) || c >= 128 ? char(c) : ' ';
    }
    return split(lower_case(words), ' ');
}

struct NameParts {
    explicit NameParts(const std::string& name) {
        for (const std::string& word : words_of(name))
            if (const Role role = role_of(word); role == Role::none)
                rest += without_digits(word);
            else if (role != Role::filler)
                roles.insert(role);
    }
    std::set<Role> roles;
    std::string rest;  // the other words, without digits
};

bool is_mask(const std::string& name) { return NameParts(name).roles.contains(Role::masks); }

// Whether many images of class m have the name of an image of class c and a word such as "_mask";
// of another class also with another type, or if the names of the classes differ by such a word.
bool are_masks_of(std::span<const ImageFile> masks, const std::string& m,
                  std::span<const ImageFile> images, const std::string& c) {
    const bool is_named_so =
        !is_mask(c) && NameParts(c).rest == NameParts(m).rest && NameParts(c).roles.empty();
    size_t twins = 0, seen = 0;
    for (size_t i = 0; i < masks.size(); i += masks.size() / 64 + 1, ++seen) {
        const std::string& path = masks[i].path;
        std::string stem = c + path.substr(m.size(), path.rfind('.') - m.size());
        const size_t tail = std::min(stem.find_last_of("_- "), stem.size() - 1);
        const bool has_word = role_of(stem.substr(tail + 1)) == Role::masks;
        if (has_word) stem.resize(tail);
        const auto twin = std::ranges::lower_bound(images, stem += ".", {}, &ImageFile::path);
        if (twin == images.end() || !twin->path.starts_with(stem)) continue;
        const bool is_other = is_named_so || kind_of_file(twin->path) != kind_of_file(path);
        twins += has_word || (c != m && is_other);
    }
    return twins > 1 && 3 * twins > seen;
}

}  // namespace

Role role_of(std::string word) {
    word = lower_case(std::move(word));
    const auto trim = [&](const char* end) { word.erase(word.find_last_not_of(end) + 1); };
    trim("0123456789_- ");
    if (word.ends_with("set") && word.size() > 3) word.resize(word.size() - 3), trim("_- ");
    for (const auto& [role, names] : kRoles)
        if (std::ranges::count(names, word)) return role;
    return Role::none;
}

Role role_in(const std::string& name) {
    Role found = Role::none;
    for (const std::string& word : words_of(name)) found = std::min(found, role_of(word));
    return found;
}

void refuse_parts(const std::string& where, const Names& classes, const FoldersIn& below) {
    std::map<std::pair<Role, std::string>, Names> groups;  // names of a kind with the same rest
    for (const std::string& name : classes)
        if (const Role role = role_in(name); role < Role::filler) {
            const bool is_part = role <= Role::test, is_alone = is_part && below.contains(name);
            groups[{is_part               ? Role::train
                    : role == Role::masks ? Role::images
                                          : role,
                    is_alone ? "" : NameParts(name).rest}]
                .push_back(name);
        }
    Names paired;
    bool is_bare = false;
    for (const auto& [key, names] : groups)
        if (names.size() > 1) {
            paired.insert(paired.end(), names.begin(), names.end());
            is_bare |= key.second.empty();
        }
    if (paired.empty() || paired.size() * 2 < classes.size() + is_bare) return;
    std::ranges::stable_sort(paired, {}, role_in);
    std::stable_partition(paired.begin(), paired.end(), [](auto& n) { return !is_mask(n); });
    const std::string first = shell_word(within(where, paired[0]));
    const bool has_masks = is_mask(paired.back()) && !is_mask(paired[0]);
    refuse(where, paired,
           has_masks ? "are images and their masks or annotations by their names, not classes"
                     : "are parts of a set by their names, not classes",
           !below.contains(paired[0]) ? kList
           : has_masks                ? "give --data " + first
                                      : cat("choose two, such as --data ", first, " --val ",
                                            shell_word(within(where, paired[1]))));
}

void refuse_folders(const std::string& root, const Names& classes, std::span<const ImageFile> files,
                    Log& log) {
    std::map<std::string, std::span<const ImageFile>> images;
    FoldersIn below;
    for (size_t i = 0, begin = 0; i < files.size(); ++i) {
        const std::string& name = classes[size_t(files[i].label)];
        if (i + 1 == files.size() || files[i + 1].label != files[i].label)
            images[name] = files.subspan(std::exchange(begin, i + 1), i + 1 - begin);
        const std::string folder = files[i].path.substr(0, files[i].path.rfind('/'));
        if (folder == name || (i > 0 && files[i - 1].path.rfind('/') == folder.size() &&
                               files[i - 1].path.starts_with(folder)))
            continue;
        const Names all = split(folder, '/');
        below[name].insert(all.begin() + 1, all.end());
    }
    refuse_parts(root, classes, below);

    std::map<std::string, size_t> holders;  // how many classes have such a folder
    Names around, others, inside, common, tops;
    for (const std::string& name : classes) {
        Names same;  // but not 7 in 3: numbers of something else
        const auto& all = below[name];
        for (const std::string& folder : all)
            if (++holders[folder] == 2) common.push_back(folder);
        std::ranges::copy_if(all, std::back_inserter(same), [&](const std::string& folder) {
            return images.contains(folder) && without_digits(folder) != without_digits(name);
        });
        const bool is_around =
            !same.empty() &&
            (same.size() == all.size() || (same.size() > 1 && 2 * same.size() >= all.size()));
        (is_around ? around : others).push_back(name);
        if (is_around) inside = same;
    }
    if (!around.empty())
        refuse(
            root, around,
            cat("cannot be a class, with folders named like other classes (", some_of(inside), ")"),
            "move it elsewhere" +
                (others.size() > 20 ? ""
                                    : ", or leave it out by --classes " + join_text(others, ",")));

    std::set<std::string> kinds, top_kinds;
    for (const std::string& folder : common) kinds.insert(without_digits(folder));
    for (const auto& [name, all] : below) {
        const auto n = std::ranges::count_if(all, [&](auto& one) { return holders[one] > 1; });
        if (n < 2 || 2 * size_t(n) <= all.size()) continue;
        tops.push_back(name), top_kinds.insert(without_digits(name));
    }
    if (tops.size() > 1 && tops.size() * 2 > classes.size()) {
        const std::string what = cat("hold the same folders (", some_of(common), ")"),
                          advice = "give one of them, such as --data " +
                                   shell_word(within(root, tops[0]));
        if (std::ranges::any_of(common, [](auto& one) { return role_in(one) <= Role::masks; }))
            refuse(root, tops, what + ", with parts of a set or masks, not classes", kList);
        if (const auto train = std::ranges::find(tops, Role::train, role_of); train != tops.end())
            refuse(root, tops, what + ", as parts of a set do, not classes",
                   cat("choose two, such as --data ", shell_word(within(root, *train)), " --val ",
                       shell_word(within(root, tops[train == tops.begin()]))));
        if (kinds.size() > tops.size() || (top_kinds.size() == 1 && *top_kinds.begin() != ""))
            refuse(root, tops, what + ", as parts or copies of a set do, not classes", advice);
        log.notice("'", root, "': the classes ", some_of(tops), " ", what,
                   "; if these are the classes, ", advice);
    }

    for (const auto& [name, some] : images) {
        Names of;  // if files of all classes have the same names, these tell nothing
        for (const auto& [other, all] : is_mask(name) ? images : decltype(images){{name, some}})
            if (are_masks_of(some, name, all, other)) of.push_back(other);
        if (!of.empty() && 2 * of.size() <= images.size())
            refuse(root, {name}, "holds masks or annotations of images in " + some_of(of), kList);
    }
    for (const std::string& name : classes)
        if (role_of(name) <= Role::test)
            log.notice("folder '", within(root, name), "' is a class, not a part of the set");
}

}  // namespace convoy
