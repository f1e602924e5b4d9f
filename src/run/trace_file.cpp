#include "src/run/trace_file.h"

#include <zlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

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

static json meta(const char* what, int tid, const char* field, const json& value) {
    return {{"ph", "M"}, {"name", what}, {"tid", tid}, {"args", {{field, value}}}};
}

// An entry as events of Chrome's format, but with times in ns.
static void add_events(json& events, const Track& track, const TraceEntry& e) {
    const TraceName& name = *e.name;
    const int64_t ns = std::max<int64_t>(e.duration, 1);
    json slice = {
        {"ph", "X"},     {"name", name.text}, {"cat", name.kind},      {"tid", track.place},
        {"ts", e.begin}, {"dur", ns},         {"args", json::object()}};
    if (*name.number) slice["args"][name.number] = e.number;
    if (*name.amount && e.amount > 0)
        slice["args"][name.amount] = name.amount == kGflops ? e.amount / double(ns) : e.amount;
    events.push_back(std::move(slice));
    // An arrow belongs to the slice around its end. At the receiver it ends in the slice's last ns.
    const bool ends = e.name == &kTraceReceive;
    if (e.flow != 0)
        events.push_back({{"ph", ends ? "f" : "s"},
                          {"bp", "e"},
                          {"name", "piece"},
                          {"cat", name.kind},
                          {"tid", track.place},
                          {"id", cat(e.flow)},
                          {"ts", ends ? e.begin + ns - 1 : e.begin}});
}

json trace_part(const Tracer& tracer, int64_t first) {
    int64_t last = 0, begin = INT64_MAX;
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
            if (e.name == &kTraceStep) last = std::max(last, e.number);
    }
    if (first == 0) first = std::max<int64_t>(1, last - 2);
    for (const auto& [track, lost, entries] : all)
        for (const TraceEntry& e : entries)
            if ((e.name == &kTraceStep || e.name == &kTraceWaitData) && e.number >= first)
                begin = std::min(begin, e.begin);
    json overwritten = json::array(), events = json::array();
    for (auto& [track, lost, entries] : all) {
        if (lost && (entries.empty() || entries.front().begin > begin))
            overwritten.push_back(track->name);
        events.push_back(meta("thread_name", track->place, "name", track->name));
        events.push_back(meta("thread_sort_index", track->place, "sort_index", track->place));
        // Slices are in the order of their ends. Of two that begin together, the outer goes first.
        std::ranges::stable_sort(
            entries, {}, [](const TraceEntry& e) { return std::pair(e.begin, -e.duration); });
        for (const TraceEntry& e : entries)
            if (e.begin >= begin) add_events(events, *track, e);
    }
    return {{"first", first},   {"last", last},
            {"begin", begin},   {"overwritten", overwritten},
            {"name", "rank 0"}, {"turns", json::array()},
            {"events", events}};
}

