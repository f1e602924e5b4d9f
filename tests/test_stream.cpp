// test_stream.cpp — images that come through a FIFO while training runs, and what a stream cannot
// do.
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <future>

#include "data/sources/listing.h"
#include "data/sources/shard_writer.h"
#include "tests/data_files.h"
#include "tests/golden.h"
#include "tests/golden_shards.h"
#include "tests/jobs.h"

using namespace convoy;

namespace {

// A FIFO into which another thread writes: all of `bytes`, or the part before `pause` until go().
class Feeder {
 public:
    explicit Feeder(const TempDir& folder) : path(folder / "train_0") {
        REQUIRE(mkfifo(path.c_str(), 0600) == 0);
        std::signal(SIGPIPE, SIG_IGN);  // the reader may end first
    }
    ~Feeder() {
        go();
        ::close(::open(path.c_str(), O_RDONLY | O_NONBLOCK));  // if nobody else has read
    }
    void feed(const Bytes& bytes, size_t pause = 0) {
        writer_ = std::async(std::launch::async, [this, bytes, pause] {
            std::ofstream out(path, std::ios::binary);
            const char* all = reinterpret_cast<const char*>(bytes.data());
            out.write(all, std::streamsize(pause)).flush();
            if (pause > 0) gate_.get_future().wait();
            out.write(all + pause, std::streamsize(bytes.size() - pause));
        });
    }
    void go() {
        if (!std::exchange(is_open_, true)) gate_.set_value();
    }
    const std::string path;

 private:
    std::promise<void> gate_;
    bool is_open_ = false;
    std::future<void> writer_;
};

Bytes unpacked_shard(const char* text) {
    return inflate(*in_memory("shard", from_base64(text)), 1 << 20);
}

const Names kFour = {"cat", "dog", "hat", "shoe"};

SourcePtr open_fifo(const Feeder& feeder, uint64_t images, const TempDir& folder, Log& log,
                    RemoteOptions options = {}, const Names& classes = kFour) {
    options.cache = folder / "cache";
    return stream_source({.name = feeder.path, .images = images}, classes, 0, options, log);
}

Bytes read_of(const SourcePtr& source, size_t i) {
    Bytes bytes;
    source->read(i, bytes);
    return bytes;
}

// The files that a source leaves in the cache.
size_t left_in(const std::string& cache) {
    return size_t(std::distance(std::filesystem::directory_iterator(cache),
                                std::filesystem::directory_iterator()));
}

}  // namespace

TEST_CASE("a stream's images are read before it ends, and again after it has ended") {
    TempDir folder;
    Feeder feeder(folder);
    Quiet quiet;
    const Bytes tar = unpacked_shard(golden::kTarUstar);
    feeder.feed(tar, golden::kTarUstarOffsets[1]);  // the first image, and the next one's name
    const SourcePtr source = open_fifo(feeder, 3, folder, quiet.log);
    CHECK(source->size() == 3);
    CHECK(source->classes() == kFour);
    CHECK(source->shard_sizes() == std::vector<uint64_t>{3});
    const Bytes first = read_of(source, 0);
    CHECK(std::equal(first.begin(), first.end(), tar.begin() + golden::kTarUstarOffsets[0]));
    feeder.go();
    const Bytes last = read_of(source, 2);
    CHECK(std::equal(last.begin(), last.end(), tar.begin() + golden::kTarUstarOffsets[2]));
    CHECK((source->label(0) == 3 && source->label(1) == 0 && source->label(2) == 1));
    CHECK(read_of(source, 0) == first);                   // the second epoch
    CHECK(left_in(folder / "cache/convoy-shards") == 0);  // even now: its copy has no name
}

TEST_CASE("a stream of TFRecords: classes by name, and what cannot be used is a bad image") {
    TempDir folder;
    Feeder feeder(folder);
    Quiet quiet;
    feeder.feed(unpacked_shard(golden::kTfrecord));
    const SourcePtr source = open_fifo(feeder, 3, folder, quiet.log, {}, {"hat", "cat"});
    CHECK(!read_of(source, 0).empty());
    CHECK(source->label(0) == 0);
    CHECK_FAILS(read_of(source, 1), "--classes");  // shoe
    CHECK_FAILS(read_of(source, 2), "image/encoded");
    CHECK(eventually([&] { return contains(quiet.text(), "train_0"); }));  // one image more
}

