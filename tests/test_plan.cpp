// Predictions: the arithmetic against cases done by hand and against a step simulated in tiny
// ticks; buckets against what GradReducer really hands over; and the command as a process.
#include "src/plan/plan.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "net/null_communicator.h"
#include "src/base/text.h"
#include "src/plan/plan_report.h"
#include "src/plan/step_probe.h"
#include "src/train/random_batch.h"
#include "tests/device.h"
#include "tests/process.h"

using namespace convoy;
using doctest::Approx;
using nlohmann::json;

namespace {

// The same step in ticks of `tick` seconds, without a formula: in each tick the work at hand and
// the first transfer that is handed over go on, both slower if both do.
SimulatedStep simulate_in_ticks(double compute, const std::vector<Transfer>& transfers,
                                const std::vector<Afterwork>& afterwork, double compute_slowdown,
                                double network_slowdown, double tick) {
    double computed = 0, sent = 0;
    SimulatedStep step;
    size_t next = 0, after = 0;
    bool pass_over = false;
    while (!pass_over || after < afterwork.size() || next < transfers.size()) {
        const bool computes =
            !pass_over || (after < afterwork.size() && afterwork[after].transfer < next);
        const bool sends =
            next < transfers.size() && (pass_over || computed >= transfers[next].handed - tick / 2);
        if (computes) computed += sends ? tick / compute_slowdown : tick;
        if (sends) sent += computes ? tick / network_slowdown : tick;
        if (sends && sent >= transfers[next].seconds) sent -= transfers[next++].seconds;
        if (!pass_over && computed >= compute)
            pass_over = true, computed = 0;
        else if (pass_over && computes && computed >= afterwork[after].seconds)
            computed -= afterwork[after++].seconds;
        step.seconds += tick;
        if (!computes) step.waited += tick;
    }
    return step;
}

EdgeTiming edge(int from, int to, double bytes_per_second) {
    return {from, to, 1e-4, bytes_per_second};
}

// Four ranks on machines of their own, at 1000 and 0.1 ms; the update takes 10 ms, the rest 1 ms
// an image forward and 2 ms backward.
JobTiming four_ranks() {
    JobTiming timing;
    timing.rounds = {1};
    for (int rank = 0; rank < 4; ++rank) {
        RankTiming one{
            cat("machine", rank), 2, {{{10, 0.010, 0.020, 0.010}, {20, 0.020, 0.040, 0.010}}}};
        timing.ranks.push_back(one);
        timing.edges.push_back(edge(rank, (rank + 1) % 4, 1e8));
        timing.edges.push_back(edge((rank + 1) % 4, rank, 1e8));
    }
    timing.link = {1e-4, 1e8};
    timing.bucket_bytes = 4'000'000;
    timing.exact_floats = 16;
    timing.params = {{1'000'000, 0.5}, {1'000'000, 1}};
    return timing;
}

}  // namespace

TEST_CASE("plan: a sum takes 2(W-1)/W of its bytes and 2(W-1) latencies, a small one its steps") {
    const PlanLink link{1e-3, 1e8};
    CHECK(sum_seconds(1'000'000, 4, link, false) == Approx(1.5 * 0.04 + 6e-3));
    CHECK(sum_seconds(1'000'000, 4, link, true) == Approx(0.75 * 0.04 + 6e-3));
    CHECK(sum_seconds(1'000'000, 1, link, false) == 0);
    CHECK(sum_seconds(250, 4, link, true) == Approx(2 * (1e-3 + 1e-5)));  // 1000 bytes, exactly
    CHECK(sum_seconds(250, 5, link, false) == Approx(4 * (1e-3 + 1e-5)));
    CHECK(gather_seconds(3'000'000, 3, link, false) == Approx(2 * 0.04 + 2e-3));
    // Four ranks on two hosts that share memory: around two; on one host: in its memory.
    PlanLink shared{1e-3, 1e8, 1, 1, 1, 2};
    CHECK(sum_seconds(1'000'000, 4, shared, false) == Approx(0.04 + 2e-3));
    CHECK(sum_seconds(1'000'000, 4, shared, true) == Approx(0.02 + 2e-3));
    shared.around = 1, shared.memory_bytes_per_second = 2e9;
    CHECK(sum_seconds(1'000'000, 4, shared, true) == Approx(0.002));
    CHECK(sum_seconds(250, 4, shared, true) == Approx(2 * (1e-3 + 1e-5)));
}

