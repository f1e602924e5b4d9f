// Jobs that lose ranks and go on. Ranks are processes that are really killed, at a chosen socket
// operation of the ring; what the job has trained in the end is compared with an undisturbed run.
// Weights and optimizer state are compared between the ranks after each step
// (CONVOY_CHECK_EVERY=1), and losses, images of each step and final weights with that run; an image
// in place of another shows in the losses.
//
// CONVOY_TEST_STRIDE is the distance from one place to the next, with one kind of cut at each
// place. `make test` takes 151, a sample; `.ci/run all` takes 67. With 1, each kind of cut happens
// at each of some 1,300 places, about 20,000 jobs in all: 80 minutes on two cores, before a release
// that changes net/ or src/run.
#include <malloc.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <set>

#include "data/sources/records.h"
#include "data/sources/storage.h"
#include "net/control/tls.h"
#include "src/checkpoint/safetensors.h"
#include "src/cli/commands.h"
#include "src/run/train_run.h"
#include "tests/call_hooks.h"
#include "tests/event_files.h"
#include "tests/jobs.h"

using namespace convoy;
using nlohmann::json;

namespace {

constexpr int kWorld = 3;

struct Cut {
    int rank = -1;
    int operation = 0;  // of those of its ring sockets
    bool half = false;  // that one moves half of its bytes, the next one does not happen
    int signal = SIGKILL;
    std::map<int, int> leave = {};  // rank → the step from which on it has SIGTERM
    int joins = 0;       // so many of the last ranks are none yet: they join in the second step
    Words own = {};      // its options
    bool early = false;  // operations count from the beginning of the set-up
    bool reset =
        false;  // no signal: a link of the ring (control: of Asio) is reset, its rank lives
    bool control = false;    // operations are those of call_hooks.h, from the beginning
    int file_call = 0;       // it is killed before that one of its calls that make files last
    bool returns = false;    // it was stopped, goes on without the others, and --joins them again
    bool piles = false;      // rank 2 comes and is killed in training, again and again
    bool again = false;      // once it is killed, the rank is started again
    bool at_end = false;     // the operation is the first after rank 0's last checkpoint
    bool no_folder = false;  // rank 1 cannot write
    bool fails = false;      // the rank has an error of its own in its second step; -1: all see one
    bool stalls = false;     // rank 2 is waited for in its second step, until rank 0 says so
    bool slow = false;       // the others are killed while rank 2 takes 5 s for its second step
    bool hangs = false;      // rank 2 takes 6 s for its second step, files of rank 0's stall 6 s
    // Another that is killed, at an operation of the ring, or of call_hooks.h in training.
    struct {
        int rank = -1, operation = 0;
        bool control = false;
    } second = {};
};

// Of this process.
struct Use {
    int64_t threads = 0, descriptors = 0, bytes = 0;
};

Use use_now() {
    const auto count = [](const char* folder) {
        return std::distance(std::filesystem::directory_iterator(folder), {});
    };
    return {count("/proc/self/task"), count("/proc/self/fd"), int64_t(mallinfo2().uordblks)};
}

// A rank in a process of its own. Its log goes to folder/rank<N>.out.
pid_t start_rank(const std::string& folder, int rank, uint16_t port, const Cut& cut,
                 const Words& more, int join_seconds = 20, int world = kWorld) {
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid != 0) return pid;
    std::FILE* out = std::fopen(cat(folder, "/rank", rank, ".out").c_str(), "a");
    Log log(out);
    int status = 1;
    std::atomic<int> operations{-1};  // -1: not training yet
    int file_calls = 0;
    on_file_call = [&, trains = std::this_thread::get_id()] {
        if (cut.hangs && rank == 0 && std::this_thread::get_id() != trains)
            std::this_thread::sleep_for(std::chrono::seconds(6));
        if (++file_calls == cut.file_call && rank == cut.rank) kill(getpid(), SIGKILL);
    };
    std::atomic<int> controls{0}, controls_in_training{0};
    on_socket_call = [&](size_t bytes) {
        ++controls;
        if (operations >= 0) ++controls_in_training;
        if (rank == cut.second.rank && cut.second.control &&
            controls_in_training >= cut.second.operation)
            kill(getpid(), SIGKILL);
        if (rank != cut.rank || !cut.control || cut.reset || controls < cut.operation) return bytes;
        if (cut.half && controls == cut.operation && bytes > 1) return bytes / 2;
        kill(getpid(), SIGKILL);
        return bytes;
    };
    try {
        CommandLine line;
        const auto set = [&](const std::string& word, bool is_given) {
            const std::string name = word.substr(0, word.find('='));
            set_option(line.config, name, word.substr(name.size() + 1));
            if (is_given) line.given[name] = "--" + name;
        };
        for (const std::string& word :
             {cat("coord=127.0.0.1:", port), cat("rank=", rank), cat("out=", folder, "/run", rank)})
            set(word, true);
        for (const std::string& word :
             typed(cat("generated=57 batch=12 size=16 epochs=1 warmup=0 threads=1 decode-threads=1 "
                       "log-every=1 augment=resize,flip bn-group=2 save-every=0.5 check-every=1 "
                       "preflight=off shm=off world=",
                       world)) +
                 more)
            set(word, rank == 0 || word.starts_with("out="));
        if (cut.joins > 0) set_option(line.config, "world", std::to_string(kWorld - cut.joins));
        if (rank >= kWorld - cut.joins) {
            Config config;
            for (const char* name : {"coord", "out", "threads", "decode-threads"})
                set_option(config, name, get_option(line.config, name));
            line.config = config;
            line.config.join = true;
            line.given.clear();
            for (const std::string& word : cut.own) set(word, true);
        }
        JobSession* session = nullptr;
        int last_world = 0;
        int polls = 0, leave_polls = 0;  // one a step, later one a batch of the validation
        const auto stop = [&] {
            const auto leave = cut.leave.find(rank);
            if (cut.slow && operations >= 0 && ++polls == 2) {
                std::this_thread::sleep_for(std::chrono::seconds(rank == 2 ? 5 : 0));
                if (rank != 2) alarm(1);
            }
            if (cut.fails && (rank == cut.rank || cut.rank < 0) && operations >= 0 && ++polls == 2)
                cut.rank < 0 ? throw JobError("NaN") : fail("the disk of rank ", rank, " is gone");
            if (cut.stalls && rank == 2 && operations >= 0 && ++polls == 2)
                eventually(
                    [&] { return contains(read_file(folder + "/rank0.out"), "wait for rank 2"); });
            if (cut.hangs && rank == 2 && operations >= 0 && ++polls == 2)
                std::this_thread::sleep_for(std::chrono::seconds(6));
            const bool holds = cut.piles || (cut.returns && polls == 0);
            if (holds && rank == 0 && operations >= 0 && session->communicator().world() < kWorld) {
                ++polls;
                eventually([&] { return session->communicator().newcomer_waits(); }, 30);
            }
            if (cut.piles && operations >= 0 && session->communicator().world() != last_world) {
                last_world = session->communicator().world();
                const Use use = use_now();
                log.notice("world ", last_world, " use: ", use.threads, " ", use.descriptors, " ",
                           use.bytes);
            }
            if (cut.joins > 0 && cut.operation >= 0 && rank == 0 && operations >= 0 &&
                ++polls == 2 && session->communicator().world() < kWorld)
                eventually(
                    [&] {
                        return session->communicator().newcomer_waits() ||
                               contains(read_file(folder + "/rank2.out"), "error: ");
                    },
                    30);
            return operations >= 0 && leave != cut.leave.end() && ++leave_polls >= leave->second
                       ? SIGTERM
                       : 0;
        };
        JobSession job(line, log, stop, [&](JoinOptions& options) {
            options.join_timeout = std::chrono::seconds(join_seconds);
            options.watch_signals = false;  // `stop` counts
            options.limit = [&](size_t bytes) {
                if (operations < 0) return bytes;
                ++operations;
                if (rank == cut.second.rank && !cut.second.control &&
                    operations >= cut.second.operation)
                    kill(getpid(), SIGKILL);
                if ((cut.control && !cut.reset) || rank != cut.rank || operations < cut.operation)
                    return bytes;
                if (cut.reset) {
                    if (operations == cut.operation + cut.half) reset_link(operations, cut.control);
                    return cut.half && operations == cut.operation && bytes > 1 ? bytes / 2 : bytes;
                }
                std::error_code none;
                if (cut.at_end &&
                    std::filesystem::read_symlink(folder + "/run0/latest", none).filename() !=
                        "step-00000004")
                    return bytes;
                if (cut.half && operations == cut.operation && bytes > 1) return bytes / 2;
                if (cut.at_end || operations <= cut.operation + 1) kill(getpid(), cut.signal);
                return bytes;
            };
        });
        session = &job;
        job.notice_seconds = 0;
        if (cut.joins > 0 && rank == cut.rank && cut.operation < 0) kill(getpid(), cut.signal);
        // One rank may be lost while another still sets up: see train_in_job().
        for (bool is_done = cut.early; !is_done; job.config = line.config) try {
                JobSetup setup = set_up_job(job);
                setup.bucket_bytes = 16 << 10;
                if (operations < 0) operations = 0;
                status = TrainRun(setup).run();
                is_done = true;
            } catch (const RingBroken&) {
                regroup_before_start(job);
            } catch (const SetUpAgain&) {}
        if (cut.early) operations = 0, status = train_in_job(job);
        log.notice("operations: ", operations.load(), " controls: ", controls.load(),
                   " in training: ", controls_in_training.load(), " files: ", file_calls);
    } catch (const std::exception& error) {
        log.notice("error: ", error.what());
    }
    std::fclose(out);
    _exit(status);
}

