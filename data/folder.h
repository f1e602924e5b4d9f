// folder.h — image files on disk, by the rules of torchvision's ImageFolder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/source.h"

namespace convoy {

struct ImageFile {
    std::string path;  // below the root: "hat/summer/0012.jpg"
    int32_t label = -1;
    uint64_t bytes = 0;
};

class FileSource final : public Source {
 public:
    FileSource(std::string root, std::vector<std::string> classes, std::vector<ImageFile> files);

    std::string name(size_t i) const override { return root_ + files_[i].path; }
    void read(size_t i, std::vector<uint8_t>& bytes) const override;
    uint64_t fingerprint() const override { return fingerprint_; }

 private:
    std::string root_;  // ends in "/", or is empty
    std::vector<ImageFile> files_;
    uint64_t fingerprint_;
};

// Names of the folders in `root`, sorted, hidden ones left out. Throws Error: no such folder.
std::vector<std::string> folders_in(const std::string& root);

// The images below root/folder ("": root itself), sorted by path. By extension, in upper or lower
// case; hidden files and folders are left out, links are followed.
std::vector<ImageFile> images_below(const std::string& root, const std::string& folder,
                                    int32_t label);

// "a, b, c" for messages; after the 20th only how many more there are.
std::string listed(const std::vector<std::string>& names);

}  // namespace convoy
