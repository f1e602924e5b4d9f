// stream.cpp — images that arrive through a FIFO while training runs, as in SageMaker's pipe mode.
//
//   writer ─► FIFO ─► Spool, a file of the cache without a name ─► read()
//                       └─► scan_records, in a thread ─► samples_, which read() waits for
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "data/sources/index.h"
#include "data/sources/listing.h"
#include "src/base/clock.h"
#include "src/base/text.h"

namespace convoy {
namespace {

// Its size is what is here, and at least a byte more than what was read, if one comes.
struct Spool final : Storage {
    Spool(const std::string& path, const RemoteOptions& options)
        : Storage(printable(path)),
          options(options),
          kept_as(shard_folder(options.cache) + "/stream-XXXXXX"),
          in(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)),
          out(mkostemp(kept_as.data(), O_CLOEXEC)) {}
    ~Spool() override { ::close(in), ::close(out); }

    void check() const {
        if (out < 0 || unlink(kept_as.c_str()) != 0) refuse(kept_as, ": ", std::strerror(errno));
        if (in < 0) refuse("cannot be opened for reading");
        if (flock(in, LOCK_EX | LOCK_NB) != 0)
            refuse("another rank or program reads it: give each its own, with --shards mine");
    }
    uint64_t size() const override {
        while (here == seen && !is_over) receive();
        return here;
    }
    void fill(uint64_t offset, std::span<uint8_t> bytes) const override {
        if (read_from(out, offset, bytes) != 0) refuse("its copy in --cache cannot be read");
        seen = offset + bytes.size();
    }
    [[noreturn]] void refuse(const auto&... why) const {
        throw Unreachable(cat(name(), ", byte ", here, ": ", why...));
    }
    // poll() waits for the first writer; read() would say that the stream has ended.
    void receive() const {
        pollfd waiting{in, POLLIN, 0};
        for (const auto begin = Clock::now(); ::poll(&waiting, 1, 100) <= 0;) {
            if (options.stop()) refuse("stopped while it waits for data");
            if (seconds_since(begin) >= options.patience)
                refuse("nothing came for ", options.patience, " s: does a program write to it?");
        }
        const ssize_t n = ::read(in, block.data(), block.size());
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
        if (n < 0) refuse("cannot be read: ", std::strerror(errno));
        if (here + uint64_t(n) > options.cache_bytes)
            refuse("more than --cache may hold: give a larger SIZE by --cache DIR:SIZE");
        if (pwrite(out, block.data(), size_t(n), off_t(here)) != n)
            refuse("its copy in --cache, ", kept_as, ", cannot be written: is the disk full?");
        is_over = n == 0, here += uint64_t(n);
    }

    const RemoteOptions options;
    std::string kept_as;  // its name, until it has none
    const int in, out;
    mutable bool is_over = false;
    mutable uint64_t here = 0, seen = 0;  // bytes
    mutable std::vector<uint8_t> block = std::vector<uint8_t>(1 << 20);
};

class StreamSource final : public Source {
 public:
    StreamSource(const Place& stream, const Names& classes, int64_t offset, RemoteOptions options,
                 Log& log)
        : label_offset_(offset) {
        set_classes(classes, cat("stream of ", stream.images));
        labels_.assign(stream.images, 0);  // each is right once its image was read
        shard_begins_ = {0};
        options.stop = [this, stop = options.stop] { return stopping_ || (stop && stop()); };
        spool_ = std::make_shared<Spool>(stream.name, options);
        spool_->check();
        thread_ = std::thread([this, &log] { scan(log); });
    }
    ~StreamSource() override {
        stopping_ = true;
        if (thread_.joinable()) thread_.join();
    }

    std::string name(size_t i) const override { return cat(spool_->name(), ", image ", i + 1); }
    void read(size_t i, std::vector<uint8_t>& bytes) const override {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return samples_.size() > i || is_over_; });
        if (samples_.size() <= i && !failure_.empty()) throw Unreachable(failure_);
        if (samples_.size() <= i)
            fail(name(i), ": the stream ended after ", samples_.size(), " of ", size(), " images");
        const auto [offset, length, fault] = samples_[i];
        lock.unlock();
        if (!fault.empty()) fail(name(i), ": ", fault);
        bytes.resize(length);
        if (read_from(spool_->out, offset, bytes) != 0)
            throw Unreachable(name(i) + ": its copy in --cache cannot be read");
    }

 private:
    struct Sample {
        uint64_t offset, length = 0;
        std::string fault = {};
    };
    // By its name; a number is that of a class, unless numbers are the names.
    int64_t class_of(const Label& label) const {
        const int64_t number = label.number.value_or(-1) - label_offset_;
        const auto at = std::ranges::find(classes_, label.name.empty() ? cat(number) : label.name);
        if (at != classes_.end()) return at - classes_.begin();
        const bool counts = label.name.empty() && !to_number<int64_t>(classes_[0]);
        return counts && number < std::ssize(classes_) ? number : -1;
    }
    void add(Sample sample, int64_t label) {
        std::lock_guard lock(mutex_);
        if (label < 0 && sample.fault.empty()) sample.fault = "its class is not one of --classes";
        if (samples_.size() == size()) return void(further_ += label >= 0);
        labels_[samples_.size()] = int32_t(label);
        samples_.push_back(std::move(sample));
        changed_.notify_all();
    }
    void scan(Log& log) {
        std::string failure;
        try {
            std::vector<uint8_t> head;
            ByteStream(spool_).take(kHeadBytes, head), spool_->seen = 0;
            const ShardFormat format = shard_format(head, UINT64_MAX);
            if (format != ShardFormat::tar && format != ShardFormat::tfrecord)
                spool_->refuse("neither a tar nor TFRecords");
            ByteStream stream(spool_);
            scan_records(format, stream,
                         {[&](const Record& record) {
                              add({record.offset, record.bytes.size()}, class_of(record.label));
                          },
                          [&](uint64_t at, const std::string& why) {
                              add({at, 0, why}, -1);
                          }});
            while (!stream.next().empty()) {}  // so that its writer does not fail
        } catch (const std::exception& error) {
            failure = error.what();
        }
        std::lock_guard lock(mutex_);
        if (further_ > 0) log.notice(spool_->name(), ": left out ", further_, " more images");
        failure_ = failure, is_over_ = true;
        changed_.notify_all();
    }

    const int64_t label_offset_;
    std::shared_ptr<Spool> spool_;
    std::atomic<bool> stopping_ = false;
    mutable std::mutex mutex_;  // guards what follows
    mutable std::condition_variable changed_;
    std::vector<Sample> samples_;
    uint64_t further_ = 0;
    std::string failure_;
    bool is_over_ = false;
    std::thread thread_;  // last: all else must exist when it runs
};

}  // namespace

SourcePtr stream_source(const Place& stream, const Names& classes, int64_t label_offset,
                        const RemoteOptions& options, Log& log) {
    return std::make_shared<StreamSource>(stream, classes, label_offset, options, log);
}

}  // namespace convoy
