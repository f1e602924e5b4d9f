#include "data/sources/listing.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "data/sources/index.h"
#include "src/base/bytes.h"
#include "src/base/parallel.h"
#include "src/base/sha256.h"
#include "src/base/terminal.h"
#include "src/base/text.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMaxClasses = 1 << 20;

bool all_numbers(const Names& names) {
    return std::ranges::all_of(names, [](const std::string& name) {
        return name.find_first_not_of("0123456789") == std::string::npos;
    });
}

// The names of numbers 0 to `last`. If two classes have the same name, the number is added.
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

Names by_number(const std::set<Label>& labels, const Names& given, const Names& base,
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
             " different ones; numbers of classes count from 0");
    // ImageNet's TFRecords count 1 to 1000 and leave 0 to a background that no image shows.
    if (first == 1 && offset == 0 && base.empty() &&
        (given.empty() || int64_t(given.size()) == last))
        fail(where, ": labels run from 1 to ", last,
             " and none is 0. If 1 is the first class, as in "
             "TFRecords of ImageNet, give --label-offset 1; else class 0 of ",
             last + 1, " classes would have no images");
    return names_of_numbers(last, own, given, base, where);
}

// The names of all classes, in their order.
// labels: all labels of the set. Numbers count from label_offset. The name of a number comes from
// the labels, else from `given` (a file of class names), else from `base` (the classes of the
// training set, unless they are numbers too), else it is the number. Labels without numbers are
// sorted by name, or in the order of `given`. `where` is for messages. Throws Error: a number that
// cannot be a class, labels with and without numbers in one set, a name that is missing in `given`.
Names name_classes(const std::set<Label>& labels, const Names& given, const Names& base,
                   int64_t label_offset, const std::string& where) {
    const Label *with = nullptr, *without = nullptr;
    for (const Label& label : labels) (label.number ? with : without) = &label;
    if (with && without)
        fail(where, ": some labels are numbers (", *with->number, "), others only names (",
             without->name, ")");
    if (!without) return by_number(labels, given, base, label_offset, where);
    std::set<std::string> sorted;
    for (const Label& label : labels) sorted.insert(label.name);
    if (given.empty()) return {sorted.begin(), sorted.end()};
    const std::set<std::string> known(given.begin(), given.end());
    for (const std::string& name : sorted)
        if (!known.contains(name))
            fail(where, ": a class '", name, "' that its file of class names does not have");
    return given;
}

// The names of classes that a folder or URL gives: those of dataset.json, or the lines of
// classes.txt, batches.meta.txt (CIFAR-10), fine_label_names.txt (CIFAR-100) or label.labels.txt
// (TFDS). May be empty.
Names class_names_in(const std::string& folder, const PackedSet& packed) {
    if (!packed.classes.empty()) return packed.classes;
    for (const char* file :
         {"classes.txt", "batches.meta.txt", "fine_label_names.txt", "label.labels.txt"}) {
        const std::string path = within(folder, file);
        if (is_url(path) || !std::filesystem::exists(path)) continue;
        Names names;
        for (std::string& line : read_lines(path, 1 << 26)) {
            while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())))
                line.pop_back();
            if (!is_utf8(line)) fail(path, ": a name that is not UTF-8");
            if (!line.empty()) names.push_back(line);
        }
        return names;
    }
    return {};
}

// The images of root/CLASS for each class; none for a class without a folder.
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

// With options.part, a class stays although it has no image here: other ranks may have some.
Listing list_folders(const std::string& folder, bool is_training, const DataOptions& options,
                     Log& log) {
    Names known;
    for (const std::string& name : folders_in(folder)) {
        LeftOut others;
        const Search search{options.remote.stop, &others, /*most=*/1};
        if (options.part || !images_below(folder, name, -1, search).empty())
            known.push_back(name);
        else
            log.notice("left out: folder '", within(folder, name), "': it has no images",
                       others.empty() ? "" : ", only " + left_out_text(others));
    }
    if (known.empty() || (known.size() == 1 && is_training && !options.part))
        refuse_folder(folder, known);
    LeftOut loose;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
        if (has_image_name(entry.path()) && !entry.is_directory())
            ++loose["images in no class folder"];
    const bool is_sure = !is_training || !options.classes.empty();
    return {folder, known, [=, stop = options.remote.stop, &log](const Names& classes) {
                LeftOut left_out = loose;
                auto files = files_of(folder, classes, log, {stop, &left_out});
                if (!is_sure) refuse_folders(folder, classes, files, log);
                return file_source(folder, classes, std::move(files), left_out);
            }};
}