TEST_CASE("a stream that is empty, short, damaged, silent, too large or none is named") {
    const Bytes tar = unpacked_shard(golden::kTarUstar);
    const auto refuses = [&](const Bytes& bytes, size_t i, const std::string& why,
                             RemoteOptions options = {}) {
        TempDir folder;
        Feeder feeder(folder);
        Quiet quiet;
        if (options.patience == RemoteOptions().patience) feeder.feed(bytes);  // else nobody does
        const SourcePtr source = open_fifo(feeder, 4, folder, quiet.log, options);
        const std::string said = error_of([&] { read_of(source, i); });
        CHECK(contains(said, "train_0"));
        CHECK(contains(said, why));
    };
    const auto part = [&](size_t n) { return Bytes(tar.begin(), tar.begin() + ptrdiff_t(n)); };
    refuses({}, 0, "tar");
    refuses(Bytes(9999, 'x'), 0, "tar");
    refuses(tar, 3, "3 of 4");
    refuses(part(golden::kTarUstarOffsets[2] + 10), 2, "truncated");
    refuses(part(golden::kTarUstarOffsets[2] + 10), 3, "3 of 4");
    refuses(tar, 3, "--cache", {.cache_bytes = 5000});
    refuses({}, 0, "0.01 s", {.patience = 0.01});
    refuses({}, 0, "stopped", {.patience = 600, .stop = [] { return SIGTERM; }});
}

TEST_CASE("a stream has one reader, and ends with it although nothing comes") {
    TempDir folder;
    Feeder feeder(folder);
    Quiet quiet;
    SourcePtr source = open_fifo(feeder, 3, folder, quiet.log);
    CHECK_FAILS(open_fifo(feeder, 3, folder, quiet.log), "--shards mine");
    source.reset();
    CHECK_NOTHROW(open_fifo(feeder, 3, folder, quiet.log));
}

TEST_CASE("--data FIFO needs the number of images and the classes, and is for training") {
    TempDir folder;
    const Feeder feeder(folder);
    DataOptions options{
        .train = feeder.path, .classes = kFour, .remote = {.cache = folder / "cache"}};
    options.streams = true;
    refuses(options, feeder.path + ":");
    options.train += ":3";
    CHECK(open(options).is_stream);
    options.val_split = 0.5;
    refuses(options, "--val-split");
    options.val_split = 0, options.classes = {};
    refuses(options, "--classes");
    options.classes = kFour, options.streams = false;
    refuses(options, "train_0");
}

TEST_CASE("training begins before a stream ends, and two epochs are those of its tar") {
    TempDir folder;
    Feeder feeder(folder);
    DataOptions all{.generated = 72, .seed = 3};
    const SourcePtr set = open(all).train;
    {
        ShardWriter writer(ShardFormat::tar, folder / "all.tar");
        Bytes bytes;
        for (size_t i = 0; i < set->size(); ++i) {
            set->read(i, bytes);
            const int32_t label = set->label(i);
            writer.add(cat(100 + i), "jpg", bytes, label, set->classes()[size_t(label)]);
        }
        writer.close();
    }
    const std::string tar = read_file(folder / "all.tar");
    feeder.feed({tar.begin(), tar.end()}, tar.size() * 6 / 10);  // more than the first 24 images
    const std::string stream = cat(feeder.path, ":", set->size());
    const auto words = [&](const std::string& data, const Words& more) {
        return Words{"--data",      data, "--cache",   folder / "cache",
                     "--size",      "16", "--batch",   "12",
                     "--epochs",    "2",  "--threads", "1",
                     "--log-every", "1",  "--classes", "0,1,2"} +
               more;
    };
    const Words window = {"--shuffle", "window=24"};
    Process run(folder, "run", words(stream, window + Words{"--out", folder / "stream"}));
    CHECK(run.wait_for("step 1/5"));  // before the stream's end
    feeder.go();
    CHECK(run.wait() == 0);
    output_of(words(folder / "all.tar", window + Words{"--out", folder / "tar"}));
    const std::vector<double> losses = losses_of(folder / "stream", {"step", "epoch"});
    CHECK(losses.size() == 12);
    CHECK(losses == losses_of(folder / "tar", {"step", "epoch"}));

    CHECK(contains(output_of(words(stream, {}), 1), "--shuffle"));
    CHECK(contains(output_of(words(stream, window + Words{"--balance"}), 1), "--balance"));
}
