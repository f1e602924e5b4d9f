// Traces: rings of entries, their file, and the program that writes one (src/base/trace.h,
// src/run/traces.md).
#include "src/base/trace.h"

#include <set>
#include <thread>

#include "data/records.h"
#include "data/storage.h"
#include "kernels/backend.h"
#include "src/run/trace_file.h"
#include "tests/jobs.h"
#include "tests/net_support.h"

using namespace convoy;
using nlohmann::json;

namespace {

Clock::time_point at_ns(int64_t ns) { return Clock::time_point(std::chrono::nanoseconds(ns)); }

json read_trace(const std::string& path) {
    return json::parse(inflate(*open_local(path), 64 << 20));
}

int64_t ns(const json& event, const char* field) {
    return std::llround(event.at(field).get<double>() * 1000);
}

// The rules of the format: slices of a track nest, times are not negative, tracks have names, each
// arrow has one begin and one end, and no piece arrives before it was sent but for the error of
// the clocks. Returns how many arrows lead from one rank to another.
int check_trace(const json& trace) {
    std::map<std::pair<int, int>, std::vector<std::pair<int64_t, int64_t>>> slices;
    std::set<std::pair<int, int>> named;
    std::map<std::string, json> begins, ends;
    for (const json& event : trace.at("traceEvents")) {
        const std::pair<int, int> track(event.at("pid"), event.at("tid"));
        if (event["ph"] == "M" && event["name"] == "thread_name") named.insert(track);
        if (event["ph"] == "X")
            slices[track].emplace_back(ns(event, "ts"), ns(event, "ts") + ns(event, "dur"));
        if (event["ph"] == "s") CHECK(begins.emplace(event["id"], event).second);
        if (event["ph"] == "f") CHECK(ends.emplace(event["id"], event).second);
    }
    for (const auto& [track, all] : slices) {
        CHECK(named.contains(track));
        std::vector<int64_t> open;
        int64_t before = 0;
        int bad = 0;
        for (const auto& [begin, end] : all) {
            bad += begin < before || end <= begin;
            before = begin;
            while (!open.empty() && open.back() <= begin) open.pop_back();
            bad += !open.empty() && end > open.back();
            open.push_back(end);
        }
        CHECK_MESSAGE(bad == 0, "track ", track.first, ", ", track.second);
    }
    const json& ranks = trace["convoy"]["ranks"];
    const auto error = [&](int rank) {
        return int64_t(ranks[size_t(rank)]["error_us"].get<double>() * 1000) + 1;
    };
    int between = 0, early = 0;
    CHECK(begins.size() == ends.size());
    for (const auto& [id, begin] : begins) {
        REQUIRE(ends.contains(id));
        const json& end = ends[id];
        early += ns(end, "ts") + error(begin["pid"]) + error(end["pid"]) < ns(begin, "ts");
        between += begin["pid"] != end["pid"];
    }
    CHECK(early == 0);
    return between;
}

std::set<int64_t> steps_of(const json& trace, int rank) {
    std::set<int64_t> steps;
    for (const json& event : trace["traceEvents"])
        if (event["pid"] == rank && event["name"] == "step")
            steps.insert(event["args"]["step"].get<int64_t>());
    return steps;
}

int count(const json& trace, const char* kind) {
    int n = 0;
    for (const json& event : trace["traceEvents"]) n += event["ph"] == "X" && event["cat"] == kind;
    return n;
}

// The only trace in the folder, once it is there.
std::string trace_in(const std::string& folder) {
    std::string found;
    const auto look = [&] {
        for (const auto& entry : std::filesystem::directory_iterator(folder)) {
            const std::string name = entry.path().filename();
            if (name.starts_with("trace-") && name.ends_with(".json.gz")) found = entry.path();
        }
        return !found.empty();
    };
    REQUIRE_MESSAGE(eventually(look, 60), "no trace in ", folder);
    return found;
}

Words endless_words(const std::string& out) {
    return typed(
               "--threads 1 --size 16 --batch 8 --generated 48 --epochs 100000 "
               "CONVOY_PREFLIGHT=off --out") +
           Words{out};
}

}  // namespace

