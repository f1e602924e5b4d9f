// Sums in shared memory: against the sum in the order of the ranks, bit for bit.
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstring>
#include <set>

#include "net/ring/ring.h"
#include "net/ring/shared_sum.h"
#include "tests/net_support.h"

namespace convoy {

namespace {

std::vector<float> addend(size_t n, int rank, int round) {
    return random_floats(n, uint64_t(100 * round + rank + 1));
}

// x0 + x1 + …, from the left.
std::vector<float> in_order(size_t n, int world, int round) {
    std::vector<float> sum = addend(n, 0, round);
    for (int rank = 1; rank < world; ++rank) {
        const std::vector<float> x = addend(n, rank, round);
        for (size_t i = 0; i < n; ++i) sum[i] += x[i];
    }
    return sum;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

#ifdef __SANITIZE_THREAD__  // a tenth of the speed
constexpr size_t kLarge = 300'000;
#else
constexpr size_t kLarge = 3'000'000;
#endif

SharedMemory private_memory(size_t bytes) {
    return {static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)),
            [](std::byte* all) { std::free(all); }};
}

// Two ranks, one of which is a process of its own; rank 0 tells its port by a pipe. `child` runs in
// that process, which ends with it, and `work` here.
void with_process(int child_rank, const std::function<void(JoinOptions&)>& adjust,
                  const std::function<void(Job&)>& child,
                  const std::function<void(Job&, Diary&, pid_t)>& work,
                  bool own_process_numbers = false) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    Diary diary;
    const auto run = [&](int rank, const std::function<void(Job&)>& its_work) {
        JoinOptions options = rank_options(rank, 2);
        options.shm = true;
        if (rank == 0)
            options.listening = [&](uint16_t port) {
                REQUIRE(write(ends[1], &port, sizeof port) == sizeof port);
            };
        else
            REQUIRE(read(ends[0], &options.port, sizeof options.port) == sizeof options.port);
        adjust(options);
        Job job = join(options, diary.log);
        its_work(job);
    };
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        if (own_process_numbers && unshare(CLONE_NEWPID) == 0 && fork() != 0)
            wait(nullptr), _exit(0);
        try {
            run(child_rank, child);
        } catch (const std::exception&) {
            // The other process says so.
        }
        _exit(0);
    }
    const std::shared_ptr<void> end(nullptr, [&](void*) {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
        close(ends[0]), close(ends[1]);
    });
    run(1 - child_rank, [&](Job& job) { work(job, diary, pid); });
}

std::string error_of_sums(Job& job, int sums) {
    std::vector<float> data(500'000, 1);
    return error_of([&] {
        for (int i = 0; i < sums; ++i) job.communicator->allreduce_sum(data).get();
    });
}

}  // namespace

TEST_CASE("host sum: the bits of a sum in the order of ranks, worlds 1 to 8, awkward sizes") {
    for (const int world : {1, 2, 3, 5, 8}) {
        CAPTURE(world);
        // One mapping for all threads, so that the thread sanitizer sees who orders what.
        const size_t bytes = SharedSum::bytes_for(size_t(world));
        const SharedMemory memory = private_memory(bytes);
        std::memset(memory.get(), 0, bytes);
        std::atomic<bool> stop{false};
        std::atomic<uint64_t> moved{0};
        const std::vector<size_t> sizes = {0, 1, 7, 1000, kLarge, 65'536, 65'537};
        std::vector<SharingRank> names;
        for (int rank = 0; rank < world; ++rank) names.push_back({rank, cat("rank ", rank)});
        std::atomic<int> wrong{0};
        std::vector<std::thread> threads;
        for (int rank = 0; rank < world; ++rank)
            threads.emplace_back([&, rank] {
                try {
                    SharedSum host(memory, size_t(rank), names, stop, moved);
                    for (int k = 0; k < int(sizes.size()); ++k) {
                        std::vector<float> one = addend(sizes[size_t(k)], rank, k), two = one;
                        host.sum(uint32_t(2 * k), one, true);
                        host.sum(uint32_t(2 * k + 1), two, false);
                        host.spread(two);
                        const std::vector<float> want = in_order(sizes[size_t(k)], world, k);
                        wrong += !same_bits(one, want);
                        wrong += !same_bits(two, want);
                    }
                } catch (const Error&) {  // in another sum than a peer
                    ++wrong, stop = true;
                }
            });
        for (auto& thread : threads) thread.join();
        CHECK(wrong == 0);
    }
}

