// timeline.h — when the streams of a device worked on what, written to tracks of a trace.
//
// An op returns before it is done, so a slice has an event of its stream at each end. They are
// asked when the host has waited for the stream in any case. Events know only the time between two
// of them: one that the host waited for ties them to its clock, and is renewed each second, since
// that time comes in floats of milliseconds.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/memory.h"
#include "src/base/trace.h"

namespace convoy::CONVOY_DEVICE {

// What is begun first ends last. While ops are recorded (graph.cu) slices are left out: events may
// not be.
class Timeline final : public SpanSink {
 public:
    // Slices of `ops` go to `track`.
    Timeline(const DeviceMemory& memory, cudaStream_t ops, Track* track);
    ~Timeline() override;
    void begin() override { begin(ops_, track_); }
    void begin(cudaStream_t stream, Track* track);
    void end(const TraceName& name, int64_t number, double amount) noexcept override;
    // Writes the slices that the device has ended. The stream of ops is idle.
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
    void write(const Slice& slice);

    const DeviceMemory& memory_;
    const cudaStream_t ops_;
    Track* const track_;
    std::shared_ptr<const Anchor> anchor_;
    std::vector<Slice> open_, ended_;
    std::vector<cudaEvent_t> spare_;
};

}  // namespace convoy::CONVOY_DEVICE
