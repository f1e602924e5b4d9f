// job_setup.cpp — see job_setup.h.
#include "src/job/job_setup.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data/order.h"
#include "data/storage.h"
#include "src/base/check.h"
#include "src/base/number.h"
#include "src/base/random.h"
#include "src/base/text.h"
#include "src/job/device_choice.h"
#include "src/job/exchange.h"
#include "src/train/pipeline.h"
#include "src/train/server_sync.h"
#include "src/train/stages.h"
#include "src/train/weight_average.h"

namespace convoy {

using nlohmann::json;

// --generated.
static void take_generated(DataOptions& options, const std::string& text) {
    if (text.starts_with("music"))
        fail(
            "--generated makes no music: `make spectrograms && ./spectrograms --music OUT` does; "
            "then --data OUT --val-split 0.17 --augment resize --flip off");
    options.generated = to_number<int>(text).value_or(0);
    if (options.generated < 24 || options.generated > 1'000'000)
        fail("--generated cannot be '", text, "': it takes a number of images from 24 to 1000000");
}

DataOptions data_options(const Config& config, const std::vector<std::string>& classes) {
    DataOptions options;
    options.train = config.data;
    options.val = config.val;
    options.val_split = float(config.val_split);
    options.classes = classes;
    if (classes.empty() && !config.classes.empty()) options.classes = split(config.classes, ',');
    take_generated(options, config.generated);
    options.seed = uint64_t(config.seed);
    options.label_offset = config.label_offset;
    if (config.cache.empty() && config.cache_size.bytes != Config{}.cache_size.bytes)
        fail("--cache-size bounds what --cache DIR may hold: give that too");
    options.cache = config.cache;
    options.cache_bytes = config.cache_size.bytes;
    options.threads = config.decode_threads > 0 ? config.decode_threads : available_cpus();
    options.window = parse_shuffle(config.shuffle);
    if (!config.samples.empty()) {
        const std::vector<std::string> counts = split(config.samples, ':');
        const auto number = [&](size_t i) -> uint32_t {
            if (i >= counts.size()) return 0;
            if (const uint32_t n = to_number<uint32_t>(counts[i]).value_or(0)) return n;
            fail("--samples cannot be '", counts[i],
                 "': it is an epoch's number of images, or N:M");
        };
        options.samples = number(0), options.val_samples = number(1);
    }
    options.part = config.shards == ShardMode::kMine;
    if (config.shards != ShardMode::kAll && config.data.empty())
        fail("--shards ", get_option(config, "shards"),
             " needs --data: every rank can draw the whole generated set");
    return options;
}

std::map<std::string, std::string> public_settings(const Config& config) {
    std::map<std::string, std::string> settings = job_settings(config, kTrain);
    for (const char* name : {"data", "val"}) settings[name] = public_name(settings[name]);
    return settings;
}

ModelOptions model_options(const Config& config, int classes) {
    return {config.model, classes, config.size, uint64_t(config.seed), config.freeze};
}

Preprocess training_preprocess(const Config& config, InputSize size) {
    Preprocess how(size);
    how.augment = config.augment;
    how.seed = uint64_t(config.seed);
    how.changes = {config.flip,         config.translate, parse_jitter(config.jitter),
                   config.auto_augment, config.erase,     config.mixup,
                   config.cutmix};
    if (config.translate >= std::min(size.H, size.W))
        fail("--translate ", config.translate, " is too far for images of ", size.H, "x", size.W,
             ": it must be less than their height and width");
    if (config.flip == Flip::alternating && config.augment == Augment::none)
        fail("--flip alternating mirrors nothing with --augment none: leave one of them out");
    return how;
}

LoaderOptions loader_options(const Config& config, const std::vector<double>& shares, int rank) {
    return {.batch = config.batch,
            .shares = shares,
            .rank = rank,
            .threads = decode_threads(config),
            .max_pixels = config.max_pixels,
            .fast = config.decode == DecodeMode::kFast,
            .window = parse_shuffle(config.shuffle)};
}

// The options that a checkpoint fixes: with another value it would be another run.
static void refuse_on_resume(const std::string& name, const std::string& was,
                             const std::string& now) {
    if (name == "init") fail("--init and --resume cannot both say where the weights come from");
    for (const char* bound : {"model", "size", "classes", "generated", "val-split", "seed",
                              "bn-group", "optimizer", "freeze", "freeze-epochs", "ema"})
        if (name == bound && was != now)
            fail("--", name, " was ", was.empty() ? "not given" : was,
                 " in the run to resume and cannot become ", now,
                 "; `--init` starts a new run from its weights");
}

static void check_sync(const Config& config) {
    const auto is_given = [&](const char* name) {
        return get_option(config, name) != get_option({}, name);
    };
    const bool outer = config.outer != OuterKind::kOff, serves = config.sync != SyncKind::kRing;
    if (outer && config.sync_every == 1 && !serves)
        fail("--outer ", get_option(config, "outer"),
             " works on averages: it needs --sync-every above 1, such as --sync-every 50");
    for (const char* name : {"outer-lr", "outer-momentum"})
        if (!outer && is_given(name))
            fail("--", name, " has no effect without --outer sgd or nesterov");
    (void)AverageOptions(config);
    (void)parse_staleness(config.staleness);
    if (!serves && is_given("servers"))
        fail("--servers has no effect without --sync server or async");
    if (config.sync != SyncKind::kAsync && is_given("staleness"))
        fail("--staleness has no effect without --sync async");
    if (!serves) return;
    if (is_given("clip-norm"))
        fail("--clip-norm does not go with --sync ", get_option(config, "sync"),
             ", where a server sees a part of the gradient: use --sync ring, or leave it out");
    for (const char* name : {"sync-every", "outer", "wire", "factors"})
        if (is_given(name))
            fail("--", name, " ", get_option(config, name), " does not go with --sync ",
                 get_option(config, "sync"), ", which sends every gradient as it is: leave it out");
}

static void check_pipeline(const Config& config) {
    const auto is_given = [&](const char* name) {
        return get_option(config, name) != get_option({}, name);
    };
    const bool on = config.pipeline > 1;
    for (const char* name : {"micro", "pipeline-order", "recompute", "split"})
        if (!on && is_given(name)) fail("--", name, " has no effect without --pipeline 2 or more");
    for (const char* name :
         {"sync", "sync-every", "factors", "share", "shards", "accumulate", "replicas"})
        if (on && is_given(name))
            fail(
                "--", name, " ", get_option(config, name),
                " does not go with --pipeline, where ranks hold parts of the model: leave one out");
}

static void check_loop(Config& config) {
    const bool in_pieces = config.accumulate > 1 || config.replicas > 1;
    if (in_pieces && config.factors == FactorMode::kOn)
        fail("--factors on does not go with --", config.accumulate > 1 ? "accumulate" : "replicas",
             ": factors are those of a whole batch; leave one out");
    if (config.schedule == Schedule::kOneCycle && config.warmup != Config{}.warmup)
        fail("--warmup has no effect with --schedule onecycle, which rises for 30 % of the run");
    if (config.schedule == Schedule::kRange && !config.resume.empty())
        fail("--schedule range begins anew each time: leave out --resume");
    if (config.schedule == Schedule::kRange && config.warmup != Config{}.warmup)
        fail("--warmup has no effect with --schedule range, whose rate rises all the time");
    const bool by_tensor =
        config.optimizer != OptimizerKind::kSgd && config.optimizer != OptimizerKind::kAdamw;
    if (by_tensor && config.sync != SyncKind::kRing)
        fail("--optimizer ", get_option(config, "optimizer"), " does not go with --sync ",
             get_option(config, "sync"),
             ", where a server may hold a part of a tensor: use sgd or "
             "adamw, or --sync ring");
    if (config.freeze_epochs > 0 && (config.sync != SyncKind::kRing || config.pipeline > 1))
        fail(
            "--freeze-epochs builds the model anew, which --sync server, --sync async and "
            "--pipeline cannot: --freeze-epochs 0 leaves it out; --freeze goes with all of them");
    if (config.freeze_epochs > 0 && config.lr == 0)
        fail("--freeze-epochs needs --lr: the usual rate is one for training from scratch");
    for (const char* name : {"alone", "min-world"})
        if (config.elastic == Toggle::kOff && get_option(config, name) != get_option({}, name))
            fail("--", name, " has no effect with --elastic off, where a lost rank ends the job");
    if (in_pieces) config.factors = FactorMode::kOff;
}

// Rank 0's decisions. Later ones win: defaults, the checkpoint's options, its user's.
static void decide(JobSetup& setup) {
    const CommandLine& line = setup.job.line;
    Config& config = setup.config;
    // What restarts a job by itself always gives both; its first start finds nothing to resume.
    if (config.resume == config.out && list_checkpoints(config.out).empty()) config.resume = "";
    if (!config.resume.empty()) {
        setup.resumed = load_checkpoint(config.resume, setup.job.log);
        // Not part of what was trained; older versions wrote megabytes.
        setup.resumed->meta.settings.erase("bucket");
        // Which ranks a job can lose is decided before it begins, so by the command line.
        for (const char* name :
             {"sync", "servers", "staleness", "pipeline", "micro", "pipeline-order", "split"})
            setup.resumed->meta.settings.erase(name);
        apply_settings(config, setup.resumed->meta.settings);
        if (line.given.contains("data")) config.val = "";
        for (const auto& [name, who] : line.given) {
            const std::string value = get_option(line.config, name), was = get_option(config, name);
            refuse_on_resume(name, was, value);
            if ((find_option(name)->flags & kJob) && was != value)
                setup.job.log.notice("--", name, " was ", was, " in the checkpoint and is ", value,
                                     " from here on");
            set_option(config, name, value);
        }
        const ModelCard card =
            card_from_metadata(setup.resumed->model.metadata, setup.resumed->folder);
        setup.model_text = card.model_text;
        setup.classes = card.classes;
    } else {
        setup.model_text = model_text(config.model);
    }
    if (config.size.H == 0) config.size = model_input_size(setup.model_text);
    setup.fresh = !setup.resumed && config.init.empty();
    (void)training_preprocess(config, config.size);  // throws where it would do so later
    check_sync(config);
    check_pipeline(config);
    check_loop(config);
}

Shares gather_shares(Communicator& communicator, const std::string& mine, Log& log) {
    std::vector<std::string> each = allgather_text(communicator, mine);
    const int world = communicator.world();
    const auto for_all = [](const std::string& text) {
        return text == "auto" || text.find(':') != std::string::npos;
    };
    if (for_all(each[0])) {
        if (!mine.empty() && mine != each[0])
            log.notice("--share ", mine, " has no effect: rank 0 says --share ", each[0],
                       " for all ranks");
        if (each[0] == "auto") return {std::vector<double>(size_t(world), 1.0), true};
        return {parse_shares(each[0], world), false};
    }
    for (size_t rank = 0; rank < each.size(); ++rank) {
        if (for_all(each[rank]))
            fail("rank ", rank, " says --share ", each[rank],
                 ", rank 0 does not; it is rank 0 that says it for all, another rank gives one "
                 "weight, its own");
        if (each[rank].empty()) each[rank] = "1";
    }
    return {parse_shares(join_text(each, ":"), world), false};
}

static JobData fingerprints(const DataSet& data) {
    return {fmt::format("{:016x}", data.train->fingerprint()),
            data.val ? fmt::format("{:016x}", data.val->fingerprint()) : "", data.description};
}

Offer make_offer(const JobSetup& setup, size_t bucket_bytes) {
    return {job_settings(setup.config, kTrain),
            {setup.model_text, setup.classes, setup.fresh},
            fingerprints(setup.data),
            bucket_bytes,
            setup.shares.speed};
}

void compare_data(JobSession& job, const DataSet& data) {
    const JobData mine = fingerprints(data);
    std::vector<JobData> all;
    if (job.is_newcomer())
        all = {job.offer().data, mine};
    else
        for (const json& one : gather_json(job.communicator(), mine)) all.push_back(one);
    for (size_t rank = 1; rank < all.size(); ++rank)
        if (all[rank].train != all[0].train || all[rank].val != all[0].val)
            fail(job.is_newcomer() ? "this rank" : cat("rank ", rank),
                 " sees other images than rank 0: ", all[rank].description, " against ",
                 all[0].description, "; names, sizes and classes must be the same on all ranks");
}

static void open_set(JobSetup& setup) {
    DataOptions options = data_options(setup.config, setup.classes);
    options.stop = setup.job.stop;
    setup.data = open_data(options, setup.job.log);
    if (setup.config.shards != ShardMode::kMine) setup.classes = setup.data.train->classes();
}

// The classes of all parts: sorted, unless all parts have the same ones already.
static std::vector<std::string> united(const std::vector<json>& parts) {
    auto all = parts[0].get<std::vector<std::string>>();
    if (std::ranges::count(parts, parts[0]) == std::ssize(parts)) return all;
    for (const json& part : parts)
        for (const std::string name : part) all.push_back(name);
    const bool numbers = std::ranges::all_of(all, [](const std::string& name) {
        return name.find_first_not_of("0123456789") == std::string::npos;
    });
    std::ranges::sort(all, [&](const std::string& a, const std::string& b) {
        return numbers && a.size() != b.size() ? a.size() < b.size() : a < b;
    });
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
}

// Stands for the sizes of a source's shards, by which --shuffle window=N orders it.
static std::string sizes_text(const Source& source) {
    return fmt::format("{:016x}", hash_bytes(join_text(source.shard_sizes(), ":")));
}

// --shards mine: unites the ranks' classes and counts their images. Collective.
static void join_parts(JobSetup& setup) {
    JobSession& job = setup.job;
    setup.classes = united(gather_json(job.communicator(), setup.data.train->classes()));
    if (setup.classes.size() < 2)
        fail("only one class, '", setup.classes[0],
             "', in the data of all ranks: a classifier needs two or more");
    if (setup.classes != setup.data.train->classes()) {
        Log told_already;
        told_already.set_quiet(true);
        setup.data = open_data(data_options(job.config, setup.classes), told_already);
    }
    const auto& [train, val, _] = setup.data;
    const json mine = {train->size(), val ? int64_t(val->size()) : -1,
                       fmt::format("{:016x}", train->fingerprint()), sizes_text(*train)};
    setup.fingerprint = hash_bytes("parts");
    for (const json& part : gather_json(job.communicator(), mine)) {
        setup.train_parts.push_back(part[0]);
        setup.val_parts.push_back(part[1]);
        setup.fingerprint = hash_bytes(part.dump(), setup.fingerprint);
    }
    setup.shares.weights.assign(setup.train_parts.begin(), setup.train_parts.end());
    const int64_t all = std::accumulate(setup.train_parts.begin(), setup.train_parts.end(), 0l);
    setup.data.description += cat("; ", all, " for training on all ranks together");
    const auto lacks = std::ranges::find(setup.val_parts, -1);
    if (lacks == setup.val_parts.end()) return;
    if (std::ranges::count(setup.val_parts, -1) != job.world())
        fail("rank ", lacks - setup.val_parts.begin(),
             " has no validation images, other ranks have: with --shards mine give each rank its "
             "part of them, by --val or --val-split");
    setup.val_parts.clear();
}

// --pipeline: rank 0 finds out where to cut the model. Collective.
static void cut_stages(JobSetup& setup) {
    const Config& config = setup.config;
    const int stages = config.pipeline, world = setup.world();
    if (world % stages != 0)
        fail("--pipeline ", stages, " needs as many ranks, or a multiple of them; this job has ",
             world);
    json found;
    if (setup.rank() == 0) {
        const StagePlan plan = plan_stages(
            setup.model_text, model_options(config, int(setup.classes.size())),
            [&] { return make_backend(config); }, config.split, {config}, world / stages);
        const std::string text = cat(plan.text, ", ", get_option(config, "pipeline-order"),
                                     fmt::format(": at best {:.0f} % of {} times one rank's speed",
                                                 100 * plan.efficiency, stages));
        found = {{"cuts", plan.cuts}, {"text", text}};
    }
    found = broadcast_json(setup.communicator(), found);
    setup.cuts = found["cuts"].get<std::vector<size_t>>();
    setup.stages_text = found["text"];
}

JobSetup set_up_job(JobSession& job) {
    JobSetup setup{job};
    if (job.rank() == 0) decide(setup);
    job.take_settings_of_rank0();
    const ShardMode shards = job.config.shards;
    const bool opens_first = job.rank() == 0 && shards == ShardMode::kAll;
    if (opens_first) open_set(setup);
    const JobModel mine{setup.model_text, setup.classes, setup.fresh};
    const JobModel model =
        job.is_newcomer() ? job.offer().model : JobModel(broadcast_json(job.communicator(), mine));
    setup.model_text = model.text, setup.classes = model.classes, setup.fresh = model.fresh;
    if (!opens_first) open_set(setup);
    if (setup.data.train->is_stream()) {
        if (job.world() > 1 && shards != ShardMode::kMine)
            fail("a pipe is read once: each rank needs one of its own, with --shards mine");
        if (job.config.shuffle == "full") job.config.shuffle = cat("window=", kPipeWindow);
    }
    setup.order = "feistel " + job.config.shuffle;
    if (shards == ShardMode::kMine) {
        if (!job.config.share.empty())
            fail("--share does not go with --shards mine, where a rank trains the images it holds");
        join_parts(setup);
        setup.order += fmt::format(" mine {:016x}", setup.fingerprint);
    } else {
        compare_data(job, setup.data);
        setup.fingerprint = setup.data.train->fingerprint();
        if (parse_shuffle(job.config.shuffle) > 0)
            setup.order += " of shards " + sizes_text(*setup.data.train);
        if (job.is_newcomer()) {
            setup.shares.weights.assign(size_t(job.world()), 1);
            setup.shares.speed = job.offer().speed;
            if (!job.config.share.empty())
                setup.shares.newcomer = parse_shares(job.config.share, 1)[0];
        } else
            setup.shares = gather_shares(job.communicator(), job.config.share, job.log);
    }
    choose_device(job);
    if (job.config.servers > job.world())
        fail("--servers ", job.config.servers,
             " are more than the ranks of the job: ", job.world());
    const int replicas = std::max(1, job.world() / job.config.pipeline);
    if (job.config.batch < replicas)
        fail("--batch ", job.config.batch, " cannot be divided among ", replicas,
             job.config.pipeline > 1 ? " pipelines:"
                                     : " ranks: it counts the images of a step over all ranks");
    if (job.config.pipeline > 1) cut_stages(setup);
    return setup;
}

}  // namespace convoy
