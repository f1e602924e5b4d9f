// Training as a whole: world-size independence, over-fitting, resuming bit for bit. Ranks are
// threads of this process.
#include "src/step/evaluate.h"
#include "src/step/trainer.h"

#include <signal.h>

#include <algorithm>
#include <climits>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "src/base/text.h"
#include "src/checkpoint/checkpoint.h"
#include "src/run/run_log.h"
#include "src/session/job_setup.h"
#include "src/step/stages.h"
#include "tests/device.h"
#include "tests/net_support.h"
#include "tests/process.h"

using namespace convoy;

namespace {

// A small network with batch norm, dropout and a residual block: whatever could depend on the cut.
const char* kNet = R"(input 16
conv2d c1 out 8 size 3 pad 1 bias no
batchnorm b1
relu
residual r
  conv2d c2 out 8 size 3 pad 1 bias no
  batchnorm b2
end
maxpool size 2 stride 2
conv2d c3 out 12 size 3 pad 1
relu
dropout 0.25
avgpool 1
flatten
linear fc1 out 20
relu
dropout 0.25
linear fc out classes
)";

constexpr FactorMode off = FactorMode::kOff, on = FactorMode::kOn;

Config small_config() {
    Config config;
    config.batch = 40;
    config.bn_group = 2;  // divides every share below, so no group is cut
    config.size = 16;
    config.generated = 96;  // 80 of them to train on: two steps an epoch
    config.lr = 0.05;
    config.weight_decay = 1e-3;
    config.threads = 1;
    return config;
}

std::vector<size_t> cuts_of(const Config& config) {
    const auto backend = make_backend("cpu", {.threads = 1});
    return named_cuts(config.split, Model(kNet, {"net", 3, 16, 1, ""}, *backend).outline(),
                      config.pipeline);
}

ModelOptions of_rank(const Config& config, int rank) {
    ModelOptions options{"net", 3, 16, uint64_t(config.seed), ""};
    if (config.pipeline > 1) options.stage = stage_of(cuts_of(config), rank % config.pipeline);
    return options;
}

// One rank's whole means of training; the communicator is lent.
struct Rank {
    Config config;
    Communicator& communicator;
    std::unique_ptr<Backend> backend =
        make_backend(config.device.empty() ? "cpu" : config.device,
                     {.threads = config.threads, .precision = config.precision});
    std::vector<std::unique_ptr<Backend>> replica_backends = {};
    DataSet data;
    Model model;
    std::unique_ptr<Optimizer> optimizer;
    std::unique_ptr<Trainer> trainer;
    std::unique_ptr<Loader> loader;
    Position at;
    std::vector<double> losses;
    std::vector<uint64_t> samples;
    double lr_drop = 0;  // a step
    bool ahead = true;   // batches travel beside the step before
    std::function<void(Rank&)> before_step = [](Rank&) {};

    Rank(const Config& c, Communicator& comm, std::vector<double> shares)
        : config(c), communicator(comm), model(kNet, of_rank(c, comm.rank()), *backend) {
        Log log;
        data = open_data(data_options(config), log);
        LoaderOptions options;
        options.batch = config.batch, options.shares = shares;
        options.rank = comm.rank() / config.pipeline;
        options.pixels = comm.rank() % config.pipeline == 0;
        options.shares.resize(shares.size() / size_t(config.pipeline));
        const int share = int(std::max<int64_t>(1, Loader::max_share(options)));
        model.expect(share);
        if (config.pipeline == 1)
            model.plan(
                micro_batch_images(share, config.accumulate * config.replicas, config.bn_group),
                config.replicas == 1);
        std::vector<float*> slots;
        for (int i = 0; i < 2; ++i)
            slots.push_back(backend->alloc_host(Shape{share, 16, 16, 3}.elems()));
        loader =
            std::make_unique<Loader>(data.train, training_preprocess(config, 16), options, slots);
        optimizer = std::make_unique<Optimizer>(config, model.params(), *backend);
        TrainerOptions how(config);
        if (config.pipeline > 1) how.cuts = cuts_of(config);
        for (int r = 0; config.replicas > 1 && r < config.replicas; ++r)
            replica_backends.push_back(
                make_backend("cpu", {.threads = 1 + r % 2, .precision = config.precision}));
        how.replicas = replica_backends;
        trainer = std::make_unique<Trainer>(how, *backend, communicator, model, *optimizer,
                                            [] { return 0; });
    }

    void train(int steps) {
        loader->start(uint32_t(at.epoch), at.consumed);
        while (steps > 0) {
            Batch* batch = loader->next();
            if (!batch) {
                at = {at.epoch + 1, 0, at.step};
                loader->start(uint32_t(at.epoch), 0);
                continue;
            }
            const Batch* next = ahead && steps > 1 ? loader->peek() : nullptr;
            before_step(*this);
            const bool serves = config.sync != SyncKind::kRing || config.pipeline > 1;
            StepResult result = trainer->step(*batch, at, 0.05 - lr_drop * double(at.step), next);
            trainer->meet(result, {at.epoch, at.consumed, at.step + 1}, serves && steps == 1);
            losses.push_back((result.of_all ? result.sums : Sums()).mean_loss());
            samples.insert(samples.end(), batch->samples.begin(), batch->samples.end());
            at.consumed += batch->global_wanted;
            ++at.step, --steps;
            loader->release(batch);
        }
    }
    std::vector<float> read(const float* device, size_t n) {
        std::vector<float> host(n);
        backend->download(host.data(), device, n * sizeof(float));
        return host;
    }
    std::vector<float> weights() {
        return read(model.params().weights, model.params().weights_size);
    }
};

struct Outcome {
    std::vector<double> losses;
    std::vector<float> weights, momentum;
    double bytes_a_step = 0;        // sent by one rank
    std::vector<uint64_t> samples;  // of all ranks, sorted
    std::map<std::string, double> measured = {};
    double norm = 0;                   // of the last step's gradient
    std::vector<float> averaged = {};  // --ema
};

