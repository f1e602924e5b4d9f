// trace.h — what each thread of a rank did last, and when: src/run/traces.md. Always on. A Track is
// a ring buffer with one writer, which neither locks nor allocates. Other threads may copy it at
// any time: the writer announces which entry it will overwrite, so a reader can discard it. A Span
// is an entry from its construction to its end; with a null Track it does nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "src/base/clock.h"

namespace convoy {

// The name and kind of an entry, and the names of its two numbers.
struct TraceName {
    const char *text, *kind, *number = "", *amount = "";
};
inline constexpr char kGflops[] = "gflops";  // the amount is operations, shown per second
inline constexpr TraceName kTraceWaitData{"wait for data", "step", "step"},
    kTraceStep{"step", "step", "step", "images"}, kTraceForward{"forward", "pass", "micro-batch"},
    kTraceLoss{"loss", "pass", "micro-batch"}, kTraceBackward{"backward", "pass", "micro-batch"},
    kTraceWaitSums{"wait for sums", "pass"}, kTraceUpdate{"update", "pass"},
    kTraceFactors{"gradient from factors", "pass", "bucket", kGflops},
    kTraceDevice{"wait for the device", "pass"}, kTraceRecorded{"recorded step", "pass"},
    kTraceSendBucket{"send bucket", "bucket", "bucket", "bytes"},
    kTraceWaitBucket{"wait for bucket", "bucket", "bucket", "bytes"},
    kTraceAverage{"average", "run", "step"}, kTraceValidation{"validation", "run", "step"},
    kTraceCheckpoint{"checkpoint", "run", "step"}, kTraceNewRing{"new ring", "run", "ranks"},
    kTraceUpload{"upload", "data", "", "bytes"}, kTraceDownload{"download", "data", "", "bytes"},
    kTraceDecode{"decode", "data", "sample"}, kTraceSum{"sum", "network", "collective", "bytes"},
    kTraceGather{"gather", "network", "collective", "bytes"},
    kTraceBroadcast{"broadcast", "network", "collective", "bytes"},
    kTraceBarrier{"barrier", "network", "collective", "bytes"},
    kTraceSend{"send", "network", "chunk", "bytes"},
    kTraceReceive{"receive", "network", "chunk", "bytes"};

struct TraceEntry {
    int64_t begin, duration;  // ns of Clock
    int64_t number;
    double amount;
    const TraceName* name;
};

inline int64_t trace_ns(Clock::time_point at) {
    return std::chrono::nanoseconds(at.time_since_epoch()).count();
}

class Track {
 public:
    // place: its position among the tracks of a rank. entries: the number kept, a power of two.
    Track(std::string name, int place, size_t entries);
    void add(const TraceName& name, Clock::time_point begin, Clock::time_point end,
             int64_t number = 0, double amount = 0) noexcept;
    // The entries kept, oldest first. lost: older entries have been overwritten.
    std::vector<TraceEntry> copy(bool& lost) const;

    const std::string name;
    const int place;

 private:
    static constexpr size_t kWords = sizeof(TraceEntry) / sizeof(uint64_t);
    const size_t entries_;
    const std::unique_ptr<std::atomic<uint64_t>[]> words_;
    std::atomic<uint64_t> begun_{0}, done_{0};  // entries
};

// For a device that runs ops after the calls of the host: it records its times of a span.
class SpanSink {
 public:
    virtual ~SpanSink() = default;
    virtual void begin() = 0;  // spans nest
    virtual void end(const TraceName& name, int64_t number, double amount) noexcept = 0;
};

class Span {
 public:
    Span(Track* track, const TraceName& name, int64_t number = 0, double amount = 0,
         SpanSink* device = nullptr)
        : amount(amount), track_(track), device_(device), name_(name), number_(number) {
        if (device_) device_->begin();
        if (track_) begin_ = Clock::now();
    }
    ~Span() { end(); }
    Span(const Span&) = delete;
    void end() {
        if (track_) track_->add(name_, begin_, Clock::now(), number_, amount);
        if (device_) device_->end(name_, number_, amount);
        track_ = nullptr, device_ = nullptr;
    }
    double amount;

 private:
    Track* track_;
    SpanSink* device_;
    const TraceName& name_;
    const int64_t number_;
    Clock::time_point begin_;
};

// The tracks of one rank, and the names of its layers. Thread-safe; pointers stay valid.
class Tracer {
 public:
    // Creates the track if it does not exist.
    Track* track(const std::string& name, int place, size_t entries);
    // Names of these layers for the forward pass, then for the backward pass.
    const TraceName* layers(const std::vector<std::string>& names);
    std::vector<const Track*> tracks() const;

 private:
    mutable std::mutex mutex_;
    std::vector<std::unique_ptr<Track>> tracks_;
    std::map<std::vector<std::string>, std::vector<TraceName>> layers_;
};

}  // namespace convoy
