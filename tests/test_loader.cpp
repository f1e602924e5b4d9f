// test_loader.cpp — what the decode threads put into the slots, and when.
#include "data/loader.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <stdexcept>
#include <thread>

#include "data/decoded_cache.h"
#include "data/images/large_image.h"
#include "data/sources/generated.h"
#include "data/sources/storage.h"
#include "pictures.h"
#include "src/base/check.h"
#include "src/step/input.h"
#include "support.h"

using namespace convoy;

namespace {

constexpr int kSize = 16;
constexpr size_t kRow = size_t(kSize) * kSize * 3;

Preprocess small() {
    Preprocess how;
    how.size = kSize;
    how.seed = 3;
    return how;
}

std::shared_ptr<const Source> pictures(size_t n) {
    return generated_source(kGeneratedClasses, 1, 0, n);
}

// The generated set with faults: some samples are damaged, one throws something unexpected.
class FaultySource final : public ChangedSource {
 public:
    FaultySource(size_t n, std::set<size_t> bad, size_t explosive = SIZE_MAX,
                 std::exception_ptr fault = nullptr)
        : ChangedSource(pictures(n)), bad_(std::move(bad)), explosive_(explosive), fault_(fault) {}
    std::string name(size_t i) const override { return cat("sample ", i); }
    void read(size_t i, std::vector<uint8_t>& bytes) const override {
        if (i == explosive_) std::rethrow_exception(fault_);
        ChangedSource::read(i, bytes);
        if (bad_.count(i)) bytes.resize(bytes.size() / 2);
    }

 private:
    std::set<size_t> bad_;
    size_t explosive_;
    std::exception_ptr fault_;
};

// A loader with slots of its own, guarded by sentinels.
struct Rig {
    std::vector<std::unique_ptr<Guarded>> memory;
    std::unique_ptr<Loader> loader;

    Rig(std::shared_ptr<const Source> source, LoaderOptions options, int slots = 2,
        Preprocess how = small()) {
        if (options.shares.empty()) options.shares = {1};
        std::vector<float*> lent;
        for (int i = 0; i < slots; ++i) {
            memory.push_back(
                std::make_unique<Guarded>(size_t(Loader::max_share(options)) * how.size.elems()));
            lent.push_back(memory.back()->data());
        }
        loader = std::make_unique<Loader>(std::move(source), how, options, lent);
    }
    Loader* operator->() { return loader.get(); }
};

// sample → its row; where images are mixed, behind it the second label and the first one's part
using Rows = std::map<uint64_t, std::vector<float>>;

std::vector<float> rows_of(const Batch& batch) {
    return {batch.x, batch.x + size_t(batch.n) * kRow};
}

// Reads the epoch from `consumed` on to its end. Checks what must hold of every batch.
Rows read_epoch(Rig& rig, const Source& source, uint32_t epoch, int64_t consumed = 0) {
    Rows rows;
    rig->start(epoch, consumed);
    int64_t steps = 0;
    while (Batch* batch = rig->next()) {
        ++steps;
        const size_t n = size_t(batch->n);
        REQUIRE(batch->n <= batch->wanted);
        REQUIRE(batch->labels.size() == n);
        REQUIRE(batch->samples.size() == n);
        REQUIRE(batch->positions.size() == n);
        CHECK(std::is_sorted(batch->positions.begin(), batch->positions.end()));
        const std::vector<float> x = rows_of(*batch);
        for (size_t i = 0; i < n; ++i) {
            CHECK(batch->positions[i] < batch->global_wanted);
            CHECK(batch->labels[i] == source.label(batch->samples[i]));
            const float* row = x.data() + i * kRow;
            const auto [place, is_new] =
                rows.emplace(batch->samples[i], std::vector<float>(row, row + kRow));
            CHECK(is_new);
            if (batch->second_labels.empty()) continue;
            REQUIRE((batch->second_labels.size() == n && batch->first_parts.size() == n));
            place->second.push_back(float(batch->second_labels[i]));
            place->second.push_back(batch->first_parts[i]);
        }
        rig->release(batch);
    }
    CHECK(steps == rig->steps(consumed));
    CHECK(rig->next() == nullptr);
    return rows;
}

// The row that a sample must have, made without a loader.
std::vector<float> expected_row(const Source& source, uint64_t sample, uint32_t epoch,
                                bool training, Preprocess how) {
    std::vector<uint8_t> bytes;
    source.read(sample, bytes);
    Decoder decoder;
    decoder.open(bytes, "sample");
    Image image;
    RowBuffers buffers;
    std::vector<float> row(kRow);
    if (!training) how.augment = Augment::none, how.changes = {};
    decoder.read(input_crop(decoder.H(), decoder.W(), how, epoch, sample), image);
    input_row(image, how, epoch, sample, buffers, row.data());
    return row;
}

LoaderOptions options(int64_t batch, int threads = 2, bool training = true,
                      std::vector<double> shares = {1}, int rank = 0) {
    return {batch, std::move(shares), rank, threads, training};
}

}  // namespace