// A rank that goes on from a checkpoint of `from`.
std::unique_ptr<Rank> resumed(Rank& from) {
    TempDir folder;
    const ModelCard card{"net", kNet, 16, {"circle", "square", "triangle"}, {{0, 0, 0}, {1, 1, 1}}};
    Log log(std::tmpfile());
    save_checkpoint(folder.path(), {from.at, -1, from.optimizer->steps_done, 5, {}}, card,
                    from.model, *from.optimizer, *from.backend, false, 3, log);
    auto rank = std::make_unique<Rank>(from.config, from.communicator, std::vector<double>{1});
    const Checkpoint checkpoint = load_checkpoint(folder.path(), log);
    CHECK(checkpoint.meta.data_fingerprint == 5);
    restore(checkpoint, rank->model, *rank->optimizer, *rank->backend);
    rank->at = checkpoint.meta.position;
    return rank;
}

Outcome train_in_threads(
    const Config& config, std::vector<double> shares, int steps,
    const std::function<void(Rank&)>& before_step = [](Rank&) {}) {
    const int world = int(shares.size());
    std::vector<Outcome> outcomes(shares.size());
    const auto train = [&](Job& job) {
        Rank rank(config, *job.communicator, shares);
        rank.before_step = before_step;
        const uint64_t before = job.communicator->bytes_sent();
        try {
            rank.train(steps);
        } catch (const std::exception& error) {
            job.communicator->abort(error.what());
            throw;
        }
        const uint64_t sent = job.communicator->bytes_sent() - before;
        const float* momentum = rank.optimizer->state()[0];
        Outcome& outcome = outcomes[size_t(job.communicator->rank())];
        outcome = {rank.losses,
                   rank.weights(),
                   rank.read(momentum, rank.model.params().trained_size),
                   double(sent) / std::max(steps, 1),
                   rank.samples,
                   rank.trainer->sync().measured(),
                   rank.trainer->gradient_norm()};
        rank.optimizer->swap_average(/*all=*/true);
        outcome.averaged = rank.weights();
        job.communicator->barrier();  // before this rank's servers end
    };
    Job alone;
    alone.communicator = std::make_unique<Communicator>();
    const auto usual = [](JoinOptions& options) { options.heartbeat = JoinOptions().heartbeat; };
    world == 1 ? train(alone) : run_ranks(world, usual, train);
    for (int r = 1; r < world; ++r) {
        CHECK(outcomes[size_t(r)].losses == outcomes[0].losses);  // the same bits on all ranks
        if (config.pipeline > 1) {
            if (r % config.pipeline) continue;
        } else {
            CHECK(outcomes[size_t(r)].weights == outcomes[0].weights);
            CHECK(outcomes[size_t(r)].momentum == outcomes[0].momentum);
        }
        outcomes[0].samples.insert(outcomes[0].samples.end(), outcomes[size_t(r)].samples.begin(),
                                   outcomes[size_t(r)].samples.end());
    }
    std::sort(outcomes[0].samples.begin(), outcomes[0].samples.end());
    return outcomes[0];
}

}  // namespace

static void check_trains_the_same(const Config& config, const std::vector<double>& shares,
                                  int steps, const Outcome& one) {
    CAPTURE(config.factors, config.accumulate, config.replicas, config.split, shares.size());
    const Outcome many = train_in_threads(config, shares, steps);
    CHECK(many.samples == one.samples);
    // Rounding of float sums in another order, grown by a few steps of training.
    CHECK_CLOSE(many.losses, one.losses, 2e-5);
    CHECK_CLOSE(many.weights, one.weights, 2e-4);
    CHECK_CLOSE(many.momentum, one.momentum, 2e-4);
}

TEST_CASE("one rank, two, four, and four with shares 5:3:2:0 train the same model") {
    Config config = small_config();
    const int steps = 5;
    const Outcome one = train_in_threads(config, {1}, steps);
    const std::vector<double> two = {1, 1}, four = {1, 1, 1, 1}, unequal = {5, 3, 2, 0};
    for (const auto& [factors, shares] :
         {std::pair{off, two}, {off, four}, {off, unequal}, {on, two}, {on, unequal}}) {
        config.factors = factors;
        check_trains_the_same(config, shares, steps, one);
    }
}

TEST_CASE("--accumulate: pieces train what the whole batch trains, on any number of ranks") {
    const int steps = 5;
    const Outcome one = train_in_threads(small_config(), {1}, steps);
    const std::vector<double> alone = {1}, unequal = {5, 3, 2, 0};
    for (const auto& [pieces, shares] :
         {std::pair{2, alone}, {7, alone}, {20, alone}, {3, unequal}, {4, unequal}})
        for (const SyncKind sync : {SyncKind::kRing, SyncKind::kServer}) {
            Config config = small_config();
            config.accumulate = pieces, config.sync = sync;
            check_trains_the_same(config, shares, steps, one);
        }
    Config config = small_config();
    config.sync_every = 2;
    const Outcome averaged = train_in_threads(config, {3, 1}, 4);
    config.accumulate = 3;
    CHECK_CLOSE(train_in_threads(config, {3, 1}, 4).weights, averaged.weights, 2e-4);
}

TEST_CASE(
    "--threads RxT: what replicas train together is what one network trains, on any number of "
    "ranks") {
    const int steps = 5;
    Config config = small_config();
    config.device = "cpu";
    const Outcome one = train_in_threads(config, {1}, steps);
    const std::vector<double> alone = {1}, unequal = {5, 3, 2, 0};
    for (const auto& [replicas, pieces, shares] :
         {std::tuple{2, 1, alone}, {3, 1, alone}, {2, 3, alone}, {30, 1, alone}, {2, 1, unequal}})
        for (const SyncKind sync : {SyncKind::kRing, SyncKind::kServer}) {
            config.replicas = replicas, config.accumulate = pieces, config.sync = sync;
            check_trains_the_same(config, shares, steps, one);
        }
    // The same replicas, the same bits, whoever is faster.
    config.replicas = 3, config.accumulate = 1, config.sync = SyncKind::kRing;
    const Outcome first = train_in_threads(config, {1}, steps);
    CHECK(train_in_threads(config, {1}, steps).weights == first.weights);
    // Products of bf16 read a copy of the weights, which each replica has.
    config.precision = Precision::kBf16;
    const Outcome many = train_in_threads(config, {1}, steps);
    config.replicas = 1;
    CHECK_CLOSE(many.losses, train_in_threads(config, {1}, steps).losses, 0.02);
}