TEST_CASE("plan: some of the ranks go around as many hosts as they are on") {
    JobTiming timing = four_ranks();
    const auto around = [&](int ranks) {
        return ring_size(link_among(timing, ranks), ranks).around;
    };
    CHECK(around(4) == 4);
    CHECK(around(2) == 2);
    for (size_t rank = 0; rank < 4; ++rank) timing.ranks[rank].machine = rank < 2 ? "a" : "b";
    timing.link.around = 4;  // nobody shares memory
    CHECK(around(3) == 3);
    timing.link.around = 2;
    CHECK(around(4) == 2);
    CHECK(around(3) == 2);
    CHECK(around(2) == 2);  // on one machine: not measured how fast its memory is
    for (RankTiming& rank : timing.ranks) rank.machine = "a";
    timing.link.around = 1;
    CHECK(around(4) == 1);
    CHECK(around(2) == 1);
}

TEST_CASE("plan: a step is what is not hidden, by hand") {
    // Handed over at 2 and 4 of 5 s; 2 s each: the first is over at 4, the second a second late.
    const std::vector<Transfer> two = {{2, 2}, {4, 2}};
    CHECK(simulate(5, two, {}, 1, 1).seconds == Approx(6));
    CHECK(simulate(5, two, {}, 1, 1).waited == Approx(1));
    CHECK(simulate(5, {}, {}, 1, 1).seconds == Approx(5));
    CHECK(simulate(5, {}, {}, 1, 1).waited == 0);
    // One of 1 s at 2 s, and each takes twice as long beside the other: compute has done 3 by 4 s.
    const std::vector<Transfer> one = {{2, 1}};
    CHECK(simulate(5, one, {}, 2, 2).seconds == Approx(6));
    CHECK(simulate(5, one, {}, 2, 2).waited == 0);
    // At the end of compute there is nothing beside it.
    const std::vector<Transfer> last = {{5, 3}};
    CHECK(simulate(5, last, {}, 2, 2).seconds == Approx(8));
    CHECK(simulate(5, last, {}, 2, 2).waited == Approx(3));
}

TEST_CASE("plan: a step agrees with one simulated in ticks") {
    for (uint64_t seed = 0; seed < 20; ++seed) {
        CAPTURE(seed);
        Random random(seed, 0, 0, kTest);
        const double compute = random.uniform(0.5f, 2);
        std::vector<Transfer> transfers;
        double handed = 0;
        for (int i = 0; i < 6; ++i) {
            handed = std::min<double>(compute, handed + random.uniform(0, 0.5f));
            transfers.push_back({handed, random.uniform(0.01f, 0.5f)});
        }
        const double slow_compute = random.uniform(1, 2), slow_network = random.uniform(1, 2);
        const std::vector<Afterwork> afterwork = {{1, random.uniform(0.1f, 0.5f)},
                                                  {4, random.uniform(0.1f, 0.5f)}};
        const SimulatedStep got =
            simulate(compute, transfers, afterwork, slow_compute, slow_network);
        const SimulatedStep want =
            simulate_in_ticks(compute, transfers, afterwork, slow_compute, slow_network, 1e-4);
        CHECK(got.seconds == Approx(want.seconds).epsilon(2e-3));
        CHECK(got.waited == Approx(want.waited).epsilon(0.01).scale(0.2));
    }
}