TEST_CASE("rows are the same whatever the number of threads, slots and ranks") {
    const auto source = pictures(23);
    Rig alone(source, options(5, 1), 1);
    const Rows want = read_epoch(alone, *source, 4);
    REQUIRE(want.size() == 23);
    for (const auto& [sample, row] : want)
        CHECK(row == expected_row(*source, sample, 4, true, small()));
    Rig many(source, options(5, 4), 3);
    CHECK(read_epoch(many, *source, 4) == want);
    Rows together;
    for (int rank = 0; rank < 4; ++rank) {
        Rig one(source, options(5, 2, true, {5, 3, 2, 0}, rank));
        const Rows part = read_epoch(one, *source, 4);
        CHECK(one->steps() == alone->steps());
        if (rank == 3) CHECK(part.empty());
        for (const auto& row : part) CHECK(together.insert(row).second);
    }
    CHECK(together == want);
    CHECK(read_epoch(alone, *source, 5) != want);
}

TEST_CASE("validation rows come in the order of the source, without chance") {
    const auto source = pictures(10);
    Rig rig(source, options(4, 3, false), 3);
    for (uint32_t epoch : {0u, 1u}) {
        rig->start(epoch, 0);
        uint64_t next = 0;
        while (Batch* batch = rig->next()) {
            for (size_t i = 0; i < batch->samples.size(); ++i, ++next) {
                CHECK(batch->samples[i] == next);
                const float* row = batch->x + i * kRow;
                CHECK(std::vector<float>(row, row + kRow) ==
                      expected_row(*source, next, 0, false, small()));
            }
            rig->release(batch);
        }
        CHECK(next == 10);
    }
}

TEST_CASE("bad images are left out, counted once each, named once, and the rest closes up") {
    const auto source = std::make_shared<FaultySource>(12, std::set<size_t>{0, 5, 6, 11});
    Rig rig(source, options(6, 3));
    const Rows rows = read_epoch(rig, *source, 0);
    CHECK(rows.size() == 8);
    for (size_t sample : {0, 5, 6, 11}) CHECK(rows.count(sample) == 0);
    for (const auto& [sample, row] : rows)
        CHECK(row == expected_row(*source, sample, 0, true, small()));
    std::vector<std::string> reasons = rig->take_bad_reasons();
    std::sort(reasons.begin(), reasons.end());
    REQUIRE(reasons.size() == 4);
    CHECK(reasons[0].starts_with("sample 0: truncated"));
    CHECK(reasons[1].starts_with("sample 11: truncated"));
    CHECK(read_epoch(rig, *source, 1).size() == 8);
    CHECK(rig->take_bad_reasons().empty());
}

TEST_CASE(
    "rows of bytes are the same rows before they are normalised, unless a change needs floats") {
    const auto source = std::make_shared<FaultySource>(12, std::set<size_t>{0, 5, 6, 11});
    for (const double erase : {0.0, 0.5})
        for (const char* jitter : {"", "0.4"}) {
            Preprocess how = small();
            how.changes.erase = erase, how.changes.jitter = parse_jitter(jitter);
            LoaderOptions in_bytes = options(6, 3);
            in_bytes.bytes = true;
            Rig rig(source, in_bytes, 2, how);
            rig->start(0, 0);
            while (Batch* batch = rig->next()) {
                REQUIRE(batch->bytes == (erase == 0));
                for (size_t i = 0; i < batch->samples.size(); ++i) {
                    std::vector<float> row(kRow);
                    for (size_t e = 0; e < kRow; ++e)
                        row[e] = batch->bytes ? float(uint8_t(batch->slot()[i * kRow + e])) *
                                                        how.scale(e % 3) +
                                                    how.bias(e % 3)
                                              : batch->x[i * kRow + e];
                    CHECK_CLOSE(row, expected_row(*source, batch->samples[i], 0, true, how), 1e-6);
                }
                rig->release(batch);
            }
        }
}

