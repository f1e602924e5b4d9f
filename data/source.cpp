// source.cpp — finds the image files of a folder by the rules of torchvision's ImageFolder, and
// divides them into a training and a validation set.
#include "data/source.h"

#include <strings.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "data/generated.h"
#include "src/base/check.h"
#include "src/base/random.h"
#include "src/base/text.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

constexpr const char* kExtensions[] = {".jpg", ".jpeg", ".png",  ".ppm", ".bmp",
                                       ".pgm", ".tif",  ".tiff", ".webp"};

using Names = std::vector<std::string>;

bool contains(const Names& names, const std::string& name) {
    return std::ranges::count(names, name) > 0;
}

std::string within(const std::string& root, const std::string& name) {
    return root + (root.empty() || root.ends_with('/') ? "" : "/") + name;
}

// "a, b, c" for messages; after the 20th only how many more there are.
std::string listed(Names names) {
    const size_t all = names.size(), most = std::min<size_t>(all, 20);
    names.resize(most);
    return join_text(names) + (all > most ? cat(" and ", all - most, " more") : "");
}

bool is_hidden(const fs::path& path) { return path.filename().native().starts_with('.'); }

bool is_image_name(const fs::path& path) {
    const std::string extension = path.extension().native();
    return std::ranges::any_of(
        kExtensions, [&](const char* known) { return strcasecmp(known, extension.c_str()) == 0; });
}

// Names of the folders in `root`, sorted, hidden ones left out.
Names folders_in(const std::string& root) {
    if (!fs::exists(root)) fail("data folder '", root, "': there is no such folder");
    if (!fs::is_directory(root)) fail("data folder '", root, "' is a file, not a folder");
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
        if (!is_utf8(name))
            fail("data folder '", root, "': the name of the class folder '", name,
                 "' is not UTF-8; rename it");
    return names;
}

struct ImageFile {
    std::string path;  // below the root: "hat/summer/0012.jpg"
    int32_t label = -1;
    uint64_t bytes = 0;
};

// The images below root/folder ("": root itself), sorted by path. By extension, in upper or lower
// case; hidden files and folders are left out, links are followed.
std::vector<ImageFile> images_below(const std::string& root, const std::string& folder,
                                    int32_t label) {
    std::vector<ImageFile> files;
    constexpr auto kFollow = fs::directory_options::follow_directory_symlink;
    std::string at = within(root, folder);  // where it is, for an error
    try {
        for (fs::recursive_directory_iterator it(at, kFollow), end; it != end; ++it) {
            at = it->path().native();
            if (is_hidden(it->path()))
                it.disable_recursion_pending();
            else if (is_image_name(it->path()) && it->is_regular_file())
                files.push_back({it->path().lexically_relative(root).generic_string(), label,
                                 uint64_t(it->file_size())});
        }
    } catch (const fs::filesystem_error& error) {
        fail("folder '", at, "' cannot be listed: ", error.code().message());
    }
    std::ranges::sort(files, {}, &ImageFile::path);
    return files;
}

class FileSource final : public Source {
 public:
    FileSource(const std::string& root, const Names& classes, std::vector<ImageFile> files)
        : root_(root), files_(std::move(files)), fingerprint_(hash_bytes("files")) {
        classes_ = classes;
        for (const std::string& name : classes_)
            fingerprint_ = hash_bytes(name + '\n', fingerprint_);
        for (const auto& [path, label, bytes] : files_) {
            labels_.push_back(label);
            fingerprint_ = hash_bytes(cat(path, '\n', label, ' ', bytes, '\n'), fingerprint_);
        }
    }

    std::string name(size_t i) const override { return within(root_, files_[i].path); }
    uint64_t fingerprint() const override { return fingerprint_; }

