// sync_weights.cpp — see sync_weights.h.
#include "src/job/sync_weights.h"

#include <algorithm>

namespace convoy {
namespace {

// The values where the network can read and write them: in place, or a copy.
class HostView {
 public:
    HostView(const float* values, size_t n, Backend& backend)
        : view_(const_cast<float*>(values), n) {
        backend.synchronize();
        if (backend.host_visible()) return;
        copy_.resize(n);
        backend.download(copy_.data(), values, n * sizeof(float));
        view_ = copy_;
    }
    std::span<float> floats() { return view_; }

 private:
    std::vector<float> copy_;
    std::span<float> view_;
};

}  // namespace

bool equal_on_all_ranks(const float* values, size_t n, Backend& backend,
                        Communicator& communicator) {
    HostView view(values, n, backend);
    const uint64_t sum = checksum(view.floats());
    const auto sums = communicator.allgather(std::as_bytes(std::span(&sum, 1)));
    return std::all_of(sums.begin(), sums.end(), [&](const auto& one) { return one == sums[0]; });
}

void take_from_rank0(float* values, size_t n, Backend& backend, Communicator& communicator) {
    HostView view(values, n, backend);
    communicator.broadcast(std::as_writable_bytes(view.floats()), 0);
    if (!backend.host_visible()) backend.upload(values, view.floats().data(), n * sizeof(float));
}

}  // namespace convoy