TEST_CASE("a batch of bad images alone is handed over empty, and the epoch goes on") {
    const auto source = std::make_shared<FaultySource>(6, std::set<size_t>{0, 1});
    Rig rig(source, options(2, 2, false));
    rig->start(0, 0);
    Batch* batch = rig->next();
    CHECK(batch->n == 0);
    CHECK(batch->wanted == 2);
    CHECK(batch->labels.empty());
    rig->release(batch);
    batch = rig->next();
    CHECK(batch->n == 2);
    rig->release(batch);
}

TEST_CASE("an exception in a decode thread travels to next(); start() begins afresh") {
    for (const std::exception_ptr& fault :
         {std::make_exception_ptr(std::logic_error("explosive")),
          std::make_exception_ptr(Unreachable("a disk that fails, which is no image's fault"))}) {
        const auto source = std::make_shared<FaultySource>(8, std::set<size_t>{}, 5, fault);
        Rig rig(source, options(2, 2, false));
        const auto read_all = [&] {
            rig->start(0, 0);
            int steps = 0;
            try {
                while (Batch* batch = rig->next()) rig->release(batch), ++steps;
            } catch (const std::exception&) {
                CHECK(std::current_exception() == fault);
                return -steps - 1;
            }
            return steps;
        };
        CHECK(read_all() < 0);
        CHECK(read_all() < 0);  // and does not hang
        CHECK(rig->take_bad_reasons().empty());
        CHECK_THROWS(decoded_bytes(*source, 3));
    }
}

TEST_CASE("of images that take much memory several decode threads hold one at a time") {
    struct Huge final : ChangedSource {
        using ChangedSource::ChangedSource;
        mutable std::atomic<int> held = 0, most = 0;

        void read(size_t i, std::vector<uint8_t>& bytes) const override {
            LargeImage::expect_encoded(LargeImage::kLeast + 1);
            most = std::max(int(most), ++held);
            ChangedSource::read(i, bytes);
            for (int n = 0; n < 100; ++n) std::this_thread::yield();
            --held;
        }
    };
    const auto source = std::make_shared<Huge>(pictures(64));
    Rig rig(source, options(8, 4, false));
    CHECK(read_epoch(rig, *source, 0).size() == source->size());
    CHECK(source->most == 1);
}

TEST_CASE("start() takes every batch back, at any moment, and a late release() does no harm") {
    const auto source = pictures(40);
    Rig rig(source, options(4, 2), 2);
    rig->start(0, 0);
    Batch* held = rig->next();
    rig->start(0, 8);  // one batch lent, the others being filled
    rig->release(held);
    for (int i = 0; i < 5; ++i) rig->start(uint32_t(i), 0);
    const Rows rows = read_epoch(rig, *source, 3);
    CHECK(rows.size() == 40);
    for (const auto& [sample, row] : rows)
        CHECK(row == expected_row(*source, sample, 3, true, small()));
}

TEST_CASE("a loader can be destroyed unused, at work, with all slots lent, and at the end") {
    const auto source = pictures(40);
    { Rig unused(source, options(4)); }
    {
        Rig at_work(source, options(4, 4), 4);
        at_work->start(0, 0);
    }
    {
        Rig lent(source, options(4, 2), 2);
        lent->start(0, 0);
        lent->next();
        lent->next();
    }
    {
        Rig ended(source, options(40));
        read_epoch(ended, *source, 0);
    }
    CHECK(source->size() == 40);
}

TEST_CASE("prefetch is bounded by the slots: no sample is read before there is room for it") {
    struct Counting final : ChangedSource {
        using ChangedSource::ChangedSource;
        mutable std::atomic<int> reads = 0;
        void read(size_t i, std::vector<uint8_t>& bytes) const override {
            ++reads;
            ChangedSource::read(i, bytes);
        }
    };
    const auto source = std::make_shared<Counting>(pictures(30));
    Rig rig(source, options(3, 2), 2);
    rig->start(0, 0);
    for (int step = 0; step < 10; ++step) {
        Batch* batch = rig->next();
        REQUIRE(batch != nullptr);
        CHECK(source->reads <= 3 * (step + 2));  // its own slot and the next one
        rig->release(batch);
    }
    CHECK(source->reads == 30);
}