    void read(size_t i, std::vector<uint8_t>& bytes) const override {
        const std::string path = name(i);
        const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                                   std::fclose);
        struct stat status;
        if (!file || fstat(fileno(file.get()), &status) != 0)
            fail(path, ": cannot be opened: ", std::strerror(errno));
        if (!S_ISREG(status.st_mode)) fail(path, ": not a file");
        std::setbuf(file.get(), nullptr);  // straight into `bytes`
        bytes.resize(size_t(status.st_size));
        bytes.resize(std::fread(bytes.data(), 1, bytes.size(), file.get()));  // it may have shrunk
        if (std::ferror(file.get())) fail(path, ": cannot be read: ", std::strerror(errno));
    }

 private:
    std::string root_;  // "": paths are whole
    std::vector<ImageFile> files_;
    uint64_t fingerprint_;
};

struct Roots {
    std::string train, val;    // val: "" when there is none
    bool val_is_test = false;  // test/ in place of val/
};

// flowers/ with flowers/train/ and flowers/val/ (or validation/, test/) inside, or a plain folder
// of class folders. A class may be called "train": alone or with test/ only, it is taken for the
// split.
Roots find_roots(const std::string& folder) {
    const Names names = folders_in(folder);
    if (!contains(names, "train")) return {folder, ""};
    const std::string train = within(folder, "train");
    const bool val = contains(names, "val"), validation = contains(names, "validation");
    if (val && validation)
        fail("'", folder, "' has both val/ and validation/: name one with --val");
    if (val || validation) return {train, within(folder, val ? "val" : "validation")};
    if (names.size() == 1) return {train, ""};
    if (names == Names{"test", "train"}) return {train, within(folder, "test"), true};
    return {folder, ""};
}

// The classes to use of those `there`, in the order of `wanted` if any are.
Names choose_classes(const Names& there, const Names& wanted, const std::string& where) {
    for (const std::string& name : wanted) {
        if (!contains(there, name))
            fail("no class '", name, "' in ", where, "; there are: ", listed(there));
        if (std::ranges::count(wanted, name) > 1) fail("class '", name, "' is named twice");
    }
    const Names& classes = wanted.empty() ? there : wanted;
    if (classes.size() == 1)
        fail("only one class, '", classes[0], "', in ", where, ": a classifier needs two or more");
    return classes;
}

std::vector<ImageFile> files_of(const std::string& root, const Names& classes, bool may_lack) {
    std::vector<ImageFile> files;
    for (size_t label = 0; label < classes.size(); ++label) {
        const std::string folder = within(root, classes[label]);
        if (may_lack && !fs::is_directory(folder)) continue;
        const std::vector<ImageFile> some = images_below(root, classes[label], int32_t(label));
        if (some.empty() && !may_lack)
            fail("class '", classes[label], "' has no images in '", folder, "'");
        files.insert(files.end(), some.begin(), some.end());
    }
    return files;
}

// Moves round(part · n) images of each class, at least one and not all, from `files` to the
// result. Which ones depends on (seed, name) alone: a new image leaves the others in their place.
std::vector<ImageFile> split_off(std::vector<ImageFile>& files, float part, uint64_t seed) {
    if (!(part > 0 && part < 1)) fail("--val-split ", part, " is not between 0 and 1");
    std::map<int32_t, std::vector<std::pair<uint64_t, size_t>>> drawn;  // by label: draw, file
    for (size_t i = 0; i < files.size(); ++i)
        drawn[files[i].label].emplace_back(
            Random(seed, 0, hash_bytes(files[i].path), kSplit).bits64(), i);
    std::vector<char> is_held(files.size());
    for (auto& [label, draws] : drawn) {
        std::ranges::sort(draws);
        const long wanted = std::max(std::lround(part * float(draws.size())), 1l);
        draws.resize(std::min(draws.size() - 1, size_t(wanted)));
        for (const auto& [draw, i] : draws) is_held[i] = true;
    }
    std::vector<ImageFile> train, held;
    for (size_t i = 0; i < files.size(); ++i)
        (is_held[i] ? held : train).push_back(std::move(files[i]));
    files = std::move(train);
    return held;
}

