// files.h — a source of which every sample is a file, and the folders where such files are.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

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
    FileSource(const std::string& root, const Names& classes, std::vector<ImageFile> files);

    std::string name(size_t i) const override;
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

// root/name
std::string within(const std::string& root, const std::string& name);

// Names of the folders in `root`, sorted, hidden ones left out. Throws Error.
Names folders_in(const std::string& root);

// The images below root/folder ("": root itself), sorted by path. By extension, in upper or lower
// case; hidden files and folders are left out, links are followed, but each folder is listed once.
// Throws Error once stop() is other than 0.
std::vector<ImageFile> images_below(const std::string& root, const std::string& folder,
                                    int32_t label, const std::function<int()>& stop = {});

// The images of root/CLASS for each class. A class without any is an error unless it may lack.
std::vector<ImageFile> files_of(const std::string& root, const Names& classes, bool may_lack,
                                Log& log, const std::function<int()>& stop = {});

}  // namespace convoy