struct Outcome {
    std::map<int64_t, double> losses;            // by step
    std::map<int64_t, double> curve, val_curve;  // the same, with --tensorboard
    std::map<std::string, std::vector<float>> weights;
    std::vector<int> status = std::vector<int>(kWorld);
    std::vector<std::string> log = std::vector<std::string>(kWorld);
    int operations = 0;  // of rank 1
    std::vector<int> controls = std::vector<int>(kWorld), controls_in_training = controls,
                     file_calls = controls;
    bool is_unequal = false;  // ranks held other weights after a step
    std::map<int64_t, int64_t> step_images;
    int64_t images = 0;  // of the epoch
    double val_loss = -1;
    std::set<int> trained;          // ranks that had images in a step of --trace 30:33
    std::set<int> saved;            // ranks whose folders hold a checkpoint
    std::map<int, int64_t> newest;  // by rank, the step of the newest valid one
    std::string logs;
};

// Or until the process is gone, or waits. A newcomer that is here sooner would join a step early.
void wait_for_step_1(const std::string& log, pid_t pid) {
    siginfo_t ended{};
    eventually([&] {
        const std::string text = read_file(log);
        waitid(P_PID, id_t(pid), &ended, WEXITED | WNOHANG | WNOWAIT);
        return ended.si_pid != 0 || contains(text, " step 1/") || contains(text, "waiting");
    });
}

