#include "src/run/trace_file.h"

#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "src/base/check.h"

namespace convoy {
using nlohmann::json;

TraceSteps trace_steps(const std::string& option) {
    TraceSteps steps;
    char more;
    if (!option.empty() &&
        (std::sscanf(option.c_str(), "%ld:%ld%c", &steps.first, &steps.last, &more) != 2 ||
         steps.first < 1 || steps.last < steps.first || steps.last - steps.first >= 100))
        fail("--trace cannot be '", option,
             "': it takes the first and the last of at most 100 steps, such as 100:110");
    return steps;
}

static json meta(const char* what, int rank, int tid, const char* field, const json& value) {
    return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", tid}, {"args", {{field, value}}}};
}

// An entry as an event of Chrome's format. `unix_ns`: the Unix time when Clock was 0. A double
// holds no ns of a Unix time, so times are whole µs. Both ends are rounded down, so slices still
// nest.
static json slice_of(const Track& track, const TraceEntry& e, int rank, int64_t unix_ns) {
    const TraceName& name = *e.name;
    const int64_t begin = (e.begin + unix_ns) / 1000;
    const int64_t end = (e.begin + e.duration + unix_ns) / 1000;
    json args = json::object();
    if (*name.number) args[name.number] = e.number;
    if (*name.amount && e.amount > 0)
        args[name.amount] =
            name.amount == kGflops ? e.amount / double(std::max<int64_t>(e.duration, 1)) : e.amount;
    return {{"ph", "X"},          {"name", name.text}, {"cat", name.kind},   {"pid", rank},
            {"tid", track.place}, {"ts", begin},       {"dur", end - begin}, {"args", args}};
}

// Sets the last step of `steps`, and the first if it is 0.
static json trace_of(const Tracer& tracer, int rank, TraceSteps& steps) {
    using namespace std::chrono;
    const int64_t unix_ns =
        nanoseconds(system_clock::now().time_since_epoch()).count() - trace_ns(Clock::now());
    int64_t begin = INT64_MAX;
    struct Copy {
        const Track* track;
        bool lost;
        std::vector<TraceEntry> entries;
    };
    std::vector<Copy> all;
    for (const Track* track : tracer.tracks()) {
        Copy& copy = all.emplace_back(track, false);
        copy.entries = track->copy(copy.lost);
        for (const TraceEntry& e : copy.entries)
            if (e.name == &kTraceStep) steps.last = std::max(steps.last, e.number);
    }
    if (steps.first == 0) steps.first = std::max<int64_t>(1, steps.last - 2);
    for (const auto& [track, lost, entries] : all)
        for (const TraceEntry& e : entries)
            if ((e.name == &kTraceStep || e.name == &kTraceWaitData) && e.number >= steps.first)
                begin = std::min(begin, e.begin);
    std::vector<int64_t> times;
    for (const auto& [track, lost, entries] : all)
        for (const TraceEntry& e : entries)
            if (e.begin >= begin) times.push_back(e.begin);
    constexpr ptrdiff_t kMost = 100'000;  // about 15 MB of text
    int64_t from = begin;
    if (std::ssize(times) > kMost) {
        std::ranges::nth_element(times, times.end() - kMost);
        from = *(times.end() - kMost) + 1;
    }
    json overwritten = json::array(), events = json::array();
    events.push_back(meta("process_name", rank, 0, "name", cat("rank ", rank)));
    events.push_back(meta("process_sort_index", rank, 0, "sort_index", rank));
    for (auto& [track, lost, entries] : all) {
        events.push_back(meta("thread_name", rank, track->place, "name", track->name));
        events.push_back(meta("thread_sort_index", rank, track->place, "sort_index", track->place));
        bool misses = lost && (entries.empty() || entries.front().begin > begin);
        // Slices are in the order of their ends. Of two that begin together, the outer goes first.
        std::ranges::stable_sort(
            entries, {}, [](const TraceEntry& e) { return std::pair(e.begin, -e.duration); });
        for (const TraceEntry& e : entries)
            if (e.begin >= from)
                events.push_back(slice_of(*track, e, rank, unix_ns));
            else
                misses |= e.begin >= begin;
        if (misses) overwritten.push_back(track->name);
    }
    return {{"displayTimeUnit", "ms"},
            {"schemaVersion", 1},
            {"distributedInfo", {{"rank", rank}}},
            {"convoy", {{"overwritten", overwritten}}},
            {"traceEvents", std::move(events)}};
}

// Keeps only the newest 8 files with this ending.
static void drop_old_traces(const std::string& folder, const std::string& ending) {
    std::multimap<std::filesystem::file_time_type, std::filesystem::path> all;
    std::error_code error;
    for (const auto& file : std::filesystem::directory_iterator(folder, error))
        if (const std::string name = file.path().filename();
            name.starts_with("trace-") && name.ends_with(ending))
            all.emplace(file.last_write_time(error), file.path());
    for (; all.size() > 8; all.erase(all.begin()))
        std::filesystem::remove(all.begin()->second, error);
}

std::string write_trace(const Tracer& tracer, const std::string& folder, int rank, bool automatic,
                        int64_t first) {
    TraceSteps steps{first, 0};
    const std::string text =
        trace_of(tracer, rank, steps).dump(-1, ' ', false, json::error_handler_t::replace);
    const std::string ending = cat(automatic ? "-auto" : "", "-rank", rank, ".json.gz");
    const std::string path = cat(folder, "/trace-", steps.first, "-", steps.last, ending);
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    const gzFile out = gzopen((path + ".part").c_str(), "wb");
    const bool written = out && gzwrite(out, text.data(), unsigned(text.size())) > 0;
    if ((out && gzclose(out) != Z_OK) || !written ||
        std::rename((path + ".part").c_str(), path.c_str()) != 0)
        fail("the trace ", path,
             " cannot be written: is the disk full, or is the folder not writable?");
    if (automatic) drop_old_traces(folder, ending);
    return path;
}

}  // namespace convoy