TEST_CASE("trace: what is copied while another thread writes is whole, and in order") {
    Track track("trainer", 1, 16);
    std::atomic<bool> done = false;
    std::thread writer([&] {
        for (int64_t i = 1; i <= 200'000; ++i)
            track.add(kTraceStep, at_ns(i), at_ns(3 * i), i, double(i), uint64_t(i));
        done = true;
    });
    int bad = 0;
    for (size_t copies = 0; !done || copies == 0; ++copies) {
        bool lost;
        int64_t before = 0;
        for (const TraceEntry& e : track.copy(lost)) {
            bad += e.duration != 2 * e.begin || e.number != e.begin ||
                   e.amount != double(e.begin) || e.flow != uint64_t(e.begin) ||
                   e.begin <= before || e.name != &kTraceStep;
            before = e.begin;
        }
    }
    writer.join();
    CHECK(bad == 0);
}

TEST_CASE("trace: a file sets the clocks, escapes names and leaves out half arrows") {
    TempDir folder;
    constexpr int64_t kAhead = 5'000'000'000;  // the clock of rank 1
    std::vector<json> parts;
    for (int rank = 0; rank < 2; ++rank) {
        const int64_t clock = rank * kAhead;
        const auto at = [&](int64_t ns) { return at_ns(ns + clock); };
        Tracer tracer;
        Track* trainer = tracer.track("trai\"ner\n\x01", 1, 64);
        Track* sent = tracer.track("sends", 3, 64);
        Track* received = tracer.track("receives", 4, 64);
        CHECK(tracer.track("sends", 3, 64) == sent);
        const TraceName* layers = tracer.layers({"conv2d \"a\\\x1f"});
        CHECK(tracer.layers({"conv2d \"a\\\x1f"}) == layers);
        for (int step = 1; step <= 5; ++step) {
            const int64_t begin = 1000 * step;
            trainer->add(layers[0], at(begin + 10), at(begin + 20), 2, 30);
            trainer->add(layers[1], at(begin + 20), at(begin + 30));
            trainer->add(kTraceStep, at(begin + 10), at(begin + 900), step, 2);
            (rank == 0 ? sent : received)
                ->add(rank == 0 ? kTraceSend : kTraceReceive, at(begin + 40 + 60 * rank),
                      at(begin + 50 + 60 * rank), 0, 8, uint64_t(step));
        }
        if (rank == 0) sent->add(kTraceSend, at(5960), at(5970), 0, 8, 99);  // never arrives
        parts.push_back(trace_part(tracer));
        parts.back()["name"] = "rank \"x\"\t\x7f";
        for (int64_t enter : {7000, 8000})  // rank 1 enters later and leaves earlier
            parts.back()["turns"].push_back(
                {enter + clock + 100 * rank, enter + clock + 300 - 60 * rank});
    }
    const json trace = read_trace(write_trace(folder.path(), "", parts, 0));
    CHECK(std::filesystem::exists(folder / "trace-3-5.json.gz"));
    CHECK(check_trace(trace) == 3);
    const json& rank1 = trace["convoy"]["ranks"][1];
    const double offset = rank1["offset_us"], error = rank1["error_us"];
    CHECK(std::abs(offset + kAhead / 1e3) <= error);
    CHECK(error == 0.22);  // from 7000 − 7240 to 7300 − 7100, both by a clock that is 5 s ahead
    CHECK(steps_of(trace, 0) == std::set<int64_t>{3, 4, 5});
    CHECK(steps_of(trace, 1) == std::set<int64_t>{3, 4, 5});
    std::set<std::string> names;
    for (const json& event : trace["traceEvents"]) {
        names.insert(event["name"]);
        if (event["ph"] == "M") names.insert(event["args"].value("name", ""));
        if (event.value("cat", "") == "forward") CHECK(event["args"]["gflops"] == 3);
        CHECK(event.value("id", "") != "99");
    }
    CHECK(names.contains("conv2d \"a\\\x1f"));
    CHECK(names.contains("trai\"ner\n\x01"));
    CHECK(names.contains("rank \"x\"\t\x7f"));
    CHECK_FAILS(write_trace(folder / "none", "", parts, 0), "cannot be written");
}

TEST_CASE("trace: each piece of a collective is sent once and received once, on every kind") {
    for (const bool bf16 : {false, true})
        for (const int world : {2, 3, 5}) {
            std::vector<std::unique_ptr<Tracer>> tracers;
            for (int rank = 0; rank < world; ++rank) tracers.push_back(std::make_unique<Tracer>());
            run_ranks(
                world, [&](JoinOptions& options) { options.bf16_wire = bf16; },
                [&](Job& job) {
                    Communicator& all = *job.communicator;
                    Tracer& tracer = *tracers[size_t(all.rank())];
                    all.record(tracer.track("s", 3, 4096), tracer.track("r", 4, 4096));
                    std::vector<float> large(100'003, 1), small(100, 1);
                    all.allreduce_sum(large).get();
                    all.allreduce_sum(small).get();
                    std::vector<std::span<float>> blocks;
                    std::vector<std::vector<float>> own(size_t(world), std::vector<float>(777));
                    for (auto& block : own) blocks.emplace_back(block);
                    all.gather(blocks).get();
                    all.broadcast(std::as_writable_bytes(std::span(large)), world - 1);
                    all.barrier();
                });
            std::map<uint64_t, std::array<TraceEntry, 2>> flows;
            std::map<uint64_t, int> seen;
            for (const auto& tracer : tracers)
                for (const Track* track : tracer->tracks()) {
                    bool lost = false;
                    for (const TraceEntry& e : track->copy(lost)) {
                        if (e.flow == 0) continue;
                        const bool in = e.name == &kTraceReceive;
                        flows[e.flow][in] = e;
                        seen[e.flow] += in ? 16 : 1;
                    }
                    CHECK(!lost);
                }
            CAPTURE(world);
            REQUIRE(int(seen.size()) > world * (2 * (world - 1) + world - 1));
            int bad = 0, early = 0, sizes = 0;
            for (const auto& [flow, n] : seen) bad += n != 17;
            for (const auto& [flow, ends] : flows) {
                early += ends[1].begin + ends[1].duration < ends[0].begin;
                sizes += ends[0].amount != ends[1].amount;
            }
            CHECK(bad == 0);
            CHECK(early == 0);
            CHECK(sizes == 0);
        }
}

TEST_CASE("trace: what is too long loses its oldest slices, of all tracks, and names those") {
    TempDir folder;
    constexpr int64_t kSlices = (1 << 16) - 1;  // and a step
    run_ranks(
        2, [](JoinOptions&) {},
        [&](Job& job) {
            Communicator& all = *job.communicator;
            const bool writes = all.rank() == 0;
            Tracer tracer;
            Track* trainer = tracer.track("trainer", 1, kSlices);
            Track* late = tracer.track("late", 2, 16);
            Track* network = tracer.track(writes ? "sends" : "receives", 3, kSlices);
            trainer->add(kTraceStep, at_ns(999), at_ns(1000), 1);
            for (int64_t i = 1000; i < 1000 + kSlices; ++i) {
                trainer->add(kTraceForward, at_ns(2 * i), at_ns(2 * i + 2), i);
                network->add(writes ? kTraceSend : kTraceReceive, at_ns(2 * i), at_ns(2 * i + 2), i,
                             8, uint64_t(i));
            }
            late->add(kTraceUpdate, at_ns(2 * (999 + kSlices)), at_ns(2 * (1000 + kSlices)));
            // No host's name can end a run.
            std::vector<json> parts = gather_trace(all, trace_part(tracer, 1), "rank \xff", writes);
            CHECK(parts.size() == (writes ? 2 : 0));
            if (parts.size() != 2) return;
            for (const json& part : parts) {
                CHECK(part.dump().size() <= (15 << 20) / 2);
                CHECK(part["overwritten"].size() == 2);
                CHECK(part["overwritten"][1] == "trainer");
                std::map<int, int64_t> first, last, names;
                for (const json& event : part["events"])
                    if (event["ph"] == "X") {
                        first.emplace(event["tid"], event["ts"]);
                        last[event["tid"]] = event["ts"];
                    } else if (event["name"] == "thread_name") {
                        ++names[event["tid"]];
                    }
                CHECK(names.size() == 3);
                CHECK(first[1] == first[3]);
                CHECK(first[1] > 2000);
                CHECK(first[1] - part["begin"].get<int64_t>() < 2);
                for (int tid = 1; tid <= 3; ++tid) CHECK(last[tid] == 2 * (999 + kSlices));
            }
            const json trace = read_trace(write_trace(folder.path(), "", std::move(parts), 0));
            CHECK(check_trace(trace) > 1000);
        });
}

TEST_CASE("trace: a rank without a step does not move the others; of automatic files 8 are kept") {
    TempDir folder;
    std::vector<json> parts;
    for (int rank = 0; rank < 2; ++rank) {
        Tracer tracer;
        Track* trainer = tracer.track("trainer", 1, 8);
        if (rank == 0) trainer->add(kTraceStep, at_ns(5000), at_ns(6000), 1);
        parts.push_back(trace_part(tracer));
        parts.back()["turns"].push_back({7000 - 6000 * rank, 7100 - 6000 * rank});
    }
    const json trace = read_trace(write_trace(folder.path(), "", parts, 0));
    REQUIRE(count(trace, "step") == 1);
    for (const json& event : trace["traceEvents"])
        if (event["ph"] == "X") CHECK(ns(event, "ts") == 0);

    const auto now = std::filesystem::file_time_type::clock::now();
    for (int i = 2; i < 14; ++i) {
        parts[0]["last"] = i;
        const std::string path =
            write_trace(folder.path(), i % 2 ? "-auto" : "-auto-rank0", parts, 0);
        std::filesystem::last_write_time(path, now + std::chrono::seconds(i - 100));
    }
    std::set<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
        left.insert(entry.path().filename());
    CHECK(left.size() == 9);
    for (const char* name :
         {"trace-1-1.json.gz", "trace-1-6-auto-rank0.json.gz", "trace-1-13-auto.json.gz"})
        CHECK(left.contains(name));
}

TEST_CASE("program: --trace takes the first and the last of at most 100 steps") {
    CHECK(trace_steps("").last == 0);
    CHECK(trace_steps("1:1").first == 1);
    CHECK(trace_steps("100:199").last == 199);
    for (const char* bad : {"3", ":", "3:", ":3", "0:2", "5:4", "1:101", "1:2x", "a:b", "1:2:3",
                            "-1:2", "99999999999999999999:3"})
        CHECK_FAILS(trace_steps(bad), "--trace cannot be '");
    CHECK(contains(output_of({"--generated", "24", "--trace", "7"}, 1),
                   "error: --trace cannot be '7': it takes the first and the last"));
}

TEST_CASE("program: --trace 3:5 on two ranks, SIGUSR2, and a rank that is lost") {
    TempDir folder;
    Cluster ranks(folder, 2, endless_words(folder / "run") + typed("--trace 3:5 --shm off"));
    Process &rank0 = ranks[0], &rank1 = ranks[1];
    REQUIRE(rank0.wait_for("trace-3-5.json.gz"));
    const json asked = read_trace(folder / "run/trace-3-5.json.gz");
    CHECK(check_trace(asked) > 10);
    for (const int rank : {0, 1}) CHECK(steps_of(asked, rank) == std::set<int64_t>{3, 4, 5});
    CHECK(asked["distributedInfo"]["world_size"] == 2);
    for (const char* kind : {"forward", "backward", "pass", "bucket", "network", "step"})
        CHECK_MESSAGE(count(asked, kind) > 0, kind);
    bool has_speed = false;
    for (const json& event : asked["traceEvents"])
        has_speed |= event["ph"] == "X" && event["args"].value("gflops", 0.0) > 0;
    CHECK(has_speed);
    std::filesystem::remove(folder / "run/trace-3-5.json.gz");

    rank1.kill(SIGUSR2);  // any rank
    const std::string path = trace_in(folder / "run");
    CHECK(!contains(path, "-auto"));
    const json last = read_trace(path);
    CHECK(check_trace(last) > 10);
    CHECK(steps_of(last, 0).size() == 3);
    CHECK(steps_of(last, 0) == steps_of(last, 1));
    std::filesystem::remove(path);

    rank1.kill(SIGKILL);
    REQUIRE(rank0.wait_for("1 rank, step "));
    REQUIRE(rank0.wait_for("epoch "));
    const std::string of_loss = trace_in(folder / "run");
    CHECK(of_loss.ends_with("-auto.json.gz"));
    const json loss = read_trace(of_loss);
    check_trace(loss);
    CHECK(!steps_of(loss, 0).empty());
    rank0.kill(SIGINT);
    CHECK(rank0.wait() == 128 + SIGINT);
}

TEST_CASE("program: a stall leaves a trace of the rank that has the folder, and later of all") {
    TempDir folder;
    Cluster ranks(folder, 2, endless_words(folder / "run") + Words{"CONVOY_STALL=1"});
    Process &rank0 = ranks[0], &rank1 = ranks[1];
    REQUIRE(rank0.wait_for("epoch 2/"));
    rank1.kill(SIGSTOP);
    REQUIRE(rank0.wait_for("trace of the last steps of this rank: "));
    const std::string log = read_file(folder / "run/log.jsonl");
    CHECK(log.find("all wait for rank 1 ") > log.find("\"event\":\"stall\""));
    CHECK(contains(log, "all wait for rank 1 "));
    const json stalled = read_trace(trace_in(folder / "run"));
    check_trace(stalled);
    int shared = 0;  // sums of ranks of one host
    for (const json& event : stalled["traceEvents"]) {
        shared += event["name"] == "sum in shared memory";
        CHECK(event["name"] != "sum");
    }
    CHECK(shared > 3);
    rank1.kill(SIGCONT);
    REQUIRE(rank0.wait_for("-auto.json.gz "));  // where it was left behind: of a loss
    rank0.kill(SIGKILL);
}

TEST_CASE("trace: copies beside a device's ops have slices of their own, and so has a replay") {
    const auto backend = make_backend(on_gpu() ? "cuda" : "simt");
    Tracer tracer;
    Track *ops = tracer.track("ops", 1, 64), *up = tracer.track("up", 2, 64),
          *down = tracer.track("down", 3, 64);
    SpanSink* const device = backend->trace(ops, up, down);
    REQUIRE(device);
    constexpr size_t kFloats = 1000;
    float *host = backend->alloc_host(kFloats), *there = backend->alloc(kFloats);
    const auto begin = Clock::now();
    for (int i = 0; i < 3; ++i) {
        backend->start_upload(host, there, kFloats);
        backend->wait_upload();
        const Span span(nullptr, kTraceForward, i, 7, device);
        const Span inner(nullptr, kTraceLoss, i, 0, device);
        backend->fill(there, kFloats, float(i));
        backend->wait_download(backend->start_download(host, there, kFloats));
    }
    const auto recording = backend->record();
    Span left_out(nullptr, kTraceUpdate, 0, 0, device);
    backend->fill(there, kFloats, 5);
    recording->end();
    left_out.end();
    REQUIRE(recording->replay());
    backend->synchronize();
    const auto end = Clock::now();

    const auto copy = [](const Track* track) {
        bool lost = false;
        std::vector<TraceEntry> all = track->copy(lost);
        std::ranges::stable_sort(all, {}, &TraceEntry::begin);
        return all;
    };
    constexpr int64_t kError = 50'000'000;  // while other processes run
    int64_t before = trace_ns(begin) - kError;
    for (const TraceEntry& e : copy(ops)) {
        CHECK(e.begin >= before);
        before = e.begin;
        CHECK(e.begin + e.duration <= trace_ns(end) + kError);
        CHECK(e.name != &kTraceUpdate);
    }
    REQUIRE(copy(ops).size() == 7);
    CHECK(copy(ops)[4].amount + copy(ops)[5].amount == 7);
    CHECK(copy(ops)[6].name == &kTraceRecorded);
    for (const Track* track : {up, down}) {
        REQUIRE(copy(track).size() == 3);
        for (const TraceEntry& e : copy(track)) CHECK(e.amount == 4 * kFloats);
    }
    CHECK(!backend->trace(nullptr, nullptr, nullptr));
    backend->start_upload(host, there, kFloats);
    backend->wait_upload();
    backend->synchronize();
    CHECK(copy(up).size() == 3);
    CHECK(recording->replay());  // recorded while there was a timeline
    REQUIRE(backend->trace(ops, up, down));
    CHECK(recording->replay());
    backend->synchronize();
    CHECK(copy(ops).size() == 8);
    CHECK(!make_backend("cpu")->trace(ops, up, down));
}

TEST_CASE("program: a device writes down when it worked, in order, and before it was waited for") {
    TempDir folder;
    const auto run = [&](const std::string& graph) {
        output_of(typed("--generated 24 --size 16 --batch 8 --steps 7 --trace 6:7") +
                  Words{"--out", folder / graph, cat("CONVOY_GRAPH=", graph), "--device",
                        on_gpu() ? "cuda" : "simt"});
        return read_trace(folder / (graph + "/trace-6-7.json.gz"));
    };
    const json trace = run("off");
    check_trace(trace);
    std::map<std::string, int> tids;
    for (const json& event : trace["traceEvents"])
        if (event["name"] == "thread_name") tids[event["args"]["name"]] = event["tid"];
    const auto slices_of = [&](const std::string& track, const std::string& kind) {
        REQUIRE(tids.contains(track));
        std::vector<json> slices;
        for (const json& event : trace["traceEvents"])
            if (event["ph"] == "X" && event["tid"] == tids[track] && event["cat"] == kind)
                slices.push_back(event);
        return slices;
    };
    std::vector<int64_t> waited;  // when the host had waited for each of both steps
    for (const json& slice : slices_of("trainer", "pass"))
        if (slice["name"] == "wait for the device")
            waited.push_back(ns(slice, "ts") + ns(slice, "dur"));
    REQUIRE(waited.size() == 2);
    constexpr int64_t kError = 50'000'000;  // of the two clocks, while other processes run
    for (const std::string kind : {"forward", "backward", "pass"}) {
        const std::vector<json> told = slices_of("trainer", kind),
                                done = slices_of("device: operations", kind);
        CHECK(done.size() > 2);
        size_t host = 0;
        for (const json& slice : done) {
            while (host < told.size() && told[host]["name"] != slice["name"]) ++host;
            REQUIRE_MESSAGE(host < told.size(), slice["name"]);  // the same ones, in order
            CHECK(ns(slice, "ts") + kError >= ns(told[host], "ts"));
            CHECK(ns(slice, "ts") + ns(slice, "dur") <= waited[2 * host / told.size()] + kError);
            CHECK(slice["args"].contains("gflops") == told[host]["args"].contains("gflops"));
            ++host;
        }
        if (kind != "pass") CHECK(done.size() == told.size());
    }
    int recorded = 0;
    const json replayed = run("on");
    for (const json& event : replayed["traceEvents"])
        recorded += event["name"] == "recorded step" && event["tid"] == tids["device: operations"];
    CHECK(recorded > 0);
}

TEST_CASE(
    "program: a run that ends in --trace writes what there is; one that ends before says so") {
    TempDir folder;
    const auto run = [&](const char* steps, const std::string& out) {
        return output_of(
            typed("--generated 24 --size 16 --batch 8 --steps 4 --decode-threads 2 --trace") +
            Words{steps, "--out", folder / out});
    };
    run("3:9", "in");
    const json trace = read_trace(folder / "in/trace-3-4.json.gz");
    check_trace(trace);
    CHECK(steps_of(trace, 0) == std::set<int64_t>{3, 4});
    CHECK(contains(run("5:9", "after"), "--trace 5:9: no trace, the run had 4 steps"));
    CHECK(contains(output_of(typed("--generated 24 --steps 6 --trace 1:3 --quiet --resume") +
                             Words{folder / "in"}),
                   "--trace 1:3: no trace, the run begins after step 4"));
}