DataSet open_generated(const DataOptions& options) {
    if (!options.val.empty()) fail("--val needs --data: the generated set brings its own");
    const Names classes =
        choose_classes(GeneratedSource::all_classes(), options.classes, "the generated set");
    if (options.val_split < 0 || options.val_split >= 1)
        fail("--val-split ", options.val_split, " is not between 0 and 1");
    const size_t n = size_t(std::max(options.generated, 0));
    const size_t held = options.val_split > 0 ? size_t(float(n) * options.val_split) : n / 6;
    if (held < 1 || n - held < classes.size()) fail(n, " generated images are too few");
    return {std::make_shared<GeneratedSource>(classes, options.seed, 0, n - held),
            std::make_shared<GeneratedSource>(classes, options.seed, n - held, held),
            cat("generated set: ", classes.size(), " classes (", listed(classes), "), ", n - held,
                " images for training, ", held, " for validation")};
}

// `known`: of training. A class among them that --classes leaves out is left out here too.
std::shared_ptr<const Source> open_validation(const std::string& root, const Names& known,
                                              const Names& classes) {
    for (const std::string& name : folders_in(root))
        if (!contains(known, name))
            fail("validation folder '", root, "' has a class '", name,
                 "' that training does not know; there are: ", listed(known));
    auto source = std::make_shared<FileSource>(root, classes, files_of(root, classes, true));
    if (source->size() == 0) fail("validation folder '", root, "' has no images");
    return source;
}

}  // namespace

DataSet open_data(const DataOptions& options, Log& log) {
    if (options.train.empty()) return open_generated(options);
    auto [train, val, val_is_test] = find_roots(options.train);
    if (!options.val.empty()) {
        const Roots roots = find_roots(options.val);
        val = roots.val.empty() ? roots.train : roots.val;
    } else if (val_is_test && options.val_split != 0) {
        val = "";
    } else if (val_is_test) {
        const Names known = folders_in(train), labels = folders_in(val);
        if (!labels.empty() && std::ranges::includes(known, labels)) {
            log.info("validation set: '", val, "', as there is no val/ beside train/");
        } else {
            log.info("'", val, "' is not used: its folders are not the classes of ", train);
            val = "";
        }
    }
    if (options.val_split != 0 && !val.empty())
        fail("--val-split with a validation set already there, '", val, "': drop one");

    const Names known = folders_in(train);
    if (known.empty())
        fail("'", train, "' has no class folders: it needs one folder of images a class");
    const Names classes = choose_classes(known, options.classes, "'" + train + "'");
    std::vector<ImageFile> files = files_of(train, classes, false);

    DataSet set;
    if (options.val_split != 0) {
        std::vector<ImageFile> held = split_off(files, options.val_split, options.seed);
        if (held.empty()) fail("--val-split: no class of '", train, "' has two images");
        set.val = std::make_shared<FileSource>(train, classes, std::move(held));
        val = cat(options.val_split * 100, " % of each class");
    } else if (!val.empty()) {
        set.val = open_validation(val, known, classes);
    } else {
        log.info("no validation set: name one with --val DIR, or hold back a part of '", train,
                 "' with --val-split F");
    }
    set.train = std::make_shared<FileSource>(train, classes, std::move(files));
    set.description =
        cat(train, ": ", classes.size(), " classes, ", set.train->size(), " images for training, ",
            set.val ? cat(set.val->size(), " for validation (", val, ")") : "none for validation");
    return set;
}

std::shared_ptr<const Source> open_for_classes(const std::string& folder, const Names& classes) {
    const Roots roots = find_roots(folder);
    return open_validation(roots.val.empty() ? roots.train : roots.val, classes, classes);
}

std::shared_ptr<const Source> open_files(const std::vector<std::string>& paths) {
    std::vector<ImageFile> all;
    for (const std::string& path : paths) {
        if (!fs::exists(path)) fail("'", path, "': there is no such file or folder");
        if (!fs::is_directory(path)) {
            all.push_back({path, -1, 0});
            continue;
        }
        const std::vector<ImageFile> files = images_below(path, "", -1);
        if (files.empty()) fail("folder '", path, "' has no images");
        for (const ImageFile& file : files) all.push_back({within(path, file.path), -1, 0});
    }
    return std::make_shared<FileSource>("", Names(), std::move(all));
}

}  // namespace convoy
