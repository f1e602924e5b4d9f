// find_sets.h — finds what a name after --data or --val means: shards.md lists its forms.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "data/sources/folder_source.h"
#include "data/sources/remote.h"

namespace convoy {

struct Place {
    std::string name;                      // for people
    std::vector<std::string> shards = {};  // paths or URLs; without them a folder of class folders
    bool is_list = false;                  // a list of files
    bool is_whole = false;                 // a folder with all its shards
    uint64_t images = 0;                   // that a stream brings: `name` is a FIFO
    bool is_none() const { return name.empty(); }
};

struct Places {
    Place train, val = {};     // val: none
    bool val_is_test = false;  // `val` is the test set
    // For predict: all shards, also those that are in neither set.
    std::vector<std::string> shards = {};
};

// What a word in the name of a folder or shard says about the images. "set" or a number may follow:
// "Testing", "test_set", "train2017" (classes.cpp).
enum class Role { train, val, test, masks, images, copies, pieces, filler, none };
Role role_of(std::string word);
// The first role of a word in the name: "imagenet-train2_01.tar".
Role role_in(const std::string& name);

// Throw Error for classes that are parts of a set, masks, or folders around a set, by their names
// and by the images in them, sorted by label and path. The log says what stays doubtful.
using FoldersIn = std::map<std::string, std::set<std::string>>;  // the folders in a class
void refuse_parts(const std::string& where, const Names& classes, const FoldersIn& below = {});
void refuse_folders(const std::string& root, const Names& classes, std::span<const ImageFile> files,
                    Log& log);
// For a folder with no class or only one: says what is in it, and what to do.
[[noreturn]] void refuse_folder(const std::string& folder, const Names& classes);

// Throws Error if there is nothing of that name.
Places find_places(const std::string& name, const Remote& remote);

// What the dataset.json of a folder or URL says; `trainer pack` writes it. Empty without that file.
struct PackedShard {
    bool is_train = false;
    uint64_t images = 0;
    std::string sha256;
};
struct PackedSet {
    Names classes = {};
    std::map<std::string, PackedShard> shards = {};  // by name
};
PackedSet read_packed(const std::string& folder, const Remote& remote);

// "a{08..10}" → a08, a09, a10; "{x,y}{1..2}" → x1, x2, y1, y2.
std::vector<std::string> expand_braces(const std::string& pattern);

}  // namespace convoy