TEST_CASE("training gives the same bits on any number of threads") {
    Config config = small_config();
    config.device = "cpu";
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
        config.precision = precision, config.threads = 1;
        const Outcome one = train_in_threads(config, {1}, 3);
        config.threads = 5;
        CHECK(train_in_threads(config, {1}, 3).weights == one.weights);
    }
}

TEST_CASE("--threads RxT: the failure of one is told, and no other waits for it") {
    Config config = small_config();
    const auto backend = make_backend("cpu", {.threads = 1});
    Model model(kNet, of_rank(config, 0), *backend);
    model.plan(8, false);
    std::vector<std::unique_ptr<Backend>> backends;
    for (int r = 0; r < 3; ++r) backends.push_back(make_backend("cpu", {.threads = 1}));
    Replicas replicas(model, *backend, backends, 8);
    std::vector<MicroBatch> parts(5);
    for (int i = 0; i < 5; ++i) parts[size_t(i)].number = i;
    for (const int bad : {0, 1, 4}) {
        std::atomic<int> passes = 0;
        CHECK_FAILS(replicas.run(
                        parts, [&](MicroBatch&) { ++passes; },
                        [&](MicroBatch& part) {
                            if (part.number == bad) fail("part ", bad);
                        }),
                    cat("part ", bad));
        CHECK(passes >= 1);
    }
}

TEST_CASE("--ema: one rank, servers, stages and local steps have the same average") {
    const auto average = [](Config config, std::vector<double> shares) {
        config.ema = 0.8;
        return train_in_threads(config, shares, 4).averaged;
    };
    Config config = small_config();
    const std::vector<float> one = average(config, {1}),
                             plain = train_in_threads(config, {1}, 4).weights;
    CHECK(one != plain);
    CHECK_CLOSE(average(config, {3, 1}), one, 2e-4);
    config.sync = SyncKind::kServer, config.servers = 2;
    CHECK_CLOSE(average(config, {3, 1}), one, 2e-4);
    config = small_config();
    config.pipeline = 2, config.split = "r.c2", config.micro = 4;
    CHECK_CLOSE(average(config, {1, 1}), one, 2e-4);
    config = small_config();
    config.sync_every = 1, config.momentum = 0;
    const std::vector<float> each = average(config, {1, 1});
    config.sync_every = 2;
    CHECK(average(config, {1, 1}) != each);
}

// Plain SGD, so that a clipped step is the step as long as its limit says.
TEST_CASE("--clip-norm bounds the movement by the norm over all ranks and stages") {
    Config config = small_config();
    config.momentum = config.weight_decay = 0;
    const auto moved = [&](const Config& how, std::vector<double> shares) {
        Outcome start = train_in_threads(how, shares, 0), end = train_in_threads(how, shares, 1);
        return std::pair(start, end);
    };
    double norm = 0;
    for (const double limit : {1e9, 0.01}) {
        config.clip_norm = limit;
        const auto [start, one] = moved(config, {1});
        // The trained part comes first; its last floats may be padding.
        double squares = 0;
        for (size_t i = 0; i < one.momentum.size(); ++i)
            squares += std::pow((one.weights[i] - start.weights[i]) / 0.05, 2);
        if (limit > 1) norm = std::sqrt(squares);
        CHECK(std::sqrt(squares) == doctest::Approx(std::min(limit, norm)).epsilon(1e-4));
        CHECK(one.norm == doctest::Approx(norm).epsilon(1e-4));
        for (const int stages : {1, 2}) {
            Config many = config;
            many.pipeline = stages, many.split = "r.c2", many.micro = 4;
            const Outcome two = train_in_threads(many, {1, 1}, 3);
            Config alone = config;
            const Outcome want = train_in_threads(alone, {1}, 3);
            CAPTURE(stages);
            CHECK_CLOSE(two.losses, want.losses, 2e-5);
            CHECK_CLOSE(two.weights, want.weights, 2e-4);
            CHECK(two.norm == doctest::Approx(want.norm).epsilon(1e-3));
        }
    }
    CHECK(norm > 0.1);
}

TEST_CASE("two ranks on the CUDA kernels, whose memory the network cannot read, train as CPUs do" *
          doctest::test_suite("device")) {
    Config config = small_config();
    const std::vector<double> shares = {3, 1};
    for (const auto& [factors, sync_every] : {std::pair{off, 1}, {on, 1}, {off, 2}}) {
        config.factors = factors, config.sync_every = sync_every;
        config.device = "cpu";
        const Outcome cpu = train_in_threads(config, shares, 2);
        config.device = kernel_device();
        check_trains_the_same(config, shares, 2, cpu);
    }
}

// As on one device, tests/test_mixed.cpp: a dozen roundings of 2⁻⁸.
TEST_CASE("two ranks in bf16 follow fp32, with factors of bf16 rows between them" *
          doctest::test_suite("device")) {
    Config config = small_config();
    config.batch = 8;
    const std::vector<double> shares = {3, 1};
    config.device = "cpu";
    const Outcome exact = train_in_threads(config, shares, 2);
    config.device = kernel_device(), config.precision = Precision::kBf16,
    config.factors = FactorMode::kOn;
    const Outcome is_bf16 = train_in_threads(config, shares, 2);
    CHECK_CLOSE(is_bf16.losses, exact.losses, 12 * 0x1p-8);
}

