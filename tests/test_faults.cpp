#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <optional>

#include "net/ring/messenger.h"
#include "tests/fake_rank.h"

namespace convoy {

// Rank 0 of a world of 2, whose other rank the test plays. Returns the error that ends `work`.
static std::string rank0_against(const std::function<void(FakeRank&)>& rank1,
                                 const std::function<void(Job&)>& work, Diary& diary,
                                 int* lost = nullptr) {
    Port port;
    std::thread other([&] {
        FakeRank rank(1, port.get());
        rank1(rank);
    });
    std::string error;
    const std::string of_join = error_of([&] {
        Job job = join(rank_options(0, 2, port), diary.log);
        error = error_of([&] { work(job); });
        if (lost) *lost = job.communicator->lost_rank();
    });
    other.join();
    return of_join + error;
}

static void sum(Job& job, size_t n) {
    std::vector<float> data(n, 1);
    job.communicator->allreduce_sum(data).get();
}

// Each of `world` ranks ends with this error; "" where it ended well.
static std::vector<std::string> errors_of(int world, const std::function<void(Job&)>& work,
                                          std::vector<int>& lost) {
    std::vector<std::string> errors(static_cast<size_t>(world));
    lost.assign(static_cast<size_t>(world), -2);
    Port port;
    Diary diary;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world; ++rank)
        threads.emplace_back([&, rank] {
            Job job = join(rank_options(rank, world, port), diary.log);
            errors[size_t(rank)] = error_of([&] { work(job); });
            if (job.communicator) lost[size_t(rank)] = job.communicator->lost_rank();
        });
    for (std::thread& thread : threads) thread.join();
    return errors;
}

