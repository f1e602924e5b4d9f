// trace.h — what each thread of a rank did last, and when: src/run/traces.md. Always on.
//
// A Track is a ring of entries with one writer, which takes neither a lock nor memory. Any thread
// may copy it meanwhile: the writer says which entry it overwrites before it does, so whoever
// copies knows which to throw away. A Span is an entry from its construction to its end; of a null
// Track it is nothing.
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

// What an entry is, and what its two numbers are.
struct TraceName {
    const char *text, *kind, *number = "", *amount = "";
};
inline constexpr char kGflops[] = "gflops";  // the amount is operations, shown by time
inline constexpr TraceName kTraceWaitData{"wait for data", "step", "step"},
    kTraceStep{"step", "step", "step", "images"}, kTraceForward{"forward", "pass", "piece"},
    kTraceLoss{"loss", "pass", "piece"}, kTraceBackward{"backward", "pass", "piece"},
    kTraceReplicas{"replicas", "pass"}, kTraceWaitSums{"wait for sums", "pass"},
    kTraceUpdate{"update", "pass"}, kTraceDevice{"wait for the device", "pass"},
    kTraceRecorded{"recorded step", "pass"},
    kTraceSendBucket{"send bucket", "bucket", "bucket", "bytes"},
    kTraceWaitBucket{"wait for bucket", "bucket", "bucket", "bytes"},
    kTraceAverage{"average", "run", "step"}, kTraceValidation{"validation", "run", "step"},
    kTraceCheckpoint{"checkpoint", "run", "step"}, kTraceNewRing{"new ring", "run", "ranks"},
    kTraceUpload{"upload", "data", "", "bytes"}, kTraceDownload{"download", "data", "", "bytes"},
    kTraceDecode{"decode", "data", "sample"}, kTraceSum{"sum", "network", "collective", "bytes"},
    kTraceGather{"gather", "network", "collective", "bytes"},
    kTraceBroadcast{"broadcast", "network", "collective", "bytes"},
    kTraceBarrier{"barrier", "network", "collective", "bytes"},
    kTraceSend{"send", "network", "piece", "bytes"},
    kTraceReceive{"receive", "network", "piece", "bytes"};

struct TraceEntry {
    int64_t begin, duration;  // ns of Clock
    int64_t number;
    double amount;
    uint64_t flow;  // of a piece: the same where it is sent and received; else 0
    const TraceName* name;
};

inline int64_t trace_ns(Clock::time_point at) {
    return std::chrono::nanoseconds(at.time_since_epoch()).count();
}

class Track {
 public:
    // place: among the tracks of a rank. entries: how many it keeps, a power of two.
    Track(std::string name, int place, size_t entries);
    void add(const TraceName& name, Clock::time_point begin, Clock::time_point end,
             int64_t number = 0, double amount = 0, uint64_t flow = 0) noexcept;
    // What is kept, the oldest first. lost: there were others before.
    std::vector<TraceEntry> copy(bool& lost) const;

    const std::string name;
    const int place;

 private:
    static constexpr size_t kWords = sizeof(TraceEntry) / sizeof(uint64_t);
    const size_t entries_;
    const std::unique_ptr<std::atomic<uint64_t>[]> words_;
    std::atomic<uint64_t> begun_{0}, done_{0};  // entries
};

// A device that works later than the host tells it to: it writes its own time of a span.
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

// The tracks of one rank, and the names of its layers. Any thread may call; nothing moves.
class Tracer {
 public:
    // Made where there is none of that name.
    Track* track(const std::string& name, int place, size_t entries);
    // Names of these layers, forward and then backward.
    const TraceName* layers(const std::vector<std::string>& names);
    std::vector<const Track*> tracks() const;

 private:
    mutable std::mutex mutex_;
    std::vector<std::unique_ptr<Track>> tracks_;
    std::map<std::vector<std::string>, std::vector<TraceName>> layers_;
};

}  // namespace convoy
