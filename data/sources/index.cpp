// index.cpp — scans several shards at a time, and reads and writes the file of their indexes.
#include "data/sources/index.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "data/sources/crc32c.h"
#include "src/base/bytes.h"
#include "src/base/parallel.h"
#include "src/base/random.h"
#include "src/base/replace_file.h"
#include "src/base/terminal.h"
#include "src/base/text.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kIndexMagic = "CNVYIDX4";
constexpr uint64_t kMaxIndex = 1ull << 34;     // bytes of an index file
constexpr uint64_t kMaxInflated = 1ull << 30;  // bytes of a gzipped shard

// ---- the file ----

struct Writer {
    std::vector<uint8_t> bytes;

    void column(const auto& values) {
        const std::string_view part = as_text(values);
        bytes.insert(bytes.end(), part.begin(), part.end());
    }
    void number(auto value) { column(std::span(&value, 1)); }
    void text(const std::string& value) { number(uint32_t(value.size())), column(value); }
};

struct IndexReader : ByteReader {
    std::string text() { return ByteReader::text(number<uint32_t>()); }
    // Checks that n items of `least` bytes each can follow.
    uint64_t count(uint64_t n, size_t least) {
        if (n > rest.size() / least) fail("counts more than it holds");
        return n;
    }
    template <class T>
    void column(uint64_t n, std::vector<T>& values) {
        const auto part = take(n * sizeof(T));
        values.resize(n);
        if (n > 0) std::memcpy(values.data(), part.data(), part.size());
    }
};

ShardIndex unpack_shard(IndexReader& in) {
    ShardIndex shard;
    shard.bytes = in.number<uint64_t>(), shard.stamp = in.number<uint64_t>();
    const uint32_t format = in.number<uint32_t>();
    if (format > uint32_t(ShardFormat::idx)) fail("format ", format);
    shard.format = ShardFormat(format);
    shard.shape = {in.number<uint32_t>(), in.number<uint32_t>(), in.number<uint32_t>()};
    if (shard.shape.H > 1 << 16 || shard.shape.W > 1 << 16 ||
        (shard.shape.C != 0 && shard.shape.C != 1 && shard.shape.C != 3))
        fail("a shape of raw pixels");
    shard.labels.resize(in.count(in.number<uint32_t>(), 16));
    for (Label& label : shard.labels) {
        const bool has_number = in.number<uint32_t>() != 0;
        const int64_t number = in.number<int64_t>();
        if (has_number) label.number = number;
        label.name = in.text();
        if (!is_utf8(label.name)) fail("a name that is not UTF-8");
    }
    shard.fault_count = in.number<uint64_t>();
    if (shard.fault_count > shard.bytes) fail("more faults than bytes");
    shard.faults.resize(in.count(in.number<uint32_t>(), 12));
    for (ShardFault& fault : shard.faults)
        fault.offset = in.number<uint64_t>(), fault.why = in.text();
    for (uint64_t kinds = in.count(in.number<uint32_t>(), 12); kinds > 0; --kinds) {
        const uint64_t count = in.number<uint64_t>();
        shard.left_out[in.text()] = count;
    }
    const uint64_t n = in.count(in.number<uint64_t>(), 20);
    in.column(n, shard.offsets), in.column(n, shard.lengths);
    in.column(n, shard.checksums), in.column(n, shard.label_of);
    for (size_t i = 0; i < n; ++i) {
        if (shard.label_of[i] >= shard.labels.size()) fail("a label that is not there");
        if (shard.shape.C > 0 ? shard.lengths[i] != shard.shape.bytes()
                              : shard.lengths[i] > kMaxSample)
            fail("the size of a sample");
    }
    return shard;
}

// ---- where it is stored ----

// The index of `folder` in the cache.
std::string cached_index(const std::string& folder, const DataOptions& options) {
    const std::string cache = cache_folder(options.remote.cache);
    if (cache.empty()) return "";
    const std::string place =
        is_url(folder) ? folder : fs::absolute(folder).lexically_normal().native();
    return fmt::format("{}/{:016x}.index", cache, hash_bytes(place));
}