TEST_CASE("plan: predicted speeds of one, two and four ranks, by hand") {
    const JobTiming timing = four_ranks();
    // 80 images: 80 ms forward, 160 backward, 10 update.
    const Prediction alone = predict(timing, {}, 80, {1});
    CHECK(alone.step_seconds == Approx(0.250));
    CHECK(alone.efficiency() == Approx(1));
    // 20 a rank: 20 + 40 + 10. The counters at once; bucket 0 (4 MB) when half of the backward pass
    // is over, at 40 ms; it takes 60 + 0.6 ms, and so does bucket 1, which waits for it.
    const Prediction four = predict(timing, {}, 80, {1, 1, 1, 1});
    CHECK(four.step_seconds == Approx(0.040 + 2 * 0.0606 + 0.010));
    CHECK(four.waited_seconds == Approx(0.040 + 2 * 0.0606 - 0.060));
    CHECK(four.compute_images_per_second == Approx(4 * 20 / 0.070));
    CHECK(predict(timing, {true, FactorMode::kOff}, 80, {1, 1, 1, 1}).step_seconds ==
          Approx(0.040 + 2 * 0.0306 + 0.010));
    // 60 and 20: the larger part decides. Bucket 0 is over before the backward pass is.
    CHECK(predict(timing, {}, 80, {3, 1}).step_seconds == Approx(0.180 + 0.0402 + 0.010));

    const auto choices = plan_choices(timing, 80, {1, 1, 1, 1}, 1, FactorMode::kAuto);
    CHECK(choices.size() == 1 + 3 * 2);
    CHECK(best_choice(choices).ranks() == 4);
    CHECK(options_text(best_choice(choices), false) == "--world 4 --wire bf16");
}

TEST_CASE("plan: a layer that travels as factors, by hand") {
    JobTiming timing = four_ranks();
    // The later layer: 1000 x 1000, 4 MB; half of the backward pass less 2 ms is over when its
    // gradient is due, which takes 2 ms and 0.1 ms an image.
    timing.params = {{1'000'000, 0.5, 1000, 1000, false, false, 0.002, 0.0001}, {1'000'000, 1}};
    const auto any = [&](int64_t batch, int world, FactorMode mode) {
        return any_factors(timing.params, batch, world, mode);
    };
    CHECK(any(80, 4, FactorMode::kAuto));
    CHECK_FALSE(any(80, 1, FactorMode::kAuto));
    CHECK_FALSE(any(80, 4, FactorMode::kOff));
    // 1000·2000 floats are as many as 2·1000·1000; `on` sends them all the same.
    CHECK_FALSE(any(1000, 4, FactorMode::kAuto));
    CHECK(any(1000, 4, FactorMode::kOn));
    CHECK_FALSE(any(1000, 1, FactorMode::kOn));
    // 20 images a rank: 4 ms leave the backward pass of 40. The factors are handed over at
    // 20 + 20 - 4 ms and take 3/4 of 80·2000 floats: 4.8 + 0.3 ms. The other one goes at 56 ms, for
    // 60.6 ms, beside 2 + 8 ms for the gradient of all 80 images.
    const Prediction four = predict(timing, {false, FactorMode::kAuto}, 80, {1, 1, 1, 1});
    CHECK(four.step_seconds == Approx(0.056 + 0.0606 + 0.010));
    CHECK(four.waited_seconds == Approx(0.0606 - 0.010));
    // With 1000 images the factors weigh as much as the gradient, and all of them cost 102 ms more.
    const std::vector<double> equal = {1, 1, 1, 1};
    CHECK(plan_choices(timing, 1000, equal, 1, FactorMode::kAuto).size() == 1 + 3 * 2);
    const auto choices = plan_choices(timing, 1000, equal, 1, FactorMode::kOn);
    REQUIRE(choices.size() == 1 + 3 * 4);
    CHECK(options_text(choices.back(), false) == "--world 4 --wire bf16 CONVOY_FACTORS=on");
    CHECK(setting_text(choices.back().setting) == "bf16+factors on");
    // 250 ms + 500 - 27 of the backward pass, the last sum beside the 102; the update.
    CHECK(choices[choices.size() - 2].prediction.step_seconds ==
          Approx(0.250 + 0.500 - 0.027 + 0.102 + 0.010));
    // Averages every 8 steps: nothing is hidden.
    timing.average_floats = 4'000'000;
    const Prediction rare = predict(timing, {}, 80, {1, 1, 1, 1}, 8);
    CHECK(rare.step_seconds == Approx(0.070 + (0.240 + 0.0006) / 8));
}

