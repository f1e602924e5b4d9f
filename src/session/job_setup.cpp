#include "src/session/job_setup.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data/order.h"
#include "data/sources/storage.h"
#include "src/base/random.h"
#include "src/base/text.h"
#include "src/checkpoint/torch_file.h"
#include "src/checkpoint/weights.h"
#include "src/model/model_text.h"
#include "src/session/device_choice.h"
#include "src/session/rank_json.h"
#include "src/step/stages.h"

namespace convoy {
using nlohmann::json;

DataOptions data_options(const Config& config, const std::vector<std::string>& classes) {
    DataOptions options;
    options.train = config.data;
    options.val = config.val;
    options.val_split = float(config.val_split);
    options.classes = classes;
    if (classes.empty() && !config.classes.empty()) options.classes = split(config.classes, ',');
    options.generated = config.generated;
    options.seed = uint64_t(config.seed);
    options.label_offset = config.label_offset;
    options.remote.cache = config.cache;
    options.remote.cache_bytes = config.cache_size.bytes;
    options.threads = config.decode_threads > 0 ? config.decode_threads : available_cpus();
    options.part = config.shards == ShardMode::kMine;
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

Preprocess training_preprocess(const Config& config, InputSize size,
                               const InputStatistics& statistics) {
    Preprocess how(size, statistics);
    how.augment = config.augment;
    how.seed = uint64_t(config.seed);
    how.changes = {config.flip,         config.translate, parse_jitter(config.jitter),
                   config.auto_augment, config.erase,     config.mixup,
                   config.cutmix};
    if (config.translate >= std::min(size.H, size.W))
        fail("--augment translate=", config.translate, " is too far for images of ", size.H, "x",
             size.W, ": it must be less than their height and width");
    return how;
}

LoaderOptions loader_options(const Config& config, const std::vector<double>& shares, int rank) {
    const int stages = config.pipeline, half = std::max(1, available_cpus() / 2);
    return {.batch = config.batch,
            .shares = stages == 1 ? shares : std::vector<double>(shares.size() / size_t(stages), 1),
            .rank = rank / stages,
            .threads = config.decode_threads > 0 ? config.decode_threads : half,
            .pixels = rank % stages == 0,
            .window = parse_shuffle(config.shuffle)};
}

// --init without --model: the default network takes no weights of another one.
static void check_init(const Config& config) {
    Log unheard(nullptr);
    std::string found;
    try {
        const SafeTensors weights = read_weights(config.init, unheard);
        found = recognised_model(weights, config.init, *make_backend("cpu"));
    } catch (const Error&) {
        return;  // import_weights() says what does not fit
    }
    if (found != config.model)
        fail("--init ", config.init, " holds weights of ", found, ": add --model ", found);
}

// Rank 0's decisions. Later ones win: defaults, the checkpoint's options, its user's.
static void decide(JobSetup& setup) {
    const CommandLine& line = setup.job.line;
    Config& config = setup.config;
    // What restarts a job by itself always gives both; its first start finds nothing to resume.
    if (config.resume == config.out && list_checkpoints(config.out).empty()) config.resume = "";
    if (!config.resume.empty()) {
        setup.resumed = load_checkpoint(config.resume, setup.job.log);
        // Which ranks a job can lose is decided before it begins, so by the command line.
        auto settings = setup.resumed->meta.settings;
        const std::string& sync = settings["sync"];
        if (!sync.starts_with("average") && !sync.starts_with("diloco")) settings.erase("sync");
        settings.erase("split");
        apply_settings(config, settings);
        if (line.given.contains("data")) config.val = "";
        for (const auto& [name, who] : line.given) {
            const std::string value = get_option(line.config, name), was = get_option(config, name);
            const unsigned flags = was == value ? 0 : find_option(name)->flags;
            if (flags & kFixed)
                fail("--", name, " was ", was.empty() ? "not given" : was,
                     " in the run to resume and cannot become ", value,
                     "; `--init` starts a new run from its weights");
            if (flags & kJob)
                setup.job.log.notice("--", name, " was ", was, " in the checkpoint and is ", value,
                                     " from here on");
            set_option(config, name, value);
            if (who == "--epochs") config.steps = 0;  // a given --steps follows
        }
        const ModelCard card =
            card_from_metadata(setup.resumed->model.metadata, setup.resumed->folder);
        setup.model.text = card.model_text;
        setup.model.classes = card.classes;
    } else {
        if (!config.init.empty() && config.model == Config().model) check_init(config);
        setup.model.text = model_text(config.model);
    }
    const ModelText model = parse_model(setup.model.text, config.model);
    if (config.size.H == 0) config.size = model.input;
    const bool whitens =
        !model.layers.empty() && model.layers.front().init == LayerText::InitRule::kWhiten;
    setup.model.fresh = !setup.resumed && config.init.empty() && !whitens;
    // These throw where they would do so later.
    (void)training_preprocess(config, config.size), (void)parse_shuffle(config.shuffle);
    check_rules(config, kTrain, line.given);
    if (config.accumulate > 1 || config.replicas > 1) config.factors = FactorMode::kOff;
}

Shares gather_shares(Communicator& communicator, const std::string& mine, Log& log) {
    std::vector<std::string> each = gather_lists(communicator, mine);
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

Offer make_offer(const JobSetup& setup) {
    return {job_settings(setup.config, kTrain), setup.model, fingerprints(setup.data),
            setup.bucket_bytes, setup.shares.speed};
}

// The images of this rank are at fault, so the others continue without it.
[[noreturn]] static void leave(JobSession& job, const std::string& why) {
    job.communicator().fail_alone(why);
    fail(why);
}

void compare_data(JobSession& job, const DataSet& data) {
    const JobData mine = fingerprints(data);
    std::vector<JobData> all;
    if (job.is_newcomer())
        all = {job.offer().data, mine};
    else
        for (const json& one : gather_json(job.communicator(), mine)) all.push_back(one);
    const auto differs = [&](const JobData& one) {
        return one.train != all[0].train || one.val != all[0].val;
    };
    const auto others = std::ranges::count_if(all, differs);
    if (!job.is_newcomer() && 2 * others > std::ssize(all))
        fail("rank 0 sees other images than most ranks: ", all[0].description,
             "; names, sizes and classes must be the same on all ranks");
    if (differs(mine) && job.rank() > 0)
        leave(
            job,
            cat("this rank sees other images than rank 0: ", mine.description, " against ",
                all[0].description, "; names, sizes and classes must be the same on all ranks",
                job.config.elastic == Toggle::kOn ? ". When they are, restart this rank with --join"
                                                  : ""));
    // Ranks that differ leave the job: then this throws RingBroken, and the others set up again.
    if (!job.is_newcomer() && others > 0) job.communicator().barrier();
}

static void open_set(JobSetup& setup) {
    DataOptions options = data_options(setup.config, setup.model.classes);
    options.remote.stop = setup.job.stop, options.streams = true;
    setup.data = open_data(options, setup.job.log);
    const Config& config = setup.config;
    const auto& given = setup.job.line.given;
    if (given.contains("settings") && config.data.empty() && !given.contains("generated"))
        setup.job.log.notice("--settings without --data: the images are generated shapes");
    if (setup.data.is_stream && (parse_shuffle(config.shuffle) == 0 || config.balance ||
                                 (setup.job.world() > 1 && config.shards != ShardMode::kMine)))
        fail("--data ", config.data, " is a stream, whose images are not here yet: it needs ",
             "--shuffle window=N, and with several ranks --shards mine; it takes no --balance");
    if (setup.config.shards != ShardMode::kMine) setup.model.classes = setup.data.train->classes();
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
    setup.model.classes = united(gather_json(job.communicator(), setup.data.train->classes()));
    if (setup.model.classes.size() < 2)
        fail("only one class, '", setup.model.classes[0],
             "', in the data of all ranks: a classifier needs two or more");
    if (setup.model.classes != setup.data.train->classes()) {
        Log told_already;
        told_already.set_quiet(true);
        setup.data = open_data(data_options(job.config, setup.model.classes), told_already);
    }
    const auto& [train, val, _, is_stream] = setup.data;
    const json mine = {train->size(), val ? int64_t(val->size()) : -1,
                       fmt::format("{:016x}", train->fingerprint()), sizes_text(*train)};
    setup.fingerprint = hash_bytes("parts");
    std::vector<json> vals =
        gather_json(job.communicator(), val ? json(val->fingerprint()) : json());
    std::ranges::sort(vals);
    if (const auto twice = std::ranges::adjacent_find(vals);
        twice != vals.end() && !twice->is_null() && job.rank() == 0)
        job.log.notice(
            "two ranks have the same validation images, which count twice: give each rank "
            "its own part by --val");
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

// --sync pipeline: rank 0 finds out where to cut the model. Collective.
static void cut_stages(JobSetup& setup) {
    const Config& config = setup.config;
    const int stages = config.pipeline, world = setup.world();
    if (world % stages != 0)
        fail("--sync pipeline:", stages,
             " needs as many ranks, or a multiple of them; this job has ", world);
    json found;
    if (setup.rank() == 0) {
        const StagePlan plan = plan_stages(
            setup.model.text, model_options(config, int(setup.model.classes.size())),
            [&] { return make_backend(config); }, config, world / stages);
        found = {{"cuts", plan.cuts}, {"text", plan.text}};
    }
    found = broadcast_json(setup.communicator(), found);
    setup.cuts = found["cuts"].get<std::vector<size_t>>();
    setup.stages_text = found["text"];
}

JobSetup set_up_job(JobSession& job) {
    JobSetup setup{job};
    if (job.rank() == 0) decide(setup);
    job.take_settings_of_rank0();
    if (job.rank() > 0) check_rules(job.config, kTrain, job.line.given);
    const ShardMode shards = job.config.shards;
    const bool opens_first = job.rank() == 0 && shards == ShardMode::kAll;
    if (opens_first) open_set(setup);
    setup.model = job.is_newcomer() ? job.offer().model
                                    : JobModel(broadcast_json(job.communicator(), setup.model));
    if (!opens_first) try {
            open_set(setup);
        } catch (const std::exception& error) {
            if (job.stop()) throw;
            leave(job, error.what());
        }
    setup.order = "feistel " + job.config.shuffle;
    if (shards == ShardMode::kMine) {
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
    std::vector<int64_t> images(setup.model.classes.size());
    for (size_t i = 0; i < setup.data.train->size(); ++i)
        ++images[size_t(setup.data.train->label(i))];
    setup.class_images = images;
    if (shards == ShardMode::kMine) {
        setup.class_images.assign(images.size(), 0);
        for (const json& part : gather_json(job.communicator(), images))
            for (size_t c = 0; c < images.size(); ++c)
                setup.class_images[c] += part[c].get<int64_t>();
    }
    choose_device(job);
    if (job.config.servers > job.world())
        fail("--sync ", get_option(job.config, "sync"),
             " has more servers than the job has ranks: ", job.world());
    const int replicas = std::max(1, job.world() / job.config.pipeline);
    if (job.config.batch < replicas)
        fail("--batch ", job.config.batch, " cannot be divided among ", replicas,
             job.config.pipeline > 1 ? " pipelines:"
                                     : " ranks: it counts the images of a step over all ranks");
    if (job.config.pipeline > 1) cut_stages(setup);
    return setup;
}

}  // namespace convoy