// A set whose samples have these labels. open() gets the number of each label's class, or -1 if
// that class was not chosen or the label is empty.
using ClassOf = std::map<Label, int32_t>;
Listing list_labels(const std::string& where, const Names& given, const std::set<Label>& labels,
                    const Names& base, const DataOptions& options,
                    std::function<SourcePtr(const Names& classes, const ClassOf&)> open) {
    const int64_t offset = options.label_offset;
    const Names names = name_classes(labels, given, base, offset, where);
    if (base.empty() && options.classes.empty()) refuse_parts(where, names);
    return {where, names, [=](const Names& classes) {
                std::map<std::string, int32_t> number_of;
                for (const std::string& name : classes)
                    number_of.try_emplace(name, int32_t(number_of.size()));
                ClassOf class_of = {{Label{}, -1}};
                for (const Label& label : labels) {
                    const auto at = number_of.find(
                        label.number ? names[size_t(*label.number - offset)] : label.name);
                    class_of[label] = at == number_of.end() ? -1 : at->second;
                }
                return open(classes, class_of);
            }};
}

// Leaves out samples without a label, like damaged ones.
void leave_out_unlabelled(ShardIndex& index) {
    const auto none = std::ranges::find(index.labels, Label{});
    const auto number = uint32_t(none - index.labels.begin());
    const char* why = index.format == ShardFormat::tar
                          ? "no label: neither .cls, nor label, cls, class or class_name in .json, "
                            "nor a folder"
                          : "no label: neither image/class/label nor image/class/text";
    for (size_t i = 0; i < index.size(); ++i)
        if (index.label_of[i] == number && ++index.fault_count <= kMaxFaults)
            index.faults.push_back({index.offsets[i], why});
}

void tell_faults(const std::vector<Shard>& shards, Log& log) {
    uint64_t all = 0, told = 0;
    for (const Shard& shard : shards) {
        all += shard.index.fault_count;
        for (const ShardFault& fault : shard.index.faults)
            if (++told <= 10)
                log.notice("left out: ", shard.name, ", byte ", fault.offset, ": ", fault.why);
    }
    if (all > told || told > 10) log.notice("left out: ", all, " damaged records in all");
}

// Images that a shard has lost since it was packed count as damaged. For `check`, so do other
// bytes.
void compare(Shard& shard, const PackedSet& packed, bool is_check) {
    auto& [name, storage, index] = shard;
    const auto at = packed.shards.find(split_path(name).second);
    if (at == packed.shards.end()) return;
    const auto& [is_train, images, sha256] = at->second;
    const uint64_t there = index.size() + index.fault_count;
    if (index.size() > images)
        fail(name, ": ", index.size(), " images, but ", images,
             " in its dataset.json: copy that set's shard, or run `trainer pack` again");
    ByteStream stream(storage);
    const bool is_same = !is_check || sha256_of([&] { return as_text(stream.next()); }) == sha256;
    if (is_same && there >= images) return;
    index.fault_count += std::max<uint64_t>(images - std::min(there, images), 1);
    index.faults.push_back({index.bytes, cat("not as packed: ", there, " images of ", images,
                                             is_same ? "" : ", another SHA-256")});
}

Listing list_shards(const Place& place, const Names& base, const DataOptions& options,
                    const Remote& remote, Log& log) {
    auto shards =
        std::make_shared<std::vector<Shard>>(open_shards(place.shards, options, remote, log));
    std::map<std::string, PackedSet> packed;  // by folder
    std::set<bool> parts;                     // true: training shards are opened; false: validation
    for (const std::string& path : place.shards) {
        const auto [folder, name] = split_path(path);
        if (!packed.contains(folder)) packed[folder] = read_packed(folder, remote);
        if (const auto at = packed[folder].shards.find(name); at != packed[folder].shards.end())
            parts.insert(at->second.is_train);
    }
    const std::string folder = split_path(place.shards[0]).first,
                      first = split_path(place.shards[0]).second;
    Names lost;
    for (const auto& [name, shard] : packed[folder].shards)
        if (place.is_whole && !options.part && parts.contains(shard.is_train) &&
            !fs::exists(within(folder, name)))
            lost.push_back(name);
    if (!lost.empty())
        fail("'", folder, "' lacks ", some_of(lost),
             " of its dataset.json: copy what is missing, or run `trainer pack` again; to "
             "use the rest, name it: '",
             within(folder, first.substr(0, first.find_first_of("0123456789"))), "*'");
    for_each_parallel(shards->size(), options.threads, [&](size_t s) {
        Shard& shard = (*shards)[s];
        const auto own = packed.find(split_path(shard.name).first);
        compare(shard, own == packed.end() ? packed.at(folder) : own->second, options.is_check);
    });
    std::set<Label> labels;
    for (Shard& shard : *shards) {
        leave_out_unlabelled(shard.index);
        labels.insert(shard.index.labels.begin(), shard.index.labels.end());
    }
    labels.erase(Label{});
    if (!options.is_check) tell_faults(*shards, log);
    if (labels.empty()) {
        const auto& faults = shards->front().index.faults;
        const LeftOut& others = shards->front().index.left_out;
        fail("'", place.name, "': no sample with a label in ",
             counted(int64_t(shards->size()), "shard"),
             faults.empty() ? "" : "; the first: " + faults.front().why,
             others.empty() ? "" : "; unread: " + left_out_text(others));
    }
    return list_labels(place.name, class_names_in(folder, packed[folder]), labels, base, options,
                       [shards](const Names& classes, const ClassOf& class_of) {
                           std::vector<std::vector<int32_t>> of_shards;
                           for (const Shard& shard : *shards) {
                               of_shards.emplace_back();
                               for (const Label& label : shard.index.labels)
                                   of_shards.back().push_back(class_of.at(label));
                           }
                           return shard_source(std::move(*shards), classes, of_shards);
                       });
}

}  // namespace