TEST_CASE("rows of a grey rectangle are grey, as high and wide as the model says") {
    const auto source = pictures(6);
    Preprocess how({12, 20, 1});
    how.augment = Augment::resize;
    Rig rig(source, {.batch = 6, .shares = {1}, .threads = 2}, 2, how);
    rig->start(0, 0);
    const Batch* batch = rig->next();
    REQUIRE(batch->n == 6);
    const float* row = batch->x;
    for (size_t i = 0; i < 6; ++i, row += how.size.elems()) {
        std::vector<uint8_t> bytes;
        source->read(batch->samples[i], bytes);
        std::vector<float> want(how.size.elems());
        RowBuffers buffers;
        input_row(grey(decoded(bytes)), how, 0, batch->samples[i], buffers, want.data());
        CHECK(std::vector<float>(row, row + want.size()) == want);
    }
}

TEST_CASE(
    "images are mixed with the one before them in the slice, whatever threads, shares, start") {
    const auto source = std::make_shared<FaultySource>(23, std::set<size_t>{2, 9, 10});
    const Order order(source->shard_sizes(), 0, small().seed, 4);
    Preprocess how = small();
    how.changes.erase = 0.5, how.changes.jitter = {0.4, 0.4, 0.4, 0.1};
    for (auto [mixup, cutmix] : {std::pair{0.4, 0.0}, {0.0, 1.0}, {1.0, 1.0}}) {
        how.changes.mixup = mixup, how.changes.cutmix = cutmix;
        Rig alone(source, options(5, 1), 1, how);
        const Rows want = read_epoch(alone, *source, 4);
        REQUIRE(want.size() == 20);
        CHECK(alone->take_bad_reasons().size() == 3);
        int unmixed = 0;
        for (uint64_t at = 0; at < 23; ++at) {
            const uint64_t begin = at / 5 * 5, count = std::min<uint64_t>(5, 23 - begin);
            const uint64_t sample = order(at),
                           before = order(begin + (at - begin + count - 1) % count);
            if (!want.contains(sample)) continue;
            Preprocess plain = how;
            std::vector<float> row = expected_row(*source, sample, 4, true, plain);
            int32_t second = source->label(sample);
            Mix mix;
            if (want.contains(before)) {
                mix = draw_mix(mixup, cutmix, kSize, kSize, {how.seed, 4, sample, kMix});
                second = source->label(before);
                mix_rows(mix, kSize, kSize, 3, expected_row(*source, before, 4, true, plain).data(),
                         row.data());
            }
            unmixed += !want.contains(before);
            row.push_back(float(second)), row.push_back(mix.own);
            CHECK(want.at(sample) == row);
        }
        CHECK(unmixed > 0);
        Rig many(source, options(5, 4), 3, how);
        CHECK(read_epoch(many, *source, 4) == want);
        const Rows rest = read_epoch(many, *source, 4, 10);
        Rows together, end;
        for (int rank = 0; rank < 4; ++rank) {
            Rig one(source, options(5, 2, true, {5, 3, 2, 0}, rank), 2, how);
            for (const auto& row : read_epoch(one, *source, 4)) CHECK(together.insert(row).second);
            for (const auto& row : read_epoch(one, *source, 4, 10)) CHECK(end.insert(row).second);
            for (const std::string& bad : one->take_bad_reasons())  // of its own samples only
                CHECK(together.count(size_t(std::stoi(bad.substr(7)))) == 0);
        }
        CHECK(together == want);
        CHECK(end == rest);
        for (const auto& row : rest) CHECK(want.at(row.first) == row.second);
        Rig validation(source, options(4, 2, false), 2, how), plain(source, options(4, 2, false));
        CHECK(read_epoch(validation, *source, 0) == read_epoch(plain, *source, 0));
    }
}