Outcome run_job(const Cut& cut, const Words& more = {}, bool resume = false) {
    TempDir folder;
    const uint16_t port = free_port();
    std::vector<pid_t> pids;
    if (cut.no_folder) std::ofstream(folder / "run1") << "a file";
    for (int rank = 0; rank < kWorld; ++rank) {
        if (rank > 0 && rank == kWorld - cut.joins) wait_for_step_1(folder / "rank0.out", pids[0]);
        pids.push_back(start_rank(folder.path(), rank, port, cut, more));
    }
    Outcome outcome;
    std::set<int> left;
    for (int rank = 0; rank < kWorld; ++rank) left.insert(rank);
    const auto begin = std::chrono::steady_clock::now();
    bool late = false;
    const auto reap = [&](int flags) {
        for (const int rank : std::set(left)) {
            int status = 0;
            if (waitpid(pids[size_t(rank)], &status, flags) == 0) continue;
            outcome.status[size_t(rank)] =
                WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            left.erase(rank);
            if (cut.returns && rank == cut.rank && outcome.status[size_t(rank)] == 1 && !late) {
                pids[size_t(rank)] = start_rank(folder.path(), rank, port, {.joins = 1}, more);
                left.insert(rank);
            }
            if (cut.again && outcome.status[size_t(rank)] == 128 + SIGKILL && !late) {
                Cut none;
                none.early = cut.early;
                pids[size_t(rank)] = start_rank(folder.path(), rank, port, none, more, 4);
                left.insert(rank);
            }
        }
    };
    while (!left.empty() && !late) {
        reap(WNOHANG);
        if (resume && left == std::set{cut.rank}) kill(pids[size_t(cut.rank)], SIGCONT);
        if (cut.returns && contains(read_file(folder / "rank0.out"), "ring 2"))
            kill(pids[size_t(cut.rank)], SIGCONT);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        late = std::chrono::steady_clock::now() - begin > std::chrono::seconds(60) * crowding();
    }
    for (const int rank : left) kill(pids[size_t(rank)], SIGKILL);
    reap(0);
    for (int rank = 0; rank < kWorld; ++rank) {
        const std::string text = read_file(cat(folder.path().string(), "/rank", rank, ".out"));
        outcome.log[size_t(rank)] = text;
        outcome.logs += cat("--- rank ", rank, "\n", text);
        outcome.is_unequal |= contains(text, "held other weights");
        int operations = 0;
        if (const size_t at = text.find("operations: "); at != std::string::npos)
            std::sscanf(text.c_str() + at, "operations: %d controls: %d in training: %d files: %d",
                        &operations, &outcome.controls[size_t(rank)],
                        &outcome.controls_in_training[size_t(rank)],
                        &outcome.file_calls[size_t(rank)]);
        if (rank == 1) outcome.operations = operations;
        const std::string run = cat(folder.path().string(), "/run", rank);
        std::ifstream file(run + "/log.jsonl");
        for (std::string line; std::getline(file, line);) {
            const json event = json::parse(line, nullptr, /*allow_exceptions=*/false);
            if (event.is_discarded()) {  // a kill may end a write where a page of memory does
                CHECK((rank == cut.rank || outcome.status[size_t(rank)] != 0));
                continue;
            }
            if (event["event"] == "step") {
                outcome.losses[event["step"].get<int64_t>()] = event["loss"];
                outcome.step_images[event["step"].get<int64_t>()] = event["images"];
            }
            outcome.is_unequal |= event["event"] == "unequal";
            if (event["event"] == "epoch") outcome.images = event["images"];
            if (event["event"] == "val") outcome.val_loss = event["loss"];
        }
        std::error_code none;
        for (const auto& file : std::filesystem::directory_iterator(run, none)) {
            if (!contains(file.path().string(), "/trace-30-33-rank")) continue;
            const json all = json::parse(inflate(*open_local(file.path()), 64 << 20));
            for (const json& event : all["traceEvents"])
                if (event["name"] == "step" && event["args"].value("images", 0) > 0)
                    outcome.trained.insert(event["pid"].get<int>());
        }
        if (std::filesystem::exists(run + "/tb/train"))
            for (const auto& [step, loss] : points(run + "/tb/train", "loss"))
                outcome.curve[int64_t(step)] = loss;
        if (std::filesystem::exists(run + "/tb/val"))
            for (const auto& [step, loss] : points(run + "/tb/val", "loss"))
                outcome.val_curve[int64_t(step)] = loss;
        if (std::filesystem::exists(run + "/latest")) {
            outcome.saved.insert(rank);
            Log quiet(nullptr);
            outcome.newest[rank] = load_checkpoint(run, quiet).meta.position.step;
        }
    }
    // First of those that were killed, so what they have counts where nobody else saved: they may
    // have been killed while they said good-bye.
    for (const bool ended_well : {false, true})
        for (const int rank : outcome.saved)
            if ((outcome.status[size_t(rank)] == 0) == ended_well)
                for (const auto& [name, tensor] :
                     read_safetensors(
                         cat(folder.path().string(), "/run", rank, "/latest/model.safetensors"))
                         .tensors)
                    outcome.weights[name] = tensor.values;
    CHECK_MESSAGE(!late, "the job did not end:\n", outcome.logs);
    CHECK_MESSAGE(!outcome.is_unequal, outcome.logs);
    return outcome;
}

void check_equal(const Outcome& got, const Outcome& want) {
    INFO(got.logs);
    REQUIRE(got.losses.size() == want.losses.size());
    for (const auto& [step, loss] : want.losses)
        // Sums in another order, through batch norms over few values; an image more or less would
        // be a hundred times as much.
        CHECK(std::abs(got.losses.at(step) - loss) < 1e-4);
    CHECK(got.step_images == want.step_images);
    CHECK(std::abs(got.val_loss - want.val_loss) < 1e-4);
    REQUIRE(got.weights.size() == want.weights.size());
    for (const auto& [name, values] : want.weights) CHECK_CLOSE(got.weights.at(name), values, 2e-4);
}

// A job whose ranks except cut.rank end well, and if that was killed, as if nothing had been.
Outcome run_survived(const Cut& cut, const Outcome& whole, const Words& more = {},
                     bool resume = false) {
    const Outcome got = run_job(cut, more, resume);
    INFO("rank ", cut.rank, ", operation ", cut.operation, "\n", got.logs);
    for (int rank = 0; rank < kWorld; ++rank)
        if (rank != cut.rank) CHECK(got.status[size_t(rank)] == 0);
    if (got.status[size_t(cut.rank)] == 128 + SIGKILL) check_equal(got, whole);
    return got;
}

// A job of which nothing is cut.
const Outcome& undisturbed() {
    static const Outcome whole = run_job({});
    return whole;
}

int stride() {
    const char* text = std::getenv("CONVOY_TEST_STRIDE");
    return text ? std::atoi(text) : 151;
}
bool samples() {  // a few of what is tried one after the other
    return stride() > 100;
}

}  // namespace

static bool said(const Outcome& outcome, const std::string& text) {
    return contains(outcome.logs, text);
}

TEST_CASE(
    "elastic: a cut at any socket operation of the ring, and all end as if nothing had been") {
    const Outcome& whole = undisturbed();
    INFO(whole.logs);
    REQUIRE(whole.losses.size() == 4);
    for (const auto& [step, images] : whole.step_images) CHECK(images == 12);
    REQUIRE(whole.operations > 50);
    // Killed before the operation, and so after the one before it in whole; after half of it; a
    // link is reset before it; two ranks are killed.
    constexpr int kKinds = 4;
    int resets = 0, pairs = 0;
    for (int rank = 0; rank < kWorld; ++rank)
        for (int i = 1 + rank; i < whole.operations; i += stride())
            for (int kind = 0; kind < kKinds; ++kind) {
                if (stride() > 1 && kind != (i / stride() + rank) % kKinds) continue;
                Cut cut{.rank = rank, .operation = i, .half = kind == 1, .reset = kind == 2};
                const int other = (rank + 1 + i % 2) % kWorld;
                if (kind == 3) cut.second = {other, i + (i * 7) % 50, false};
                CAPTURE(cut.rank, cut.operation, kind);
                const Outcome outcome = run_job(cut);
                INFO(outcome.logs);
                int killed = 0;
                for (int r = 0; r < kWorld; ++r) {
                    if (r != rank && r != cut.second.rank) CHECK(outcome.status[size_t(r)] == 0);
                    killed += outcome.status[size_t(r)] == 128 + SIGKILL;
                    CHECK((outcome.status[size_t(r)] == 0 ||
                           outcome.status[size_t(r)] == 128 + SIGKILL));
                }
                if (kind == 2) {
                    CHECK(killed == 0);
                    CHECK(!said(outcome, " lost: "));
                    resets += said(outcome, "; 3 ranks, step ");
                }
                pairs += killed == 2;
                if (kind == 2 || killed > 0) check_equal(outcome, whole);
            }
    CHECK(resets > 0);
    CHECK(pairs > 0);
}