TEST_CASE("plan: timings lie on a line through two, or through the origin") {
    const std::vector<StepTiming> two = {{10, 0.03, 0.05, 0.01}, {20, 0.05, 0.09, 0.01}};
    CHECK(timing_at(two, 15).forward == Approx(0.04));
    CHECK(timing_at(two, 40).backward == Approx(0.17));
    CHECK(timing_at(two, 5).update == Approx(0.01));
    const std::vector<StepTiming> falls = {{10, 0.06, 0.06, 0.01}, {20, 0.05, 0.05, 0.01}};
    CHECK(timing_at(falls, 40).forward == Approx(0.05));
    const std::vector<StepTiming> steep = {{10, 0.01, 0, 0}, {20, 0.04, 0, 0}};
    CHECK(timing_at(steep, 10).forward == Approx(0.01));
    CHECK(timing_at(steep, 5).forward == Approx(0.005));
    CHECK(timing_at(steep, 15).forward == Approx(0.025));
    CHECK(timing_at(steep, 40).forward == Approx(0.10));
    const std::vector<StepTiming> one = {{10, 0.03, 0.05, 0.01}};
    CHECK(timing_at(one, 5).seconds() == Approx(0.015 + 0.025 + 0.01));
    CHECK(timing_at(one, 0).seconds() == Approx(0.01));
}

TEST_CASE("plan: fair shares end at the same time") {
    // 1 ms and 4 ms an image, nothing fixed: four times as many.
    const std::vector<std::vector<StepTiming>> plain = {
        {{10, 0.004, 0.006, 0}, {20, 0.008, 0.012, 0}}, {{10, 0.02, 0.02, 0}, {20, 0.04, 0.04, 0}}};
    CHECK(fair_shares(plain, 100) == std::vector<double>{1, 0.25});
    // 10 ms fixed on both, then 1 and 2 ms an image: 100 images in 10 + 66.7 ms.
    const std::vector<std::vector<StepTiming>> fixed = {{{10, 0.01, 0, 0.01}, {20, 0.02, 0, 0.01}},
                                                        {{10, 0.02, 0, 0.01}, {20, 0.04, 0, 0.01}}};
    CHECK(fair_shares(fixed, 100) == std::vector<double>{1, 0.5});
    CHECK(shares_text(fair_shares(fixed, 100)) == "1:0.5");
    // A rank that needs longer for nothing than the other for all of it.
    const std::vector<std::vector<StepTiming>> hopeless = {
        {{10, 0.01, 0, 0}, {20, 0.02, 0, 0}}, {{10, 0.01, 0, 0.5}, {20, 0.02, 0, 0.5}}};
    CHECK(fair_shares(hopeless, 100) == std::vector<double>{1, 0});
}

TEST_CASE("plan: the bucket grows with latency and bandwidth, between 1 and 25 MB") {
    CHECK(bucket_bytes_for(1e-4, 1e7, 4) == 1 << 20);
    CHECK(bucket_bytes_for(1e-2, 1e9, 4) == 25 << 20);
    CHECK(bucket_bytes_for(1e-4, 5e8, 4) == 5'000'000);
    // Latency is 4 % there: 1/25 of the time of the bytes.
    const PlanLink link{1e-4, 5e8};
    const double bytes_alone = sum_seconds(1'250'000, 4, {0, 5e8}, false);
    CHECK(sum_seconds(1'250'000, 4, link, false) == Approx(1.08 * bytes_alone).epsilon(0.001));
}

TEST_CASE("plan: ranks that share a machine are measured as they share it") {
    // Ranks 0 and 1 on one machine: alone 30 ms for 20 images, together 60 and 40 (it is noisy).
    JobTiming timing;
    timing.rounds = {1, 2};
    timing.link = {1e-4, 1e8};
    timing.ranks = {{"a", 1, {{{20, 0.01, 0.02, 0}}, {{20, 0.02, 0.04, 0}}}},
                    {"a", 1, {{}, {{20, 0.02, 0.02, 0}}}},
                    {"b", 1, {{{20, 0.01, 0.02, 0}}, {{20, 0.01, 0.02, 0}}}}};
    CHECK(predict(timing, {}, 20, {1}).step_seconds == Approx(0.030));
    CHECK(predict(timing, {}, 40, {1, 1}).step_seconds == Approx(0.050));
    CHECK(predict(timing, {}, 60, {1, 1, 1}).step_seconds == Approx(0.050));
    CHECK(compute_speeds(timing, 60, {1, 1, 1})[0] == Approx(20 / 0.060));
    CHECK(compute_speeds(timing, 60, {1, 1, 1})[2] == Approx(20 / 0.030));
    // What the network takes from compute goes with the ranks that share it.
    timing.link.compute_slowdown = 2;
    CHECK(link_among(timing, 1).compute_slowdown == Approx(4.0 / 3));
    CHECK(link_among(timing, 2).compute_slowdown == Approx(2));
}

