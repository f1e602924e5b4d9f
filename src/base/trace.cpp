#include "src/base/trace.h"

#include <array>
#include <bit>

namespace convoy {

Track::Track(std::string its_name, int its_place, size_t entries)
    : name(std::move(its_name)),
      place(its_place),
      entries_(entries),
      words_(new std::atomic<uint64_t>[entries * kWords]()) {
    ENSURE(std::has_single_bit(entries), entries, " entries");
}

// A thread that has read one of these words also sees the new begun_ (release, acquire).
void Track::add(const TraceName& what, Clock::time_point begin, Clock::time_point end,
                int64_t number, double amount) noexcept {
    const TraceEntry entry{trace_ns(begin), trace_ns(end) - trace_ns(begin), number, amount, &what};
    const auto words = std::bit_cast<std::array<uint64_t, kWords>>(entry);
    const uint64_t n = done_.load(std::memory_order_relaxed);
    begun_.store(n + 1, std::memory_order_relaxed);
    for (size_t i = 0; i < kWords; ++i)
        words_[(n & (entries_ - 1)) * kWords + i].store(words[i], std::memory_order_release);
    done_.store(n + 1, std::memory_order_release);
}

std::vector<TraceEntry> Track::copy(bool& lost) const {
    const uint64_t done = done_.load(std::memory_order_acquire);
    const uint64_t first = done - std::min<uint64_t>(done, entries_);
    std::vector<TraceEntry> all;
    for (uint64_t n = first; n < done; ++n) {
        std::array<uint64_t, kWords> words;
        for (size_t i = 0; i < kWords; ++i)
            words[i] = words_[(n & (entries_ - 1)) * kWords + i].load(std::memory_order_acquire);
        all.push_back(std::bit_cast<TraceEntry>(words));
    }
    const uint64_t begun = begun_.load(std::memory_order_relaxed);
    const uint64_t whole = begun - std::min<uint64_t>(begun, entries_);
    all.erase(all.begin(), all.begin() + ptrdiff_t(std::min(whole, done) - first));
    lost = whole > 0;
    return all;
}

Track* Tracer::track(const std::string& name, int place, size_t entries) {
    std::lock_guard lock(mutex_);
    for (const auto& track : tracks_)
        if (track->name == name) return track.get();
    return tracks_.emplace_back(std::make_unique<Track>(name, place, std::bit_ceil(entries))).get();
}

const TraceName* Tracer::layers(const std::vector<std::string>& names) {
    std::lock_guard lock(mutex_);
    const auto [kept, fresh] = layers_.try_emplace(names);
    for (const char* pass : {"forward", "backward"})
        for (const std::string& name : kept->first)
            if (fresh) kept->second.push_back({name.c_str(), pass, "images", kGflops});
    return kept->second.data();
}

std::vector<const Track*> Tracer::tracks() const {
    std::lock_guard lock(mutex_);
    std::vector<const Track*> all;
    for (const auto& track : tracks_) all.push_back(track.get());
    return all;
}

}  // namespace convoy