#ifndef __SANITIZE_THREAD__  // which does not see how OpenSSL orders its threads
TEST_CASE("elastic: over TLS too, a killed rank leaves a job that ends as if nothing had been") {
    const TempDir folder;
    const std::string file = folder / "token";
    std::ofstream(file) << make_token() << "\n";
    REQUIRE(chmod(file.c_str(), 0600) == 0);
    const Words more = {"token-file=" + file};
    const Outcome whole = run_job({}, more);
    INFO(whole.logs);
    REQUIRE(whole.operations > 50);
    check_equal(whole, undisturbed());
    for (const int rank : {0, 1, 2}) {
        const Outcome outcome = run_survived({rank, whole.operations / 2 + rank}, whole, more);
        INFO("rank ", rank, "\n", outcome.logs);
        CHECK(outcome.status[size_t(rank)] == 128 + SIGKILL);
        CHECK(contains(outcome.logs, "2 ranks, step "));
    }
}
#endif

TEST_CASE("elastic: GPUs that read each other's memory lose a rank, and one is stopped there") {
    // Without batch norm, since that of two values magnifies how sums were rounded.
    const TempDir folder;
    const std::string model = folder / "net.txt";
    std::ofstream(model) << "input 16\nconv2d conv1 out 8 size 3 pad 1\nrelu\nmaxpool size 4\n"
                            "conv2d conv2 out 16 size 3 pad 1\nrelu\navgpool 1\n"
                            "flatten\nlinear fc out classes\n";
    const Words more = {"shm=auto", "device=simt", "model=" + model};
    const Outcome whole = run_job({}, more);
    INFO(whole.logs);
    REQUIRE(whole.operations > 50);
    CHECK(contains(whole.logs, "sum gradients in each other's memory"));
    check_equal(whole, run_job({}, {"model=" + model}));  // on the CPU
    int losses = 0;
    for (int rank = 0; rank < kWorld; ++rank)
        for (int i = 1 + rank; i < whole.operations; i += std::min(stride(), 50)) {
            const bool stop = rank == 2 && i > whole.operations / 3;
            const Outcome outcome =
                run_survived({rank, i, false, stop ? SIGSTOP : SIGKILL}, whole, more, stop);
            INFO("rank ", rank, ", operation ", i, "\n", outcome.logs);
            if (stop) check_equal(outcome, whole);
            if (!contains(outcome.logs, "2 ranks, step ")) continue;  // at the very end
            CHECK(!contains(outcome.logs, "gradients go through host memory"));
            ++losses;
        }
    CHECK(losses > 2);
}

TEST_CASE("elastic: a rank killed anywhere in shared memory too, and one that is stopped there") {
    const Outcome whole = run_job({}, {"shm=auto"});
    INFO(whole.logs);
    CHECK(contains(whole.logs, "ranks 0-2 of one host sum in shared memory"));
    REQUIRE(whole.operations > 50);
    check_equal(whole, undisturbed());  // on the ring
    for (int rank = 0; rank < kWorld; ++rank)
        for (int i = 1 + rank; i < whole.operations; i += 2 * stride()) {
            const bool stop = rank == 2 && i < 2 * stride();
            const Outcome outcome =
                run_survived({rank, i, false, stop ? SIGSTOP : SIGKILL}, whole, {"shm=auto"}, stop);
            INFO("rank ", rank, ", operation ", i, "\n", outcome.logs);
            if (outcome.status[size_t(rank)] == 0) continue;
            if (contains(outcome.logs, "2 ranks, step "))  // not at the very end
                CHECK(count_of(outcome.logs, " of one host sum in shared memory") >= 2);
            if (stop) check_equal(outcome, whole);
        }
}

TEST_CASE("elastic: a stopped rank is left behind after 3 s, and is told so when it comes back") {
    const Outcome& whole = undisturbed();
    for (const int rank : {0, 2}) {
        const Outcome outcome =
            run_job({rank, whole.operations / 2, false, SIGSTOP}, {}, /*resume=*/true);
        INFO(outcome.logs);
        for (int other = 0; other < kWorld; ++other)
            CHECK(outcome.status[size_t(other)] == (other == rank ? 1 : 0));
        CHECK(contains(outcome.logs, "no sign of life for "));
        CHECK(contains(outcome.logs, "2 ranks, step "));
        const size_t error = outcome.logs.find("error: ");
        REQUIRE(error != std::string::npos);
        CHECK(outcome.logs.find("without", error) != std::string::npos);
        check_equal(outcome, whole);
    }
}

TEST_CASE("elastic: a rank that comes back late leaves the checkpoints of the others as they are") {
    const TempDir folder;  // of all ranks, on one disk
    const std::string run = folder / "run";
    const Outcome& whole = undisturbed();
    const Outcome outcome = run_job({0, whole.operations / 2, false, SIGSTOP}, {"out=" + run},
                                    /*resume=*/true);
    INFO(outcome.logs);
    CHECK(outcome.status == std::vector{1, 0, 0});
    Log quiet(nullptr);
    CHECK(load_checkpoint(run, quiet).meta.position.step == 4);
    const int64_t late = load_checkpoint(run + "-rank0", quiet).meta.position.step;
    CHECK((0 < late && late < 4));
    CHECK(!contains(read_file(run + "/log.jsonl"), "\"event\":\"error\""));
    CHECK(contains(read_file(run + "-rank0/log.jsonl"), "\"event\":\"error\""));
}

TEST_CASE("elastic: a rank stopped in the last barrier, while all others end, ends well too") {
    const Outcome& whole = undisturbed();
    int alone = 0;
    for (int rank = 0; rank < kWorld; ++rank) {
        const Outcome outcome =
            run_job({.rank = rank, .signal = SIGSTOP, .at_end = true}, {}, /*resume=*/true);
        INFO(outcome.logs);
        CHECK(outcome.status == std::vector{0, 0, 0});
        CHECK(contains(outcome.log[size_t(rank)], "done: 4 steps"));
        alone += contains(outcome.log[size_t(rank)], "had done every step when ");
        check_equal(outcome, whole);
    }
    CHECK(alone > 0);
}

TEST_CASE("elastic: an heir that cannot write trains on, and another rank saves in the end") {
    const Outcome& whole = undisturbed();
    const Outcome outcome =
        run_job({.rank = 0, .operation = whole.operations / 2, .no_folder = true});
    INFO(outcome.logs);
    CHECK(outcome.status == std::vector{128 + SIGKILL, 1, 0});
    CHECK(contains(outcome.log[1], "without saving"));
    CHECK(contains(outcome.log[1], "error: --out: cannot write into"));
    CHECK(outcome.newest.at(2) == 4);
}

