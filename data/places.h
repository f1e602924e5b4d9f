// places.h — what a name after --data or --val means: a folder of class folders, shards, or a list
// of files; and the image files in folders.
//
//   flowers/                     class folders, or train/ and val/ (or test/) of them, by any of
//                                their usual names: Training, valid, dev
//   shards/                      files that are shards: train-…, val-…, test-…; data_batch_…,
//                                test_batch of CIFAR; train-…, t10k-… of MNIST
//   shards/train-{000..012}.tar  these; also {a,b}, and for files * and ?
//   train.tar                    one shard
//   train.txt                    lines of path, tab, label
//   https://host/shards/         with the dataset.json that `trainer pack` writes; also a pattern
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/remote.h"
#include "data/source.h"

namespace convoy {

using Names = std::vector<std::string>;

struct ImageFile {
    std::string path;  // below the root: "hat/summer/0012.jpg"
    int32_t label = -1;
    uint64_t bytes = 0;
};

class FileSource final : public Source {
 public:
    // root "": paths are whole.
    FileSource(const std::string& root, const Names& classes, std::vector<ImageFile> files,
               LeftOut left_out = {});

    std::string name(size_t i) const override;
    std::string title(size_t i) const override { return path(i); }
    void read(size_t i, std::vector<uint8_t>& bytes) const override;
    uint64_t fingerprint() const override { return fingerprint_; }
    uint64_t bytes(size_t i) const override { return files_[i].bytes; }
    uint64_t key(size_t i) const override;

 private:
    std::string path(size_t i) const;

    std::string root_;
    std::vector<ImageFile> files_;
    uint64_t fingerprint_;
};

bool has_image_name(const std::filesystem::path& path);  // by its extension
// What a file is by its extension, in lower case, as key of LeftOut.
std::string kind_of_file(const std::filesystem::path& path);

std::string lower_case(std::string text);  // of ASCII

// root/name
std::string within(const std::string& root, const std::string& name);

// Names that operating systems put beside the files of users, such as __MACOSX and lost+found.
bool is_system_name(const std::string& name);

// Names of the folders in `root`, sorted, without hidden ones and those of the system. Throws
// Error.
Names folders_in(const std::string& root);

struct Search {
    std::function<int()> stop = {};  // throws Error once it is other than 0
    LeftOut* left_out = nullptr;     // files that are no images by their names are counted there
    size_t most = SIZE_MAX;          // ends after about so many images
};

// The images below root/folder ("": root itself), sorted by path. By extension, in upper or lower
// case; hidden files and folders are left out, links are followed, but each folder is listed once.
std::vector<ImageFile> images_below(const std::string& root, const std::string& folder,
                                    int32_t label, const Search& search = {});
// Whether there is any.
bool has_images(const std::string& folder, const std::function<int()>& stop = {});

// The images of root/CLASS for each class; of one without a folder, none.
std::vector<ImageFile> files_of(const std::string& root, const Names& classes, Log& log,
                                const Search& search = {});

struct Place {
    std::string name;                      // for people
    std::vector<std::string> shards = {};  // paths or URLs; without them a folder of class folders
    bool is_list = false;                  // a list of files
    bool is_none() const { return name.empty(); }
};

struct Places {
    Place train, val = {};     // val: none
    bool val_is_test = false;  // "test" in place of "val"
    // All shards, also those of neither part, for predict.
    std::vector<std::string> shards = {};
};

// Throws Error where there is nothing of that name.
Places find_places(const std::string& name, const Remote& remote);

// "a{08..10}" → a08, a09, a10; "{x,y}{1..2}" → x1, x2, y1, y2.
std::vector<std::string> expand_braces(const std::string& pattern);

}  // namespace convoy
