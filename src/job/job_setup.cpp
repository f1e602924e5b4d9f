// job_setup.cpp — see job_setup.h.
#include "src/job/job_setup.h"

#include <nlohmann/json.hpp>

#include "data/order.h"
#include "src/base/check.h"
#include "src/base/text.h"
#include "src/job/device_choice.h"
#include "src/job/exchange.h"

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
    return options;
}

ModelOptions model_options(const Config& config, int classes) {
    return {config.model, classes, config.size, uint64_t(config.seed), config.freeze};
}

LoaderOptions loader_options(const Config& config, const std::vector<double>& shares, int rank) {
    return {.batch = config.batch,
            .shares = shares,
            .rank = rank,
            .threads = decode_threads(config),
            .packed = config.augment_on == AugmentOn::kDevice};
}

// The options that a checkpoint fixes: with another value it would be another run.
static void refuse_on_resume(const std::string& name, const std::string& was,
                             const std::string& now) {
    if (name == "init") fail("--init and --resume cannot both say where the weights come from");
    for (const char* bound : {"model", "size", "classes", "generated", "val-split", "seed",
                              "bn-group", "optimizer", "freeze"})
        if (name == bound && was != now)
            fail("--", name, " was ", was.empty() ? "not given" : was,
                 " in the run to resume and "
                 "cannot become ",
                 now, "; `--init` starts a new run from its weights");
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
    setup.data = open_data(data_options(config, setup.classes), setup.job.log);
    setup.classes = setup.data.train->classes();
    if (config.size == 0) config.size = model_input_size(setup.model_text);
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

void compare_data(JobSession& job, const DataSet& data) {
    const json mine = {fmt::format("{:016x}", data.train->fingerprint()),
                       data.val ? fmt::format("{:016x}", data.val->fingerprint()) : "",
                       data.description};
    const std::vector<json> all = gather_json(job.communicator(), mine);
    for (size_t rank = 1; rank < all.size(); ++rank)
        if (all[rank][0] != all[0][0] || all[rank][1] != all[0][1])
            fail("rank ", rank, " sees other images than rank 0: ", all[rank][2].get<std::string>(),
                 " against ", all[0][2].get<std::string>(),
                 "; names, sizes and classes must be the same on all ranks");
}

JobSetup set_up_job(JobSession& job) {
    JobSetup setup{job};
    if (job.rank() == 0) decide(setup);
    job.take_settings_of_rank0();
    const json model = broadcast_json(job.communicator(),
                                      {{"text", setup.model_text}, {"classes", setup.classes}});
    if (job.rank() != 0) {
        setup.model_text = model.at("text");
        setup.classes = model.at("classes").get<std::vector<std::string>>();
        setup.data = open_data(data_options(job.config, setup.classes), job.log);
    }
    compare_data(job, setup.data);
    setup.shares = gather_shares(job.communicator(), job.config.share, job.log);
    choose_device(job);
    if (job.config.batch < job.world())
        fail("--batch ", job.config.batch, " cannot be divided among ", job.world(),
             " ranks: it counts the images of a step over all ranks");
    return setup;
}

}  // namespace convoy
