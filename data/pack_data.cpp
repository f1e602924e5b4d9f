// pack_data.cpp — divides the images among shards by their sizes, writes each under a temporary
// name, and reads all of them back for the index.
#include "data/pack_data.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "data/images/large_image.h"
#include "data/order.h"
#include "data/sources/index.h"
#include "data/sources/shard_writer.h"
#include "src/base/parallel.h"
#include "src/base/random.h"
#include "src/base/replace_file.h"
#include "src/base/sha256.h"
#include "src/base/terminal.h"
#include "src/base/text.h"

namespace convoy {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr const char* kPlanName = "pack.plan";  // the plan of an unfinished set

// Checks the image that was read, and shrinks it if it is larger than --max-side.
void shrink(ImageBuffers& buffers, const std::string& name, int max_side) {
    auto& [decoder, bytes, image, row] = buffers;
    decoder.open(bytes, name);
    const int H = decoder.H(), W = decoder.W();
    if (max_side == 0 || std::max(H, W) <= max_side) return;
    decoder.read(image);
    const auto [h, w] = fitted(H, W, max_side);
    bytes = encoded(resized(row.resizer, image, h, w));
}

// The training or the validation set: its images in the order of writing, and where shards begin.
struct Part {
    std::string name;  // "train"
    SourcePtr source;
    std::vector<uint64_t> begins;  // positions; the last is the number of images
    Permutation order;
    bool keep_order;

    uint64_t sample(uint64_t position) const { return keep_order ? position : order(position); }
    size_t shards() const { return begins.size() - 1; }
};

Part plan_part(const std::string& name, SourcePtr source, const PackOptions& options) {
    const uint64_t n = source->size();
    Part part{name, std::move(source), {0}, Permutation(n, options.seed), options.keep_order};
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < n; ++i) {
        bytes += part.source->bytes(part.sample(i)) + 2048;  // headers and padding of two members
        if (bytes < options.shard_bytes && i + 1 < n) continue;
        part.begins.push_back(i + 1);
        bytes = 0;
    }
    return part;
}

struct ShardTask {
    const Part* part;
    size_t number;
    std::string path;
};

struct Losses {  // what cannot be read
    std::mutex mutex;
    std::set<std::string> reasons;
};

void write_shard(const ShardTask& task, const PackOptions& options, ProgressBar& progress,
                 Losses& losses) {
    const Part& part = *task.part;
    const std::string temporary = task.path + ".part";
    ShardWriter writer(options.format, temporary);
    std::unique_ptr<ImageBuffers> buffers;
    for (uint64_t i = part.begins[task.number]; i < part.begins[task.number + 1]; ++i) {
        const uint64_t sample = part.sample(i);
        const int32_t label = part.source->label(sample);
        LargeImage large(&buffers);
        const std::string fault = image_fault(*part.source, sample, [&] {
            part.source->read(sample, buffers->bytes);
            shrink(*buffers, part.source->name(sample), options.max_side);
        });
        if (!fault.empty()) {
            std::lock_guard lock(losses.mutex);
            losses.reasons.insert(fault);
        } else {
            const std::vector<uint8_t>& bytes = buffers->bytes;
            writer.add(fmt::format("{:09}", i), image_extension(bytes), bytes, label,
                       part.source->classes()[size_t(label)]);
        }
        progress.add(1);
    }
    writer.close();
    fs::rename(temporary, task.path);
}

// A hash of everything that decides the bytes.
std::string plan_of(const DataSet& set, const PackOptions& options) {
    const json plan = {set.train->classes(),
                       set.train->fingerprint(),
                       set.val ? set.val->fingerprint() : 0,
                       int(options.format),
                       options.shard_bytes,
                       options.max_side,
                       options.max_side ? 90 : 0,
                       kMaxPixels,
                       options.keep_order,
                       options.keep_order ? 0 : options.seed};
    return fmt::format("{:016x}", hash_bytes(plan.dump()));
}

// Makes the folder, or checks that it has files of an earlier run with the same plan.
void claim_folder(const std::string& out, const std::string& plan) {
    std::error_code error;
    fs::create_directories(out, error);
    if (error) fail("--out '", out, "' cannot be made: ", error.message());
    const json done = json::parse(std::ifstream(out + "/dataset.json"), nullptr, false);
    std::string begun;
    std::ifstream(out + "/" + kPlanName) >> begun;
    const bool is_same =
        begun == plan || (done.is_object() && done.value("plan", json()) == json(plan));
    if (!fs::is_empty(out) && !is_same)
        fail("'", out,
             "' holds other files, or a set of other images or options: name an empty folder");
    replace_file(out + "/" + kPlanName, plan);
}