TEST_CASE("elastic: a disk that hangs while a stall is written down costs nobody its place") {
    const Outcome outcome = run_job({.hangs = true}, {"stall=1"});
    INFO(outcome.logs);
    CHECK(outcome.status == std::vector<int>{0, 0, 0});
    CHECK(said(outcome, "-auto-rank0.json.gz"));
    CHECK(!said(outcome, "ring 2"));
}

TEST_CASE("elastic: a rank with an error of its own leaves with the reason, and the others go on") {
    const Outcome& whole = undisturbed();
    for (int rank = 0; rank < kWorld; ++rank) {
        const Outcome outcome = run_job({.rank = rank, .operation = 1 << 30, .fails = true});
        INFO("rank ", rank, "\n", outcome.logs);
        const std::string reason = cat("the disk of rank ", rank, " is gone");
        for (int other = 0; other < kWorld; ++other) {
            CHECK(outcome.status[size_t(other)] == (other == rank));
        }
        for (const int told : {rank, rank == 0 ? 1 : 0})  // and the rank that writes the log
            CHECK(contains(outcome.log[size_t(told)], reason));
        CHECK(said(outcome, "2 ranks, step 2 redone"));
        check_equal(outcome, whole);
    }
}

TEST_CASE("elastic: an error that all ranks see ends the job, and the last whole step is saved") {
    const Outcome outcome = run_job({.fails = true});
    INFO(outcome.logs);
    CHECK(outcome.status == std::vector{1, 1, 1});
    CHECK(!said(outcome, "ring 2"));
    CHECK(outcome.saved.contains(0));
}

TEST_CASE("groups of batch norm that only the last batch of an epoch splits are told") {
    const Outcome outcome = run_job({}, {"batch=18", "bn-group=3"});  // 18, 18 and 12 images
    INFO(outcome.logs);
    CHECK(contains(outcome.log[0],
                   "last batch of an epoch, the share of a rank ends inside a group of 3"));
    CHECK(!said(undisturbed(), "(--bn-group)"));
}

TEST_CASE("a stall is told with servers and with stages too") {
    for (const char* mode : {"sync=server", "sync=pipeline:3"}) {
        const Outcome outcome = run_job({.stalls = true}, {"stall=1", mode});
        INFO(outcome.logs);
        CHECK(outcome.status == std::vector{0, 0, 0});
        CHECK(contains(outcome.log[0], "wait for rank 2"));
    }
}

TEST_CASE("elastic: the others are killed while a rank computes for long, and it goes on alone") {
    const Outcome& whole = undisturbed();
    const Outcome outcome = run_job({.slow = true});
    INFO(outcome.logs);
    CHECK(outcome.status == std::vector{128 + SIGALRM, 128 + SIGALRM, 0});
    CHECK(said(outcome, "1 rank, step 2 redone"));
    check_equal(outcome, whole);
}

TEST_CASE("elastic: a rank that cannot reach its own --advertise address succeeds rank 0") {
    const TempDir folder;
    const uint16_t port = free_port();
    const Cut killed{.rank = 0, .operation = undisturbed().operations / 2};
    const pid_t pids[] = {
        start_rank(folder.path(), 0, port, killed, {}, 20, 2),
        start_rank(folder.path(), 1, port, killed, {"advertise=192.0.2.1", "open=1"}, 20, 2)};
    int status[2] = {};
    for (int rank = 0; rank < 2; ++rank) REQUIRE(waitpid(pids[rank], &status[rank], 0) > 0);
    const std::string log = read_file(folder / "rank1.out");
    INFO(log);
    CHECK((WIFSIGNALED(status[0]) && WTERMSIG(status[0]) == SIGKILL));
    CHECK(status[1] == 0);
    CHECK(contains(log, "1 rank, step "));
}

TEST_CASE("elastic: a rank that was left behind joins again from its host") {
    const Outcome& whole = undisturbed();
    const Outcome outcome =
        run_job({.rank = 2, .operation = whole.operations / 2, .signal = SIGSTOP, .returns = true});
    INFO(outcome.logs);
    CHECK(outcome.status == std::vector{0, 0, 0});
    CHECK(contains(outcome.log[2], "restart it with --join"));
    CHECK(said(outcome, ") joined; 3 ranks go on from step "));
    check_equal(outcome, whole);
}

TEST_CASE("elastic: a rank is lost and another joins, again and again: nothing piles up") {
    constexpr int kRings = 24,
                  kMostNewcomers = 150;  // a newcomer may be killed before its ring opens
    const TempDir folder;
    const uint16_t port = free_port();
    const Outcome& whole = undisturbed();
    const Words more = {"epochs=1000", "save-every=0"};
    std::vector<pid_t> pids;
    for (int rank = 0; rank < 2; ++rank)
        pids.push_back(
            start_rank(folder.path(), rank, port, {.piles = true}, more, 20, kWorld - 1));
    const auto uses_of = [&](int rank) {
        std::ifstream log(cat(folder.path().string(), "/rank", rank, ".out"));
        std::vector<Use> uses;
        for (std::string line; std::getline(log, line);) {
            Use use;
            const size_t at = line.find("world 3 use: ");
            if (at != std::string::npos &&
                std::sscanf(line.c_str() + at, "world 3 use: %ld %ld %ld", &use.threads,
                            &use.descriptors, &use.bytes) == 3)
                uses.push_back(use);
        }
        return uses;
    };
    for (int i = 0; i < kMostNewcomers && uses_of(0).size() < kRings; ++i) {
        const Cut killed{.rank = 2, .operation = 20 + 74 * i % (2 * whole.operations), .joins = 1};
        CAPTURE(i);
        const pid_t newcomer = start_rank(folder.path(), 2, port, killed, more);
        int status = 0;
        REQUIRE(waitpid(newcomer, &status, 0) == newcomer);
        INFO(read_file(folder / "rank0.out"));
        INFO(read_file(folder / "rank2.out"));
        REQUIRE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    }
    for (const pid_t pid : pids) kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
    for (int rank = 0; rank < 2; ++rank) {
        const std::vector<Use> uses = uses_of(rank);
        CAPTURE(rank);
        REQUIRE(uses.size() >= kRings - 2);
        // What ends just then counts too: the least of some.
        const auto least = [](auto begin, int64_t Use::*of) {
            return std::ranges::min(std::span(begin, 8), {}, of).*of;
        };
        const auto early = uses.begin(), late = uses.end() - 8;
        // The loader's two may be there or not.
        CHECK(least(late, &Use::threads) <= least(early, &Use::threads) + 2);
        CHECK(least(late, &Use::descriptors) <= least(early, &Use::descriptors) + 2);
        CHECK(least(late, &Use::bytes) <= least(early, &Use::bytes) + (1 << 20));
    }
}

