// places.cpp — see places.h.
#include "data/places.h"

#include <glob.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "data/files.h"
#include "data/index.h"
#include "src/base/check.h"
#include "src/base/number.h"
#include "src/base/text.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxNames = 1'000'000;  // of a pattern

// The alternatives of one pair of braces; the inside itself where it is neither a range nor a list.
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

// The parts of a set, and the names that people give to them: to folders, and as words of the names
// of shards.
enum class Split { train, val, test, none };
const std::pair<Split, Names> kSplitNames[] = {
    {Split::train, {"train", "training"}},
    {Split::val, {"val", "valid", "validation", "validate", "dev", "eval", "evaluation"}},
    {Split::test, {"test", "testing", "t10k"}}};

// Of a word in any case, also with "set", a year or a number behind it: "Testing", "train2017".
Split split_of(std::string word) {
    word = lower_case(std::move(word));
    const auto trim = [&](const char* end) { word.erase(word.find_last_not_of(end) + 1); };
    trim("0123456789_- ");
    if (word.ends_with("set")) word.resize(word.size() - 3), trim("_- ");
    for (const auto& [split, names] : kSplitNames)
        if (std::ranges::count(names, word)) return split;
    return Split::none;
}

// Of the first kind above that a word of the name says: "imagenet-train2_01.tar" has the words
// imagenet, train2, 01 and tar.
Split split_in(const std::string& name) {
    Split split = Split::none;
    std::string word;
    for (const char c : name + ".") {
        if (std::isalnum(static_cast<unsigned char>(c))) {
            word += c;
            continue;
        }
        split = std::min(split, split_of(word));
        word.clear();
    }
    return split;
}

// Sorted, each once. Of a file and the same one gzipped, the file.
Names once(Names names) {
    std::ranges::sort(names);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    const std::set<std::string> all(names.begin(), names.end());
    std::erase_if(names, [&](const std::string& name) {
        return name.ends_with(".gz") && all.contains(name.substr(0, name.size() - 3));
    });
    return names;
}

// Files in `folder` that are shards, sorted: by their first bytes, unless the name says it already.
Names shards_in(const std::string& folder) {
    Names shards;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        const std::string file = entry.path().filename().native();
        const auto ends = [&](std::string_view end) { return file.ends_with(end); };
        if (file.starts_with('.') || is_system_name(file) || !entry.is_regular_file() ||
            ends(".json") || ends(".txt") || ends(".part") || file == kIndexName ||
            has_image_name(file))
            continue;
        const std::string path = within(folder, file);
        if (ends(".tar") || ends(".tfrecord") || ends(".tfrecords") || is_shard(path))
            shards.push_back(path);
    }
    return once(std::move(shards));
}

// Whether a set could be in the folder; an empty one, or one of texts, does not count.
bool holds_data(const std::string& folder) {
    return has_images(folder) || !shards_in(folder).empty();
}

// Shards of one folder, by their names, into those for training, validation and test.
Places divide(const std::string& folder, const Names& shards) {
    Names train, val, test;
    for (const std::string& path : shards) {
        const Split split = split_in(split_path(path).second);
        // The rest trains: "data_batch_1.bin" of CIFAR-10.
        (split == Split::val ? val : split == Split::test ? test : train).push_back(path);
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

// Parts of a set would become classes where they are not recognised.
void refuse_parts(const std::string& folder, const Names& names) {
    Names parts;
    for (const std::string& name : names)
        if (split_in(name) != Split::none && !folders_in(within(folder, name)).empty())
            parts.push_back(name);
    std::ranges::sort(parts, {}, split_in);
    if (parts.size() > 1 && parts.size() * 2 > names.size())
        fail("'", folder, "': ", join_text(parts),
             " are parts of a set by their names, not classes: choose two of them, such as --data ",
             within(folder, parts[0]), " --val ", within(folder, parts[1]));
}

// A class may be called "train". The folder is the training set where it is alone, or is beside a
// validation set, or beside a test set and nothing else, or has the same folders as a test set.
Places places_in_folder(const std::string& folder) {
    if (const Names shards = only_shards(folder); !shards.empty()) return divide(folder, shards);
    const Names names = folders_in(folder);
    std::map<Split, Names> parts;
    for (const std::string& name : names)
        if (const Split split = split_of(name);
            split == Split::train || (split != Split::none && holds_data(within(folder, name))))
            parts[split].push_back(within(folder, name));
    const Names &train = parts[Split::train], &val = parts[Split::val], &test = parts[Split::test];
    const auto place = [](const std::string& part) { return Place{part, only_shards(part)}; };
    if (train.size() == 1 && val.size() > 1)
        fail("'", folder, "': either ", val[0], " or ", val[1],
             " is the validation set: --val says");
    if (train.size() == 1 && val.size() == 1) return {place(train[0]), place(val[0])};
    const bool is_alone =
        train.size() == 1 && std::ranges::none_of(names, [&](const auto& name) {
            return split_of(name) == Split::none && holds_data(within(folder, name));
        });
    if (is_alone && test.empty()) return {place(train[0])};
    if (train.size() == 1 && test.size() == 1)
        if (const Names classes = folders_in(train[0]);
            is_alone || (!classes.empty() && classes == folders_in(test[0])))
            return {place(train[0]), place(test[0]), true};
    refuse_parts(folder, names);
    return {{folder}};
}

// A URL that ends in "/": the shards that its dataset.json names.
Places places_at_url(const std::string& url, const Remote& remote) {
    const std::string name = url + "dataset.json", where = public_name(url);
    const std::vector<uint8_t> bytes = read_all(*open_storage(name, remote), 1 << 26);
    const auto content = nlohmann::json::parse(bytes.begin(), bytes.end(), nullptr, false);
    const auto shards = [&](const char* part) {
        Names names;
        const nlohmann::json::json_pointer list(cat("/", part, "/shards"));
        for (const auto& shard : content.value(list, nlohmann::json::array()))
            names.push_back(url + shard.at("name").get<std::string>());
        return once(std::move(names));
    };
    try {
        const Names train = shards("train"), val = shards("val");
        if (train.empty()) fail(where, "dataset.json: names no shards for training");
        return {{where, train}, val.empty() ? Place{} : Place{where + " (val)", val}};
    } catch (const nlohmann::json::exception&) {
        fail(where, "dataset.json: not as `trainer pack` writes it");
    }
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

Places find_places(const std::string& name, const Remote& remote) {
    if (is_url(name) && name.ends_with('/')) return places_at_url(name, remote);
    if (!is_url(name) && fs::is_directory(name)) return places_in_folder(name);
    if (!is_url(name) && fs::is_regular_file(name)) {
        if (is_shard(name)) return {{name, {name}}};
        return {{name, {}, /*is_list=*/true}};
    }
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