using Indexes = std::map<std::string, ShardIndex>;  // by the name of the shard

// The index in the cache, and the index next to the shards.
std::vector<Indexes> load_indexes(const std::string& folder, const DataOptions& options,
                                  const Remote& remote, Log& log) {
    std::vector<Indexes> all;
    for (const std::string& path : {cached_index(folder, options), folder + "/" + kIndexName}) try {
            all.emplace_back();
            if (path.empty() || (!is_url(path) && !fs::exists(path))) continue;
            const StoragePtr file = open_storage(path, remote);
            all.back() = unpack_index(read_all(*file, kMaxIndex));
        } catch (const Missing&) {  // a server has none
        } catch (const Unreachable&) {
            throw;
        } catch (const Error& error) {
            log.info("index '", public_name(path), "' is not used: ", error.what());
        }
    return all;
}

// Writes the folder of the shards if possible, else the cache. If both fail, the log says so.
void save_index(const std::string& folder, std::span<const NamedIndex> shards,
                const DataOptions& options, Log& log) {
    const std::vector<uint8_t> bytes = pack_index(shards);
    const std::string beside = is_url(folder) ? "" : folder + "/" + kIndexName,
                      cached = cached_index(folder, options);
    std::error_code error;
    if (!cached.empty()) fs::create_directories(fs::path(cached).parent_path(), error);
    for (const std::string& path : {beside, cached}) try {
            if (!path.empty()) return replace_file(path, as_text(bytes));
        } catch (const Error&) {}
    log.notice("the index of '", public_name(folder), "' cannot be written there, nor to '", cached,
               "': the next run scans the shards again; name a folder by --cache");
}

// ---- the shards ----

std::vector<uint8_t> head_of(const Storage& storage) {
    std::vector<uint8_t> head(std::min<uint64_t>(kHeadBytes, storage.size()));
    storage.read(0, head);
    return head;
}

// MNIST: "train-images-idx3-ubyte.gz" → "train-labels-idx1-ubyte.gz". With or without .gz.
StoragePtr labels_beside(const std::string& images, const Remote& remote) {
    const auto [folder, name] = split_path(images);
    const size_t at = name.find("images"), kind = name.find("idx3");
    if (at == std::string::npos)
        fail(images,
             ": no labels found for these IDX images: name the files …images… and …labels…");
    std::string labels = name;
    if (kind != std::string::npos) labels.replace(kind, 4, "idx1");
    labels.replace(at, 6, "labels");
    const bool is_zipped = labels.ends_with(".gz");
    const std::string path = folder + "/" + labels;
    const std::string other = is_zipped ? path.substr(0, path.size() - 3) : path + ".gz";
    if (is_url(path) || fs::exists(path)) return open_storage(path, remote);
    if (fs::exists(other)) return open_local(other);
    fail(public_name(images), ": its labels, '", labels, "', are not next to it");
}

// The unpacked content of a gzipped file; other files themselves. The name of a remote file must
// say that it is gzipped, because looking inside would fetch it.
StoragePtr content_of(const StoragePtr& file) {
    const std::string& name = file->name();
    if ((is_url(name) && !name.ends_with("gz")) || !is_gzip(head_of(*file))) return file;
    if (name.ends_with(".tar.gz") || name.ends_with(".tgz"))
        fail(name, ": a compressed tar has no random access; unpack it with gunzip");
    return in_memory(name, inflate(*file, kMaxInflated));
}

// The stamp of a shard, combined with that of its labels if they are in another file.
uint64_t stamp_of(ShardFormat format, const std::string& path, const Storage& file,
                  const Remote& remote) {
    if (format != ShardFormat::idx) return file.stamp();
    return file.stamp() ^ labels_beside(path, remote)->stamp() * 0x9e3779b97f4a7c15;
}

