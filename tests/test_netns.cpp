// Ranks on hosts of their own: network namespaces (tests/lab/hosts), entered by child processes.
// Where they cannot be made (no root, no ip) these tests are left out with a message.
#include <signal.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>

#include "tests/hosts.h"
#include "tests/net_support.h"

namespace convoy {

namespace {

using std::chrono::milliseconds;

volatile std::sig_atomic_t told = 0;  // the signal that a rank got

// One rank as a process; what it says is read line by line: its log, and its result at the end.
class HostProcess {
 public:
    HostProcess(const Hosts& hosts, int host, const JoinOptions& options,
                const std::function<std::string(Job&)>& work, const std::string& names = "") {
        int ends[2];
        REQUIRE(pipe(ends) == 0);
        std::fflush(nullptr);
        pid_ = fork();
        if (pid_ == 0) {
            close(ends[0]);
            FILE* out = fdopen(ends[1], "w");
            Log log(out);
            try {
                hosts.enter(host, names);
                std::signal(SIGTERM, [](int number) { told = number; });
                Job job = join(options, log, [] { return int(told); });
                log.info("result: ", work(job));
                finish(job);
            } catch (const CutOff& e) {
                log.info("error, and it saves: ", e.what());
            } catch (const std::exception& e) {
                log.info("error: ", e.what());
            }
            _exit(0);
        }
        close(ends[1]);
        out_ = fdopen(ends[0], "r");
    }
    ~HostProcess() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        fclose(out_);
    }
    void signal(int number) { kill(pid_, number); }
    // The next line that holds `part`; "" when the process ends without one.
    std::string await(const std::string& part) {
        char line[4096];
        while (fgets(line, sizeof line, out_)) {
            all_ += line;
            if (contains(std::string(line), part)) return line;
        }
        MESSAGE("no '", part, "' in:\n", all_);
        return "";
    }

