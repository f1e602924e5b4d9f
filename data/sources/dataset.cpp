#include "data/sources/dataset.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "data/sources/generated.h"
#include "data/sources/index.h"
#include "data/sources/listing.h"
#include "src/base/bytes.h"
#include "src/base/random.h"
#include "src/base/text.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

const Names kAllClasses = {"all"};  // --classes all: the folders are classes, whatever their names

std::string listed(const Names& names) { return some_of(names, 20); }

// The first of `names` that `known` lacks, or null.
const std::string* first_not_in(const Names& names, const Names& known) {
    const std::set<std::string_view> all(known.begin(), known.end());
    const auto at =
        std::ranges::find_if(names, [&](const auto& one) { return !all.contains(one); });
    return at == names.end() ? nullptr : &*at;
}

// The classes to use: all that are `there`, or only the `wanted` ones, in the order of `wanted`.
Names choose_classes(const Names& there, const Names& wanted, const std::string& where, bool part) {
    if (const std::string* other = first_not_in(wanted, there);
        other && !part && wanted != kAllClasses)
        fail("no class '", *other, "' in ", where, "; there are: ", listed(there));
    Names sorted = wanted;
    std::ranges::sort(sorted);
    if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end())
        fail("class '", *twice, "' is named twice");
    const Names& classes = wanted.empty() || wanted == kAllClasses ? there : wanted;
    if (classes.size() == 1 && !part)
        fail("only one class, '", classes[0], "', in ", where, ": a classifier needs two or more");
    return classes;
}

// Some samples of a source, in its order.
class PartSource final : public ChangedSource {
 public:
    // The first part reports what the whole leaves out.
    PartSource(const SourcePtr& whole, std::vector<uint32_t> samples, bool is_first)
        : ChangedSource(whole), samples_(std::move(samples)) {
        fingerprint_ = hash_bytes(as_text(samples_), fingerprint_);
        if (!is_first) damaged_ = 0, left_out_ = {};
        labels_.clear();
        for (const uint32_t i : samples_) labels_.push_back(source_->label(i));
        for (uint64_t& begin : shard_begins_)
            begin = size_t(std::ranges::lower_bound(samples_, begin) - samples_.begin());
    }
    std::vector<std::string> faults() const override {
        return damaged_ > 0 ? source_->faults() : std::vector<std::string>();
    }

 private:
    size_t at(size_t i) const override { return samples_[i]; }

    const std::vector<uint32_t> samples_;
};

// Holds back round(part · n) images of each class, at least one and not all. The draw of an image
// depends on (seed, key) alone: a new image does not move the others. Returns {training, held}.
std::pair<SourcePtr, SourcePtr> split_off(const SourcePtr& whole, float part, uint64_t seed) {
    if (!(part > 0 && part < 1)) fail("--val-split ", part, " is not between 0 and 1");
    if (whole->size() > UINT32_MAX) fail("--val-split of more than ", UINT32_MAX, " images");
    std::map<int32_t, std::vector<std::pair<uint64_t, uint32_t>>> drawn;  // by label: draw, sample
    for (size_t i = 0; i < whole->size(); ++i)
        drawn[whole->label(i)].emplace_back(Random(seed, 0, whole->key(i), kSplit).bits64(),
                                            uint32_t(i));
    std::vector<char> is_held(whole->size());
    for (auto& [label, draws] : drawn) {
        std::ranges::sort(draws);
        const long wanted = std::max(std::lround(part * float(draws.size())), 1l);
        draws.resize(std::min(draws.size() - 1, size_t(wanted)));
        for (const auto& [draw, i] : draws) is_held[i] = true;
    }
    std::vector<uint32_t> parts[2];
    for (size_t i = 0; i < is_held.size(); ++i) parts[size_t(is_held[i])].push_back(uint32_t(i));
    if (parts[1].empty()) fail("--val-split: no class has two images");
    return {std::make_shared<PartSource>(whole, std::move(parts[0]), true),
            std::make_shared<PartSource>(whole, std::move(parts[1]), false)};
}

