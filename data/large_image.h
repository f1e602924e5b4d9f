// large_image.h — images that take much memory: how many a process reads and decodes at once.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace convoy {

// While one lives, its thread reads and decodes one image. Those that need more than kLeast bytes
// share a budget, so that a few huge ones do not take all memory on many threads at once.
class LargeImage {
 public:
    static constexpr uint64_t kLeast = 64 << 20;

    LargeImage() { current_ = this; }
    ~LargeImage() {
        current_ = nullptr;
        if (!is_large()) return;
        {
            std::lock_guard lock(mutex_);
            taken_ -= bytes_;
        }
        changed_.notify_all();
    }
    LargeImage(const LargeImage&) = delete;

    // What is wrong with an image for which memory is not enough.
    static std::string fault(const std::string& name) {
        return name + ": takes more memory than there is";
    }
    // The image was large: its memory is to be given back before this ends.
    bool is_large() const { return bytes_ > 0; }

    // Blocks until this thread's image may take so many bytes; one that needs more than there are
    // waits until it is alone. Only the first call for an image counts.
    static void expect(uint64_t bytes) {
        if (!current_ || current_->is_large() || bytes <= kLeast) return;
        const uint64_t all = std::max(8 * kLeast, kLeast * std::thread::hardware_concurrency());
        bytes = std::min(bytes, all);
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return taken_ + bytes <= all; });
        taken_ += current_->bytes_ = bytes;
    }
    // The same for encoded bytes. Pixels will follow, of which nothing is known yet.
    static void expect_encoded(uint64_t bytes) { expect(bytes > kLeast ? UINT64_MAX : 0); }

 private:
    uint64_t bytes_ = 0;
    inline static thread_local LargeImage* current_ = nullptr;
    inline static std::mutex mutex_;
    inline static std::condition_variable changed_;
    inline static uint64_t taken_ = 0;
};

}  // namespace convoy