TEST_CASE("plan: what stands out is named, once and rightly") {
    JobTiming timing = four_ranks();
    const std::vector<double> equal = {1, 1, 1, 1};
    CHECK(plan_warnings(timing, {}, 80, equal).empty());
    timing.edges[4].bytes_per_second = 1e7;  // from 2 to 3 alone
    REQUIRE(plan_warnings(timing, {}, 80, equal).size() == 1);
    CHECK(plan_warnings(timing, {}, 80, equal)[0] ==
          "the link from rank 2 to rank 3 is far slower than the rest: 80 Mbit/s");
    for (EdgeTiming& one : timing.edges)
        if (one.from == 2 || one.to == 2) one.bytes_per_second = 1e7;
    timing.edges[7].bytes_per_second = timing.edges[6].bytes_per_second;
    REQUIRE(plan_warnings(timing, {}, 80, equal).size() == 1);
    CHECK(plan_warnings(timing, {}, 80, equal)[0].starts_with("all links of rank 2 are far"));
    // Within a machine edges are fast, and make those between machines no slower than they are.
    JobTiming pairs = four_ranks();
    pairs.ranks[1].machine = pairs.ranks[0].machine;
    pairs.edges[0].bytes_per_second = pairs.edges[1].bytes_per_second = 5e9;
    for (const EdgeTiming& one : pairs.edges) CHECK_FALSE(is_slow(one, pairs));

    JobTiming slow = four_ranks();
    for (StepTiming& one : slow.ranks[3].rounds[0]) one.forward *= 3, one.backward *= 3;
    REQUIRE(plan_warnings(slow, {}, 80, equal).size() == 1);
    CHECK(plan_warnings(slow, {}, 80, equal)[0].starts_with("rank 3 computes far slower"));
}

// Notes the floats of each sum, and of each gather.
struct Sizes final : NullCommunicator {
    Sizes() : NullCommunicator(0, 2) {}
    std::future<void> allreduce_sum(std::span<float> data) override {
        return gather({data}, false);
    }
    std::future<void> gather(std::vector<std::span<float>> blocks, bool) override {
        floats.push_back(0);
        for (const auto& block : blocks) floats.back() += block.size();
        return done();
    }
    std::vector<size_t> floats;
};

// What the trainer hands over in a step, against the arithmetic; how many layers go as factors.
static int check_buckets(Config config, Backend& backend, Model& model, Optimizer& optimizer,
                         const StepProbe& probe, size_t bucket_bytes) {
    config.bucket.bytes = bucket_bytes;
    Sizes sizes;
    Trainer trainer(config, backend, sizes, model, optimizer, [] { return 0; });
    const double shares[] = {1, 0};
    trainer.step(random_batch(backend, 2, shares, 0, model.input(), 3, 1), {}, /*lr=*/0);
    std::vector<size_t> want = sizes.floats;
    for (size_t exact = 0; exact < probe.exact_floats(); want.erase(want.begin()))
        exact += want.front();  // statistics and counters come first
    int as_factors = 0;
    std::vector<size_t> got;
    for (const PlanBucket& bucket :
         plan_buckets(probe.params(), bucket_bytes, config.factors, config.batch, 2))
        if (const PlanParam* layer = bucket.factors_of) {  // two gathers, of two images each
            got.push_back(2 * size_t(layer->inputs)), got.push_back(2 * size_t(layer->outputs));
            ++as_factors;
        } else {
            got.push_back(bucket.floats);
        }
    CHECK(got == want);
    return as_factors;
}