DataSet open_generated(const DataOptions& options) {
    if (!options.val.empty()) fail("--val needs --data: the generated set brings its own");
    if (options.label_offset != 0)
        fail("--label-offset needs --data: the classes of generated images are names");
    const Names classes =
        choose_classes(kGeneratedClasses, options.classes, "the generated set", false);
    if (options.val_split < 0 || options.val_split >= 1)
        fail("--val-split ", options.val_split, " is not between 0 and 1");
    const size_t n = size_t(std::max(options.generated, 0));
    const size_t held = options.val_split > 0 ? size_t(float(n) * options.val_split) : n / 6;
    if (held < 1 || n - held < classes.size()) fail(n, " generated images are too few");
    return {generated_source(classes, options.seed, 0, n - held),
            generated_source(classes, options.seed, n - held, held),
            cat("generated set: ", classes.size(), " classes (", listed(classes), "), ", n - held,
                " images for training, ", held, " for validation")};
}

void tell_left_out(const std::string& where, const LeftOut& left_out, Log& log) {
    if (!left_out.empty())
        log.notice("left out of '", where,
                   "', neither images nor labels: ", left_out_text(left_out));
}

SourcePtr open_listing(const Listing& listing, const Names& classes, const DataOptions& options,
                       Log& log) {
    SourcePtr source = listing.open(classes);
    if (!options.is_check) tell_left_out(listing.where, source->left_out(), log);
    return source;
}

// known: the classes of training. Classes that --classes excludes are excluded here too.
SourcePtr open_validation(const Listing& listing, const Names& known, const Names& classes,
                          const DataOptions& options, Log& log) {
    if (const std::string* other = first_not_in(listing.known, known))
        fail("validation set '", listing.where, "' has a class '", *other,
             "' that training does not know; there are: ", listed(known),
             "; if that is no class, list the images in a file of path, tab, label");
    SourcePtr source = open_listing(listing, classes, options, log);
    if (source->size() == 0) fail("set '", listing.where, "' has no images: name another one");
    return source;
}

}  // namespace

DataSet open_data(const DataOptions& options, Log& log) {
    if (options.train.empty()) return open_generated(options);
    const Remote remote = make_remote(options.remote, log);
    Places places = find_places(options.train, remote);
    if (options.label_offset != 0 && places.train.shards.empty() && !places.train.is_list)
        fail("--label-offset is for numbers in shards and lists, but '", places.train.name,
             "' has class folders: leave it out");
    const Listing train = list_place(places.train, {}, options, remote, log);
    Place& val = places.val;
    if (!options.val.empty()) {
        const Places other = find_places(options.val, remote);
        val = other.val.is_none() ? other.train : other.val;
    } else if (places.val_is_test && options.val_split != 0) {
        val = {};
    }
    if (options.val_split != 0 && !val.is_none())
        fail("--val-split with a validation set already there, '", val.name, "': drop one");
    Listing held;
    const bool is_test = !val.is_none() && options.val.empty() && places.val_is_test;
    std::string unfit;  // why a test set cannot be used for validation
    try {
        if (!val.is_none()) held = list_place(val, train.known, options, remote, log);
        if (held.known.empty() || first_not_in(held.known, train.known))
            unfit = "its classes are not those of " + train.where;
    } catch (const Unreachable&) {
        throw;
    } catch (const Error& error) {
        if (!is_test) throw;
        unfit = error.what();
    }
    if (is_test && unfit.empty())
        log.info("validation set: '", val.name, "', as there is no val/ beside train/");
    if (is_test && !unfit.empty()) {
        log.info("'", val.name, "' is not used: ", unfit);
        val = {};
    }

    const Names classes =
        choose_classes(train.known, options.classes, "'" + train.where + "'", options.part);
    if (const std::string* other = first_not_in(train.known, classes))
        log.info("class '", *other, "' of '", train.where, "' is not used");
    DataSet set;
    set.train = open_listing(train, classes, options, log);
    set.is_stream = places.train.images > 0;
    std::vector<char> has_images(classes.size());
    for (size_t i = 0; i < set.train->size(); ++i) has_images[size_t(set.train->label(i))] = true;
    Names empty;
    for (size_t k = 0; k < classes.size(); ++k)
        if (!has_images[k]) empty.push_back(classes[k]);
    if (!empty.empty() && !options.part && !set.is_stream)
        log.notice("no image of class ", listed(empty), " in '", train.where, "'");
    if (options.val_split != 0) {
        std::tie(set.train, set.val) = split_off(set.train, options.val_split, options.seed);
        val.name = cat(options.val_split * 100, " % of each class");
    } else if (!val.is_none()) {
        set.val =
            open_validation(held, options.part ? held.known : train.known, classes, options, log);
    } else {
        const std::string part = cat("hold back a part of '", train.where, "' with --val-split F");
        log.info("no validation set: name one with --val DIR", set.is_stream ? "" : ", or " + part);
    }
    if (set.val && set.val->fingerprint() == set.train->fingerprint())
        log.notice(
            "validation has images of the same names and sizes as training: if they are the "
            "same images, name another set by --val");
    set.description = cat(
        train.where, ": ", classes.size(), " classes, ", set.train->size(),
        " images for training, ",
        set.val ? cat(set.val->size(), " for validation (", val.name, ")") : "none for validation");
    return set;
}

