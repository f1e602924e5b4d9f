// class_names.cpp — see class_names.h.
#include "data/class_names.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/files.h"
#include "src/base/check.h"
#include "src/base/text.h"

namespace convoy {
namespace {

constexpr int64_t kMaxClasses = 1 << 20;

bool all_numbers(const Names& names) {
    return std::ranges::all_of(names, [](const std::string& name) {
        return name.find_first_not_of("0123456789") == std::string::npos;
    });
}

// The names of numbers 0 to `last`; two classes of one name are told apart by their number.
Names names_of_numbers(int64_t last, const std::map<int64_t, std::string>& own, const Names& given,
                       const Names& base, const std::string& where) {
    const Names& known = !given.empty() ? given : all_numbers(base) ? Names() : base;
    if (own.empty() && !known.empty() && last >= int64_t(known.size()))
        fail(where, ": class number ", last, ", but only ", known.size(),
             " classes have names, from 0 on; numbers that begin at 1 need --label-offset 1");
    Names names;
    std::set<std::string> seen;
    for (int64_t k = 0; k <= std::max(last, int64_t(known.size()) - 1); ++k) {
        const auto at = own.find(k);
        std::string name = at != own.end()             ? at->second
                           : k < int64_t(known.size()) ? known[size_t(k)]
                                                       : cat(k);
        const std::string longer = cat(name, " (", k, ")");  // as the training set may have it
        const bool is_longer = k < int64_t(base.size()) && base[size_t(k)] == longer;
        if (is_longer || !seen.insert(name).second) seen.insert(name = longer);
        names.push_back(name);
    }
    return names;
}

ClassNames by_number(const std::set<Label>& labels, const Names& given, const Names& base,
                     int64_t offset, const std::string& where) {
    int64_t first = INT64_MAX, last = 0;
    std::map<int64_t, std::string> own;
    for (const Label& label : labels) {
        if (*label.number < offset)
            fail(where, ": a label of ", *label.number, " with --label-offset ", offset,
                 ": classes are counted from 0");
        if (*label.number >= kMaxClasses + offset)
            fail(where, ": a label of ", *label.number, ", more than ", kMaxClasses, " classes");
        const int64_t number = *label.number - offset;
        first = std::min(first, number), last = std::max(last, number);
        if (label.name.empty()) continue;
        const auto [at, is_new] = own.try_emplace(number, label.name);
        if (!is_new && at->second != label.name)
            fail(where, ": class ", number, " is called both '", at->second, "' and '", label.name,
                 "'");
    }
    if (own.empty() && given.empty() && base.empty() && last >= 1 << 16 &&
        last / 64 > int64_t(labels.size()))
        fail(where, ": a label of ", last, ", but only ", labels.size(),
             " different ones: they cannot be numbers of classes, which count from 0");
    // ImageNet's TFRecords count 1 to 1000 and leave 0 to a background that no image shows.
    if (first == 1 && offset == 0 && base.empty() &&
        (given.empty() || int64_t(given.size()) == last))
        fail(where, ": labels run from 1 to ", last,
             " and none is 0. Where 1 is the first class, as "
             "in TFRecords of ImageNet, give --label-offset 1; a model of ",
             last + 1, " classes would have one without images");
    ClassNames classes{names_of_numbers(last, own, given, base, where), {}};
    for (const Label& label : labels)
        classes.name_of[label] = classes.names[size_t(*label.number - offset)];
    return classes;
}

}  // namespace

ClassNames name_classes(const std::set<Label>& labels, const Names& given, const Names& base,
                        int64_t label_offset, const std::string& where) {
    const Label *with = nullptr, *without = nullptr;
    for (const Label& label : labels) (label.number ? with : without) = &label;
    if (with && without)
        fail(where, ": some labels are numbers (", *with->number, "), others only names (",
             without->name, ")");
    if (!without) return by_number(labels, given, base, label_offset, where);
    ClassNames classes;
    std::set<std::string> sorted;
    for (const Label& label : labels) sorted.insert(classes.name_of[label] = label.name);
    if (given.empty()) {
        classes.names.assign(sorted.begin(), sorted.end());
        return classes;
    }
    const std::set<std::string> known(given.begin(), given.end());
    for (const std::string& name : sorted)
        if (!known.contains(name))
            fail(where, ": a class '", name, "' that its file of class names does not have");
    classes.names = given;
    return classes;
}

Names class_names_in(const std::string& folder, const Remote& remote) {
    constexpr uint64_t kMaxFile = 1 << 26;
    const std::string json = within(folder, "dataset.json");
    if (is_url(json) || std::filesystem::exists(json)) try {
            const std::vector<uint8_t> bytes = read_all(*open_storage(json, remote), kMaxFile);
            const auto content = nlohmann::json::parse(bytes.begin(), bytes.end(), nullptr, false);
            if (content.is_object() && content.contains("classes"))
                return content["classes"].get<Names>();
        } catch (const nlohmann::json::exception&) {
            fail(public_name(json), ": its \"classes\" is not a list of names");
        } catch (const Missing&) {  // a server has none
        }
    for (const char* file : {"classes.txt", "batches.meta.txt", "fine_label_names.txt"}) {
        const std::string path = within(folder, file);
        if (is_url(path) || !std::filesystem::exists(path)) continue;
        Names names;
        for (std::string& line : read_lines(path, kMaxFile)) {
            while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())))
                line.pop_back();
            if (!is_utf8(line)) fail(path, ": a name that is not UTF-8");
            if (!line.empty()) names.push_back(line);
        }
        return names;
    }
    return {};
}

}  // namespace convoy
