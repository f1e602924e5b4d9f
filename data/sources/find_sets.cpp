// find_sets.cpp — finds training, validation and test sets by their usual names.
#include "data/sources/find_sets.h"

#include <glob.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/images/decode.h"
#include "data/sources/index.h"
#include "src/base/text.h"

namespace convoy {
namespace fs = std::filesystem;

static bool has_images(const std::string& folder) {
    return !images_below(folder, "", -1, {.most = 1}).empty();
}

namespace {

constexpr size_t kMaxNames = 1'000'000;  // of a pattern

// The names that the inside of a pair of braces stands for.
Names alternatives(const std::string& inside) {
    const size_t dots = inside.find("..");
    if (dots == std::string::npos) return split(inside, ',');
    const std::string from = inside.substr(0, dots), to = inside.substr(dots + 2);
    const auto first = to_number<uint32_t>(from), last = to_number<uint32_t>(to);
    if (!first || !last) fail("'{", inside, "}' is not a range of numbers");
    if (*last < *first || *last - *first >= kMaxNames)
        fail("'{", inside, "}' is empty or too long");
    Names names;
    for (uint64_t n = *first; n <= *last; ++n)
        names.push_back(fmt::format("{:0{}}", n, from[0] == '0' ? from.size() : 1));
    return names;
}

// Sorted, without duplicates, and without NAME.gz if NAME is there.
Names once(Names names) {
    std::ranges::sort(names);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    const std::set<std::string> all(names.begin(), names.end());
    std::erase_if(names, [&](const std::string& name) {
        return name.ends_with(".gz") && all.contains(name.substr(0, name.size() - 3));
    });
    return names;
}

// The shards in `folder`, sorted. Files are recognised by their names or their first bytes.
Names shards_in(const std::string& folder) {
    Names shards;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        const std::string file = entry.path().filename().native();
        const auto ends = [&](std::string_view end) { return file.ends_with(end); };
        if (is_hidden(file) || !entry.is_regular_file() || ends(".json") || ends(".txt") ||
            ends(".part") || ends(".mdb") || file == kIndexName || has_image_name(file))
            continue;
        const std::string path = within(folder, file);
        if (ends(".tar") || ends(".tfrecord") || ends(".tfrecords") || is_shard(path))
            shards.push_back(path);
    }
    return once(std::move(shards));
}

// Formats that are not read here: the first bytes ('.': any byte), what it is, and what to do.
const std::pair<const char*, const char*> kOtherFormats[] = {
    {"unpack it, and give the folder of its images",
     "PK\3\4=a zip or npz archive|7z\xBC\xAF=a 7-Zip archive|Rar!=a RAR archive|\x1F\x8B=gzip|"
     "BZh9=bzip2|\xFD\x37zXZ=xz|\x28\xB5\x2F\xFD=zstd"},
    {"write its images to files in a folder per class, or to tar shards (WebDataset)",
     "PAR1=Parquet|ARROW1=Arrow|\x89HDF=HDF5|\x93NUMPY=a NumPy array|SQLite format=SQLite|"
     "MATLAB 5=MATLAB|\x0A\x23\xD7\xCE=RecordIO|................\xDE\xC0\xEF\xBE=LMDB|"
     "....ftyp=a video|\x1A\x45\xDF\xA3=a video"},
    {"take the binary version of the set, or write the images to files in a folder per class",
     "\x80\2=a Python pickle|\x80\3=a Python pickle|\x80\4=a Python pickle|\x80\5=a Python pickle"},
    {"convert it by iconv -f UTF-16 -t UTF-8", "\xFF\xFE=UTF-16|\xFE\xFF=UTF-16"}};

// "'a.zip' is a zip archive: ..." for such a file that is no image, else "".
std::string foreign_format(const std::string& path) {
    if (split_path(path).second.find('\\') != std::string::npos)
        return cat("'", printable(path),
                   "' has backslashes in its name: unpack it again by a tool that makes folders");
    const StoragePtr file = open_local(path);
    std::vector<uint8_t> head(std::min<uint64_t>(32, has_image_name(path) ? 0 : file->size()));
    file->read(0, head);
    const auto is_byte = [](char mark, uint8_t byte) {
        return mark == '.' || uint8_t(mark) == byte;
    };
    for (const auto& [advice, formats] : kOtherFormats)
        for (const std::string& row : split(formats, '|')) {
            const size_t n = row.find('=');
            if (n <= head.size() && std::equal(row.data(), row.data() + n, head.data(), is_byte))
                return cat("'", printable(path), "' is ", row.substr(n + 1), ": ", advice);
        }
    return "";
}

// Whether the folder holds images or shards.
bool holds_data(const std::string& folder) {
    return has_images(folder) || !shards_in(folder).empty();
}

// Divides shards of one folder into training, validation and test sets, by their names.
Places divide(const std::string& folder, const Names& shards) {
    Names train, val, test;
    for (const std::string& path : shards) {
        const Role role = role_in(split_path(path).second);
        // Other names train: "data_batch_1.bin" of CIFAR-10.
        (role == Role::val ? val : role == Role::test ? test : train).push_back(path);
    }
    Places places{{folder, train}, {}, false, shards};
    if (train.empty())
        places.train.shards = shards;
    else if (!val.empty())
        places.val = {folder + " (val)", val};
    else if (!test.empty())
        places.val = {folder + " (test)", test}, places.val_is_test = true;
    return places;
}

// The shards in a folder that holds no class folders.
Names only_shards(const std::string& folder) {
    const Names shards = shards_in(folder), folders = folders_in(folder);
    const auto is_class = [&](const std::string& name) { return holds_data(within(folder, name)); };
    return shards.empty() || std::ranges::any_of(folders, is_class) ? Names() : shards;
}

// A class may be called "train". The folder "train" is the training set if it is alone, if there is
// a validation set, if there is a test set and nothing else, or if a test set has the same classes.
Places places_in_folder(const std::string& folder) {
    if (const Names shards = only_shards(folder); !shards.empty()) return divide(folder, shards);
    const Names names = folders_in(folder);
    std::map<Role, Names> parts;
    for (const std::string& name : names)
        if (const Role role = role_of(name);
            role == Role::train || (role <= Role::test && holds_data(within(folder, name))))
            parts[role].push_back(within(folder, name));
    const Names &train = parts[Role::train], &val = parts[Role::val], &test = parts[Role::test];
    const auto place = [](const std::string& part) { return Place{part, only_shards(part)}; };
    if (train.size() == 1 && val.size() == 1) return {place(train[0]), place(val[0])};
    const bool is_alone = train.size() == 1 && std::ranges::none_of(names, [&](const auto& name) {
                              return role_of(name) > Role::test && holds_data(within(folder, name));
                          });
    if (is_alone && val.empty() && test.empty()) return {place(train[0])};
    if (train.size() == 1 && test.size() == 1)
        if (const Names classes = folders_in(train[0]);
            is_alone || (!classes.empty() && classes == folders_in(test[0])))
            return {place(train[0]), place(test[0]), true};
    return {{folder}};
}

// The shards that the dataset.json at a URL names; the URL ends in "/".
Places places_at_url(const std::string& url, const Remote& remote) {
    const std::string where = public_name(url);
    Names train, val;
    for (const auto& packed = read_packed(url, remote); const auto& [name, shard] : packed.shards)
        (shard.is_train ? train : val).push_back(url + name);
    if (train.empty())
        fail(where,
             "dataset.json: it names no shards for training, or is not there; `trainer pack` "
             "writes it");
    return {{where, train}, val.empty() ? Place{} : Place{where + " (val)", val}};
}

Names matches(const std::string& pattern) {
    if (is_url(pattern) || pattern.find_first_of("*?[") == std::string::npos) return {pattern};
    glob_t found = {};
    Names names;
    if (::glob(pattern.c_str(), 0, nullptr, &found) == 0)
        names.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    globfree(&found);
    return names;
}

}  // namespace