SourcePtr open_for_classes(const DataOptions& options, const Names& classes, Log& log) {
    const Remote remote = make_remote(options.remote, log);
    const Places places = find_places(options.train, remote);
    const Place& place = places.val.is_none() ? places.train : places.val;
    return open_validation(list_place(place, classes, options, remote, log), classes, classes,
                           options, log);
}

std::vector<SourcePtr> open_images(const std::vector<std::string>& paths,
                                   const DataOptions& options, Log& log, Names& faults) {
    const Remote remote = make_remote(options.remote, log);
    std::vector<SourcePtr> all;
    std::vector<ImageFile> files;  // of the source that comes next
    const auto end_files = [&] {
        if (!files.empty()) all.push_back(file_source("", Names(), std::exchange(files, {})));
    };
    const auto open = [&](const std::string& path) {
        const size_t before = files.size();
        const bool is_list = path.ends_with(".txt") || path.ends_with(".tsv");
        LeftOut left_out;
        if (fs::is_directory(path))
            for (const ImageFile& file : images_below(path, "", -1, {.left_out = &left_out}))
                files.push_back({within(path, file.path), -1, 0});
        else if (fs::exists(path) && (has_image_name(path) ||
                                      (fs::is_regular_file(path) && !is_shard(path) && !is_list)))
            files.push_back({path, -1, 0});
        if (files.size() > before) {
            tell_left_out(path, left_out, log);
            return;
        }
        end_files();
        const Places places = find_places(path, remote);
        const Place& place = places.train;
        if (place.is_list) {
            FileList list = read_list(path, /*needs_labels=*/false);
            all.push_back(file_source(list.folder, Names(), std::move(list.files)));
            return;
        }
        if (place.shards.empty())
            fail("folder '", path, "' has no images",
                 left_out.empty() ? ": name another one" : ", only " + left_out_text(left_out));
        std::vector<Shard> shards =
            open_shards(places.shards.empty() ? place.shards : places.shards, options, remote, log);
        std::vector<std::vector<int32_t>> class_of;
        for (const Shard& shard : shards) class_of.emplace_back(shard.index.labels.size());
        all.push_back(shard_source(std::move(shards), Names(), class_of));
    };
    for (const std::string& path : paths) {
        try {
            open(path);
        } catch (const Error& error) {
            faults.push_back(error.what());
        }
    }
    end_files();
    if (all.empty() && !faults.empty()) fail(join_text(faults, "; "));
    return all;
}

}  // namespace convoy