void index_shard(Shard& shard, const std::string& path, const StoragePtr& file,
                 const Remote& remote) {
    const std::vector<uint8_t> head = head_of(*shard.storage);
    const ShardFormat format = shard_format(head, shard.storage->size());
    if (format == ShardFormat::unknown)
        fail(shard.name, ": neither tar, TFRecord, CIFAR, IDX images nor a list of files");
    std::vector<uint8_t> labels;
    if (format == ShardFormat::idx)
        labels = read_idx_labels(*content_of(labels_beside(path, remote)));
    shard.index = scan_shard(shard.storage, format, labels);
    shard.index.bytes = file->size(), shard.index.stamp = stamp_of(format, path, *file, remote);
}

}  // namespace

std::pair<std::string, std::string> split_path(const std::string& name) {
    const size_t slash = name.rfind('/');
    if (slash == std::string::npos) return {".", name};
    return {name.substr(0, std::max<size_t>(slash, 1)), name.substr(slash + 1)};
}

bool is_shard(const std::string& name) {
    const StoragePtr file = open_local(name);
    std::vector<uint8_t> head = head_of(*file);
    if (is_gzip(head)) head = inflate(*file, kHeadBytes, /*is_head=*/true);
    return shard_format(head, file->size()) != ShardFormat::unknown;
}

std::vector<uint8_t> pack_index(std::span<const NamedIndex> shards) {
    Writer out;
    out.column(kIndexMagic);
    out.number(uint32_t(0));
    out.number(uint32_t(shards.size()));
    for (const auto& [name, index] : shards) {
        const ShardIndex& shard = *index;
        out.text(name);
        out.number(shard.bytes), out.number(shard.stamp);
        out.number(uint32_t(shard.format));
        out.number(shard.shape.H), out.number(shard.shape.W), out.number(shard.shape.C);
        out.number(uint32_t(shard.labels.size()));
        for (const Label& label : shard.labels) {
            out.number(uint32_t(label.number.has_value())), out.number(label.number.value_or(0));
            out.text(label.name);
        }
        out.number(shard.fault_count), out.number(uint32_t(shard.faults.size()));
        for (const ShardFault& fault : shard.faults) out.number(fault.offset), out.text(fault.why);
        out.number(uint32_t(shard.left_out.size()));
        for (const auto& [what, count] : shard.left_out) out.number(count), out.text(what);
        out.number(uint64_t(shard.size()));
        out.column(shard.offsets), out.column(shard.lengths);
        out.column(shard.checksums), out.column(shard.label_of);
    }
    const uint32_t checksum = crc32c(std::span(out.bytes).subspan(12));
    std::memcpy(out.bytes.data() + 8, &checksum, 4);
    return std::move(out.bytes);
}

std::map<std::string, ShardIndex> unpack_index(std::span<const uint8_t> bytes) {
    IndexReader in{{bytes}};
    if (as_text(in.take(kIndexMagic.size())) != kIndexMagic) fail("not an index");
    if (in.number<uint32_t>() != crc32c(in.rest)) fail("damaged: its checksum is wrong");
    std::map<std::string, ShardIndex> shards;
    for (uint64_t n = in.count(in.number<uint32_t>(), 64); n > 0; --n) {
        const std::string name = in.text();
        shards[name] = unpack_shard(in);
    }
    if (!in.rest.empty()) fail("longer than its content");
    return shards;
}

ShardIndex scan_shard(const StoragePtr& storage, ShardFormat format,
                      std::span<const uint8_t> idx_labels) {
    ShardIndex index;
    index.format = format;
    index.shape = raw_shape(format, *storage);
    index.bytes = storage->size(), index.stamp = storage->stamp();
    std::map<Label, uint32_t> labels;
    const Findings findings{
        [&](const Record& record) {
            const auto [at, is_new] = labels.try_emplace(record.label, uint32_t(labels.size()));
            if (is_new) index.labels.push_back(record.label);
            index.offsets.push_back(record.offset);
            index.lengths.push_back(uint32_t(record.bytes.size()));  // at most kMaxSample
            index.checksums.push_back(crc32c(record.bytes));
            index.label_of.push_back(at->second);
        },
        [&](uint64_t offset, const std::string& why) {
            if (++index.fault_count <= kMaxFaults) index.faults.push_back({offset, why});
        },
        [&](const std::string& what, uint64_t count) { index.left_out[what] += count; }};
    ByteStream stream(storage);
    scan_records(format, stream, findings, idx_labels);
    index.offsets.shrink_to_fit(), index.lengths.shrink_to_fit();
    index.checksums.shrink_to_fit(), index.label_of.shrink_to_fit();
    return index;
}