TEST_CASE("a signal ends the wait for a rank that does not come to a sum, within 5 s") {
    Port port;
    Diary diary;
    std::atomic<int> signal{0};
    std::atomic<bool> over{false};
    const auto job_of = [&](int rank) {
        JoinOptions options = rank_options(rank, 2, port);
        options.elastic = true;
        return join(options, diary.log, [&, rank] { return rank == 0 ? signal.load() : 0; });
    };
    std::thread other([&] {
        const Job job = job_of(1);
        CHECK(eventually([&] { return over.load(); }, 30));
    });
    {
        const Job job = job_of(0);
        std::vector<float> data(10'000, 1);
        auto sum = job.communicator->allreduce_sum(data);
        signal = SIGTERM;
        const auto begin = Clock::now();
        CHECK_THROWS_AS(sum.get(), CutOff);
        CHECK(seconds_since(begin) < 5);
        over = true;
    }
    other.join();
}

TEST_CASE("a rank that dies ends every collective on every rank with the same first cause") {
    const struct {
        int world, dies;
        size_t n;
        bool in_sum;  // it dies in the middle of its own sum
        const char* text;
    } cases[] = {{4, 2, 10, false, ", at step 812 in backward"},
                 {4, 2, 1'000'000, false, ", at step 812 in backward"},
                 {3, 1, 8'000'000, true, ""},
                 {3, 0, 100'000, false, "was lost: connection closed"}};  // with the coordinator
    for (const auto& one : cases) {
        CAPTURE(one.dies, one.n);
        std::vector<int> lost;
        const auto work = [&](Job& job) {
            sum(job, 100);
            job.communicator->set_progress(812, Phase::kBackward);
            const bool dies = job.communicator->rank() == one.dies;
            if (dies && !one.in_sum) {
                // Long enough for a heartbeat to carry the step.
                std::this_thread::sleep_for(std::chrono::milliseconds(250));
                return job.communicator.reset();
            }
            std::vector<float> data(one.n, 1);
            auto done = job.communicator->allreduce_sum(data);
            if (dies) return job.communicator.reset();
            done.get();
            for (int i = 0; i < 2; ++i) sum(job, one.n);
        };
        const auto errors = errors_of(one.world, work, lost);
        for (int rank = 0; rank < one.world; ++rank) {
            if (rank == one.dies) continue;
            CHECK(errors[size_t(rank)].find(cat("rank ", one.dies, " (127.0.0.1:")) == 0);
            CHECK(contains(errors[size_t(rank)], one.text));
            CHECK(errors[size_t(rank)] == errors[one.dies == 0 ? 1 : 0]);
            CHECK(lost[size_t(rank)] == one.dies);
        }
    }
}

TEST_CASE("abort(why) on one rank is the error of all") {
    for (int culprit : {0, 1}) {
        std::vector<int> lost;
        const auto errors = errors_of(
            3,
            [culprit](Job& job) {
                if (job.communicator->rank() == culprit) job.communicator->abort("disk full");
                sum(job, 3);
                sum(job, 100'000);
            },
            lost);
        for (int rank : {0, 1, 2}) {
            CHECK(errors[size_t(rank)].find(cat("rank ", culprit, " (127.0.0.1:")) == 0);
            CHECK(contains(errors[size_t(rank)], "): disk full"));
            CHECK(lost[size_t(rank)] == culprit);
        }
    }
}

TEST_CASE("ranks in different collectives are told so") {
    for (size_t n : {size_t(4), size_t(100'000)}) {
        std::vector<int> lost;
        const auto errors = errors_of(
            2, [n](Job& job) { sum(job, n + size_t(job.communicator->rank())); }, lost);
        for (const std::string& error : errors)
            CHECK(contains(error, "do they train the same model?"));
        CHECK(errors[0] == errors[1]);
    }
}

TEST_CASE("garbage, a wrong generation and a wrong length on a link end the job by name") {
    struct Case {
        const char* want;
        std::function<void(FakeRank&)> act;
    };
    const auto header = [](uint32_t generation, uint64_t length) {
        return wire::Header{wire::Type::sum, generation, 1, length};
    };
    const Case cases[] = {
        {"invalid data from rank 1 (127.0.0.1:9): not a Convoy trainer: it sent 'HTTP/1.1'",
         [](FakeRank& r) {
             r.send_header(std::as_bytes(std::span("HTTP/1.1 400 Bad Request").first(24)));
         }},
        {"is in generation 7 of the job", [&](FakeRank& r) { r.send_header(header(7, 400'000)); }},
        {"a SUM of 1099511627776 bytes; this rank is in collective 1, a SUM of 400000 bytes",
         [&](FakeRank& r) { r.send_header(header(r.welcome().generation, 1ull << 40)); }},
    };
    for (const Case& one : cases) {
        CAPTURE(one.want);
        Diary diary;
        int lost = -1;
        const std::string error = rank0_against(
            [&](FakeRank& rank) {
                rank.stand(2);
                one.act(rank);
                const Message end = rank.await(wire::Type::abort);
                CHECK(contains(wire::decode<wire::Abort>(end.body).why, one.want));
            },
            [](Job& job) { sum(job, 100'000); }, diary, &lost);
        CHECK(contains(error, one.want));
        CHECK(lost == 1);
    }
}

TEST_CASE("a rank that dies after JOIN is forgotten, after WELCOME it ends the job") {
    Diary diary;
    std::string error = rank0_against(
        [](FakeRank& rank) {
            rank.join(2);
            rank.await_welcome();
            rank.die();
        },
        [](Job&) {}, diary);
    CHECK(error.find("rank 1 (127.0.0.1:9) was lost: connection closed, while the ring was being "
                     "formed") == 0);

    error = rank0_against(
        [](FakeRank& rank) {
            rank.stand(2);
            rank.beat({5, 0, 0, 0, 0, "data"});
            rank.die();
        },
        [](Job& job) { job.communicator->barrier(); }, diary);
    CHECK(contains(error, ", at step 5 in data"));
}

TEST_CASE("nonsense on the control connection of a running rank names that rank") {
    Diary diary;
    const std::string error = rank0_against(
        [](FakeRank& rank) {
            rank.stand(2);
            rank.send(std::string(64, '?'));
            CHECK_THROWS_AS(rank.await(wire::Type::abort), std::system_error);  // it is cut off
        },
        [](Job& job) { job.communicator->barrier(); }, diary);
    CHECK(error.find("rank 1 (127.0.0.1:9) was lost: not a Convoy trainer") == 0);
}

TEST_CASE("a rank that is silent but whose machine answers is named and waited for") {
    Diary diary;
    const std::string error = rank0_against(
        [&](FakeRank& rank) {
            rank.stand(2);
            // Its heartbeat is 100 ms; rank 0 says after three of them what it waits for.
            const Message notice = rank.await(wire::Type::notice);
            CHECK(contains(wire::decode_text(notice.body), "is connected but has been silent"));
            rank.beat({});
            CHECK(contains(wire::decode_text(rank.await(wire::Type::notice).body), "is back"));
            rank.die();
        },
        [](Job& job) { job.communicator->barrier(); }, diary);
    CHECK(error.find("rank 1 (127.0.0.1:9) was lost: connection closed") == 0);
    CHECK(contains(diary.text(), "rank 1 (127.0.0.1:9) is connected but has been silent"));
}

TEST_CASE("a rank whose log nobody reads joins and trains; the lines that it drops are counted") {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    const std::string page(4096, '-');
    while (::write(ends[1], page.data(), page.size()) > 0) {}
    fcntl(ends[1], F_SETFL, 0);
    std::FILE* const unread = fdopen(ends[1], "w");
    Log log(unread);
    Diary diary;
    Port port;
    std::promise<void> passed;
    std::vector<std::thread> ranks;
    for (const int rank : {0, 1})
        ranks.emplace_back([&, rank] {
            JoinOptions options = rank_options(rank, 2, port);
            Job job = join(options, rank == 1 ? diary.log : log);
            job.communicator->barrier();
            if (rank == 1) passed.set_value();
            job.communicator->leave();
        });
    CHECK(passed.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready);
    std::optional<LogQueue> lines(log);
    for (size_t i = 0; i <= kMostLines + 10; ++i) lines->notice("line ", i, ".");
    auto reader = std::async(std::launch::async, [&] {
        std::string text;
        char bytes[4096];
        for (ssize_t n; (n = ::read(ends[0], bytes, sizeof bytes)) > 0;)
            text.append(bytes, size_t(n));
        return text;
    });
    for (std::thread& rank : ranks) rank.join();
    lines.reset();
    std::fclose(unread);
    const std::string text = reader.get();
    close(ends[0]);
    CHECK(contains(text, "2 of 2 joined"));
    CHECK(contains(text, " lines were dropped"));
    CHECK(!contains(text, "line 5."));
    CHECK(contains(text, cat("line ", kMostLines + 10, ".")));
}

TEST_CASE("stall diagnosis: waits for messages of another rank count like collectives") {
    Diary diary;
    Port port;
    std::vector<std::thread> ranks;
    for (const int rank : {0, 1})
        ranks.emplace_back([&, rank] {
            JoinOptions options = rank_options(rank, 2, port);
            options.heartbeat = std::chrono::milliseconds(100);
            options.stall = std::chrono::milliseconds(200);
            Job job = join(options, diary.log);
            auto links = job.communicator->open_messenger({1 - rank});
            if (rank == 1)
                eventually([&] { return contains(diary.text(), "all wait for rank 1"); });
            std::byte byte{};
            auto message = rank == 1 ? links->send(0, {&byte, 1}) : links->receive(1, {&byte, 1});
            links->wait(message);
            links.reset();
            finish(job);
        });
    for (std::thread& rank : ranks) rank.join();
    CHECK(contains(diary.text(), "all wait for rank 1"));
}

TEST_CASE("a link that breaks while both ranks live ends the job on both") {
    Diary diary;
    const std::string error = rank0_against(
        [&](FakeRank& rank) {
            rank.stand(2);
            rank.close_link();
            const Message end = rank.await(wire::Type::abort);
            CHECK(contains(wire::decode<wire::Abort>(end.body).why, "connection closed"));
        },
        [](Job& job) { job.communicator->barrier(); }, diary);
    CHECK(contains(error, "receiving from rank 1 (127.0.0.1:9): connection closed"));
}

}  // namespace convoy