 private:
    pid_t pid_;
    FILE* out_;
    std::string all_;
};

JoinOptions options_for(int rank, const std::string& coordinator) {
    JoinOptions options;
    options.access.open = true;
    options.host = coordinator;
    options.port = 29400;
    options.rank = rank;
    options.world = 3;
    options.heartbeat = milliseconds(100);
    options.join_timeout = milliseconds(15'000);
    return options;
}

// Sums, then tells the addresses of all ranks and how many ports this host listens at.
std::string sum_and_tell(Job& job) {
    std::vector<float> data(50'000, float(job.communicator->rank() + 1));
    job.communicator->allreduce_sum(data).get();
    std::string told = cat("sum ", data[49'999]);
    for (const Peer& peer : job.peers) told += " " + peer.address;
    int ports = 0;
    for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
        std::ifstream in(table);
        for (std::string line; std::getline(in, line);)
            ports += contains(line, " 0A ");  // state LISTEN
    }
    return told + cat(" ports ", ports);
}

using Processes = std::vector<std::unique_ptr<HostProcess>>;

using Work = std::function<std::string(Job&)>;

// A rank on each host.
Processes start(const Hosts& hosts, const std::string& coordinator, const Work& work, int world = 3,
                bool elastic = false, milliseconds join_timeout = milliseconds(15'000)) {
    Processes ranks;
    for (int rank = 0; rank < world; ++rank) {
        JoinOptions options = options_for(rank, coordinator);
        options.world = world, options.elastic = elastic, options.join_timeout = join_timeout;
        ranks.push_back(std::make_unique<HostProcess>(hosts, rank + 1, options, work));
    }
    return ranks;
}
// A job that stands when this returns.
Processes start_elastic(const Hosts& hosts, int world, const Work& work,
                        milliseconds join_timeout = milliseconds(15'000),
                        const std::string& coordinator = "10.77.0.1") {
    Processes ranks = start(hosts, coordinator, work, world, /*elastic=*/true, join_timeout);
    ranks[0]->await(cat(world, " of ", world, " joined"));
    return ranks;
}

// Until the ring breaks, and in the next one that lasts; then how many ranks that has.
std::string sum_in_two_rings(Job& job) {
    alarm(60);  // a rank that waits for ever ends without a result
    Communicator& ring = *job.communicator;
    const auto run = [&] {
        for (;; std::this_thread::sleep_for(milliseconds(5))) ring.barrier();
    };
    CHECK_THROWS_AS(run(), RingBroken);
    for (;;) try {
            ring.regroup(1, false);
            std::vector<float> data(1000, 1);
            ring.allreduce_sum(data).get();
            return cat(data[0], " ranks");
        } catch (const RingBroken&) {
            // A machine so busy that its kernel answers late.
        }
}

}  // namespace

TEST_CASE("three hosts join in spite of a decoy interface and of a name that means loopback") {
    Hosts hosts(3);
    if (!hosts.made()) return;
    for (int host : {1, 2, 3}) {
        REQUIRE(hosts.run(host, "ip link add docker0 type bridge"));
        REQUIRE(hosts.run(host, "ip address add 172.17.0.1/16 dev docker0"));
        REQUIRE(hosts.run(host, "ip link set docker0 up"));
    }
    const std::string far = "127.0.0.1 localhost\n10.77.0.1 node1\n";
    HostProcess rank2(hosts, 3, options_for(2, "node1"), sum_and_tell, far);
    HostProcess rank1(hosts, 2, options_for(-1, "node1"), sum_and_tell,
                      far);  // gets the free number
    HostProcess rank0(hosts, 1, options_for(0, "node1"), sum_and_tell,
                      "127.0.0.1 localhost\n127.0.0.1 node1\n");
    // Rank 0 knows itself as loopback; the others reach it the way they reached the coordinator.
    for (HostProcess* rank : {&rank0, &rank1, &rank2}) {
        const std::string result = rank->await("result:");
        CHECK(contains(result, "sum 6 127.0.0.1:29400 10.77.0.2:29400 10.77.0.3:29400"));
        CHECK(contains(result, "ports 1"));
    }
}

TEST_CASE("hosts join over IPv6 alone") {
    Hosts hosts(3);
    if (!hosts.made()) return;
    const Processes ranks = start(hosts, "fd77::1", sum_and_tell);
    CHECK(contains(ranks[1]->await("result:"),
                   "sum 6 [fd77::1]:29400 [fd77::2]:29400 [fd77::3]:29400 ports 1"));
    for (const int rank : {0, 2}) CHECK(contains(ranks[size_t(rank)]->await("result:"), "sum 6"));
}

TEST_CASE("a way between two ranks that is not the one meant is named; one that is barred too") {
    Hosts hosts(3);
    if (!hosts.made()) return;
    // A cable of their own between hosts 2 and 3, which the routes prefer.
    REQUIRE(hosts.cable(2, 3, "eth1"));
    REQUIRE(hosts.run(2, "ip address add 10.79.0.2/24 dev eth1"));
    REQUIRE(hosts.run(3, "ip address add 10.79.0.3/24 dev eth1"));
    REQUIRE(hosts.run(2, "ip route add 10.77.0.3/32 dev eth1"));
    REQUIRE(hosts.run(3, "ip route add 10.77.0.2/32 dev eth1"));
    {
        const Processes ranks = start(hosts, "10.77.0.1", sum_and_tell);
        for (const int rank : {1, 2}) {
            const int other = 3 - rank;
            CHECK(contains(ranks[size_t(rank)]->await("leaves by"),
                           cat("traffic to rank ", other, " (10.77.0.", other + 1,
                               ":29400) leaves by eth1, not by eth0 like traffic to the "
                               "coordinator")));
        }
        CHECK(contains(ranks[0]->await("result:"), "sum 6"));
    }
    REQUIRE(hosts.run(3, "ip route replace prohibit 10.77.0.2/32"));
    for (const auto& rank : start(hosts, "10.77.0.1", sum_and_tell)) {
        const std::string error = rank->await("error:");
        CAPTURE(error);
        CHECK(contains(error, "cannot reach rank 1 (10.77.0.2:29400)"));
    }
}

TEST_CASE("a rank that is unplugged, or loses its address, ends the job and is named") {
    Hosts hosts(3);
    if (!hosts.made()) return;
    const auto work = [](Job& job) {
        job.communicator->set_progress(7, Phase::kForward);
        std::vector<float> data(1000, 1);
        for (int i = 0; i < 1'000'000; ++i) job.communicator->allreduce_sum(data).get();
        return std::string("never");
    };
    const auto formed = [&] {
        Processes ranks = start(hosts, "10.77.0.1", work);
        ranks[0]->await("3 of 3 joined");
        return ranks;
    };
    {  // a rank whose own interface goes notices it, and so do the others
        const Processes ranks = formed();
        REQUIRE(hosts.run(2, "ip address flush dev eth0"));
        CHECK(contains(ranks[1]->await("error:"), "was lost: no sign of life"));
        CHECK(contains(ranks[0]->await("error:"), "rank 1 (10.77.0.2:29400) was lost"));
        REQUIRE(hosts.run(2, "ip address add 10.77.0.2/24 dev eth0"));
    }
    const Processes ranks = formed();
    REQUIRE(hosts.plug(2, false));
    for (const size_t rank : {0, 2})
        CHECK(contains(ranks[rank]->await("error:"),
                       "rank 1 (10.77.0.2:29400) was lost: no sign of life"));
    CHECK(contains(ranks[1]->await("error:"),
                   "which served the coordinator, was lost: no sign of life"));
}

// Rank 1 is stopped for a while and so begins later to look for the others: when the cable works
// again, rank 2 has given it up and serves a coordinator, and rank 1 serves another one.
TEST_CASE("two coordinators of one job: its ranks go to the lower rank's and go on together") {
    Hosts hosts(4);
    if (!hosts.made()) return;
    Processes ranks = start_elastic(hosts, 4, sum_in_two_rings);
    REQUIRE(hosts.run(3, "ip route add blackhole 10.77.0.2"));
    ranks[1]->signal(SIGSTOP);
    ranks[0]->signal(SIGKILL);
    std::this_thread::sleep_for(milliseconds(1'600));
    ranks[1]->signal(SIGCONT);
    std::this_thread::sleep_for(milliseconds(2'100));
    REQUIRE(hosts.run(3, "ip route del blackhole 10.77.0.2"));
    for (int rank = 1; rank < 4; ++rank) {
        CAPTURE(rank);
        CHECK(contains(ranks[size_t(rank)]->await("result:"), "3 ranks"));
    }
}

// A switch that starts again: each rank is alone for longer than it takes to call others silent.
TEST_CASE("ranks that are all cut off from each other wait, and go on together when they can") {
    Hosts hosts(4);
    if (!hosts.made()) return;
    Processes ranks = start_elastic(hosts, 4, sum_in_two_rings, milliseconds(40'000));
    for (int host = 1; host <= 4; ++host) REQUIRE(hosts.plug(host, false));
    for (auto& rank : ranks)
        CHECK(contains(rank->await("waits for them"), "only 1 rank of 4 answers"));
    for (int host = 1; host <= 4; ++host) REQUIRE(hosts.plug(host, true));
    for (auto& rank : ranks) CHECK(contains(rank->await("result:"), "4 ranks"));
}

TEST_CASE("a rank that is cut off ends when its patience does, or by a signal, and saves") {
    Hosts hosts(3);
    if (!hosts.made()) return;
    for (const bool by_signal : {false, true}) {
        CAPTURE(by_signal);
        REQUIRE(hosts.plug(1, true));
        Processes ranks =
            start_elastic(hosts, 3, sum_in_two_rings, milliseconds(by_signal ? 40'000 : 5'000));
        REQUIRE(hosts.plug(1, false));  // rank 0's, with the coordinator
        CHECK(contains(ranks[1]->await("result:"), "2 ranks"));
        CHECK(contains(ranks[2]->await("result:"), "2 ranks"));
        if (by_signal) ranks[0]->signal(SIGTERM);
        CHECK(contains(ranks[0]->await("error, and it saves:"),
                       by_signal ? "stopped by signal 15 while it waited for other ranks"
                                 : "this part of the job ends"));
    }
}

TEST_CASE("a rank that was cut off does not go on alone when the others have ended meanwhile") {
    Hosts hosts(3);
    if (!hosts.made()) return;
    Processes ranks = start_elastic(hosts, 3, sum_in_two_rings, milliseconds(40'000));
    REQUIRE(hosts.plug(1, false));
    CHECK(contains(ranks[0]->await("waits for them"), "only 1 rank of 3 answers"));
    ranks.resize(1);  // the others, gone on as two, end; connections to them are refused
    REQUIRE(hosts.plug(1, true));
    CHECK(contains(ranks[0]->await("error, and it saves:"),
                   "the others may have gone on without it"));
}

TEST_CASE("a rank that is cut off notices it in the ring after that which the coordinator left") {
    Hosts hosts(3);
    if (!hosts.made()) return;
    const TempDir dir;
    const auto work = [&](Job& job) {
        alarm(30);  // well after the silence, well before TCP gives up
        Communicator& ring = *job.communicator;
        const int me = ring.rank();
        try {
            ring.barrier();
        } catch (const RingBroken&) {
            // By one that came out of it earlier.
        }
        if (me == 0) {  // when the others have asked for the next ring
            std::this_thread::sleep_for(milliseconds(200));
            ring.leave();
            job.communicator.reset();
            _exit(0);
        }
        ring.regroup(1, /*planned=*/true);
        ring.barrier();
        if (me == 2) std::ofstream(dir / "formed");
        const auto run = [&] {
            for (;; std::this_thread::sleep_for(milliseconds(5))) ring.barrier();
        };
        CHECK_THROWS_AS(run(), RingBroken);
        return std::string("noticed");
    };
    const Processes ranks = start_elastic(hosts, 3, work);
    for (int i = 0; i < 1000 && !std::filesystem::exists(dir / "formed"); ++i)
        std::this_thread::sleep_for(milliseconds(20));
    REQUIRE(hosts.deafen(3));
    CHECK(contains(ranks[1]->await("result:"), "noticed"));
    CHECK(contains(ranks[2]->await("result:"), "noticed"));
}

}  // namespace convoy