namespace {

// A rank that must not talk to the others.
class Apart final : public Communicator {
 public:
    using Communicator::Communicator;
    std::future<void> allreduce_sum(std::span<float>) override { fail("a local step sums"); }
    std::future<void> gather(std::vector<std::span<float>>, bool) override { fail("… gathers"); }
    void broadcast(std::span<std::byte>, int) override { fail("… broadcasts"); }
    std::vector<std::vector<std::byte>> allgather(std::span<const std::byte>) override {
        fail("… gathers bytes");
    }
    void barrier() override { fail("… waits"); }
};

}  // namespace

TEST_CASE("--sync average: local steps, then the mean of weights and momentum by images trained") {
    Config config = small_config();
    config.sync_every = 2;
    const std::vector<double> shares = {3, 1};
    const Outcome together = train_in_threads(config, shares, 2);

    std::vector<double> weights, momentum;
    for (int r = 0; r < 2; ++r) {
        Apart apart(r, 2);
        Config local = config;
        local.sync_every = 1000;
        Rank rank(local, apart, shares);
        rank.train(2);
        CHECK(rank.losses == std::vector<double>{0, 0});  // sums come with the average
        const std::vector<float> ends = rank.weights();
        const float* state = rank.optimizer->state()[0];
        weights.resize(ends.size()), momentum.resize(rank.model.params().trained_size);
        const double part = shares[size_t(r)] / 4;
        for (size_t i = 0; i < ends.size(); ++i) weights[i] += part * double(ends[i]);
        for (size_t i = 0; i < momentum.size(); ++i) momentum[i] += part * double(state[i]);
    }
    CHECK_CLOSE(together.weights, weights, 1e-6);
    CHECK_CLOSE(together.momentum, momentum, 1e-6);
    CHECK(together.losses[0] == 0);
    CHECK(together.losses[1] > 0);
}

TEST_CASE("--sync diloco: two averages of four ranks follow DiLoCo's formula in double") {
    Config config = small_config();
    config.sync_every = 2;
    config.outer = true, config.outer_lr = 0.7, config.outer_momentum = 0.9;
    const std::vector<double> shares = {5, 3, 2, 0};
    const Outcome together = train_in_threads(config, shares, 4);

    std::vector<std::unique_ptr<Apart>> apart;
    std::vector<std::unique_ptr<Rank>> ranks;
    Config local = config;
    local.sync_every = 1000;
    for (int r = 0; r < 4; ++r) {
        apart.push_back(std::make_unique<Apart>(r, 4));
        ranks.push_back(std::make_unique<Rank>(local, *apart.back(), shares));
    }
    const size_t trained = ranks[0]->model.params().trained_size;
    std::vector<float> start = ranks[0]->weights();
    std::vector<double> velocity(trained, 0), weights, momentum;
    for (int round = 0; round < 2; ++round) {
        // Steps_done decides nothing with SGD, so a rank may begin each round afresh.
        std::vector<double> mean(start.size(), 0);
        momentum.assign(trained, 0);
        for (size_t r = 0; r < 4; ++r) {
            ranks[r]->train(2);
            const auto ends = ranks[r]->weights();
            const auto state = ranks[r]->read(ranks[r]->optimizer->state()[0], trained);
            for (size_t i = 0; i < mean.size(); ++i) mean[i] += shares[r] / 10 * ends[i];
            for (size_t i = 0; i < trained; ++i) momentum[i] += shares[r] / 10 * state[i];
        }
        weights = mean;  // of running statistics
        for (size_t i = 0; i < trained; ++i) {
            const double gradient = start[i] - mean[i];  // as torch.optim.SGD names it
            velocity[i] = 0.9 * velocity[i] + gradient;
            weights[i] = start[i] - 0.7 * (gradient + 0.9 * velocity[i]);
        }
        start.assign(weights.begin(), weights.end());
        const std::vector<float> state(momentum.begin(), momentum.end());
        for (const auto& rank : ranks) {
            rank->backend->upload(rank->model.params().weights, start.data(),
                                  start.size() * sizeof(float));
            rank->backend->upload(rank->optimizer->state()[0], state.data(),
                                  state.size() * sizeof(float));
        }
    }
    CHECK_CLOSE(together.weights, weights, 5e-6);
    CHECK_CLOSE(together.momentum, momentum, 5e-6);
    // Weights, statistics and one arena of the optimizer every second step, in sums below
    // 16 KB: everything log2(4) times, as fp32. Headers, counters and steps beside it.
    const double want = 2.0 * 4 * double(ranks[0]->model.params().updated_size + trained) / 2;
    CHECK(together.bytes_a_step >= want);
    CHECK(together.bytes_a_step <= want + 24 * 64);
}

TEST_CASE("--sync server: any number of servers and workers trains what one rank trains") {
    const int steps = 5;
    for (const OptimizerKind optimizer : {OptimizerKind::kSgd, OptimizerKind::kAdamw}) {
        Config config = small_config();
        config.optimizer = optimizer;
        const Outcome one = train_in_threads(config, {1}, steps);
        config.sync = SyncKind::kServer;
        const Outcome alone = train_in_threads(config, {1}, steps);
        CHECK(alone.weights == one.weights);
        CHECK(alone.momentum == one.momentum);
        CHECK(alone.losses == one.losses);
        // AdamW divides a small gradient by its size: roundings of it grow.
        const double most = optimizer == OptimizerKind::kSgd ? 2e-4 : 5e-2;
        const std::vector<double> two = {1, 1}, unequal = {5, 3, 2, 0};
        for (const auto& [servers, shares] :
             {std::pair{1, two}, {2, two}, {1, unequal}, {3, unequal}, {4, unequal}}) {
            config.servers = servers;
            CAPTURE(servers, shares.size());
            const Outcome many = train_in_threads(config, shares, steps);
            CHECK(many.samples == one.samples);
            if (optimizer == OptimizerKind::kSgd) CHECK_CLOSE(many.losses, one.losses, 2e-5);
            CHECK_CLOSE(many.weights, one.weights, most);
            // Each gradient to its server and each weight to each worker, unless they are there.
            const double W = double(shares.size()), S = servers;
            const double floats = double(many.weights.size());
            const double want =
                steps * (2 * (W - 1) * 4 * floats + (W - 1) * (S + 1) * sizeof(StepBlock));
            CHECK(many.measured.at("bytes") == want);
        }
    }
}