FileList read_list(const std::string& path, bool needs_labels) {
    FileList list{split_path(path).first};
    std::map<Label, int32_t> seen;
    Names texts;  // of the labels
    int64_t number = 0;
    const auto bad_line = [&](const auto&... why) {
        fail("data '", path, "', line ", number, ": ", why...);
    };
    for (std::string& line : read_lines(path, 1ull << 32)) {
        ++number;
        if (line.empty()) continue;
        if (!needs_labels && line.find('\t') == std::string::npos) line += "\t?";
        const size_t tab = line.rfind('\t');
        if (!is_utf8(line))
            bad_line("not UTF-8: convert the list, such as by iconv -f LATIN1 -t UTF-8");
        if (tab == std::string::npos || tab == 0 || tab + 1 == line.size())
            bad_line("neither a shard nor a list of path, tab, label",
                     line.find_first_of(",;") < line.size()
                         ? "; of a CSV file, take out the header, and write a tab for each comma"
                     : has_image_name(line.substr(0, line.rfind(' ')))
                         ? "; write a tab in front of the label"
                         : "");
        const Label label = parse_label(line.substr(tab + 1));
        const auto [at, is_new] = seen.try_emplace(label, int32_t(list.labels.size()));
        std::string text = line.substr(tab + 1);
        std::erase_if(text, [](uint8_t c) { return std::isspace(c) != 0; });
        if (is_new) list.labels.push_back(label), texts.push_back(text);
        if (const std::string& first = texts[size_t(at->second)]; first != text)
            bad_line("label ", text, " is the same number as ", first, ": write both alike");
        line.resize(tab);
        std::error_code missing;  // found when it is read
        const std::string file = line.starts_with('/') ? line : within(list.folder, line);
        const uintmax_t size = fs::file_size(file, missing);
        if (missing && line.find('\\') < line.size())
            bad_line("there is no '", line, "': write paths with / instead of backslashes");
        if (missing && number == 1 && !has_image_name(line))
            bad_line("there is no image '", line,
                     "': remove the header line, or write the path in front of the label");
        list.files.push_back({line, at->second, missing ? 0 : uint64_t(size)});
    }
    if (list.files.empty()) fail("data '", path, "' is empty: it needs lines of path, tab, label");
    return list;
}

static Listing list_lines(const std::string& path, const Names& base, const DataOptions& options,
                          const Remote& remote) {
    const auto list = std::make_shared<FileList>(read_list(path));
    const Names given = class_names_in(list->folder, read_packed(list->folder, remote));
    return list_labels(path, given, {list->labels.begin(), list->labels.end()}, base, options,
                       [list](const Names& classes, const ClassOf& class_of) {
                           std::vector<ImageFile> kept;
                           for (ImageFile& file : list->files) {
                               file.label = class_of.at(list->labels[size_t(file.label)]);
                               if (file.label >= 0) kept.push_back(std::move(file));
                           }
                           return file_source(list->folder, classes, std::move(kept));
                       });
}

// The labels are not here yet.
static Listing list_stream(const Place& place, const Names& base, const DataOptions& options,
                           Log& log) {
    if (!options.streams || options.val_split != 0)
        fail("'", place.name, "' is a stream: only training reads it, and without --val-split");
    const Names known = base.empty() ? options.classes : base;
    if (known.empty())
        fail("'", place.name, "' is a stream: name its classes by --classes, in their order");
    return {place.name, known, [=, &log](const Names& classes) {
                return stream_source(place, classes, options.label_offset, options.remote, log);
            }};
}

Listing list_place(const Place& place, const Names& base, const DataOptions& options,
                   const Remote& remote, Log& log) {
    if (place.images > 0) return list_stream(place, base, options, log);
    if (place.is_list) return list_lines(place.name, base, options, remote);
    if (!place.shards.empty()) return list_shards(place, base, options, remote, log);
    return list_folders(place.name, base.empty(), options, log);
}

}  // namespace convoy
