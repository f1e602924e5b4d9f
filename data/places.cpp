// places.cpp — see places.h.
#include "data/places.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

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

// Files in `folder` that are shards, sorted: by their first bytes, unless the name says it already.
Names shards_in(const std::string& folder) {
    Names shards;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        const std::string file = entry.path().filename().native();
        const auto ends = [&](std::string_view end) { return file.ends_with(end); };
        if (file.starts_with('.') || !entry.is_regular_file() || ends(".json") || ends(".txt") ||
            ends(".part") || file == kIndexName)
            continue;
        const std::string path = within(folder, file);
        if (ends(".tar") || ends(".tfrecord") || ends(".tfrecords") || is_shard(path))
            shards.push_back(path);
    }
    std::ranges::sort(shards);
    return shards;
}

// Whether a word of the file name is one of these: "data/imagenet-train2_01.tar" has the words
// imagenet, train, 01 and tar.
bool has_word(const std::string& path, std::initializer_list<std::string_view> words) {
    std::string word;
    for (const char c : split_path(path).second + ".") {
        if (std::isalnum(static_cast<unsigned char>(c))) {
            word += char(std::tolower(static_cast<unsigned char>(c)));
            continue;
        }
        const size_t letters = word.find_last_not_of("0123456789") + 1;
        if (std::ranges::count(words, word) + std::ranges::count(words, word.substr(0, letters)))
            return true;
        word.clear();
    }
    return false;
}

// Shards of one folder, by their names, into those for training, validation and test.
Places divide(const std::string& folder, const Names& shards) {
    Names train, val, test, rest;
    for (const std::string& path : shards) {
        const bool is_train = has_word(path, {"train", "training"});
        const bool is_val = has_word(path, {"val", "valid", "validation"});
        const bool is_test = has_word(path, {"test", "t10k"});
        (is_train ? train : is_val ? val : is_test ? test : rest).push_back(path);
    }
    train.insert(train.end(), rest.begin(), rest.end());  // "data_batch_1.bin" of CIFAR-10
    if (train.empty()) return {{folder, shards}};
    if (!val.empty()) return {{folder, train}, {folder + " (val)", val}};
    if (!test.empty()) return {{folder, train}, {folder + " (test)", test}, true};
    return {{folder, train}};
}

// A folder inside: its shards, or its class folders.
Place inner_place(const std::string& folder) {
    return {folder, folders_in(folder).empty() ? shards_in(folder) : Names()};
}

// A class may be called "train": alone or with test/ only, it is taken for the split.
Places places_in_folder(const std::string& folder) {
    const Names names = folders_in(folder);
    if (names.empty())
        if (const Names shards = shards_in(folder); !shards.empty()) return divide(folder, shards);
    const auto has = [&](const char* name) { return std::ranges::binary_search(names, name); };
    if (!has("train")) return {{folder}};
    const Place train = inner_place(within(folder, "train"));
    const bool val = has("val"), validation = has("validation");
    if (val && validation)
        fail("'", folder, "' has both val/ and validation/: name one with --val");
    if (val || validation) return {train, inner_place(within(folder, val ? "val" : "validation"))};
    if (names.size() == 1) return {train};
    if (names == Names{"test", "train"}) return {train, inner_place(within(folder, "test")), true};
    return {{folder}};
}

Names once(Names names) {
    std::ranges::sort(names);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
}

// A URL that ends in "/": the shards that its dataset.json names.
Places places_at_url(const std::string& url, const Remote& remote) {
    const std::string name = url + "dataset.json";
    const std::vector<uint8_t> bytes = read_all(*open_storage(name, remote), 1 << 26);
    const auto content = nlohmann::json::parse(bytes.begin(), bytes.end(), nullptr, false);
    const auto shards = [&](const char* part) {
        Names names;
        if (content.is_object() && content.contains(part) && content[part].is_object() &&
            content[part].contains("shards") && content[part]["shards"].is_array())
            for (const auto& shard : content[part]["shards"])
                if (shard.is_object() && shard.contains("name") && shard["name"].is_string())
                    names.push_back(url + shard["name"].get<std::string>());
        return once(std::move(names));
    };
    const Names train = shards("train"), val = shards("val");
    const std::string where = public_name(url);
    if (train.empty()) fail(where, "dataset.json: names no shards for training");
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
    return {{public_name(name), shards}};
}

}  // namespace convoy