TEST_CASE("--sync async: one worker trains what one rank trains, bit for bit; 0 is --sync server") {
    for (const OptimizerKind optimizer : {OptimizerKind::kSgd, OptimizerKind::kAdamw}) {
        Config config = small_config();
        config.optimizer = optimizer;
        const Outcome one = train_in_threads(config, {1}, 5);
        config.sync = SyncKind::kAsync;
        const Outcome async = train_in_threads(config, {1}, 5);
        CHECK(async.weights == one.weights);
        CHECK(async.momentum == one.momentum);
        CHECK(async.measured.at("staleness_max") == 0);
        const Outcome dedicated = train_in_threads(config, {0, 1}, 5);  // rank 0 only serves
        CHECK(dedicated.weights == one.weights);
        CHECK(dedicated.momentum == one.momentum);
        config.staleness = 0, config.servers = 2;
        const Outcome zero = train_in_threads(config, {5, 3}, 5);
        config.sync = SyncKind::kServer;
        CHECK(train_in_threads(config, {5, 3}, 5).weights == zero.weights);
    }
}

TEST_CASE("--sync async: no rank is ever further ahead than K; none lets it run") {
    Config config = small_config();
    config.sync = SyncKind::kAsync;
    const int64_t steps = 7;
    for (const int servers : {1, 2})
        for (const int staleness : {1, 3, INT_MAX}) {
            config.servers = servers, config.staleness = staleness;
            CAPTURE(servers, staleness);
            const bool bound = staleness != INT_MAX;
            const int64_t most = bound ? staleness : steps - 3;
            // Rank 0 goes on after a step when rank 1 has done all that it may until then; rank 2
            // has its own pace.
            std::mutex mutex;
            std::condition_variable changed;
            int64_t begun_by_1 = 0;
            const Outcome outcome =
                train_in_threads(config, {2, 1, 1}, int(steps), [&](Rank& rank) {
                    std::unique_lock lock(mutex);
                    if (rank.communicator.rank() == 1) {
                        begun_by_1 = rank.at.step;
                        changed.notify_all();
                    } else if (rank.communicator.rank() == 0 && rank.at.step == 1) {
                        changed.wait(lock, [&] { return begun_by_1 > most + 1; });
                    }
                });
            const double ahead = outcome.measured.at("ahead_max");
            CHECK(ahead >= double(most));
            CHECK(ahead <= double(bound ? most : steps - 1));
            // Of updates by the two other ranks.
            CHECK(outcome.measured.at("staleness_max") <= 2 * (2 * ahead + 1));
            CHECK(outcome.measured.at("staleness_mean") <= outcome.measured.at("staleness_max"));
            CHECK(outcome.losses.back() > 0);  // the sums of all, at the end
            for (const float w : outcome.weights) REQUIRE(std::isfinite(w));
        }
}

// Rank 0's weights are then those of all stages: each is trained where it is, and nowhere else.
TEST_CASE("--sync pipeline: stages and several pipelines train what one rank trains") {
    const int steps = 5;
    const Outcome one = train_in_threads(small_config(), {1}, steps);
    struct Case {
        int stages, pipelines, pieces;
        const char* split;
    };
    for (const auto& [stages, pipelines, pieces, split] :
         {Case{2, 1, 4, "r"}, Case{2, 1, 4, "r.c2"}, Case{2, 1, 1, "fc1"},
          Case{3, 1, 8, "conv1,conv2"}, Case{4, 1, 40, "c1,r.c2,c3"}, Case{2, 2, 4, "c3"},
          Case{3, 2, 3, "c1,fc1"}, Case{2, 4, 2, "c1"}}) {
        Config config = small_config();
        config.pipeline = stages, config.micro = pieces;
        config.split = split;
        check_trains_the_same(config, std::vector<double>(size_t(stages * pipelines), 1), steps,
                              one);
    }
}

TEST_CASE("--sync pipeline on the CUDA kernels, and with bf16 between the stages" *
          doctest::test_suite("device")) {
    Config config = small_config();
    const Outcome one = train_in_threads(config, {1}, 3);
    config.pipeline = 2, config.micro = 4, config.split = "r.c2";
    config.wire = WireType::kBf16;
    CHECK_CLOSE(train_in_threads(config, {1, 1}, 3).losses, one.losses, 2e-2);
    config.wire = WireType::kFp32;
    config.device = kernel_device();
    const Outcome simt = train_in_threads(config, {1, 1}, 3);
    CHECK_CLOSE(simt.losses, one.losses, 2e-5);
    CHECK_CLOSE(simt.weights, one.weights, 2e-4);
}

TEST_CASE("a NaN on one rank keeps all from updating, and all name the step: servers, stages") {
    Config server = small_config(), stages = small_config();
    server.sync = SyncKind::kServer, server.servers = 2;
    stages.pipeline = 2, stages.micro = 4, stages.split = "r.c2";
    const struct {
        Config config;
        std::vector<double> shares;
        const char *spoils, *message;
    } cases[] = {
        {server, {1, 1, 1}, "c1.weight", "step 2: NaN or infinity in the"},
        // Rank 0, whose gradients are finite, or not by what came back, says what rank 1 found.
        {stages, {1, 1}, "c3.weight", "step 2: NaN or infinity in the gradient of "}};
    for (const auto& [config, shares, spoils, message] : cases) {
        CAPTURE(spoils);
        const auto spoil = [name = spoils](Rank& rank) {
            Params& params = rank.model.params();
            if (rank.communicator.rank() == 1 && rank.at.step == 2)
                params.weights[params.find(name)->offset] = NAN;
        };
        CHECK_THROWS_WITH(train_in_threads(config, shares, 5, spoil), doctest::Contains(message));
    }
}