TEST_CASE("plan: buckets are cut as the trainer hands them over, parameters in backward order") {
    const auto backend = make_backend("cpu", {1});
    Config config;
    Model model(model_text("resnet18"), {"resnet18", 3, 32, 1, ""}, *backend);
    model.plan(2, true);
    Optimizer optimizer(config, model.params(), *backend);
    const std::vector<float> before(model.params().weights,
                                    model.params().weights + model.params().trained_size);
    StepProbe probe(config, *backend, model, optimizer, 3);
    const StepTiming timing = probe.steps(2, 0);
    CHECK(timing.images == 2);
    CHECK(timing.forward > 0);
    CHECK(timing.backward > 0);
    size_t trained = 0;
    for (const Param* param : model.params().all()) trained += !param->running;
    CHECK(probe.params().size() == trained);
    double ready = 0;
    for (const PlanParam& param : probe.params()) {
        CHECK(param.ready >= ready);
        ready = param.ready;
    }
    CHECK(probe.params().front().ready < 0.5);
    CHECK(probe.params().back().ready > 0.8);
    CHECK(probe.params()[0].bias);
    CHECK(probe.params()[1].inputs == 512);
    CHECK(probe.params()[1].outputs == 3);
    for (const size_t bytes : {512 << 10, 4 << 20, 100 << 20})
        CHECK(check_buckets(config, *backend, model, optimizer, probe, bytes) == 0);
    CHECK(std::equal(before.begin(), before.end(), model.params().weights));
}

TEST_CASE("plan: factors are handed over as the trainer does, buckets around them") {
    // Linear layers of which some are worth it, at the end and in the middle.
    const std::string text =
        "input 8\nflatten\nlinear a out 350\nrelu\nlinear b out 100 bias no\nrelu\n"
        "linear c out 200\nrelu\nlinear d out classes\n";
    const auto backend = make_backend("cpu", {1});
    Config config;
    config.batch = 70;
    config.bn_group = 0;
    Model model(text, {"text", 3, 8, 1, ""}, *backend);
    model.plan(70, true);
    Optimizer optimizer(config, model.params(), *backend);
    StepProbe probe(config, *backend, model, optimizer, 3);
    probe.time_linear_layers();
    probe.step(4);
    for (const PlanParam& param :
         probe.params()) {  // only a has more than 65536 weights: 192 x 350
        CAPTURE(param.inputs);
        CHECK((param.fixed_seconds + param.image_seconds > 0) ==
              (param.inputs == 192 && !param.bias));
    }
    for (const auto& [factors, layers] :
         {std::pair{FactorMode::kAuto, 3}, {FactorMode::kOn, 4}, {FactorMode::kOff, 0}}) {
        config.factors = factors;
        for (const size_t bytes : {10 << 10, 100 << 10, 10 << 20})
            CHECK(check_buckets(config, *backend, model, optimizer, probe, bytes) == layers);
    }
}

TEST_CASE("plan: parameters are told apart where gradients are handed over from a copy" *
          doctest::test_suite("device")) {
    const auto backend = make_backend(kernel_device());  // whose memory the network cannot read
    Config config;
    Model model("input 4\nflatten\nlinear a out 5\nrelu\nlinear b out classes\n",
                {"text", 3, 4, 1, ""}, *backend);
    model.plan(2, true);
    Optimizer optimizer(config, model.params(), *backend);
    StepProbe probe(config, *backend, model, optimizer, 3);
    probe.step(2);
    std::vector<std::array<int, 3>> got;
    for (const PlanParam& param : probe.params())
        got.push_back({param.inputs, param.outputs, param.bias});
    CHECK(got == std::vector<std::array<int, 3>>{{5, 3, 1}, {5, 3, 0}, {48, 5, 1}, {48, 5, 0}});
}

// ---- the command ------------------------------------------------------------------------------

using Words = std::vector<std::string>;

static std::vector<json> plan_lines(const std::string& output) {
    std::vector<json> lines;
    for (const std::string& line : split(output, '\n'))
        if (line.starts_with("{")) lines.push_back(json::parse(line));
    return lines;
}

