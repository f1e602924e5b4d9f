// folder.cpp — finding and reading image files.
#include "data/folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "src/base/check.h"
#include "src/base/random.h"
#include "src/base/text.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

constexpr const char* kExtensions[] = {".jpg", ".jpeg", ".png",  ".ppm", ".bmp",
                                       ".pgm", ".tif",  ".tiff", ".webp"};

bool is_hidden(const fs::path& path) { return path.filename().native().starts_with('.'); }

bool is_image_name(const fs::path& path) {
    std::string extension = path.extension().native();
    for (char& c : extension)
        if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
    return std::find(std::begin(kExtensions), std::end(kExtensions), extension) !=
           std::end(kExtensions);
}

// The bytes of an open file, however long the file says it is.
void read_all(int file, const std::string& name, std::vector<uint8_t>& bytes) {
    struct stat status;
    if (fstat(file, &status) != 0) fail(name, ": cannot be read: ", std::strerror(errno));
    if (!S_ISREG(status.st_mode)) fail(name, ": not a file");
    bytes.resize(size_t(status.st_size));
    for (size_t at = 0; at < bytes.size();) {
        const ssize_t n = ::read(file, bytes.data() + at, bytes.size() - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail(name, ": cannot be read: ", std::strerror(errno));
        if (n == 0) bytes.resize(at);  // became shorter meanwhile
        at += size_t(n);
    }
}

}  // namespace

FileSource::FileSource(std::string root, std::vector<std::string> classes,
                       std::vector<ImageFile> files)
    : root_(std::move(root)), files_(std::move(files)) {
    if (!root_.empty() && !root_.ends_with('/')) root_ += '/';
    classes_ = std::move(classes);
    uint64_t hash = hash_bytes("files");
    for (const std::string& name : classes_) hash = hash_bytes(name + '\n', hash);
    labels_.reserve(files_.size());
    for (const ImageFile& file : files_) {
        labels_.push_back(file.label);
        hash = hash_bytes(cat(file.path, '\n', file.label, ' ', file.bytes, '\n'), hash);
    }
    fingerprint_ = hash;
}

void FileSource::read(size_t i, std::vector<uint8_t>& bytes) const {
    const std::string path = name(i);
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) fail(path, ": cannot be opened: ", std::strerror(errno));
    try {
        read_all(file, path, bytes);
    } catch (...) {
        ::close(file);
        throw;
    }
    ::close(file);
}

std::vector<std::string> folders_in(const std::string& root) {
    std::error_code error;
    const fs::file_status status = fs::status(root, error);
    if (!fs::exists(status)) fail("data folder '", root, "': there is no such folder");
    if (!fs::is_directory(status)) fail("data folder '", root, "' is a file, not a folder");
    std::vector<std::string> names;
    try {
        for (const fs::directory_entry& entry : fs::directory_iterator(root))
            if (entry.is_directory() && !is_hidden(entry.path()))
                names.push_back(entry.path().filename().native());
    } catch (const fs::filesystem_error& failure) {
        fail("data folder '", root, "' cannot be listed: ", failure.code().message());
    }
    std::sort(names.begin(), names.end());
    for (const std::string& name : names)
        if (!is_utf8(name))
            fail("data folder '", root, "': the name of the class folder '", name,
                 "' is not UTF-8; rename it");
    return names;
}

std::vector<ImageFile> images_below(const std::string& root, const std::string& folder,
                                    int32_t label) {
    std::vector<ImageFile> files;
    const fs::path top = fs::path(root) / folder;
    try {
        constexpr auto kFollow = fs::directory_options::follow_directory_symlink;
        for (fs::recursive_directory_iterator it(top, kFollow), end; it != end; ++it) {
            if (is_hidden(it->path())) {
                if (it->is_directory()) it.disable_recursion_pending();
            } else if (is_image_name(it->path()) && it->is_regular_file()) {
                files.push_back({it->path().lexically_relative(root).generic_string(), label,
                                 uint64_t(it->file_size())});
            }
        }
    } catch (const fs::filesystem_error& failure) {
        fail("folder '", top.native(), "' cannot be listed: ", failure.code().message());
    }
    std::sort(files.begin(), files.end(),
              [](const ImageFile& a, const ImageFile& b) { return a.path < b.path; });
    return files;
}

std::string listed(const std::vector<std::string>& names) {
    constexpr size_t kMost = 20;
    std::string text;
    for (size_t i = 0; i < std::min(names.size(), kMost); ++i) text += (i ? ", " : "") + names[i];
    return names.size() > kMost ? cat(text, " and ", names.size() - kMost, " more") : text;
}

}  // namespace convoy