static void check_averages(const Words& more) {
    const Outcome whole = run_job({}, more);
    REQUIRE(whole.images == 48);
    for (int i = whole.operations / 5; i < whole.operations; i += whole.operations / 5)
        for (const int rank : {0, 1}) {
            const Outcome outcome = run_job({rank, i, false, SIGKILL}, more);
            INFO("rank ", rank, ", operation ", i, "\n", outcome.logs);
            CHECK(outcome.status[2] == 0);
            if (outcome.status[size_t(rank)] == 0) continue;
            CHECK(outcome.status[size_t(1 - rank)] == 0);
            if (rank != 0) CHECK(outcome.images == 48);  // rank 0 wrote the log from the beginning
            CHECK(outcome.losses.rbegin()->first == 4);
        }
}

// A connection is reset at each step-th operation of a job like `whole`: nobody is lost.
static void check_resets(const Words& more, const Outcome& whole, int step) {
    for (int i = 1; i < whole.operations; i += std::max(step, 1)) {
        const Outcome outcome = run_job({.rank = i % kWorld, .operation = i, .reset = true}, more);
        INFO("operation ", i, "\n", outcome.logs);
        CHECK(outcome.status == std::vector{0, 0, 0});
        CHECK(!said(outcome, " lost: "));
        check_equal(outcome, whole);
    }
}

TEST_CASE("elastic: --sync average goes back to the last average, and every image counts once") {
    const Words more = {"sync=diloco:2"};
    check_averages(more);
    const Outcome whole = run_job({}, more);  // where nobody is lost, the same is trained again
    check_resets(more, whole, stride() / 2);
}

TEST_CASE("elastic: of servers and workers any may be killed; the others go back to a checkpoint") {
    check_averages({"sync=async:2"});
    const Words more = {"sync=server:2"};
    const Outcome whole = run_job({}, more);
    check_equal(whole, undisturbed());
    for (const int rank : {0, 1, 2})
        for (int i = 1 + rank; i < whole.operations; i += stride())
            run_survived({rank, i}, whole, more);
    for (const Cut& cut : {Cut{.joins = 1}, Cut{.leave = {{0, 2}}}}) {
        const Outcome outcome = run_job(cut, more);
        INFO(outcome.logs);
        CHECK(outcome.status == std::vector{0, 0, 0});
        CHECK(!contains(outcome.logs, "redone"));
        check_equal(outcome, whole);
    }
    check_resets(more, whole, stride() / 4);
}

TEST_CASE("elastic: TensorBoard's curves go on with the rank that takes over") {
    const Words more = {"tensorboard=1"};
    const Outcome whole = run_job({}, more);
    check_equal(whole, undisturbed());
    REQUIRE(whole.curve.size() == 4);
    REQUIRE(whole.val_curve.size() == 1);
    for (int i = whole.operations / 7; i < whole.operations; i += whole.operations / 7) {
        const Outcome outcome = run_job({0, i, false, SIGKILL}, more);
        INFO("operation ", i, "\n", outcome.logs);
        CHECK(outcome.status[1] == 0);
        check_equal(outcome, whole);
        REQUIRE(outcome.curve.size() == 4);
        for (const auto& [step, loss] : outcome.losses)
            CHECK(outcome.curve.at(step) == doctest::Approx(loss));
        CHECK(outcome.val_curve.at(4) == doctest::Approx(whole.val_loss).epsilon(1e-3));
    }
}

TEST_CASE(
    "elastic: fewer ranks than --min-world save, and wait for a signal or for one that joins") {
    const Outcome& whole = undisturbed();
    for (const int rank : {0, 1}) {
        const std::map<int, int> leave = {{1 - rank, 9}, {2, 9}};  // a few steps, then the wait
        const Outcome outcome = run_job(
            {.rank = rank, .operation = whole.operations * 2 / 3, .leave = leave}, {"min-world=3"});
        INFO(outcome.logs);
        // Whoever sees his signal a round before the other leaves; the last one ends the job.
        CHECK(std::max(outcome.status[2], outcome.status[size_t(1 - rank)]) == 143);
        CHECK(said(outcome, "2 ranks are left, fewer than --min-world 3: waiting for ranks"));
        CHECK(outcome.saved.contains(1 - rank));
    }
    const Outcome joined = run_job({.joins = 1}, {"min-world=3"});
    INFO(joined.logs);
    CHECK(joined.status == std::vector{0, 0, 0});
    CHECK(said(joined, "2 ranks are left, fewer than --min-world 3: waiting for ranks"));
    CHECK(said(joined, ") joined; 3 ranks go on from step 1"));
    check_equal(joined, whole);
}

TEST_CASE("elastic: a rank killed at any socket operation of the set-up, or of the pre-flight") {
    const Outcome without = run_job({.early = true});
    for (const Words& more : {Words{}, {"preflight=on"}}) {
        const bool flies = !more.empty();
        CAPTURE(flies);
        const Outcome whole = flies ? run_job({.early = true}, more) : without;
        INFO(whole.logs);
        if (flies) REQUIRE(whole.operations > without.operations + 50);
        check_equal(whole, without);
        const int last = flies ? whole.operations : whole.operations / 2;
        const int step = flies ? whole.operations * stride() / 200 : stride() / 4;
        int again = 0;
        for (int rank = 0; rank < kWorld; ++rank)
            for (int i = 1 + rank; i < last; i += std::max(step, 1)) {
                const Outcome outcome =
                    run_job({.rank = rank, .operation = i, .early = true}, more);
                INFO("rank ", rank, ", operation ", i, "\n", outcome.logs);
                again += said(outcome, "so they set up the job again");
                const bool is_lost = said(outcome, "rank 0 was lost before training began");
                CHECK((!is_lost || rank == 0));
                for (int other = 0; other < kWorld; ++other)
                    if (other != rank) CHECK(outcome.status[size_t(other)] == is_lost);
                if (!is_lost && outcome.status[size_t(rank)] == 128 + SIGKILL)
                    check_equal(outcome, whole);
            }
        CHECK(again > 0);
    }
}

TEST_CASE("elastic: a rank with SIGTERM leaves after its step, and the others redo none") {
    const Outcome& whole = undisturbed();
    for (int rank = 0; rank < kWorld; ++rank)
        for (int step = 1; step <= 5; step += 2) {  // the fifth batch is one of the validation
            const Outcome outcome = run_job({.leave = {{rank, step}}});
            INFO("rank ", rank, ", step ", step, "\n", outcome.logs);
            CHECK(outcome.status == std::vector{0, 0, 0});
            CHECK(said(outcome, cat("this rank has left the job after step ", std::min(step, 4))));
            CHECK(said(outcome, cat("rank ", rank, " (127.0.0.1:")));
            CHECK(said(outcome, cat("2 ranks go on from step ", std::min(step, 4) + 1)));
            CHECK(!said(outcome, "lost"));
            CHECK(!said(outcome, "redone"));
            CHECK(outcome.saved == (rank == 0 ? std::set{0, 1} : std::set{0}));
            check_equal(outcome, whole);
        }
}

