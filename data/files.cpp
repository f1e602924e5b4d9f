// files.cpp — finds the image files of a folder by the rules of torchvision's ImageFolder, and
// reads them.
#include "data/files.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "data/large_image.h"
#include "data/records.h"
#include "data/storage.h"
#include "src/base/check.h"
#include "src/base/random.h"
#include "src/base/terminal.h"
#include "src/base/text.h"

namespace convoy {
namespace fs = std::filesystem;

static const std::set<std::string> kImageKinds = {".jpg", ".jpeg", ".jpe",  ".jfif",
                                                  ".jif", ".png",  ".ppm",  ".pgm",
                                                  ".bmp", ".tif",  ".tiff", ".webp"};
static const std::set<std::string> kSystemNames = {
    "__macosx", "lost+found", "$recycle.bin", "recycler",  "system volume information",
    "@eadir",   "@recycle",   "#recycle",     "thumbs.db", "desktop.ini"};

std::string lower_case(std::string text) {
    for (char& c : text) c = char(std::tolower(static_cast<unsigned char>(c)));
    return text;
}

bool is_system_name(const std::string& name) { return kSystemNames.contains(lower_case(name)); }

static bool is_hidden(const fs::path& path) {
    const std::string name = path.filename().native();
    return name.starts_with('.') || is_system_name(name);
}

std::string kind_of_file(const fs::path& path) {
    const std::string extension = lower_case(path.extension().native());
    const bool is_short = extension.size() > 1 && extension.size() < 10;
    return is_short && printable(extension) == extension ? extension : "of other names";
}

bool has_image_name(const fs::path& path) { return kImageKinds.contains(kind_of_file(path)); }

std::string left_out_text(const LeftOut& left_out) {
    std::vector<std::string> all;
    for (const auto& [what, count] : left_out) all.push_back(cat(count, " ", what));
    return join_text(all);
}

std::string within(const std::string& root, const std::string& name) {
    return root + (root.empty() || root.ends_with('/') ? "" : "/") + name;
}

// Names of the folders in `root`, sorted, hidden ones left out.
Names folders_in(const std::string& root) {
    if (!fs::exists(root))
        fail("data folder '", root, "': there is no such folder; check the path");
    if (!fs::is_directory(root)) fail("data folder '", root, "' is a file: name the one above it");
    Names names;
    try {
        for (const fs::directory_entry& entry : fs::directory_iterator(root))
            if (entry.is_directory() && !is_hidden(entry.path()))
                names.push_back(entry.path().filename().native());
    } catch (const fs::filesystem_error& error) {
        fail("data folder '", root, "' cannot be listed: ", error.code().message());
    }
    std::ranges::sort(names);
    for (const std::string& name : names)
        if (const std::string shown = printable(name); !is_utf8(name) || shown != name)
            fail("data folder '", root, "': the name of the class folder '", shown,
                 "' is not UTF-8 or holds control characters; rename it");
    return names;
}

using Inode = std::pair<dev_t, ino_t>;

static Inode inode_of(const fs::path& path) {
    struct stat status = {};
    ::stat(path.c_str(), &status);
    return {status.st_dev, status.st_ino};
}

std::vector<ImageFile> images_below(const std::string& root, const std::string& folder,
                                    int32_t label, const Search& search) {
    std::vector<ImageFile> files;
    std::set<Inode> listed;
    Names folders = {within(root, folder)};
    for (size_t next = 0; next < folders.size() && files.size() < search.most; ++next) {
        const std::string at = folders[next];
        if (!listed.insert(inode_of(at)).second) continue;
        Names below;
        try {
            for (const fs::directory_entry& entry : fs::directory_iterator(at)) {
                if (const int signal = search.stop ? search.stop() : 0)
                    fail("stopped by signal ", signal, " while the images were listed");
                const fs::path& path = entry.path();
                if (files.size() >= search.most) break;
                if (is_hidden(path)) continue;
                if (entry.is_directory())
                    below.push_back(path.native());
                else if (has_image_name(path))  // what is no file is bad when it is read
                    files.push_back({path.lexically_relative(root).generic_string(), label,
                                     entry.is_regular_file() ? uint64_t(entry.file_size()) : 0});
                else if (search.left_out)
                    ++(*search.left_out)[kind_of_file(path)];
            }
        } catch (const fs::filesystem_error& error) {
            fail("folder '", error.path1().native(),
                 "' cannot be listed: ", error.code().message());
        }
        std::ranges::sort(below);  // of many links to a folder every machine takes the same one
        folders.insert(folders.end(), below.begin(), below.end());
    }
    std::ranges::sort(files, {}, &ImageFile::path);
    return files;
}

bool has_images(const std::string& folder, const std::function<int()>& stop) {
    return !images_below(folder, "", -1, {.stop = stop, .most = 1}).empty();
}

std::vector<ImageFile> files_of(const std::string& root, const Names& classes, Log& log,
                                const Search& search) {
    std::vector<ImageFile> files;
    ProgressBar bar(log, cat("listing the folders of ", root), classes.size());
    for (size_t label = 0; label < classes.size(); ++label, bar.add(1)) {
        if (!fs::is_directory(within(root, classes[label]))) continue;
        const std::vector<ImageFile> some =
            images_below(root, classes[label], int32_t(label), search);
        files.insert(files.end(), some.begin(), some.end());
    }
    return files;
}

FileSource::FileSource(const std::string& root, const Names& classes, std::vector<ImageFile> files,
                       LeftOut left_out)
    : root_(root), files_(std::move(files)), fingerprint_(hash_bytes("files")) {
    classes_ = classes, left_out_ = std::move(left_out);
    for (const std::string& name : classes_) fingerprint_ = hash_bytes(name + '\n', fingerprint_);
    for (const auto& [path, label, bytes] : files_) {
        labels_.push_back(label);
        fingerprint_ = hash_bytes(cat(path, '\n', label, ' ', bytes, '\n'), fingerprint_);
    }
}

std::string FileSource::path(size_t i) const {
    const std::string& path = files_[i].path;
    return path.starts_with('/') ? path : within(root_, path);
}
std::string FileSource::name(size_t i) const { return printable(path(i)); }
uint64_t FileSource::key(size_t i) const { return hash_bytes(files_[i].path); }

void FileSource::read(size_t i, std::vector<uint8_t>& bytes) const try {
    const StoragePtr file = open_local(path(i));
    if (file->size() > kMaxSample)
        fail(name(i), ": ", file->size(), " bytes; the limit is ", kMaxSample);
    LargeImage::expect_encoded(file->size());
    bytes.resize(file->size());
    file->read(0, bytes);
} catch (const Error& error) {
    // One image may be removed. Where its folder is gone, a disk or a mount is.
    std::error_code none;
    if (fs::exists(fs::path(path(i)).parent_path(), none)) throw;
    throw Unreachable(cat(error.what(), ", and its folder is gone"));
}

}  // namespace convoy
