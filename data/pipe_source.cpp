// pipe_source.cpp — see pipe_source.h.
#include "data/pipe_source.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/random.h"
#include "src/base/text.h"

namespace convoy {
namespace {

constexpr int kPollMs = 100;         // how often the reader checks whether to stop
constexpr int64_t kFaultsTold = 10;  // records left out that the log names

bool is_fifo(const std::string& path) {
    struct stat status;
    return stat(path.c_str(), &status) == 0 && S_ISFIFO(status.st_mode);
}

struct Stopped {};

}  // namespace

bool is_pipe(const std::string& name) {
    return name == "-" || is_fifo(name) || is_fifo(name + "_0");
}

// The bytes of one stream. Waits for them, and for the pipe to be there and to be written to.
class PipeSource::Stream final : public ByteStream {
 public:
    Stream(PipeSource& source, const std::string& path) : ByteStream(path), source_(source) {
        if (path == "-")
            file_ = ::dup(STDIN_FILENO);
        else
            while ((file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) < 0) {
                if (errno != ENOENT) fail(path, ": cannot be opened: ", std::strerror(errno));
                ::poll(nullptr, 0, kPollMs);  // its writer may make it later
                idle("is not there yet");
            }
        if (file_ < 0) fail("standard input cannot be read: ", std::strerror(errno));
        bytes_.resize(1 << 20);
        head_ = receive();
        while (head_ > 0 && head_ < kHeadBytes) {
            const size_t n = receive();
            if (n == 0) break;
            head_ += n;
        }
    }
    ~Stream() override { ::close(file_); }
    Stream(const Stream&) = delete;

    std::span<const uint8_t> head() const { return std::span(bytes_).first(head_); }
    std::span<const uint8_t> next() override {
        const size_t n = head_ > 0 ? std::exchange(head_, 0) : receive();
        return std::span(bytes_).first(n);
    }

 private:
    // Reads into bytes_, after head_; returns 0 at the end. read() cannot tell a FIFO without a
    // writer yet from one that has ended; poll() can.
    size_t receive() {
        for (;;) {
            pollfd waiting{file_, POLLIN, 0};
            if (::poll(&waiting, 1, kPollMs) <= 0) {
                idle("no bytes");
                continue;
            }
            const ssize_t n = ::read(file_, bytes_.data() + head_, bytes_.size() - head_);
            if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
            if (n < 0) fail(name(), ": cannot be read: ", std::strerror(errno));
            begin_ = Clock::now(), patience_ = source_.options_.silence;
            return size_t(n);
        }
    }
    void idle(const char* what) {
        std::lock_guard lock(source_.mutex_);
        if (source_.options_.stop && source_.options_.stop()) source_.ended_ = true;
        if (source_.stopping_ || source_.ended_) throw Stopped();
        if (seconds_since(begin_) < patience_ || source_.wanted_ <= source_.count_) return;
        source_.log_.notice("pipe ", name(), ": ", what, fmt::format(" for {:g} s; ", patience_),
                            source_.count_ - source_.first_, " of ", source_.options_.samples,
                            " samples have come; training waits for its writer");
        patience_ *= 2;
    }

