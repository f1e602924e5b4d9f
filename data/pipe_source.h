// pipe_source.h — samples that come through a pipe, as streams of tar or TFRecord.
//
//   feeder ─► pipe ─► reader thread: scan_records ─► held samples ─► read(), by the order's window
//
// The name is a FIFO, which is opened again after each stream; or NAME of the FIFOs NAME_0, NAME_1,
// … with one epoch each, as in SageMaker's pipe mode; or "-", standard input, which carries all
// epochs one after the other. CONVOY_SAMPLES gives the number of samples per epoch, because a
// stream cannot be counted before its end. A shorter stream makes the epoch's last steps short. The
// rest of a longer stream NAME_N is left out. In a FIFO the rest begins the next epoch, because the
// reader cannot tell two writers apart if the second opens the FIFO before the first has closed it.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "data/records.h"
#include "data/source.h"
#include "src/base/check.h"

namespace convoy {

bool is_pipe(const std::string& name);

class PipeSource final : public Source {
 public:
    struct Options {
        std::string name;
        int64_t samples = 0;  // per epoch
        uint64_t window = 1;  // of the order: samples are read at most this far apart
        std::vector<std::string> classes = {};
        int64_t label_offset = 0;        // subtracted from numbers of classes
        std::function<int()> stop = {};  // if it returns other than 0, a silent stream has ended
        double silence =
            10;  // seconds until the log names a silent pipe; then twice that, and so on
        uint64_t most_bytes = 1ull << 30;  // of samples that wait, except the one being read
    };
    // The log gets a line for streams that are silent, short or long. It must outlive the source.
    PipeSource(Options options, Log& log);
    ~PipeSource() override;

    std::string name(size_t i) const override { return cat(options_.name, ", sample ", i); }
    // Blocks until the sample has come. Throws NoSample if the stream ended before.
    void read(size_t i, std::vector<uint8_t>& bytes) const override;
    void begin_epoch() const override;
    bool is_stream() const override { return true; }
    uint64_t fingerprint() const override;

 private:
    class Stream;
    struct Sample {
        std::vector<uint8_t> bytes;
        int32_t label;
    };
    void run();  // the reader thread
    void read_stream(int64_t number);
    void take(const Record& record);
    void end_stream(const std::string& path);
    int32_t class_of(const Label& label) const;  // or -1
    // Under the lock: whether the reader must wait before it keeps sample `number`.
    bool is_full(uint64_t number) const;

    const Options options_;
    Log& log_;
    const bool is_continuous_;  // epochs follow each other in a stream: "-" or a FIFO
    std::map<std::string, int32_t> class_of_name_;
    mutable std::mutex mutex_;  // guards what follows
    mutable std::condition_variable changed_;
    mutable std::map<uint64_t, Sample> held_;  // by number in the stream
    mutable uint64_t held_bytes_ = 0;
    mutable uint64_t wanted_ = 0;  // number after the last sample that was asked for
    mutable uint64_t first_ = 0;   // number of the epoch's sample 0 in the stream
    mutable int64_t epochs_ = 0;   // begun
    mutable bool ended_ = false;   // the stream of this epoch
    uint64_t count_ = 0;           // samples so far; of the epoch's stream, if not continuous
    uint64_t stream_first_ = 0;    // count_ as the stream began
    int64_t faults_ = 0;           // told
    bool stopping_ = false;
    mutable std::exception_ptr failure_;
    std::thread thread_;  // last
};

}  // namespace convoy
