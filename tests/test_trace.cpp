// Traces: rings of entries, their file, and the program that writes one (src/base/trace.h,
// src/run/traces.md).
#include "src/base/trace.h"

#include <set>
#include <thread>

#include "data/sources/records.h"
#include "data/sources/storage.h"
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

int64_t unix_us() {
    using namespace std::chrono;
    return duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
}

int64_t begin_of(const json& slice) { return slice.at("ts").get<int64_t>(); }
int64_t end_of(const json& slice) { return begin_of(slice) + slice.at("dur").get<int64_t>(); }

// The rules of the format: slices of a track nest, times are Unix times of this run, and tracks
// have names.
void check_trace(const json& trace) {
    std::map<std::pair<int, int>, std::vector<std::pair<int64_t, int64_t>>> slices;
    std::set<std::pair<int, int>> named;
    for (const json& event : trace.at("traceEvents")) {
        const std::pair<int, int> track(event.at("pid"), event.at("tid"));
        CHECK(track.first == trace["distributedInfo"]["rank"]);
        if (event["ph"] == "M" && event["name"] == "thread_name") named.insert(track);
        if (event["ph"] == "X") slices[track].emplace_back(begin_of(event), end_of(event));
    }
    CHECK(!slices.empty());
    const int64_t now = unix_us();
    for (const auto& [track, all] : slices) {
        CHECK(named.contains(track));
        std::vector<int64_t> open;
        int64_t before = now - 3600'000'000;
        int bad = 0;
        for (const auto& [begin, end] : all) {
            bad += begin < before || end < begin || end > now;
            before = begin;
            while (!open.empty() && open.back() <= begin) open.pop_back();
            bad += !open.empty() && end > open.back();
            open.push_back(end);
        }
        CHECK_MESSAGE(bad == 0, "track ", track.first, ", ", track.second);
    }
}

std::set<int64_t> steps_of(const json& trace) {
    std::set<int64_t> steps;
    for (const json& event : trace["traceEvents"])
        if (event["name"] == "step") steps.insert(event["args"]["step"].get<int64_t>());
    return steps;
}

int count(const json& trace, const char* kind) {
    int n = 0;
    for (const json& event : trace["traceEvents"]) n += event["ph"] == "X" && event["cat"] == kind;
    return n;
}

// The only trace of the rank in the folder, once it is there.
std::string trace_in(const std::string& folder, int rank) {
    const std::string ending = cat("-rank", rank, ".json.gz");
    std::string found;
    const auto look = [&] {
        for (const auto& entry : std::filesystem::directory_iterator(folder)) {
            const std::string name = entry.path().filename();
            if (name.starts_with("trace-") && name.ends_with(ending)) found = entry.path();
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
            track.add(kTraceStep, at_ns(i), at_ns(3 * i), i, double(i));
        done = true;
    });
    int bad = 0;
    for (size_t copies = 0; !done || copies == 0; ++copies) {
        bool lost;
        int64_t before = 0;
        for (const TraceEntry& e : track.copy(lost)) {
            bad += e.duration != 2 * e.begin || e.number != e.begin ||
                   e.amount != double(e.begin) || e.begin <= before || e.name != &kTraceStep;
            before = e.begin;
        }
    }
    writer.join();
    CHECK(bad == 0);
}