    PipeSource& source_;
    int file_ = -1;
    std::vector<uint8_t> bytes_;
    size_t head_ = 0;  // bytes that are here already
    Clock::time_point begin_ = Clock::now();
    double patience_ = source_.options_.silence;
};

PipeSource::PipeSource(Options options, Log& log)
    : options_(std::move(options)),
      log_(log),
      is_continuous_(options_.name == "-" || is_fifo(options_.name)) {
    classes_ = options_.classes;
    for (const std::string& name : classes_)
        class_of_name_.try_emplace(name, int32_t(class_of_name_.size()));
    labels_.assign(size_t(options_.samples), -1);
    thread_ = std::thread([this] { run(); });
}

PipeSource::~PipeSource() {
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

uint64_t PipeSource::fingerprint() const {
    return hash_bytes(cat("pipe of ", options_.samples, ": ", join_text(classes_, "\n")));
}

// For NAME_N: waits until the reader has drained the stream of the epoch before.
void PipeSource::begin_epoch() const {
    std::unique_lock lock(mutex_);
    if (epochs_ > 0 && is_continuous_) {
        const uint64_t next = first_ + uint64_t(options_.samples);
        const bool was_short = ended_ && count_ < next && options_.name != "-";
        first_ = was_short ? count_ : next;
        if (was_short) ended_ = false;
    } else if (epochs_ > 0) {
        wanted_ = UINT64_MAX;  // samples that nobody will read do not make the reader wait
        held_.clear(), held_bytes_ = 0;
        changed_.notify_all();
        changed_.wait(lock, [&] { return ended_ || failure_; });
        ended_ = false;
    }
    while (!held_.empty() && held_.begin()->first < first_) {
        held_bytes_ -= held_.begin()->second.bytes.size();
        held_.erase(held_.begin());
    }
    wanted_ = first_;
    ++epochs_;
    if (ended_ && count_ <= first_)
        failure_ = std::make_exception_ptr(std::runtime_error(
            cat("pipe ", options_.name, " has ended: epoch ", epochs_, " has no samples")));
    changed_.notify_all();
}

void PipeSource::read(size_t i, std::vector<uint8_t>& bytes) const {
    std::unique_lock lock(mutex_);
    if (epochs_ == 0) fail("pipe ", options_.name, ": only training reads from a pipe");
    const uint64_t number = first_ + i;
    if (number >= wanted_) wanted_ = number + 1, changed_.notify_all();
    changed_.wait(lock, [&] { return held_.contains(number) || ended_ || failure_; });
    const auto at = held_.find(number);
    if (at == held_.end()) {
        if (failure_) std::rethrow_exception(failure_);
        throw NoSample();
    }
    bytes = std::move(at->second.bytes);
    labels_[i] = at->second.label;
    held_bytes_ -= bytes.size();
    held_.erase(at);
    changed_.notify_all();
}

// The reader thread.
void PipeSource::run() {
    try {
        for (int64_t number = 0;; ++number) {
            {
                std::unique_lock lock(mutex_);
                changed_.wait(lock, [&] {
                    return stopping_ || (epochs_ > (is_continuous_ ? 0 : number) && !ended_);
                });
                if (stopping_) return;
                if (!is_continuous_) count_ = 0;
                stream_first_ = count_;
            }
            read_stream(number);
        }
    } catch (const Stopped&) {
    } catch (const std::exception& e) {
        // Not an Error, which would be a fault of one image.
        std::lock_guard lock(mutex_);
        failure_ = std::make_exception_ptr(std::runtime_error(e.what()));
    }
    changed_.notify_all();
}

void PipeSource::read_stream(int64_t number) {
    const std::string& name = options_.name;
    const std::string path = is_continuous_ ? name : cat(name, "_", number);
    Stream stream(*this, path);
    if (!stream.head().empty()) {
        const ShardFormat format = shard_format(stream.head(), UINT64_MAX);
        if (format != ShardFormat::tar && format != ShardFormat::tfrecord)
            fail("pipe ", path, ": carries neither tar nor TFRecord");
        LeftOut left_out;
        scan_records(format, stream,
                     {.record = [&](const Record& record) { take(record); },
                      .fault =
                          [&](uint64_t offset, const std::string& why) {
                              if (++faults_ <= kFaultsTold)
                                  log_.notice("left out: ", path, ", byte ", offset, ": ", why);
                          },
                      .left_out = [&](const std::string& what,
                                      uint64_t count) { left_out[what] += count; }});
        if (!left_out.empty() && ++faults_ <= kFaultsTold)
            log_.notice("left out of pipe ", path, ": ", left_out_text(left_out));
        while (!stream.next().empty())
            ;  // behind damage, or the end of an archive
    }
    end_stream(path);
}

bool PipeSource::is_full(uint64_t number) const {
    return wanted_ <= number &&
           (held_.size() >= 2 * options_.window || held_bytes_ >= options_.most_bytes);
}

void PipeSource::take(const Record& record) {
    const int32_t label = class_of(record.label);
    std::unique_lock lock(mutex_);
    if (label < 0) {
        if (++faults_ <= kFaultsTold)
            log_.notice("left out: ", options_.name, ", byte ", record.offset, ": its class, '",
                        record.label.number ? cat(*record.label.number) : record.label.name,
                        "', is not one of --classes");
        return;
    }
    const uint64_t number = count_++;
    changed_.wait(lock, [&] { return stopping_ || number < first_ || !is_full(number); });
    if (stopping_) throw Stopped();
    if (number < first_ || (!is_continuous_ && number >= uint64_t(options_.samples))) return;
    if (wanted_ == UINT64_MAX) return;  // the epoch is over
    if (held_bytes_ > 2 * options_.most_bytes)
        fail("pipe ", options_.name, ": the samples of a window take more than ",
             2 * options_.most_bytes >> 20, " MB; give a smaller one by --shuffle window=N, below ",
             options_.window);
    held_[number] = {{record.bytes.begin(), record.bytes.end()}, label};
    held_bytes_ += record.bytes.size();
    changed_.notify_all();
}

void PipeSource::end_stream(const std::string& path) {
    std::lock_guard lock(mutex_);
    const int64_t came = int64_t(count_ - stream_first_);
    if (came == 0) fail("pipe ", path, " ended without a sample");
    const int64_t partial = count_ > first_ ? int64_t(count_ - first_) % options_.samples : 0;
    const bool is_short = partial != 0 && (came < options_.samples || path == "-");
    ended_ = is_short || !is_continuous_ || path == "-";
    if (is_short)
        log_.notice("pipe ", path, " ended after ", partial, " of ", options_.samples,
                    " samples: the last steps of this epoch are short");
    else if (came > options_.samples && !is_continuous_)
        log_.notice("pipe ", path, ": ", came - options_.samples,
                    " samples more than CONVOY_SAMPLES=", options_.samples, " were left out");
    changed_.notify_all();
}

// By the name if it is known, else by the number.
int32_t PipeSource::class_of(const Label& label) const {
    const auto at = class_of_name_.find(label.name);
    if (at != class_of_name_.end()) return at->second;
    const int64_t number = label.number.value_or(-1) - options_.label_offset;
    return number >= 0 && number < int64_t(classes_.size()) ? int32_t(number) : -1;
}

}  // namespace convoy