TEST_CASE("elastic: ranks that leave together, one after the other, and between local averages") {
    const Outcome& whole = undisturbed();
    for (const std::map<int, int>& leave : {std::map<int, int>{{0, 2}, {1, 2}}, {{2, 1}, {0, 2}}}) {
        const Outcome outcome = run_job({.leave = leave});
        INFO(outcome.logs);
        CHECK(outcome.status == std::vector{0, 0, 0});
        CHECK(said(outcome, "1 rank goes on from step 3"));
        check_equal(outcome, whole);
    }
    const Outcome local = run_job({.leave = {{1, 1}}}, {"sync=average:2"});
    INFO(local.logs);
    CHECK(local.status == std::vector{0, 0, 0});
    CHECK(said(local, "2 ranks go on from step 3"));
    CHECK(local.images == 48);
}

TEST_CASE("elastic: SIGTERM on all ranks, or on one with --elastic off, ends the job saved") {
    const std::map<int, int> all = {{0, 2}, {1, 2}, {2, 2}};
    for (const bool is_all : {true, false}) {
        const Outcome outcome =
            is_all ? run_job({.leave = all}) : run_job({.leave = {{1, 2}}}, {"elastic=off"});
        INFO(outcome.logs);
        CHECK(outcome.status == std::vector{143, 143, 143});
        CHECK(outcome.saved == std::set{0});
        CHECK(outcome.losses.size() == 2);
        CHECK(said(outcome, "stopped by signal 15 after step 2"));
    }
}

TEST_CASE("elastic: a job that stops early does so after the same epoch, whoever is killed then") {
    const Words words = {"epochs=5", "early-stop=1", "lr=0.0000001"};
    const Outcome whole = run_job({}, words);
    const int64_t steps = whole.newest.at(0);
    REQUIRE(steps < 20);
    for (int rank = 0; rank < kWorld; ++rank)
        for (int i = whole.operations * 9 / 10 + rank; i < whole.operations;
             i += std::max(stride() / 4, 1)) {
            const Outcome outcome = run_survived({rank, i}, whole, words);
            INFO("rank ", rank, ", operation ", i, "\n", outcome.logs);
            CHECK(outcome.newest.rbegin()->second == steps);
        }
}

TEST_CASE("elastic: one leaves while another is killed, at any socket operation") {
    const Outcome& whole = undisturbed();
    for (const auto& [killed, leaves] : {std::pair(1, 2), {2, 0}, {0, 1}})
        for (int i = whole.operations / 3 + killed; i < whole.operations;
             i += std::max(stride() / 2, 1))
            run_survived({.rank = killed, .operation = i, .leave = {{leaves, 2}}}, whole);
}

TEST_CASE("elastic: a job of two gains a third between two steps, and trains what three train") {
    const Outcome& whole = undisturbed();
    for (const Words& own : {Words{}, {"share=4"}}) {
        const Outcome outcome = run_job({.joins = 1, .own = own}, {"share=1"});
        INFO(outcome.logs);
        CHECK(outcome.status == std::vector{0, 0, 0});
        CHECK(said(outcome, "rank 2 (127.0.0.1:"));
        CHECK(said(outcome, ") joined; 3 ranks go on from step "));
        CHECK(!said(outcome, "redone"));
        CHECK(!contains(outcome.logs, "ring 3"));
        check_equal(outcome, whole);
    }
    // It trains in the modes in which the state is more than weights and momentum.
    int tried = 0;
    for (const Words& more :
         {Words{"wire=bf16"}, Words{"optimizer=adamw", "ema=0.9"},
          Words{"optimizer=muon", "accumulate=2"}, Words{"factors=on", "shm=auto"},
          Words{"threads=2x1"}, Words{"precision=bf16", "augment=resize,flip,mixup=0.2"},
          Words{"lr-decay-layers=3", "lr=0.01"}}) {
        Words words = more;
        words.insert(words.end(), {"epochs=10", "trace=30:33"});
        if (samples() && tried++ % 3 != 0) continue;
        const Outcome outcome = run_job({.joins = 1}, words);
        INFO("with ", more.front(), "\n", outcome.logs);
        CHECK(outcome.status == std::vector{0, 0, 0});
        CHECK(outcome.trained == std::set{0, 1, 2});
        CHECK(outcome.images == 48);  // and run_job() sees that all had equal weights
    }
    // Losses are those of three from the beginning, also while it trains; batch norm does not
    // multiply what rounding differs by, as its groups are of eight, and the same everywhere.
    const Words plain = {"generated=230", "batch=48",  "bn-group=8",
                         "lr=0.001",      "epochs=10", "trace=30:33"};
    const Outcome longer = run_job({.joins = 1}, plain);
    CHECK(longer.trained == std::set{0, 1, 2});
    const Outcome three = run_job({}, plain);
    check_equal(longer, three);
    const Outcome alone = run_job({.joins = 2}, plain);  // one after the other, or at once
    CHECK(alone.trained == std::set{0, 1, 2});
    check_equal(alone, three);
    const Outcome local = run_job({.joins = 1}, {"sync=average:2"});
    INFO(local.logs);
    CHECK(local.status == std::vector{0, 0, 0});
    CHECK(said(local, ") joined; 3 ranks go on from step 3"));
    CHECK(local.images == 48);
}

TEST_CASE("elastic: where all who have the state leave, they leave it to a newcomer") {
    const Outcome& whole = undisturbed();
    for (const int step : {3, 4}) {  // it joins after step 2
        const Outcome outcome = run_job({.leave = {{0, step}, {1, step}}, .joins = 1});
        INFO(outcome.logs);
        CHECK(outcome.status == std::vector{0, 0, 0});
        CHECK(said(outcome, ") joined; 3 ranks go on from step 3"));
        if (step == 3) CHECK(said(outcome, "; 1 rank goes on from step 4"));
        check_equal(outcome, whole);
    }
}