static std::string text_of(const json& all) {
    return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

// The text of a part. If the text is longer than `most`, the oldest events are dropped.
static std::string bounded(json& part, size_t most) {
    std::string text;
    while ((text = text_of(part)).size() > most) {
        std::vector<int64_t> times;
        for (const json& event : part["events"])
            if (event["ph"] == "X") times.push_back(event["ts"]);
        if (times.empty()) break;
        std::ranges::sort(times);
        const double kept = 0.9 * double(most) / double(text.size()) * double(times.size());
        const int64_t begin = times[times.size() - 1 - size_t(kept)] + 1;
        part["begin"] = begin;
        auto overwritten = part["overwritten"].get<std::set<std::string>>();
        std::string track;
        bool cut = false;  // an arrow goes with the slice before it
        std::erase_if(part["events"].get_ref<json::array_t&>(), [&](const json& event) {
            if (event["name"] == "thread_name") track = event["args"]["name"];
            if (event["ph"] == "M" || event["ph"] == "X") cut = event.value("ts", begin) < begin;
            if (cut) overwritten.insert(track);
            return cut;
        });
        part["overwritten"] = overwritten;
    }
    return text;
}

std::vector<json> gather_trace(Communicator& communicator, json part, const std::string& name,
                               bool writes) {
    part["name"] = name;
    for (int i = 0; i < 40; ++i) {
        const int64_t entered = trace_ns(Clock::now());
        communicator.barrier();
        part["turns"].push_back({entered, trace_ns(Clock::now())});
    }
    const size_t most = (15 << 20) / size_t(communicator.world());  // all get all parts
    std::vector<json> parts;
    for (const std::string& text : gather_lists(communicator, bounded(part, most)))
        if (writes) parts.push_back(json::parse(text));
    return parts;
}

// Keeps only the newest 8 traces that nobody asked for.
static void drop_old_traces(const std::string& folder) {
    std::multimap<std::filesystem::file_time_type, std::filesystem::path> all;
    std::error_code error;  // another thread may do the same
    for (const auto& file : std::filesystem::directory_iterator(folder, error))
        if (const std::string name = file.path().filename();
            name.starts_with("trace-") && name.find("-auto") != name.npos)
            all.emplace(file.last_write_time(error), file.path());
    for (; all.size() > 8; all.erase(all.begin()))
        std::filesystem::remove(all.begin()->second, error);
}

std::string write_trace(const std::string& folder, const std::string& ending,
                        std::vector<json> parts, size_t writer) {
    json ranks, events = json::array();
    std::map<std::string, int> flows;  // an arrow needs both ends
    std::vector<int64_t> offsets;
    int64_t begin = INT64_MAX;
    for (const json& part : parts) {
        int64_t least = INT64_MIN / 2, most = INT64_MAX / 2;
        for (size_t i = 0; i < part["turns"].size(); ++i) {
            const json &theirs = part["turns"][i], &own = parts[writer]["turns"][i];
            least = std::max(least, own[0].get<int64_t>() - theirs[1].get<int64_t>());
            most = std::min(most, own[1].get<int64_t>() - theirs[0].get<int64_t>());
        }
        if (offsets.size() == writer) least = most = 0;
        offsets.push_back(least + (most - least) / 2);
        if (const int64_t first = part["begin"]; first != INT64_MAX)  // it has events
            begin = std::min(begin, first + offsets.back());
        ranks.push_back({{"offset_us", double(offsets.back()) / 1e3},
                         {"error_us", double(most - least) / 2e3},
                         {"overwritten", part["overwritten"]}});
        for (const json& event : part["events"])
            if (event.contains("id")) ++flows[event["id"]];
    }
    for (size_t rank = 0; rank < parts.size(); ++rank) {
        json& own = parts[rank]["events"];
        own.push_back(meta("process_name", 0, "name", parts[rank]["name"]));
        own.push_back(meta("process_sort_index", 0, "sort_index", rank));
        for (json& event : own) {
            if (event.contains("id") && flows[event["id"]] < 2) continue;
            event["pid"] = rank;
            if (event.contains("ts"))
                event["ts"] = double(event["ts"].get<int64_t>() + offsets[rank] - begin) / 1e3;
            if (event.contains("dur")) event["dur"] = double(event["dur"].get<int64_t>()) / 1e3;
            events.push_back(std::move(event));
        }
    }
    const json all = {{"displayTimeUnit", "ms"},
                      {"schemaVersion", 1},
                      {"distributedInfo", {{"rank", writer}, {"world_size", parts.size()}}},
                      {"convoy", {{"ranks", ranks}}},
                      {"traceEvents", std::move(events)}};
    const std::string text = text_of(all);
    const std::string path = cat(folder, "/trace-", parts[writer]["first"].get<int64_t>(), "-",
                                 parts[writer]["last"].get<int64_t>(), ending, ".json.gz");
    const gzFile file = gzopen((path + ".part").c_str(), "wb");
    const bool written = file && gzwrite(file, text.data(), unsigned(text.size())) > 0;
    if ((file && gzclose(file) != Z_OK) || !written ||
        std::rename((path + ".part").c_str(), path.c_str()) != 0)
        fail("the trace ", path, " cannot be written: is the disk full?");
    if (!ending.empty()) drop_old_traces(folder);
    return path;
}

}  // namespace convoy