TEST_CASE("--shm: ranks of one host send no byte of a sum, and hold the sum in order") {
    for (const int world : {1, 2, 3, 5, 8}) {
        CAPTURE(world);
        std::atomic<int> wrong{0};
        std::atomic<uint64_t> sent{0};
        run_ranks(
            world, [](JoinOptions& options) { options.shm = options.rank == 0; },
            [&](Job& job) {
                Communicator& c = *job.communicator;
                const std::vector<size_t> sizes = {0, 1, 7, 1000, kLarge};
                const uint64_t before = c.bytes_sent();
                std::vector<std::vector<float>> data;
                std::vector<std::future<void>> sums;
                for (size_t k = 0; k < sizes.size(); ++k)
                    data.push_back(addend(sizes[k], c.rank(), int(k)));
                for (auto& one : data) sums.push_back(c.allreduce_sum(one));
                for (size_t k = 0; k < sizes.size(); ++k) {
                    sums[k].get();
                    wrong += !same_bits(data[k], in_order(sizes[k], world, int(k)));
                }
                sent += c.bytes_sent() - before;
                wrong += contains(gather_lists(c, cat("of ", c.rank()))[0], "of 0") ? 0 : 1;
            });
        CHECK(wrong == 0);
        CHECK(sent == 0);
    }
}

