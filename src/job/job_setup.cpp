// job_setup.cpp — see job_setup.h.
#include "src/job/job_setup.h"

#include <nlohmann/json.hpp>

#include "data/order.h"
#include "src/base/check.h"
#include "src/base/text.h"
#include "src/job/device_choice.h"

namespace convoy {

using nlohmann::json;

std::pair<std::string, uint16_t> coordinator_address(const std::string& coord) {
    auto address = split_address(coord, "--coord");
    if (address.second == 0) address.second = 29400;
    return address;
}

Job join_job(const CommandLine& line, Log& log, const Stop& stop) {
    const Config& config = line.config;
    const auto who = [&](const char* option) {
        const auto found = line.given.find(option);
        return found == line.given.end() ? cat("--", option) : found->second;
    };
    if (config.coord.empty()) {
        if (config.world > 1)
            fail(who("world"), " says ", config.world,
                 " ranks, but not where they meet: give "
                 "--coord HOST:PORT of rank 0");
        if (config.rank > 0)
            fail(who("rank"), " says rank ", config.rank,
                 ", but not where the ranks meet: give "
                 "--coord HOST:PORT of rank 0");
        Job job;
        job.communicator = make_single_rank();
        return job;
    }
    JoinOptions options;
    std::tie(options.host, options.port) = coordinator_address(config.coord);
    options.rank = config.rank;
    options.world = config.world;
    if (config.world > 0 && config.rank >= config.world)
        fail("--rank ", config.rank, " is not in a world of ", config.world, ": ranks are 0 to ",
             config.world - 1);
    options.listen_port = uint16_t(config.port);
    options.advertise = config.advertise;
    options.iface = config.iface;
    options.join_timeout = std::chrono::milliseconds(int64_t(config.join_timeout * 1000));
    options.stall = std::chrono::milliseconds(int64_t(config.stall * 1000));
    options.bf16_wire = config.wire == "bf16";
    // A resumed run takes its settings from the checkpoint; they are compared after joining.
    const bool decides = config.rank == 0 && config.resume.empty();
    for (const auto& [name, value] : job_settings(config))
        if (decides || line.given.contains(name)) options.settings[name] = value;
    return join(options, log, stop);
}

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

// What a checkpoint is bound to: with another value it would be another run.
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

// Rank 0's decisions. Order: defaults, then the checkpoint's options, then what its user typed.
static void decide(JobSetup& setup, const CommandLine& line, Log& log) {
    Config& config = setup.config;
    std::string checkpoint_model;
    if (!config.resume.empty()) {
        setup.resumed = load_checkpoint(config.resume, log);
        apply_settings(config, setup.resumed->meta.settings);
        for (const auto& [name, who] : line.given) {
            const Option& option = *find_option(name);
            const std::string value = get_option(line.config, option);
            refuse_on_resume(name, get_option(config, option), value);
            if (option.job && get_option(config, option) != value)
                log.notice("--", name, " was ", get_option(config, option),
                           " in the checkpoint and is ", value, " from here on");
            set_option(config, option, value);
        }
        const ModelCard card =
            card_from_metadata(setup.resumed->model.metadata, setup.resumed->folder);
        setup.model_text = card.model_text;
        setup.classes = card.classes;
        if (!line.given.contains("data")) {
            config.data = setup.resumed->meta.settings["data"];
            config.val = setup.resumed->meta.settings["val"];
        }
    }
    setup.data = open_data(data_options(config, setup.classes), log);
    setup.classes = setup.data.train->classes();
    if (setup.model_text.empty()) setup.model_text = model_text(config.model);
    if (config.augment.empty()) config.augment = config.data.empty() ? "resize" : "crop";
    if (config.size == 0) config.size = model_input_size(setup.model_text);
}

// Another rank: takes rank 0's settings, unless its own user typed something else.
static void follow(JobSetup& setup, const CommandLine& line, const json& decided, Log& log) {
    const auto settings = decided.at("settings").get<std::map<std::string, std::string>>();
    for (const auto& [name, who] : line.given) {
        const Option& option = *find_option(name);
        const std::string mine = get_option(line.config, option);
        if (option.job && settings.contains(name) && settings.at(name) != mine)
            fail("rank ", setup.rank(), " says --", name, " ", mine, ", rank 0 says --", name, " ",
                 settings.at(name), "; only rank 0 needs it");
    }
    Config& config = setup.config;
    apply_settings(config, settings);
    if (!line.given.contains("data")) {
        config.data = decided.at("data");
        config.val = decided.at("val");
    }
    setup.model_text = decided.at("model_text");
    setup.classes = decided.at("classes").get<std::vector<std::string>>();
    setup.data = open_data(data_options(config, setup.classes), log);
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

// All ranks compare what they see, and learn each other's shares.
static void compare(JobSetup& setup, Log& log) {
    Communicator& communicator = setup.communicator();
    const DataSet& data = setup.data;
    const json mine = {{"train", fmt::format("{:016x}", data.train->fingerprint())},
                       {"val", data.val ? fmt::format("{:016x}", data.val->fingerprint()) : ""},
                       {"description", data.description}};
    std::vector<json> all;
    for (const std::string& one : allgather_text(communicator, mine.dump()))
        all.push_back(json::parse(one));
    for (size_t rank = 1; rank < all.size(); ++rank)
        if (all[rank]["train"] != all[0]["train"] || all[rank]["val"] != all[0]["val"])
            fail("rank ", rank,
                 " sees other images than rank 0: ", all[rank]["description"].get<std::string>(),
                 " against ", all[0]["description"].get<std::string>(),
                 "; names, sizes and classes must be the same on all ranks");
    setup.shares = gather_shares(communicator, setup.config.share, log);
}

JobSetup set_up_job(const CommandLine& line, Log& log, const Stop& stop) {
    JobSetup setup;
    setup.config = line.config;
    setup.job = join_job(line, log, stop);
    if (setup.world() > 1) log.set_prefix(cat("[rank ", setup.rank(), "] "));
    try {
        json decided;
        if (setup.rank() == 0) {
            decide(setup, line, log);
            decided = {{"settings", job_settings(setup.config)},
                       {"data", setup.config.data},
                       {"val", setup.config.val},
                       {"model_text", setup.model_text},
                       {"classes", setup.classes}};
        }
        decided = json::parse(broadcast_text(setup.communicator(), decided.dump()));
        if (setup.rank() != 0) follow(setup, line, decided, log);
        compare(setup, log);
        choose_device(setup.config, line, setup.job, log);
        if (setup.config.batch < setup.world())
            fail("--batch ", setup.config.batch, " cannot be shared by ", setup.world(),
                 " ranks: it counts the images of a step over all ranks");
    } catch (const std::exception& error) {
        setup.communicator().abort(error.what());
        throw;
    }
    return setup;
}

}  // namespace convoy