// What rank 0 of a plan for two ranks prints.
static std::string plan_of_two(const Words& more) {
    TempDir folder;
    const std::string at = cat("127.0.0.1:", free_port());
    Words words = {"tune",      "--plan", "--coord", at,       "--rank", "0",       "--world", "2",
                   "--threads", "1",      "--json",  "--size", "16",     "--batch", "8"};
    words.insert(words.end(), more.begin(), more.end());
    Process rank1(folder, "rank1",
                  {"tune", "--plan", "--coord", at, "--rank", "1", "--threads", "1"});
    Process rank0(folder, "rank0", words);
    CHECK(rank0.wait() == 0);
    CHECK(rank1.wait() == 0);
    return rank0.output();
}

TEST_CASE("program: plan times two ranks, and says what one and two would reach") {
    const std::string output = plan_of_two({"--share", "auto"});
    CAPTURE(output);
    int edges = 0, ranks = 0, best = 0;
    std::vector<std::pair<int, std::string>> predictions;
    for (const json& line : plan_lines(output)) {
        edges += line["plan"] == "edge";
        ranks += line["plan"] == "rank";
        if (line["plan"] == "edge") {
            CHECK(line["mbit_per_second"] > 100);
            continue;
        }
        CHECK(line["images_per_second"] > 10);
        if (line["plan"] != "prediction") continue;
        predictions.push_back({line["ranks"], line["wire"]});
        CHECK(line["images_per_second"] > 10);
        CHECK(line["efficiency"] > 0);
        CHECK(line["efficiency"] < 1.01);
        best += line["best"].get<bool>();
    }
    CHECK(edges == 2);
    CHECK(ranks == 2);
    CHECK(best == 1);
    CHECK(predictions ==
          std::vector<std::pair<int, std::string>>{{1, "fp32"}, {2, "fp32"}, {2, "bf16"}});
}

TEST_CASE("program: plan --compute predicts from the seconds given, not from this machine") {
    const std::string output = plan_of_two({"--compute", "0.1"});
    CAPTURE(output);
    int predictions = 0;
    for (const json& line : plan_lines(output)) {
        CHECK(line["plan"] != "rehearsal");
        if (line["plan"] != "prediction") continue;
        ++predictions;
        const double alone = 40.0 * line["ranks"].get<double>();  // 4 images take 0.1 s
        CHECK(line["images_per_second"] <= 1.001 * alone);
        CHECK(line["images_per_second"] >= 0.5 * alone);
        if (line["ranks"] == 1) CHECK(line["images_per_second"] > 0.999 * alone);
    }
    CHECK(predictions == 3);
}

TEST_CASE("program: with --compute, gradients from factors sleep for the images of all ranks") {
    TempDir folder;
    const std::string model = (folder.path() / "model.txt").string();
    std::ofstream(model) << "input 8\nflatten\nlinear a out 350\nlinear b out classes\n";
    // Of S = 0.3 s a third is forward, a third dx, and a third dw of one of two ranks: 4/3 S.
    for (const Words& command : {Words{"bench", "train"}, Words{"tune", "--plan"}}) {
        const std::string at = cat("127.0.0.1:", free_port());
        Words words = command;
        for (const std::string word : {"--coord", at.c_str(), "--threads", "1"})
            words.push_back(word);
        Words first = words;
        for (const std::string word :
             {"--rank", "0", "--world", "2", "--json", "--model", model.c_str(), "--batch", "8",
              "--compute", "0.3", "--shm", "off"})
            first.push_back(word);
        if (command.size() > 1) first.insert(first.end(), {"--steps", "3"});
        Process rank1(folder, "rank1", words);
        Process rank0(folder, "rank0", first);
        CHECK(rank0.wait() == 0);
        CHECK(rank1.wait() == 0);
        const std::string output = rank0.output();
        CAPTURE(output);
        REQUIRE(!plan_lines(output).empty());
        const json last = plan_lines(output).back();
        if (command.size() == 1) CHECK(last["factors"] == true);
        CHECK(last["images_per_second"] < 1.03 * 8 / 0.4);
        CHECK(last["images_per_second"] > 0.6 * 8 / 0.4);
    }
}

