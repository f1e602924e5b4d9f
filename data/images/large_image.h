// large_image.h — a limit on the memory of all images that are decoded at once.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "data/images/augment.h"

namespace convoy {

// While a LargeImage lives, its thread reads and decodes one image. Images that need more than
// kLeast bytes share a budget, so that a few huge ones on many threads do not take all memory.
class LargeImage {
 public:
    static constexpr uint64_t kLeast = 64 << 20;

    // buffers: those of the thread, if it keeps any. Made if missing; freed after a large image.
    explicit LargeImage(std::unique_ptr<ImageBuffers>* buffers = nullptr, int channels = 3)
        : buffers_(buffers) {
        if (buffers && !*buffers) *buffers = std::make_unique<ImageBuffers>(channels);
        current_ = this;
    }
    ~LargeImage() {
        current_ = nullptr;
        if (!is_large()) return;
        if (buffers_) buffers_->reset();
        {
            std::lock_guard lock(mutex_);
            taken_ -= bytes_;
        }
        changed_.notify_all();
    }
    LargeImage(const LargeImage&) = delete;

    bool is_large() const { return bytes_ > 0; }

    // Blocks until this thread's image may take this many bytes. An image above the whole budget
    // waits until no other large image is left. Only the first call for an image counts.
    static void expect(uint64_t bytes) {
        if (!current_ || current_->is_large() || bytes <= kLeast) return;
        const uint64_t all = std::max(8 * kLeast, kLeast * std::thread::hardware_concurrency());
        bytes = std::min(bytes, all);
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return taken_ + bytes <= all; });
        taken_ += current_->bytes_ = bytes;
    }
    // The same for encoded bytes, before the number of pixels is known.
    static void expect_encoded(uint64_t bytes) { expect(bytes > kLeast ? UINT64_MAX : 0); }

 private:
    std::unique_ptr<ImageBuffers>* const buffers_;
    uint64_t bytes_ = 0;
    inline static thread_local LargeImage* current_ = nullptr;
    inline static std::mutex mutex_;
    inline static std::condition_variable changed_;
    inline static uint64_t taken_ = 0;
};

}  // namespace convoy