TEST_CASE("stages: cut where the longest is shortest, never before a batch norm; by name") {
    const auto backend = make_backend("cpu", {.threads = 1});
    const Model model(kNet, {"net", 3, 16, 1, ""}, *backend);
    const std::vector<TopLayer>& outline = model.outline();
    REQUIRE(outline.size() == 11);
    CHECK(outline[2].name == "r.c2");
    std::vector<double> seconds(11, 1);
    CHECK(balanced_cuts(outline, seconds, 2) == std::vector<size_t>{0, 5});
    seconds[0] = 20;  // its batch norm stays with it
    CHECK(balanced_cuts(outline, seconds, 2) == std::vector<size_t>{0, 2});
    CHECK_FAILS(balanced_cuts(outline, seconds, 11), "--sync pipeline:11");
    CHECK(named_cuts("c1,conv2", outline, 3) == std::vector<size_t>{0, 2, 5});
    CHECK_FAILS(named_cuts("c9", outline, 2), "no such layer; there are c1, b1");
    CHECK_FAILS(named_cuts("c3,c1", outline, 3), "in the order of the model");
    CHECK_FAILS(named_cuts("fc", outline, 2), "leaves no layer");
    CHECK_FAILS(named_cuts("c1", outline, 3), "makes 2 stages, --sync pipeline:3");
    CHECK_FAILS(named_cuts("c1,", outline, 3), "a name is missing");
    const auto new_backend = [] { return make_backend("cpu", {.threads = 1}); };
    CHECK(time_layers(kNet, {"net", 3, 16, 1, ""}, new_backend, 4).size() == 11);
}

TEST_CASE("bytes on the wire are those of the formulas, as buckets and as factors") {
    Config config = small_config();
    const std::vector<double> shares = {1, 1, 1, 1};
    for (const FactorMode factors : {off, on}) {
        config.factors = factors;
        const Outcome three = train_in_threads(config, shares, 3);
        const auto backend = make_backend("cpu", {1});
        Model model(kNet, {"net", 3, 16, 1, ""}, *backend);
        Params& params = model.params();
        const auto choices = choose_factors(params, config.batch, {4}, factors);
        // fp32, all below 16 KB: recursive doubling sends everything log2(4) times, and a gather
        // too, of whose bytes a ring would send 3/4.
        double want = 2.0 * 4 * double(params.grads_size);
        for (const FactorChoice& choice : choices)
            if (choice.use) {
                const Shape w = choice.w->shape;
                want += choice.factor_bytes * 2 / 0.75;
                want -= 2.0 * 4 * double(w.elems() + size_t(w.N));
            }
        CAPTURE(factors);
        // Headers, and the padding between rows, beside it.
        CHECK(three.bytes_a_step >= want * 0.98);
        CHECK(three.bytes_a_step <= want * 1.02 + 24 * 64);
    }
}

TEST_CASE("top5 is told where it can be anything but 100 %") {
    const Sums sums{2, 3, 4, 8, 0};
    CHECK(quality_text(sums, 5) == "loss 0.2500  top1 37.50 %");
    CHECK(quality_text(sums, 6) == "loss 0.2500  top1 37.50 %  top5 50.00 %");
}

TEST_CASE("between two averages the step lines are about this rank alone, and say so") {
    TempDir folder;
    Quiet quiet;
    RunLog run_log(quiet.log, folder.path(), 0, /*log_every=*/2, 3);
    run_log.plan(1, 10, 10, 0, {});
    for (int step = 1; step <= 7; ++step) {
        const bool local = step != 5;  // as with --sync average:5
        const Sums own{4.0 * step, 2, 4, 4, 0}, all{30, 10, 40, 40, 0};
        run_log.step({0, 8 * step, step}, step, local ? own : all, local, 0.1, {});
    }
    const std::vector<std::string> lines = split(quiet.text(), '\n');
    REQUIRE(lines.size() == 4);  // the last is empty
    const char* want[] = {"step 2/10  loss 1.5000", "step 4/10  loss 3.5000",
                          "step 5/10  loss 0.7500"};
    for (size_t i = 0; i < 3; ++i) {
        CAPTURE(lines[i]);
        CHECK(contains(lines[i], want[i]));
        CHECK(contains(lines[i], "(this rank alone)") == (i < 2));
        CHECK(!contains(lines[i], " 0.0 img/s"));
    }
    const std::string events = read_file(folder / "log.jsonl");
    CHECK(contains(events, "\"event\":\"local_step\""));
    CHECK(contains(events, "\"images\":40"));
}

TEST_CASE("mixed and changed images train the same model on any number of ranks") {
    Config config = small_config();
    config.mixup = 0.4, config.cutmix = 1, config.erase = 0.5, config.translate = 2;
    config.jitter = "0.4:0.4:0.4:0.1", config.label_smoothing = 0.1;
    config.auto_augment = AutoAugment::randaugment, config.flip = Flip::alternating;
    const Outcome one = train_in_threads(config, {1}, 4);
    CHECK(one.losses != train_in_threads(small_config(), {1}, 4).losses);
    for (const std::vector<double>& shares : {std::vector<double>{1, 1}, {5, 3, 2, 0}})
        check_trains_the_same(config, shares, 4, one);
}

TEST_CASE("the loss of a step counts both labels of a mixed image by their parts") {
    Config config = small_config();
    const auto alone = std::make_unique<Communicator>();
    const auto loss = [&](int32_t first, int32_t second, float part) {
        Rank rank(config, *alone, {1});
        rank.loader->start(0, 0);
        Batch batch = *rank.loader->next();
        std::ranges::fill(batch.labels, first);
        if (second >= 0) {
            batch.second_labels.assign(batch.labels.size(), second);
            batch.first_parts.assign(batch.labels.size(), part);
        }
        return rank.trainer->step(batch, rank.at, 0.05).sums.mean_loss();
    };
    CHECK(loss(0, 2, 0.25f) == doctest::Approx(0.25 * loss(0, -1, 1) + 0.75 * loss(2, -1, 1)));
    CHECK(loss(1, 2, 1) == loss(1, -1, 1));
}

