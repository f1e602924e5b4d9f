// folder_source.h — the image files in folders, as a source.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/sources/source.h"

namespace convoy {

using Names = std::vector<std::string>;

struct ImageFile {
    std::string path;  // below the root: "hat/summer/0012.jpg"
    int32_t label = -1;
    uint64_t bytes = 0;
};

// The paths of `files` are relative to `root`; "": to the working folder.
SourcePtr file_source(const std::string& root, const Names& classes, std::vector<ImageFile> files,
                      LeftOut left_out = {});

bool has_image_name(const std::filesystem::path& path);  // by its extension
// The kind of a file, as key of LeftOut: its extension in lower case.
std::string kind_of_file(const std::filesystem::path& path);

std::string lower_case(std::string text);  // of ASCII

// root/name
std::string within(const std::string& root, const std::string& name);

// By its name; also what operating systems make, such as __MACOSX and lost+found.
bool is_hidden(const std::filesystem::path& path);

// Names of the folders in `root`, sorted, without hidden and system folders. Throws Error.
Names folders_in(const std::string& root);

struct Search {
    std::function<int()> stop = {};  // if it returns other than 0, the search throws Error
    LeftOut* left_out = nullptr;     // counts the files that are no images, by extension
    size_t most = SIZE_MAX;          // the search ends after about so many images
};

// The images below root/folder ("": root itself), sorted by path. The extension decides, in any
// case. Hidden files and folders are left out. Links are followed, but each folder is listed once.
std::vector<ImageFile> images_below(const std::string& root, const std::string& folder,
                                    int32_t label, const Search& search = {});

}  // namespace convoy