TEST_CASE("trace: a file has Unix times, escapes names, and keeps slices nested") {
    TempDir folder;
    Tracer tracer;
    Track* trainer = tracer.track("trai\"ner\n\x01", 1, 64);
    CHECK(tracer.track("trai\"ner\n\x01", 1, 64) == trainer);
    const TraceName* layers = tracer.layers({"conv2d \"a\\\x1f", "\xff"});
    CHECK(tracer.layers({"conv2d \"a\\\x1f", "\xff"}) == layers);
    const auto now = Clock::now();
    const int64_t unix_now = unix_us();
    for (int step = 1; step <= 5; ++step) {
        const auto at = [&](int64_t ns) {
            return now + std::chrono::nanoseconds(ns + 10'000 * (step - 10));
        };
        for (int i = 0; i < 6; ++i)  // each second one begins or ends within a µs
            trainer->add(layers[i % 4], at(300 + 1500 * i), at(300 + 1500 * (i + 1)), 2, 4500);
        trainer->add(kTraceStep, at(299), at(9300), step, 2);
    }
    const std::string path = write_trace(tracer, folder.path(), 3, false);
    CHECK(path == folder / "trace-3-5-rank3.json.gz");
    const json trace = read_trace(path);
    check_trace(trace);
    CHECK(steps_of(trace) == std::set<int64_t>{3, 4, 5});
    CHECK(trace["convoy"]["overwritten"].empty());
    std::set<std::string> names;
    for (const json& event : trace["traceEvents"]) {
        names.insert(event["name"]);
        if (event["ph"] == "M") names.insert(event["args"].value("name", ""));
        if (event.value("cat", "") == "forward") CHECK(event["args"]["gflops"] == 3);
        if (event["name"] == "step") {
            const int64_t ago = 10 * (10 - event["args"]["step"].get<int64_t>());
            CHECK(std::abs(begin_of(event) - (unix_now - ago)) < 10'000);  // by when both were read
        }
    }
    CHECK(names.contains("conv2d \"a\\\x1f"));
    CHECK(names.contains("trai\"ner\n\x01"));
    CHECK(names.contains("rank 3"));
    std::ofstream(folder / "none") << "a file";
    CHECK_FAILS(write_trace(tracer, folder / "none", 3, false), "cannot be written");
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
            std::array<std::vector<double>, 2> bytes;  // of each piece, sent and received
            for (const auto& tracer : tracers)
                for (const Track* track : tracer->tracks()) {
                    bool lost = false;
                    for (const TraceEntry& e : track->copy(lost))
                        if (e.name == &kTraceSend || e.name == &kTraceReceive)
                            bytes[e.name == &kTraceReceive].push_back(e.amount);
                    CHECK(!lost);
                }
            CAPTURE(world);
            CHECK(int(bytes[0].size()) > world * (2 * (world - 1) + world - 1));
            for (auto& all : bytes) std::ranges::sort(all);
            CHECK(bytes[0] == bytes[1]);
        }
}

TEST_CASE("trace: what is too long loses its oldest slices, of all tracks, and names those") {
    TempDir folder;
    constexpr int64_t kSlices = (1 << 16) - 1;  // and a step
    Tracer tracer;
    Track* trainer = tracer.track("trainer", 1, kSlices);
    Track* late = tracer.track("late", 2, 16);
    Track* network = tracer.track("sends", 3, kSlices);
    const auto now = Clock::now();
    const auto at = [&](int64_t us) { return now + std::chrono::microseconds(us - 1'000'000); };
    trainer->add(kTraceStep, at(999), at(1000), 1);
    for (int64_t i = 1000; i < 1000 + kSlices; ++i) {
        trainer->add(kTraceForward, at(2 * i), at(2 * i + 2), i);
        network->add(kTraceSend, at(2 * i), at(2 * i + 2), i, 8);
    }
    late->add(kTraceUpdate, at(2 * (999 + kSlices)), at(2 * (1000 + kSlices)));
    const json trace = read_trace(write_trace(tracer, folder.path(), 0, false, 1));
    check_trace(trace);
    CHECK(trace["convoy"]["overwritten"] == json{"trainer", "sends"});
    std::map<int, std::vector<int64_t>> numbers;
    for (const json& event : trace["traceEvents"])
        if (event["ph"] == "X")
            numbers[event["tid"]].push_back(event["args"].value("micro-batch", int64_t(0)) +
                                            event["args"].value("chunk", int64_t(0)));
    CHECK(numbers[1].size() + numbers[2].size() + numbers[3].size() == 99'999);
    CHECK(numbers[1].front() == numbers[3].front());
    CHECK(numbers[1].back() == 999 + kSlices);
    CHECK(numbers[3].back() == 999 + kSlices);
    CHECK(numbers[2].size() == 1);
}

TEST_CASE("trace: the newest 8 automatic files of a rank stay, and what a user asked for") {
    TempDir folder;
    Tracer tracer;
    const auto now = std::filesystem::file_time_type::clock::now();
    for (int i = 2; i < 14; ++i) {
        tracer.track("trainer", 1, 64)->add(kTraceStep, at_ns(i), at_ns(i), i);
        for (const int rank : {0, 1})
            if (i % 6 == 0 || rank == 0)
                std::filesystem::last_write_time(write_trace(tracer, folder / "new", rank, true, i),
                                                 now + std::chrono::seconds(i - 100));
        if (i == 3) write_trace(tracer, folder / "new", 0, false, i);
    }
    std::set<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "new"))
        left.insert(entry.path().filename());
    CHECK(left.size() == 8 + 2 + 1);
    for (const char* name : {"trace-3-3-rank0.json.gz", "trace-6-6-auto-rank0.json.gz",
                             "trace-13-13-auto-rank0.json.gz", "trace-6-6-auto-rank1.json.gz"})
        CHECK_MESSAGE(left.contains(name), name);
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

TEST_CASE("program: --trace 3:5 on two ranks, SIGUSR2 to one, and a rank that is lost") {
    TempDir folder;
    Cluster ranks(folder, 2, endless_words(folder / "run") + typed("--trace 3:5 --shm off"),
                  typed("--threads 1 --out run"));  // it saves nothing there
    Process &rank0 = ranks[0], &rank1 = ranks[1];
    std::vector<std::pair<int64_t, int64_t>> step4;
    for (const int rank : {0, 1}) {
        REQUIRE(ranks[size_t(rank)].wait_for(cat("trace-3-5-rank", rank, ".json.gz")));
        const json asked = read_trace(folder / cat("run/trace-3-5-rank", rank, ".json.gz"));
        check_trace(asked);
        CHECK(steps_of(asked) == std::set<int64_t>{3, 4, 5});
        for (const char* kind : {"forward", "backward", "pass", "bucket", "network", "step"})
            CHECK_MESSAGE(count(asked, kind) > 0, kind);
        bool has_speed = false;
        for (const json& event : asked["traceEvents"]) {
            has_speed |= event["ph"] == "X" && event["args"].value("gflops", 0.0) > 0;
            if (event["name"] == "step" && event["args"]["step"] == 4)
                step4.emplace_back(begin_of(event), end_of(event));
        }
        CHECK(has_speed);
    }
    // On one machine, both are in the step when they form its sum.
    REQUIRE(step4.size() == 2);
    CHECK(std::max(step4[0].first, step4[1].first) < std::min(step4[0].second, step4[1].second));
    for (const int rank : {0, 1})
        std::filesystem::remove(folder / cat("run/trace-3-5-rank", rank, ".json.gz"));

    rank1.kill(SIGUSR2);
    const std::string path = trace_in(folder / "run", 1);
    CHECK(!contains(path, "-auto"));
    const json last = read_trace(path);
    check_trace(last);
    CHECK(steps_of(last).size() == 3);

    rank1.kill(SIGKILL);
    REQUIRE(rank0.wait_for("1 rank, step "));
    const std::string of_loss = trace_in(folder / "run", 0);  // rank 0 was not asked
    CHECK(contains(of_loss, "-auto-"));
    const json loss = read_trace(of_loss);
    check_trace(loss);
    CHECK(!steps_of(loss).empty());
    int rings = 0;
    for (const json& event : loss["traceEvents"]) rings += event["name"] == "new ring";
    CHECK(rings == 1);
    rank0.kill(SIGINT);
    CHECK(rank0.wait() == 128 + SIGINT);
}

TEST_CASE("program: in a stall each rank that still runs writes a trace at once") {
    TempDir folder;  // which is also the current directory of the ranks
    Cluster ranks(folder, 3, endless_words(folder / "run") + Words{"CONVOY_STALL=1"});
    REQUIRE(ranks[0].wait_for("epoch 2/"));
    ranks[2].kill(SIGSTOP);
    for (const int rank : {0, 1}) {
        const json stalled = read_trace(trace_in(folder / (rank == 0 ? "run" : ""), rank));
        check_trace(stalled);
        int shared = 0;  // sums of ranks of one host
        for (const json& event : stalled["traceEvents"]) {
            shared += event["name"] == "sum in shared memory";
            CHECK(event["name"] != "sum");
        }
        CHECK(shared > 3);
    }
    const std::string log = read_file(folder / "run/log.jsonl");
    CHECK(log.find("all wait for rank 2 ") > log.find("\"event\":\"stall\""));
    CHECK(contains(log, "all wait for rank 2 "));
    CHECK(contains(log, "\"event\":\"trace\""));
    ranks[2].kill(SIGCONT);
    for (const int rank : {0, 1, 2}) ranks[size_t(rank)].kill(SIGKILL);
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
        return read_trace(folder / (graph + "/trace-6-7-rank0.json.gz"));
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
        if (slice["name"] == "wait for the device") waited.push_back(end_of(slice));
    REQUIRE(waited.size() == 2);
    constexpr int64_t kError = 50'000;  // of the two clocks, while other processes run
    for (const std::string kind : {"forward", "backward", "pass"}) {
        const std::vector<json> told = slices_of("trainer", kind),
                                done = slices_of("device: operations", kind);
        CHECK(done.size() > 2);
        size_t host = 0;
        for (const json& slice : done) {
            while (host < told.size() && told[host]["name"] != slice["name"]) ++host;
            REQUIRE_MESSAGE(host < told.size(), slice["name"]);  // the same ones, in order
            CHECK(begin_of(slice) + kError >= begin_of(told[host]));
            CHECK(end_of(slice) <= waited[2 * host / told.size()] + kError);
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
    const json trace = read_trace(folder / "in/trace-3-4-rank0.json.gz");
    check_trace(trace);
    CHECK(steps_of(trace) == std::set<int64_t>{3, 4});
    CHECK(contains(run("5:9", "after"), "--trace 5:9: no trace, the run had 4 steps"));
    CHECK(contains(output_of(typed("--generated 24 --steps 6 --trace 1:3 --quiet --resume") +
                             Words{folder / "in"}),
                   "--trace 1:3: no trace, the run begins after step 4"));
}