TEST_CASE("sixteen images are learnt by heart") {
    Config config = small_config();
    config.generated = 24;
    config.batch = 20;
    config.threads = 2;
    const auto alone = std::make_unique<Communicator>();
    Rank rank(config, *alone, {1});
    Preprocess how;
    how.size = 16, how.augment = Augment::none;
    LoaderOptions options;
    options.batch = 20, options.shares = {1};
    std::vector<float*> slots = {rank.backend->alloc_host(20 * 16 * 16 * 3)};
    Loader plain(rank.data.train, how, options, slots);
    plain.start(0, 0);
    Batch batch = *plain.next();
    batch.n = 16;
    batch.labels.resize(16), batch.samples.resize(16), batch.positions.resize(16);
    double loss = 1e9;
    for (int step = 0; step < 400 && loss >= 0.01; ++step)
        loss = rank.trainer->step(batch, {0, 0, step}, 0.05).sums.mean_loss();
    CHECK(loss < 0.01);
}

TEST_CASE("eval --tta: the mean logits of an image and its moved and mirrored images") {
    Config config = small_config();
    const auto alone = std::make_unique<Communicator>();
    Rank rank(config, *alone, {1});
    rank.train(2);
    LoaderOptions options;
    options.batch = 8, options.shares = {1}, options.training = false;
    Loader loader(rank.data.train, training_preprocess(config, 16), options,
                  {rank.backend->alloc_host(8 * 16 * 16 * 3)});
    Evaluator evaluator(rank.model, *rank.backend, *alone, [] { return 0; });
    std::vector<std::vector<float>> images, logits;
    std::vector<int32_t> labels;
    evaluator.run(loader, 0, [&](const Batch& batch, Tensor) {
        images.emplace_back(batch.x, batch.x + size_t(batch.n) * 16 * 16 * 3);
        labels.insert(labels.end(), batch.labels.begin(), batch.labels.end());
    });
    Pass evaluation;
    evaluation.training = false;
    const auto logits_of = [&](const std::vector<float>& batch) {
        const Shape shape{int(batch.size() / (16 * 16 * 3)), 16, 16, 3};
        float* const x = rank.backend->alloc(shape.elems());
        rank.backend->upload(x, batch.data(), batch.size() * sizeof(float));
        const Tensor y = rank.model.forward(Tensor(x, shape), evaluation);
        return rank.read(y.floats(), y.elems());
    };
    // out(h, w) = in(h − move, w − move), mirrored at the edges, then columns from right to left.
    const auto seen = [](const std::vector<float>& in, bool flip, int move) {
        const auto inside = [](int i) { return i < 0 ? -i : i > 15 ? 30 - i : i; };
        std::vector<float> out(in.size());
        for (int i = 0; i < int(in.size()); ++i) {
            const int c = i % 3, w = i / 3 % 16, h = i / 48 % 16, n = i / 768;
            const int from = flip ? 15 - inside(w - move) : inside(w - move);
            out[size_t(i)] = in[size_t(((n * 16 + inside(h - move)) * 16 + from) * 3 + c)];
        }
        return out;
    };
    struct Seen {
        bool flip;
        int move;
        double part;
    };
    for (const auto& [tta, views] :
         {std::pair{Tta::kFlip, std::vector<Seen>{{false, 0, 0.5}, {true, 0, 0.5}}},
          std::pair{Tta::kShift, std::vector<Seen>{{false, 0, 0.25},
                                                   {true, 0, 0.25},
                                                   {false, 1, 0.125},
                                                   {true, 1, 0.125},
                                                   {false, -1, 0.125},
                                                   {true, -1, 0.125}}}}) {
        size_t at = 0, image = 0;
        double loss = 0;
        const Sums sums = evaluator.run(
            loader, 0,
            [&](const Batch& batch, Tensor got) {
                const std::vector<float> values = rank.read(got.floats(), got.elems());
                std::vector<double> want(values.size());
                for (const Seen& view : views) {
                    const std::vector<float> of_view =
                        logits_of(seen(images[at], view.flip, view.move));
                    for (size_t i = 0; i < want.size(); ++i)
                        want[i] += view.part * double(of_view[i]);
                }
                ++at;
                for (size_t i = 0; i < want.size(); ++i)
                    CHECK(std::abs(want[i] - double(values[i])) < 1e-5);
                for (int n = 0; n < batch.n; ++n, ++image) {
                    double all = 0;
                    for (int c = 0; c < 3; ++c) all += std::exp(want[size_t(n * 3 + c)]);
                    loss += std::log(all) - want[size_t(n * 3 + labels[image])];
                }
            },
            nullptr, tta);
        CHECK(image == rank.data.train->size());
        CHECK(std::abs(sums.mean_loss() - loss / double(image)) < 1e-5);
    }
}

TEST_CASE("a run that stops, is saved and goes on ends with the same bits") {
    Config config = small_config();
    config.ema = 0.9, config.clip_norm = 1;
    const auto alone = std::make_unique<Communicator>();
    Rank whole(config, *alone, {1});
    whole.train(6);

    Rank first(config, *alone, {1});
    first.train(3);  // in the middle of the second epoch
    CHECK(first.at.consumed > 0);
    const auto second = resumed(first);
    second->train(3);
    CHECK(second->weights() == whole.weights());
    second->optimizer->swap_average(), whole.optimizer->swap_average();
    CHECK(second->weights() == whole.weights());
    CHECK(second->losses == std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
}

TEST_CASE("a step with a NaN leaves weights, statistics and optimizer as they were" *
          doctest::test_suite("device")) {
    Config config = small_config();
    config.batch = 4;
    const auto alone = std::make_unique<Communicator>();
    using Case = std::tuple<std::string, const char*, const char*, std::string>;
    for (const auto& [device, graph, optimizer, what] :
         {Case{"cpu", "off", "adamw", "gradient of c1.weight"},
          Case{kernel_device(), "off", "sgd", "statistics of b1.running_var"},
          Case{kernel_device(), "on", "adamw", "gradient of c1.weight"}}) {
        config.device = device;
        set_option(config, "graph", graph);
        set_option(config, "optimizer", optimizer);
        CAPTURE(device, graph);
        Rank rank(config, *alone, {1});
        rank.train(3);  // with a graph the fourth is a replay
        Batch* batch = rank.loader->next();
        const bool overflow = what[0] == 's';  // 1e30² in the variance
        const float bad = overflow ? 1e30f : NAN;
        rank.backend->upload(
            rank.model.params().find(overflow ? "c1.weight" : "fc.weight")->value.data, &bad,
            sizeof bad);
        const auto all = [&] {
            std::vector<float> values = rank.weights();
            for (const float* state : rank.optimizer->state()) {
                const auto more = rank.read(state, rank.model.params().trained_size);
                values.insert(values.end(), more.begin(), more.end());
            }
            return values;
        };
        const std::vector<float> before = all();
        const std::string message = "step 3: NaN or infinity in the " + what;
        CHECK_FAILS(rank.trainer->step(*batch, rank.at, 0.1), message);
        const std::vector<float> after = all();
        CHECK(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)) == 0);
        CHECK(rank.optimizer->steps_done == 3);
    }
}

