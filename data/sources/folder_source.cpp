// folder_source.cpp — finds image files by the rules of torchvision's ImageFolder.
#include "data/sources/folder_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "data/images/decode.h"
#include "data/images/large_image.h"
#include "data/sources/records.h"
#include "data/sources/storage.h"
#include "src/base/random.h"
#include "src/base/text.h"

namespace convoy {
namespace fs = std::filesystem;

static const std::set<std::string> kSystemNames = {
    "__macosx", "lost+found", "$recycle.bin", "recycler",  "system volume information",
    "@eadir",   "@recycle",   "#recycle",     "thumbs.db", "desktop.ini"};

std::string lower_case(std::string text) {  // of ASCII
    for (char& c : text) c = char(std::tolower(static_cast<unsigned char>(c)));
    return text;
}

bool is_hidden(const fs::path& path) {
    const std::string name = path.filename().native();
    return name.starts_with('.') || kSystemNames.contains(lower_case(name));
}

std::string kind_of_file(const fs::path& path) {
    const std::string extension = lower_case(path.extension().native());
    const bool is_short = extension.size() > 1 && extension.size() < 10;
    return is_short && printable(extension) == extension ? extension : "of other names";
}

bool has_image_name(const fs::path& path) { return is_image_extension(kind_of_file(path)); }

std::string left_out_text(const LeftOut& left_out) {
    std::vector<std::string> all;
    for (const auto& [what, count] : left_out) all.push_back(cat(count, " ", what));
    return join_text(all);
}

std::string within(const std::string& root, const std::string& name) {
    return root + (root.empty() || root.ends_with('/') ? "" : "/") + name;
}

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
        if (!is_plain_text(name))
            fail("data folder '", root, "': the name of the class folder '", printable(name),
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
    std::set<Inode> listed;  // and the folders above, to which a link may lead
    for (fs::path up = folder.empty() ? fs::weakly_canonical(root)
                                      : fs::weakly_canonical(root) / folder;
         up.has_relative_path();)
        listed.insert(inode_of(up = up.parent_path()));
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
                else if (has_image_name(path))  // not a file: a bad image when it is read
                    files.push_back({path.lexically_relative(root).generic_string(), label,
                                     entry.is_regular_file() ? uint64_t(entry.file_size()) : 0});
                else if (search.left_out)
                    ++(*search.left_out)[kind_of_file(path)];
            }
        } catch (const fs::filesystem_error& error) {
            fail("folder '", error.path1().native(),
                 "' cannot be listed: ", error.code().message());
        }
        std::ranges::sort(below);  // so that every machine follows the same link to a folder
        folders.insert(folders.end(), below.begin(), below.end());
    }
    std::ranges::sort(files, {}, &ImageFile::path);
    return files;
}

namespace {

class FileSource final : public Source {
 public:
    FileSource(const std::string& root, const Names& classes, std::vector<ImageFile> files,
               LeftOut left_out)
        : root_(root), files_(std::move(files)) {
        set_classes(classes, "files");
        left_out_ = std::move(left_out);
        for (const auto& [path, label, bytes] : files_) {
            labels_.push_back(label);
            fingerprint_ = hash_bytes(cat(path, '\n', label, ' ', bytes, '\n'), fingerprint_);
        }
    }

    std::string name(size_t i) const override { return printable(title(i)); }
    std::string title(size_t i) const override {
        const std::string& path = files_[i].path;
        return path.starts_with('/') ? path : within(root_, path);
    }
    void read(size_t i, std::vector<uint8_t>& bytes) const override try {
        const StoragePtr file = open_local(title(i));
        if (file->size() > kMaxSample)
            fail(name(i), ": ", file->size(), " bytes; the limit is ", kMaxSample);
        LargeImage::expect_encoded(file->size());
        bytes.resize(file->size());
        file->read(0, bytes);
    } catch (const Error& error) {
        // A single image may be removed. If its folder is gone too, a disk or a mount fails.
        std::error_code none;
        if (fs::exists(fs::path(title(i)).parent_path(), none)) throw;
        throw Unreachable(cat(error.what(), ", and its folder is gone"));
    }
    uint64_t bytes(size_t i) const override { return files_[i].bytes; }
    uint64_t key(size_t i) const override { return hash_bytes(files_[i].path); }

 private:
    const std::string root_;
    const std::vector<ImageFile> files_;
};

}  // namespace

SourcePtr file_source(const std::string& root, const Names& classes, std::vector<ImageFile> files,
                      LeftOut left_out) {
    return std::make_shared<FileSource>(root, classes, std::move(files), std::move(left_out));
}

}  // namespace convoy
