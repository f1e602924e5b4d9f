// shard_source.cpp — reads bytes of samples at the offsets of an index; see index.h.
#include <algorithm>
#include <mutex>

#include "data/images/large_image.h"
#include "data/sources/crc32c.h"
#include "data/sources/index.h"
#include "data/sources/records.h"
#include "src/base/bytes.h"
#include "src/base/random.h"
#include "src/base/text.h"

namespace convoy {
namespace {

// Keeps the samples of a shard that have a class, and appends their classes to `labels`.
void keep_classes(ShardIndex& index, const std::vector<int32_t>& class_of,
                  std::vector<int32_t>& labels) {
    size_t n = 0;
    for (size_t i = 0; i < index.size(); ++i) {
        const int32_t label = class_of[index.label_of[i]];
        if (label < 0) continue;
        labels.push_back(label);
        index.offsets[n] = index.offsets[i], index.lengths[n] = index.lengths[i];
        index.checksums[n++] = index.checksums[i];
    }
    index.offsets.resize(n), index.lengths.resize(n), index.checksums.resize(n);
    index.label_of = {};
}

// Checks that shards which are read at the same time fit the cache. The largest sum of their bytes
// occurs at the begin of a visit.
void check_room(const std::vector<Shard>& shards, const std::vector<Visit>& visits) {
    uint64_t bytes = 0, most = 0, room = UINT64_MAX;
    for (size_t i = 0, oldest = 0; i < visits.size(); ++i) {
        const Storage& storage = *shards[visits[i].shard].storage;
        room = std::min(room, storage.room());
        bytes += storage.size();
        while (visits[oldest].end <= visits[i].begin)
            bytes -= shards[visits[oldest++].shard].storage->size();
        most = std::max(most, bytes);
    }
    if (most > room)
        fail("shards that are read at the same time have ", bytes_text(double(most)),
             ", more than --cache may hold: give --cache DIR:", (most >> 20) + 1,
             "M or more (training can also shuffle fewer images at a time: --shuffle window=N)");
}

class ShardSource final : public Source {
 public:
    ShardSource(std::vector<Shard> shards, std::vector<std::string> classes,
                const std::vector<std::vector<int32_t>>& class_of)
        : shards_(std::move(shards)) {
        set_classes(std::move(classes), "shards");
        size_t all = 0;
        for (const Shard& shard : shards_) all += shard.index.size();
        labels_.reserve(all);
        for (size_t s = 0; s < shards_.size(); ++s) {
            ShardIndex& index = shards_[s].index;
            shard_begins_.push_back(labels_.size());
            keep_classes(index, class_of[s], labels_);
            damaged_ += index.fault_count;
            for (const auto& [what, count] : index.left_out) left_out_[what] += count;
            for (const auto* column : {&index.lengths, &index.checksums})
                fingerprint_ = hash_bytes(as_text(*column), fingerprint_);
        }
        fingerprint_ = hash_bytes(as_text(labels_), fingerprint_);
    }

    std::string name(size_t i) const override {
        const auto [shard, sample] = place(i);
        return cat(shards_[shard].name, ", byte ", shards_[shard].index.offsets[sample]);
    }
    std::string title(size_t i) const override {
        const auto [shard, sample] = place(i);
        const auto& [file, storage, index] = shards_[shard];
        const std::string member = tar_member_name(*storage, index.offsets[sample]);
        return member.empty() ? name(i) : cat(file, "/", member);
    }
    void read(size_t i, std::vector<uint8_t>& bytes) const override {
        const auto [shard, sample] = place(i);
        const auto& [file, storage, index] = shards_[shard];
        const uint64_t offset = index.offsets[sample], length = index.lengths[sample];
        const bool is_raw = index.shape.C > 0;
        thread_local std::vector<uint8_t> planes;
        std::vector<uint8_t>& to = is_raw ? planes : bytes;
        LargeImage::expect_encoded(length);
        to.resize(length);
        storage->read(offset, to);
        if (crc32c(to) != index.checksums[sample])
            fail(name(i), ": damaged: its checksum differs from the one in ", kIndexName,
                 "; if you changed the shard, remove that file from its folder");
        if (is_raw) raw_to_pnm(index.shape, planes, bytes);
    }
    void plan(std::vector<Visit> visits, uint64_t position) const override {
        std::lock_guard lock(mutex_);
        check_room(shards_, visits);
        finish_until(UINT64_MAX);
        visits_ = std::move(visits), passed_ = 0;
        while (passed_ < visits_.size() && visits_[passed_].end <= position) ++passed_;
        for (size_t i = passed_; i < visits_.size(); ++i)
            shards_[visits_[i].shard].storage->prepare();
    }
    void pass(uint64_t position) const override {
        std::lock_guard lock(mutex_);
        finish_until(position);
    }
    uint64_t bytes(size_t i) const override {
        const auto [shard, sample] = place(i);
        return shards_[shard].index.lengths[sample];
    }
    uint64_t key(size_t i) const override {
        const auto [shard, sample] = place(i);
        const ShardIndex& index = shards_[shard].index;
        return uint64_t(index.lengths[sample]) << 32 | index.checksums[sample];
    }
    std::vector<std::string> faults() const override {
        std::vector<std::string> all;
        for (const Shard& shard : shards_)
            for (const ShardFault& fault : shard.index.faults)
                all.push_back(cat(shard.name, ", byte ", fault.offset, ": ", fault.why));
        return all;
    }

 private:
    // The shard of sample i, and which of the shard's samples it is.
    std::pair<size_t, size_t> place(size_t i) const {
        const auto next = std::ranges::upper_bound(shard_begins_, i);
        return {size_t(next - shard_begins_.begin()) - 1, i - *std::prev(next)};
    }
    void finish_until(uint64_t position) const {
        for (; passed_ < visits_.size() && visits_[passed_].end <= position; ++passed_)
            shards_[visits_[passed_].shard].storage->finish();
    }

    std::vector<Shard> shards_;          // their label_of is empty: labels_ has it
    mutable std::mutex mutex_;           // guards what follows
    mutable std::vector<Visit> visits_;  // of the epoch
    mutable size_t passed_ = 0;          // visits that are over
};

}  // namespace

SourcePtr shard_source(std::vector<Shard> shards, std::vector<std::string> classes,
                       const std::vector<std::vector<int32_t>>& class_of) {
    return std::make_shared<ShardSource>(std::move(shards), std::move(classes), class_of);
}

}  // namespace convoy