PackedSet read_packed(const std::string& folder, const Remote& remote) {
    const std::string path = within(folder, "dataset.json");
    PackedSet packed;
    if (is_url(path) || fs::exists(path)) try {
            const std::vector<uint8_t> bytes = read_all(*open_storage(path, remote), 1 << 26);
            const auto content = nlohmann::json::parse(bytes.begin(), bytes.end(), nullptr, false);
            if (!content.is_object()) return {};
            packed.classes = content.value("classes", Names());
            for (const char* part : {"train", "val"})
                if (const auto at = content.find(part); at != content.end() && at->is_object())
                    for (const auto& shard : at->value("shards", nlohmann::json::array()))
                        packed.shards[shard.at("name")] = {part == std::string_view("train"),
                                                           shard.at("images"), shard.at("sha256")};
        } catch (const nlohmann::json::exception&) {
            fail(public_name(path), ": not in the form of `trainer pack`");
        } catch (const Missing&) {  // a server has none
        }
    return packed;
}

std::vector<std::string> expand_braces(const std::string& pattern) {
    const size_t begin = pattern.find('{');
    const size_t end = begin == std::string::npos ? begin : pattern.find('}', begin);
    if (end == std::string::npos) return {pattern};
    const Names rests = expand_braces(pattern.substr(end + 1));
    Names names;
    for (const std::string& one : alternatives(pattern.substr(begin + 1, end - begin - 1))) {
        if (names.size() + rests.size() > kMaxNames)
            fail("'", pattern, "' stands for too many names");
        for (const std::string& rest : rests)
            names.push_back(pattern.substr(0, begin) + one + rest);
    }
    return names;
}