std::vector<Shard> open_shards(const std::vector<std::string>& names, const DataOptions& options,
                               const Remote& remote, Log& log) {
    std::map<std::string, std::vector<Indexes>> known;  // by folder
    for (const std::string& name : names) {
        const std::string folder = split_path(name).first;
        if (!known.contains(folder)) known[folder] = load_indexes(folder, options, remote, log);
    }
    std::vector<Shard> shards(names.size());
    std::vector<StoragePtr> files(names.size());
    std::vector<char> is_new(names.size());
    for_each_parallel(names.size(), std::max(options.threads, 8), [&](size_t i) {
        const auto [folder, name] = split_path(names[i]);
        files[i] = open_storage(names[i], remote);
        files[i]->size();  // many requests at a time
        shards[i] = {files[i]->name(), content_of(files[i]), {}};
        is_new[i] = true;
        for (Indexes& indexes : known.at(folder)) {
            const auto at = indexes.find(name);
            if (at == indexes.end() || at->second.bytes != files[i]->size()) continue;
            // A corrected label may leave the size unchanged, so the time of change counts too. An
            // index on a server has the times of another machine.
            ShardIndex& index = at->second;
            const bool is_on_server = is_url(folder) && &indexes == &known.at(folder).back();
            if (!is_on_server &&
                (index.stamp == 0 ||
                 index.stamp != stamp_of(index.format, names[i], *files[i], remote)))
                continue;
            shards[i].index = std::move(index), is_new[i] = false;
            break;
        }
    });
    std::vector<size_t> todo;
    uint64_t bytes = 0;
    for (size_t i = 0; i < names.size(); ++i)
        if (is_new[i]) todo.push_back(i), bytes += shards[i].storage->size();
    if (todo.empty()) return shards;

    const auto far = std::ranges::find_if(todo, [&](size_t i) { return is_url(names[i]); });
    if (far != todo.end())
        log.info(shards[*far].name, ": without a ", kIndexName,
                 " next to it, shards are read once before training: ", count_text(double(bytes)),
                 "B; `trainer pack` writes one");
    ProgressBar progress(log,
                         cat("indexing ", counted(int64_t(todo.size()), "shard"), " of ",
                             count_text(double(bytes)), "B"),
                         bytes);
    for (const size_t i : todo) files[i]->prepare();
    for_each_parallel(todo.size(), options.threads, [&](size_t k) {
        Shard& shard = shards[todo[k]];
        if (const int signal = options.remote.stop ? options.remote.stop() : 0)
            fail("stopped by signal ", signal, " while shards were indexed");
        index_shard(shard, names[todo[k]], files[todo[k]], remote);
        files[todo[k]]->finish();
        progress.add(shard.storage->size());
    });
    for (const auto& [folder, indexes] : known) {
        std::map<std::string, const ShardIndex*> all;
        for (const Indexes& one : indexes)
            for (const auto& [name, index] : one)  // also of shards that are not asked for now
                if (is_url(folder) || fs::exists(folder + "/" + name)) all[name] = &index;
        for (size_t i = 0; i < names.size(); ++i)
            if (const auto [place, name] = split_path(names[i]); place == folder)
                all[name] = &shards[i].index;
        save_index(folder, std::vector<NamedIndex>(all.begin(), all.end()), options, log);
    }
    return shards;
}

}  // namespace convoy
