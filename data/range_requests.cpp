// range_requests.cpp — the threads of a RangeFetcher: from the cache on disk, or by requests that
// are tried again.
#include <csignal>

#include <algorithm>
#include <cmath>
#include <optional>

#include "data/range_fetcher.h"

namespace convoy {

constexpr double kFirstPatience = 10;  // seconds, for a server that has never answered

void RangeFetcher::work() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::optional<HttpClient> client;
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        const PiecePtr piece = next();
        if (!piece) {
            ++idle_;
            wake_.wait(lock);
            --idle_;
            continue;
        }
        const bool is_known = piece->object->is_known;
        const size_t size = size_t(piece->end - piece->begin);
        lock.unlock();
        std::unique_ptr<uint8_t[]> bytes;
        Answer answer;
        try {
            if (!client) client.emplace(options_.stall, stopping_);
            bytes = std::make_unique_for_overwrite<uint8_t[]>(size);
            answer = fetch(*client, *piece->object, is_known, piece->begin, {bytes.get(), size});
        } catch (const std::exception& error) {
            answer.fault = error.what();
        }
        lock.lock();
        publish(piece, std::move(bytes), std::move(answer));
    }
}

// Blocks from the cache on disk, and each run of blocks that are not there by a request. What is in
// the cache is known by the object's version, so an unknown object costs a request more.
Answer RangeFetcher::fetch(HttpClient& client, Object& object, bool is_known, uint64_t begin,
                           std::span<uint8_t> bytes) {
    if (!cache_) return ask(client, object, begin, bytes);
    if (!is_known) {
        uint8_t first;
        Answer answer = ask(client, object, 0, {&first, 1});
        if (!answer.fault.empty()) return answer;
        std::lock_guard lock(mutex_);
        learn(object, answer);
    }
    Answer answer;
    answer.total = object.size, answer.version = object.version;
    if (begin >= object.size) return answer;
    bytes = bytes.first(std::min<uint64_t>(bytes.size(), object.size - begin));
    if (object.key.empty()) return ask(client, object, begin, bytes);
    const auto block = [&](size_t at) {
        return bytes.subspan(at, std::min<size_t>(BlockCache::kBlock, bytes.size() - at));
    };
    const auto number = [&](size_t at) { return (begin + at) / BlockCache::kBlock; };
    size_t missing = 0;  // from here to `at` no block is in the cache
    for (size_t at = 0, next = 0; missing < bytes.size(); at = next) {
        const bool is_end = at == bytes.size();
        const bool is_here = !is_end && cache_->load(object.key, number(at), block(at));
        next = is_end ? at : at + block(at).size();
        if (!is_here && !is_end) continue;
        if (missing < at) {
            answer = ask(client, object, begin + missing, bytes.subspan(missing, at - missing));
            if (!answer.fault.empty() || answer.total != object.size ||
                answer.version != object.version)  // another one, as publish() will say
                return answer;
            for (; missing < at; missing += block(missing).size())
                cache_->store(object.key, number(missing), block(missing));
        }
        missing = next;
    }
    answer.received = bytes.size();
    return answer;
}

// A request, again until it succeeds, cannot succeed, or patience is over.
Answer RangeFetcher::ask(HttpClient& client, const Object& object, uint64_t begin,
                         std::span<uint8_t> bytes) {
    const auto start = Clock::now();
    for (int tries = 1;; ++tries) {
        Answer answer = client.get(object.where, begin, bytes);
        std::unique_lock lock(mutex_);
        const bool is_good = answer.fault.empty();
        const double patience =
            has_answered_ ? options_.patience : std::min(options_.patience, kFirstPatience);
        const bool is_over =
            is_good || !answer.passing || stopping_ || seconds_since(start) >= patience;
        if (!is_over && tries == 1 && failing_++ == 0) {
            failing_since_ = Clock::now();
            log_.notice(object.where.name, ": ", answer.fault, "; trying again");
        }
        if (is_over && tries > 1 && --failing_ == 0 && is_good)
            log_.notice(object.where.name, ": answers again after ",
                        fmt::format("{:.1f} s", seconds_since(failing_since_)));
        if (is_over && !is_good && tries > 1)
            answer.fault +=
                fmt::format("; tried {} times in {:.0f} s", tries, seconds_since(start));
        if (is_over) return answer;
        // Doubled each time; not the same for all, so that they do not come back at once.
        const double spread = 0.5 + double(begin / granule() % 16) / 16;
        const double wait =
            std::max(answer.wait, spread * std::min(0.25 * std::exp2(tries - 1), 8.0));
        stop_.wait_for(lock, std::chrono::duration<double>(wait), [&] { return stopping_.load(); });
    }
}

}  // namespace convoy