TEST_CASE("each bad image is counted by one rank, though another decodes it as a partner") {
    const auto source = std::make_shared<FaultySource>(24, std::set<size_t>{1, 2, 3, 5, 8, 13, 21});
    Preprocess how = small();
    how.changes.mixup = 1;
    size_t bad = 0;
    for (int rank = 0; rank < 3; ++rank) {
        Rig one(source, options(6, 2, true, {1, 1, 1}, rank), 2, how);
        read_epoch(one, *source, 0);
        bad += one->take_bad_reasons().size();
    }
    CHECK(bad == 7);
}

TEST_CASE("decoded images that are kept give the same rows, and no more than the room holds") {
    const auto source = pictures(12);
    Rig plain(source, {.batch = 5, .shares = {1}, .threads = 2});
    CHECK(decoded_bytes(*source, 3) == 12 * 96 * 96 * 3);
    constexpr int64_t kOne = 96 * 96 * 3 + 13;  // with "P6 96 96 255\n"
    for (const int64_t bytes : {int64_t(0), kOne - 1, kOne * 5 + 7, kOne * 12}) {
        const Room room = std::make_shared<std::atomic<int64_t>>(bytes);
        {
            const auto kept = keep_decoded(source, 3, room);
            CHECK(kept->fingerprint() == source->fingerprint());
            Rig rig(kept, {.batch = 5, .shares = {1}, .threads = 2});
            for (uint32_t epoch : {0u, 1u, 2u}) {
                CHECK(read_epoch(rig, *kept, epoch) == read_epoch(plain, *source, epoch));
                CHECK(*room == bytes % kOne);  // the first epoch fills it
            }
        }
    }
}

TEST_CASE("a kept source hands out what does not decode as it is") {
    const auto source = std::make_shared<FaultySource>(6, std::set<size_t>{2});
    const Room room = std::make_shared<std::atomic<int64_t>>(1 << 30);
    Rig rig(keep_decoded(source, 3, room), {.batch = 6, .shares = {1}});
    for (uint32_t epoch : {0u, 1u}) {
        rig->start(epoch, 0);
        CHECK(rig->next()->n == 5);
    }
    const std::vector<std::string> reasons = rig->take_bad_reasons();
    REQUIRE(reasons.size() == 1);
    CHECK(contains(reasons[0], "sample 2: truncated"));
}

// Records what the loader tells of its plans.
struct PlannedSource final : ChangedSource {
    explicit PlannedSource(size_t n) : ChangedSource(pictures(n)) {
        shard_begins_ = {0, n / 4, n / 2};
    }
    void plan(std::vector<Visit> visits, uint64_t position) const override {
        std::lock_guard lock(mutex);
        plans.emplace_back(std::move(visits), position);
    }
    void pass(uint64_t position) const override {
        std::lock_guard lock(mutex);
        passed = std::max(passed, position);
        is_early = is_early || position > released;
    }
    mutable std::mutex mutex;
    mutable std::vector<std::pair<std::vector<Visit>, uint64_t>> plans;
    mutable uint64_t passed = 0, released = 0;
    mutable bool is_early = false;
};

TEST_CASE("the source hears of each epoch's order, and of positions once their batches are back") {
    const auto source = std::make_shared<PlannedSource>(40);
    LoaderOptions options{.batch = 4, .shares = {1}, .threads = 2, .window = 6};
    Rig rig(source, options);
    for (const uint32_t epoch : {0u, 1u}) {
        const int64_t consumed = epoch == 0 ? 0 : 8;
        source->released = source->passed = uint64_t(consumed);
        rig->start(epoch, consumed);
        {
            std::lock_guard lock(source->mutex);
            REQUIRE(source->plans.size() == epoch + 1);
            const Order order(source->shard_sizes(), 6, small().seed, epoch);
            CHECK(source->plans[epoch].first == order.visits());
            CHECK(source->plans[epoch].second == uint64_t(consumed));
        }
        while (Batch* batch = rig->next()) {
            {
                std::lock_guard lock(source->mutex);
                source->released += uint64_t(batch->global_wanted);
            }
            rig->release(batch);
        }
        CHECK(source->passed == 32);  // as the last step began, the two before it were on the way
        CHECK(!source->is_early);
    }
    // Validation reads one shard after the other.
    options.training = false;
    Rig validation(source, options);
    validation->start(0, 0);
    CHECK(source->plans.back().first == source->in_order());
}