void refuse_folder(const std::string& folder, const Names& classes) {
    constexpr size_t kMostFolders = 200, kMostFiles = 200;
    std::string hint, what;
    LeftOut kinds;
    Names all = {folder};
    for (size_t i = 0; i < std::min(all.size(), kMostFolders) && hint.empty(); ++i) {
        const Names folders = folders_in(all[i]);
        for (const std::string& name : folders) all.push_back(within(all[i], name));
        const auto n = std::count_if(all.end() - ptrdiff_t(folders.size()), all.end(), has_images);
        if (i > 0 && (n > 1 || !shards_in(all[i]).empty()))
            hint = "if it is the set, give --data " + shell_word(all[i]);
        size_t seen = 0;
        for (const fs::directory_entry& entry : fs::directory_iterator(all[i])) {
            if (++seen > kMostFiles) break;
            if (!entry.is_regular_file() || is_hidden(entry.path())) continue;
            if (i == 0) ++kinds[kind_of_file(entry.path())];
            try {
                if (what.empty()) what = foreign_format(entry.path().native());
            } catch (const Error&) {  // it cannot be read
            }
        }
    }
    if (hint.empty()) hint = what;
    if (hint.empty())
        hint =
            has_images(folder) || !kinds.empty()
                ? "give folders that are classes, or list the images in a file of path, tab, label"
                : "name the folder above";
    if (classes.size() == 1)
        fail("only one class, '", classes[0], "', in '", folder,
             "': a classifier needs two or more; ", hint);
    fail("'", folder, "' has neither class folders with images nor shards",
         kinds.empty() ? "" : ", but " + left_out_text(kinds), ": ", hint);
}

Places find_places(const std::string& name, const Remote& remote) {
    if (is_url(name)) {
        // Without the slash at its end, a name may be a shard's, too: "train-images-idx3-ubyte".
        const std::string folder = name.ends_with('/') ? name : name + "/";
        const bool has_ending = name.find_first_of("?{.", name.rfind('/')) != std::string::npos;
        if (folder == name || (!has_ending && !read_packed(folder, remote).shards.empty()))
            return places_at_url(folder, remote);
    }
    if (!is_url(name) && fs::is_directory(name)) {
        Places places = places_in_folder(name);
        places.train.is_whole = places.val.is_whole = true;
        return places;
    }
    if (!is_url(name) && fs::is_regular_file(name)) {
        if (is_shard(name)) return {{name, {name}}};
        if (const std::string what = foreign_format(name); !what.empty()) fail("data ", what);
        if (has_image_name(name)) fail("data '", name, "' is an image: name a folder of folders");
        return {{name, {}, /*is_list=*/true}};
    }
    const size_t colon = fs::exists(name) ? name.npos : name.rfind(':');
    const auto images = to_number<uint32_t>(colon < name.npos ? name.substr(colon + 1) : "");
    const std::string stream = images ? name.substr(0, colon) : name;
    const std::string path = stream == "-" ? "/dev/stdin" : stream;
    if (images > 0u && fs::is_fifo(path)) return {{path, {}, false, false, *images}};
    if (!is_url(name) && fs::exists(path))
        fail("data '", name, "' is neither a folder nor a file of a known format; if it is a FIFO ",
             "or a pipe, add the number of its images: '", stream, ":5000'");
    Names shards;
    for (const std::string& pattern : expand_braces(name))
        for (const std::string& match : matches(pattern)) shards.push_back(match);
    shards = once(std::move(shards));
    const bool is_pattern = name.find_first_of("{*?[") != std::string::npos;
    if (shards.empty()) fail("data '", name, "': no file matches");
    if (!is_pattern && !is_url(name)) fail("data '", name, "': there is no such file or folder");
    if (is_pattern) return divide(public_name(name), shards);
    return {{public_name(name), shards}};
}

}  // namespace convoy
