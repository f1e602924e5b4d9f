// timeline.h — records what the streams of a device did and when, on tracks of a trace.
//
// An op returns before it is done, so each slice has a CUDA event at its begin and its end. The
// events are read after the host has waited for the stream for another reason. CUDA gives only the
// time between two events. So an anchor event, for which the host waits, ties all events to the
// host's clock. The anchor is renewed each second, because times are floats of milliseconds.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/memory.h"
#include "src/base/trace.h"

namespace convoy::CONVOY_DEVICE {

// Slices are nested: the first to begin is the last to end. While ops are recorded (graph.cu), no
// slice is written, because events must not be recorded then.
class Timeline final : public SpanSink {
 public:
    // Slices of the stream of ops go to `track`.
    Timeline(const DeviceMemory& memory, Track* track);
    ~Timeline() override;
    void begin() override { begin(memory_.stream, track_); }
    void begin(cudaStream_t stream, Track* track);
    void end(const TraceName& name, int64_t number, double amount) noexcept override;
    // Writes the slices whose work has ended. The stream of ops must be idle.
    void write();

 private:
    struct Anchor {
        cudaEvent_t event = nullptr;
        Clock::time_point at;
        ~Anchor() { (void)cudaEventDestroy(event); }
    };
    struct Slice {
        Track* track = nullptr;
        cudaStream_t stream = nullptr;
        cudaEvent_t begin = nullptr, end = nullptr;  // null: left out
        std::shared_ptr<const Anchor> anchor = {};
        const TraceName* name = nullptr;
        int64_t number = 0;
        double amount = 0;
    };
    void renew_anchor();
    cudaEvent_t take_event();

    const DeviceMemory& memory_;
    Track* const track_;
    std::shared_ptr<const Anchor> anchor_;
    std::vector<Slice> open_, ended_;
    std::vector<cudaEvent_t> spare_;
};

}  // namespace convoy::CONVOY_DEVICE