TEST_CASE("program: plan alone, and what it refuses") {
    const auto [status, output] =
        run_trainer({"tune", "--plan", "--size", "16", "--batch", "8", "--threads", "1"});
    CAPTURE(output);
    CHECK(status == 0);
    CHECK(output.find("compute img/s") != std::string::npos);
    CHECK(output.find("* best: --world 1") != std::string::npos);
    const struct {
        Words words;
        const char* message;
    } cases[] = {
        {{"tune", "--plan", "--world", "2"}, "--coord"},
        {{"tune", "--plan", "somewhere"}, "`tune --plan` takes no word 'somewhere'"},
        {{"tune", "--plan", "--model", "resnet19"}, "resnet18"},
        {{"tune", "--plan", "--share", "-1"}, "negative"},
        {{"tune", "--plan", "--classes", "0"}, "--classes cannot be 0"},
        {{"tune", "--plan", "--epochs", "3"}, "`tune --plan` has no option --epochs"},
        {{"CONVOY_PREFLIGHT=perhaps"}, "there are on, off"},
    };
    for (const auto& [words, message] : cases) {
        const auto [bad, said] = run_trainer(words);
        CAPTURE(said);
        CHECK(bad == 1);
        CHECK(said.find(message) != std::string::npos);
    }
}

TEST_CASE("program: the start of a run of two ranks says what to expect; shares by speed") {
    TempDir folder;
    const std::string at = cat("127.0.0.1:", free_port());
    Process rank1(folder, "rank1",
                  {"--coord", at, "--rank", "1", "--threads", "1", "--share", "3"});
    Process rank0(folder, "rank0", {"--coord",          at,     "--rank",    "0",
                                    "--world",          "2",    "--threads", "1",
                                    "--generated",      "48",   "--size",    "16",
                                    "--batch",          "8",    "--epochs",  "1",
                                    "--share",          "auto", "--out",     folder / "run",
                                    "CONVOY_FACTORS=on"});
    CHECK(rank0.wait() == 0);
    CHECK(rank1.wait() == 0);
    const std::string output = rank0.output();
    CAPTURE(output);
    CHECK(rank1.output().find("--share 3 has no effect: rank 0 says --share auto") !=
          std::string::npos);
    CHECK(output.find(" MB factors of all ranks") != std::string::npos);
    CHECK(output.find("slowest link: rank ") != std::string::npos);
    CHECK(output.find("buckets of ") != std::string::npos);
    CHECK(output.find("img/s") > output.find("epoch 1/1"));  // no forecast
    // What was decided for this run is not an option of the next one.
    const json meta = json::parse(read_file(folder / "run/latest/meta.json"));
    CHECK(meta["options"]["bucket"] == "0");
}

TEST_CASE("program: shares by speed need the measuring, and are rank 0's to ask for") {
    const struct {
        Words rank0, rank1;
        const char* message;
    } cases[] = {
        {{"--share", "auto", "CONVOY_PREFLIGHT=off"}, {}, "CONVOY_PREFLIGHT=off"},
        {{}, {"--share", "auto"}, "rank 1 says --share auto, rank 0 does not"},
        {{}, {"--share", "1:2"}, "rank 1 says --share 1:2, rank 0 does not"},
        {{"--share", "1:2:3"}, {}, "3 weights for a world of 2"},
    };
    for (const auto& [more0, more1, message] : cases) {
        TempDir folder;
        const std::string at = cat("127.0.0.1:", free_port());
        Words words1 = {"--coord", at, "--rank", "1", "--threads", "1"};
        Words words0 = {"--coord",     at,   "--rank",  "0",           "--world", "2",
                        "--generated", "48", "--batch", "8",           "--size",  "16",
                        "--threads",   "1",  "--out",   folder / "run"};
        words0.insert(words0.end(), more0.begin(), more0.end());
        words1.insert(words1.end(), more1.begin(), more1.end());
        Process rank1(folder, "rank1", words1), rank0(folder, "rank0", words0);
        CHECK(rank0.wait() == 1);
        CHECK(rank1.wait() == 1);
        CAPTURE(rank0.output());
        CHECK(rank0.output().find(message) != std::string::npos);
    }
}