TEST_CASE("--shm: one rank of each host goes around, and sends 2(hosts-1)/hosts of the sum") {
    const std::vector<std::string> worlds[] = {{"a", "a", "b", "b"},
                                               {"a", "b", "a", "c", "b", "a"},
                                               {"a", "a", "b"},
                                               {"a", "b", "c", "d", "d"}};
    for (const auto& hosts : worlds)
        for (const bool bf16 : {false, true}) {
            const int world = int(hosts.size());
            CAPTURE(world, bf16);
            const std::set<std::string> names(hosts.begin(), hosts.end());
            const size_t n = 12 * 20'000;
            std::vector<std::vector<float>> results(hosts.size()), large(hosts.size());
            std::vector<uint64_t> sent(hosts.size());
            run_ranks(
                world,
                [&](JoinOptions& options) {
                    options.shm = true, options.bf16_wire = bf16;
                    options.host_id = hosts[size_t(options.rank)];
                },
                [&](Job& job) {
                    Communicator& c = *job.communicator;
                    const size_t me = size_t(c.rank());
                    results[me] = addend(n, int(me), 0);
                    std::vector<float> small(7, float(me));
                    c.allreduce_sum(small).get();
                    CHECK(small[6] == float(world * (world - 1) / 2));
                    const uint64_t before = c.bytes_sent();
                    c.allreduce_sum(results[me]).get();
                    sent[me] = c.bytes_sent() - before;
                    large[me].assign(700'001, float(me + 1));
                    c.allreduce_sum(large[me]).get();
                    c.barrier();
                });
            const size_t others = names.size() - 1, unit = bf16 ? 2 : 4;
            for (size_t rank = 0; rank < hosts.size(); ++rank) {
                CAPTURE(rank);
                const bool first =
                    std::find(hosts.begin(), hosts.end(), hosts[rank]) == hosts.begin() + rank;
                CHECK(sent[rank] == (first ? 2 * others * (n / names.size() * unit) + 24 : 0));
                CHECK(same_bits(results[rank], results[0]));
                CHECK(large[rank] == std::vector<float>(700'001, float(world * (world + 1) / 2)));
            }
            std::vector<double> want(n, 0);
            for (int rank = 0; rank < world; ++rank) {
                const auto x = addend(n, rank, 0);
                for (size_t i = 0; i < n; ++i) want[i] += double(x[i]);
            }
            CHECK_CLOSE(results[0], want, world * world * (bf16 ? 0x1p-9 : 0x1p-24));
        }
}

TEST_CASE("--shm: a rank killed anywhere in a sum is named by the one that waits for it") {
    for (const int killed : {0, 1})
        for (const int operation : {1, 2, 5, 11, 20}) {
            CAPTURE(killed, operation);
            int operations = 0;
            with_process(
                killed,
                [&](JoinOptions& options) {
                    if (options.rank != killed) return;
                    options.limit = [&](size_t bytes) {
                        if (operations > 0 && ++operations > operation) kill(getpid(), SIGKILL);
                        return bytes;
                    };
                },
                [&](Job& job) { operations = 1, error_of_sums(job, 1000); },
                [&](Job& job, Diary&, pid_t) {
                    const std::string error = error_of_sums(job, 1000);
                    CAPTURE(error);
                    CHECK(error.find(cat("rank ", killed, " (127.0.0.1:")) == 0);
                    CHECK(contains(error, "lost: connection closed"));
                });
        }
}

TEST_CASE("--shm: a rank that is stopped in the middle of a sum is named, and waited for") {
    int operations = 0;
    with_process(
        1,
        [&](JoinOptions& options) {
            options.stall = std::chrono::milliseconds(500);
            if (options.rank == 0) return;
            options.limit = [&](size_t bytes) {
                if (operations > 0 && ++operations == 10) raise(SIGSTOP);
                return bytes;
            };
        },
        [&](Job& job) {
            job.communicator->set_progress(3, Phase::kReduce);
            operations = 1;
            error_of_sums(job, 3);
            finish(job);
        },
        [&](Job& job, Diary& diary, pid_t pid) {
            std::atomic<bool> done{false};
            std::string error;
            std::thread sums([&] { error = error_of_sums(job, 3), done = true; });
            CHECK(eventually([&] { return contains(diary.text(), "its process does not"); }, 30));
            CHECK(contains(diary.text(), "all wait for rank 1 (127.0.0.1:"));
            CHECK(!done);
            kill(pid, SIGCONT);
            sums.join();
            CHECK(error == "");
            finish(job);
        });
}

TEST_CASE("--shm: where a rank cannot open the memory of the other, both stay on the ring") {
    if (geteuid() != 0) {
        MESSAGE("left out: only root gives a process numbers of its own");
        return;
    }
    with_process(
        0, [](JoinOptions&) {},
        [](Job& job) {
            error_of_sums(job, 1);
            finish(job);
        },
        [](Job& job, Diary& diary, pid_t) {
            CHECK(error_of_sums(job, 1) == "");
            CHECK(job.communicator->bytes_sent() > 500'000 * sizeof(float));
            finish(job);
            CHECK(contains(diary.text(), "do not share memory: rank 1 cannot open that of rank 0"));
        },
        /*own_process_numbers=*/true);
}

TEST_CASE("--shm: ranks in different collectives are told so, and one that has left is noticed") {
    std::atomic<int> told{0};
    const auto run = [&](const std::function<void(Communicator&)>& rank0,
                         const std::function<void(Communicator&)>& rank1) {
        run_ranks(
            2, [](JoinOptions& options) { options.shm = true; },
            [&](Job& job) {
                try {
                    (job.communicator->rank() == 0 ? rank0 : rank1)(*job.communicator);
                } catch (const Error& error) {
                    told += contains(error.what(), "do they train the same model?");
                    throw;
                }
            });
    };
    const auto sum_of = [](size_t n) {
        return [n](Communicator& ranks) {
            std::vector<float> data(n, 1);
            ranks.allreduce_sum(data).get();
        };
    };
    for (const size_t n : {size_t(4), size_t(100'000)})
        CHECK_FAILS(run(sum_of(n), sum_of(n + 1)), "do they train the same model?");
    CHECK(told == 4);
    const auto sum = sum_of(100'000);
    const auto barrier = [](Communicator& ranks) { ranks.barrier(); };
    CHECK_FAILS(run(sum, barrier), "do they train the same model?");
    CHECK_FAILS(run(barrier, sum), "do they train the same model?");
    for (const int leaver : {0, 1}) {
        const auto leave = [&](Communicator& ranks) { sum(ranks), ranks.leave(); };
        const auto stay = [&](Communicator& ranks) { sum(ranks), sum(ranks); };
        const auto first = leaver == 0 ? std::function<void(Communicator&)>(leave) : stay;
        const auto second = leaver == 1 ? std::function<void(Communicator&)>(leave) : stay;
        CHECK_THROWS_AS(run(first, second), Error);
    }
}

}  // namespace convoy