// What dataset.json says of one part. `shards`: those of this part.
json describe(const Part& part, std::span<const Shard> shards,
              std::span<const std::string> checksums) {
    std::vector<uint64_t> of_class(part.source->classes().size());
    uint64_t images = 0;
    json list = json::array();
    for (size_t s = 0; s < shards.size(); ++s) {
        const ShardIndex& index = shards[s].index;
        for (const uint32_t label : index.label_of) {
            const int64_t number = index.labels[label].number.value_or(-1);
            ENSURE(number >= 0 && size_t(number) < of_class.size(), shards[s].name);
            ++of_class[size_t(number)];
        }
        images += index.size();
        list.push_back({{"name", split_path(shards[s].name).second},
                        {"images", index.size()},
                        {"bytes", index.bytes},
                        {"sha256", checksums[s]}});
    }
    return {{"images", images}, {"images_of_class", of_class}, {"shards", list}};
}

}  // namespace

void pack_data(const DataSet& set, const PackOptions& options, Log& log) {
    const std::string plan = plan_of(set, options);
    claim_folder(options.out, plan);
    std::vector<Part> parts;
    parts.push_back(plan_part("train", set.train, options));
    if (set.val) parts.push_back(plan_part("val", set.val, options));

    for (const Part& part : parts) {  // from any shard at any time
        std::vector<Visit> visits;
        for (size_t s = 0; s < part.source->shard_begins().size(); ++s)
            visits.push_back({s, 0, part.source->size()});
        part.source->plan(std::move(visits), 0);
    }
    const std::string format = options.format == ShardFormat::tar ? "tar" : "tfrecord";
    std::vector<std::string> names;
    std::vector<ShardTask> todo;
    uint64_t images = 0, wanted = 0;
    for (const Part& part : parts)
        for (size_t s = 0; s < part.shards(); ++s) {
            names.push_back(fmt::format("{}/{}-{:06}.{}", options.out, part.name, s, format));
            wanted += part.begins[s + 1] - part.begins[s];
            if (fs::exists(names.back())) continue;
            todo.push_back({&part, s, names.back()});
            images += part.begins[s + 1] - part.begins[s];
        }
    if (todo.size() < names.size())
        log.info(counted(int64_t(names.size() - todo.size()), "shard"), " of ", names.size(),
                 " are there already");
    Losses losses;
    {
        ProgressBar progress(log, cat("packing ", images, " images"), images);
        for_each_parallel(todo.size(), options.threads,
                          [&](size_t i) { write_shard(todo[i], options, progress, losses); });
    }
    size_t told = 0;
    for (const std::string& reason : losses.reasons)
        if (++told <= 20) log.notice("left out: ", reason);
    if (told > 20) log.notice("left out: ", told, " images in all");

    std::vector<std::string> checksums(names.size());
    const std::vector<Shard> shards =
        open_shards(names, {.threads = options.threads}, make_remote({}, log), log);
    uint64_t packed = 0, bytes = 0, file_bytes = 0;
    for (const std::string& name : names) file_bytes += fs::file_size(name);
    {
        ProgressBar hashing(log, "SHA-256 of shards", file_bytes);
        for_each_parallel(names.size(), options.threads,
                          [&](size_t i) { checksums[i] = sha256_of_file(names[i], &hashing); });
    }
    for (const Shard& shard : shards) {
        if (shard.index.fault_count > 0)
            fail(shard.name, ", byte ", shard.index.faults[0].offset, ": ",
                 shard.index.faults[0].why, ": remove it and pack again");
        packed += shard.index.size(), bytes += shard.index.bytes;
    }
    const std::string why = too_many_bad(wanted - packed, wanted, options.max_bad, "images");
    if (!why.empty()) fail(why);

    json about = {{"format", format}, {"plan", plan}, {"classes", set.train->classes()}};
    size_t first = 0;
    for (const Part& part : parts) {
        about[part.name] = describe(part, std::span(shards).subspan(first, part.shards()),
                                    std::span(checksums).subspan(first, part.shards()));
        first += part.shards();
    }
    replace_file(options.out + "/dataset.json",
                 about.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
    fs::remove(options.out + "/" + kPlanName);
    log.info("wrote ", options.out, ": ", packed, " images in ",
             counted(int64_t(shards.size()), "shard"), ", ", count_text(double(bytes)), "B",
             wanted > packed ? cat("; ", wanted - packed, " left out") : "",
             "   try: ", program_invocation_name, " --data ", options.out);
}

}  // namespace convoy