TEST_CASE("a recorded step trains as one that runs op by op: the same bits, whatever changes" *
          doctest::test_suite("device")) {
    Config config = small_config();
    config.device = kernel_device();
    config.generated = 24, config.batch = 3;  // 20 to train on: six steps of 3 and one of 2
    const int all = 9;
    const auto alone = std::make_unique<Communicator>();
    for (const char* optimizer : {"sgd", "adamw"}) {
        set_option(config, "optimizer", optimizer);
        const bool all_options = optimizer == std::string("adamw");
        config.accumulate = all_options ? 2 : 1;
        config.clip_norm = all_options ? 0.5 : 0;
        config.ema = all_options ? 0.8 : 0;
        const auto trained = [&](const char* graph, int steps, bool in_two_runs) {
            set_option(config, "graph", graph);
            auto rank = std::make_unique<Rank>(config, *alone, std::vector<double>{1});
            rank->lr_drop = 0.004;
            rank->ahead = graph == std::string("on");
            rank->train(steps);
            if (!in_two_runs) return rank;
            auto rest = resumed(*rank);
            rest->lr_drop = rank->lr_drop;
            rest->train(all - steps);
            rest->losses.insert(rest->losses.begin(), rank->losses.begin(), rank->losses.end());
            return rest;
        };
        const auto plain = trained("off", all, false);
        CAPTURE(optimizer);
        CHECK(plain->losses.size() == all);
        if (config.optimizer == OptimizerKind::kSgd) {
            const auto graph = trained("on", all, false);
            CHECK(graph->losses == plain->losses);
            CHECK(graph->weights() == plain->weights());
        }
        const auto resumed = trained("on", 3, true);
        CHECK(resumed->losses == plain->losses);
        CHECK(resumed->weights() == plain->weights());
    }
}

TEST_CASE("ranks with SIGTERM leave once one of them asks for it, if any are left") {
    const auto agreed = [](std::vector<int> requests, bool elastic = true) {
        Counters sums = {};
        for (const int request : requests) {
            Counters own;
            set_counters(own, {}, request);
            for (int i = 0; i < StepCounters::kSize; ++i) sums[i] += own[i];
        }
        return agreed_request(sums, int(requests.size()), elastic);
    };
    constexpr int kLeave = SIGTERM + kNewRing;
    CHECK(agreed({0, 0, 0}) == 0);
    CHECK(agreed({0, SIGTERM, 0}) == 0);  // the others may get it too
    CHECK(agreed({0, kLeave, 0}) == kNewRing);
    CHECK(agreed({SIGTERM, kLeave, 0}) == kNewRing);
    CHECK(agreed({SIGTERM, SIGTERM, SIGTERM}) == SIGTERM);
    CHECK(agreed({0, SIGTERM, 0}, false) == SIGTERM);
    CHECK(agreed({0, kLeave, SIGINT}) == SIGINT);
    CHECK(agreed({SIGTERM}) == SIGTERM);
}

TEST_CASE("batch norm groups are cut from the global slice") {
    using Bounds = std::vector<int>;
    const auto bounds_of = [](std::vector<int32_t> positions, int64_t batch, int group) {
        Bounds bounds;
        group_bounds(positions, batch, group, bounds);
        return bounds;
    };
    CHECK(bounds_of({0, 1, 2, 3, 4, 5, 6, 7}, 8, 4) == Bounds{0, 4, 8});
    // a share that begins in the middle of a group
    CHECK(bounds_of({6, 7, 8, 9}, 12, 4) == Bounds{0, 2, 4});
    CHECK(bounds_of({0, 1, 5, 6}, 8, 4) == Bounds{0, 2, 4});  // images 2 to 4 did not decode
    CHECK(bounds_of({4, 5, 6}, 8, 0) == Bounds{0, 3});
    CHECK(bounds_of({}, 8, 4) == Bounds{0, 0});
    CHECK_THROWS_AS(bounds_of({4, 5, 6}, 6, 4), Error);
}

TEST_CASE("a batch of 33 is trained in groups of 17 and 16, on one rank, on two and in pieces") {
    Config config = small_config();
    config.batch = 33, config.bn_group = 32;
    const Outcome one = train_in_threads(config, {1}, 2);
    check_trains_the_same(config, {17, 16}, 2, one);
    config.accumulate = 2;
    check_trains_the_same(config, {1}, 2, one);
}

TEST_CASE("batch norm groups are nearly equal") {
    constexpr int kGroup = 32;
    for (const int batch : {1, 31, 32, 33, 64, 65, 97, 129, 200}) {
        CAPTURE(batch);
        const int groups = (batch + kGroup - 1) / kGroup;
        std::vector<int> sizes(size_t(groups), 0);
        for (int i = 0; i < batch; ++i) ++sizes.at(size_t(part_of(i, batch, kGroup)));
        CHECK(*std::ranges::max_element(sizes) <= kGroup);
        CHECK(*std::ranges::max_element(sizes) - *std::ranges::min_element(sizes) <= 1);
        if (batch == 33) CHECK(sizes == std::vector<int>{17, 16});
    }
}