TEST_CASE("elastic: a newcomer killed at any socket operation, or before it asks, costs no step") {
    const Outcome& whole = undisturbed();
    const Outcome joined = run_job({.joins = 1});
    REQUIRE(whole.losses.size() == 4);
    for (int i = -1; i < joined.operations; i += std::max(stride() / 2, 1)) {
        const Outcome outcome =
            run_job({.rank = 2, .operation = i, .half = i % 2 == 0, .joins = 1});
        INFO("operation ", i, "\n", outcome.logs);
        CHECK(outcome.status[0] == 0);
        CHECK(outcome.status[1] == 0);
        if (i < 0) CHECK(!contains(outcome.logs, "ring 2"));
        CHECK(!contains(outcome.logs, "ring 4"));
        check_equal(outcome, whole);
    }
}

TEST_CASE("elastic: a newcomer stays while the coordinator, or another rank, is killed") {
    const Outcome& whole = undisturbed();
    for (const int rank : {0, 1})
        for (int i = whole.operations / 3; i < whole.operations; i += stride()) {
            const Outcome outcome = run_job({.rank = rank, .operation = i, .joins = 1});
            INFO("rank ", rank, ", operation ", i, "\n", outcome.logs);
            CHECK(outcome.status[size_t(1 - rank)] == 0);
            CHECK((outcome.status[2] == 0 || said(outcome, "error: ")));
            if (outcome.status[size_t(rank)] == 128 + SIGKILL) check_equal(outcome, whole);
        }
}

TEST_CASE("elastic: a newcomer is refused in a sentence, and the job goes on") {
    const struct {
        Words job, own;
        const char* sentence;
    } cases[] = {
        {{"elastic=off"}, {}, "its rank 0 says --elastic off"},
        {{}, {"batch=99"}, "rank 2 says --batch 99, rank 0 says 12"},
        {{"batch=2"}, {}, "--batch 2 cannot be divided among 3 ranks"},
        {{}, {"generated=60"}, "rank 2 says --generated 60"},
        {{}, {"share=1:2"}, "share"},
    };
    for (const auto& [job, own, sentence] : cases) {
        const Outcome outcome = run_job({.joins = 1, .own = own}, job);
        INFO(outcome.logs);
        CHECK(outcome.status == std::vector{0, 0, 1});
        CHECK(said(outcome, sentence));
    }
}

TEST_CASE("elastic: a connection to the coordinator is reset, and nobody is lost") {
    const Outcome& whole = undisturbed();
    int again = 0;
    for (int rank = 0; rank < kWorld; ++rank)
        for (int i = 1 + rank; i < whole.operations; i += 2 * stride()) {
            const Outcome outcome =
                run_job({.rank = rank, .operation = i, .reset = true, .control = true});
            INFO("rank ", rank, ", operation ", i, "\n", outcome.logs);
            again += said(outcome, "; 3 ranks, step ");
            CHECK(outcome.status == std::vector{0, 0, 0});
            // But after the last step others may have ended, and look as if they were lost.
            for (const std::string& log : outcome.log)
                CHECK((!contains(log, " lost: ") || contains(log, ", step 5 redone")));
            check_equal(outcome, whole);
        }
    CHECK(again > 0);
}

TEST_CASE("elastic: a rank that is killed, and started again as it was, hinders nobody") {
    const Outcome& whole = undisturbed();
    for (int rank = 0; rank < kWorld; ++rank) {
        const Outcome outcome =
            run_job({.rank = rank, .operation = whole.operations / 2, .again = true});
        INFO("rank ", rank, "\n", outcome.logs);
        for (int other = 0; other < kWorld; ++other)
            CHECK(outcome.status[size_t(other)] == (other == rank));
        CHECK(contains(outcome.log[size_t(rank)], "error: no job at "));
        CHECK(said(outcome, "2 ranks, step "));
        check_equal(outcome, whole);
    }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // see tests/call_hooks.h

TEST_CASE("elastic: a rank killed at any operation of JOIN, WELCOME, LINK and READY comes again") {
    const Outcome whole = run_job({.early = true});
    REQUIRE(whole.controls[1] > 15);
    int afresh = 0, again = 0, without = 0;
    for (int rank = 0; rank < kWorld; ++rank)
        for (int i = 1; i <= whole.controls[size_t(rank)]; i += std::max(stride() / 8, 1)) {
            const Outcome outcome = run_job({.rank = rank,
                                             .operation = i,
                                             .half = i % 2 == 0,
                                             .early = true,
                                             .control = true,
                                             .again = true});
            INFO("rank ", rank, ", operation ", i, "\n", outcome.logs);
            const std::string& late = outcome.log[size_t(rank)];
            const bool is_late = contains(late, "no job at");
            again += said(outcome, "so they set up the job again");
            if (said(outcome, "rank 0 was lost before training began")) {
                CHECK(rank == 0);
                continue;
            }
            without += is_late, afresh += !is_late;
            for (int other = 0; other < kWorld; ++other)
                CHECK(outcome.status[size_t(other)] == (is_late && other == rank));
            check_equal(outcome, whole);
        }
    CHECK(afresh > 0);
    CHECK(again > 0);
    CHECK((samples() || without > 0));
}

TEST_CASE("elastic: of two killed ranks the second is on its way into the next ring") {
    const Outcome& whole = undisturbed();
    const int half = whole.operations / 2;
    int alone = 0;
    for (const auto& [first, second] : {std::pair(1, 2), {0, 1}, {2, 0}, {0, 2}}) {
        const Outcome one = run_job({.rank = first, .operation = half});
        const int last = one.controls_in_training[size_t(second)];
        REQUIRE(last > 5);
        for (int i = 1; i <= last; i += std::max(stride() / 16, 1)) {
            Cut cut{.rank = first, .operation = half, .half = i % 2 == 0};
            cut.second = {second, i, true};
            const Outcome outcome = run_job(cut);
            CAPTURE(first, second);
            INFO("operation ", i, "\n", outcome.logs);
            CHECK(outcome.status[size_t(3 - first - second)] == 0);
            alone += said(outcome, "1 rank, step ");
            check_equal(outcome, whole);
        }
    }
    CHECK(alone > 0);
}

TEST_CASE("elastic: rank 0 killed while it saves leaves whole checkpoints, and the others go on") {
    const Outcome& whole = undisturbed();
    REQUIRE(whole.file_calls[0] > 8);
    REQUIRE(whole.newest == std::map<int, int64_t>{{0, 4}});
    for (int i = 1; i <= whole.file_calls[0]; ++i) {
        const Outcome outcome = run_job({.rank = 0, .operation = 1 << 30, .file_call = i});
        INFO("operation ", i, "\n", outcome.logs);
        CHECK(outcome.status == std::vector{128 + SIGKILL, 0, 0});
        const bool has_one = outcome.newest.contains(0);  // it could be loaded
        CHECK((has_one || i <= whole.file_calls[0] / 2));
        CHECK((!has_one || i > 1));
        CHECK(outcome.newest.at(1) == 4);
        check_equal(outcome, whole);
    }
}

#endif
