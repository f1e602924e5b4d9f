// timeline.cu — see timeline.h.
#include "kernels/cuda/timeline.h"

#include <cmath>

namespace convoy::CONVOY_DEVICE {

Timeline::Timeline(const DeviceMemory& memory, Track* track) : memory_(memory), track_(track) {
    renew_anchor();
}

// The streams are idle. What fails here was reported by an earlier call.
Timeline::~Timeline() {
    for (const auto* slices : {&open_, &ended_})
        for (const Slice& slice : *slices)
            for (cudaEvent_t event : {slice.begin, slice.end})
                if (event) (void)cudaEventDestroy(event);
    for (cudaEvent_t event : spare_) (void)cudaEventDestroy(event);
}

void Timeline::renew_anchor() {
    const auto fresh = std::make_shared<Anchor>();
    CUDA_CHECK(cudaEventCreate(&fresh->event));
    CUDA_CHECK(cudaEventRecord(fresh->event, memory_.stream));
    CUDA_CHECK(cudaEventSynchronize(fresh->event));
    fresh->at = Clock::now();
    anchor_ = fresh;
}

cudaEvent_t Timeline::take_event() {
    cudaEvent_t event;
    if (spare_.empty())
        CUDA_CHECK(cudaEventCreate(&event));
    else
        event = spare_.back(), spare_.pop_back();
    return event;
}

void Timeline::begin(cudaStream_t stream, Track* track) {
    open_.push_back({track, stream});
    if (memory_.is_recording()) return;
    Slice& slice = open_.back();
    slice.anchor = anchor_;
    slice.begin = take_event(), slice.end = take_event();
    CUDA_CHECK(cudaEventRecord(slice.begin, stream));
}

void Timeline::end(const TraceName& name, int64_t number, double amount) noexcept {
    Slice slice = std::move(open_.back());
    open_.pop_back();
    if (!slice.begin) return;
    // Recording has begun since, or the device has failed, which the next op will say.
    if (memory_.is_recording() || cudaEventRecord(slice.end, slice.stream) != cudaSuccess) {
        spare_.insert(spare_.end(), {slice.begin, slice.end});
        return;
    }
    slice.name = &name, slice.number = number, slice.amount = amount;
    ended_.push_back(std::move(slice));
}

void Timeline::write() {
    std::erase_if(ended_, [&](const Slice& slice) {
        if (cudaEventQuery(slice.end) != cudaSuccess) {  // of a copy that goes on
            (void)cudaGetLastError();
            return false;
        }
        const auto at = [&](cudaEvent_t event) {
            float ms = 0;
            CUDA_CHECK(cudaEventElapsedTime(&ms, slice.anchor->event, event));
            return slice.anchor->at + std::chrono::nanoseconds(std::llround(double(ms) * 1e6));
        };
        slice.track->add(*slice.name, at(slice.begin), at(slice.end), slice.number, slice.amount);
        spare_.insert(spare_.end(), {slice.begin, slice.end});
        return true;
    });
    if (seconds_since(anchor_->at) > 1) renew_anchor();
}

}  // namespace convoy::CONVOY_DEVICE
