#include "src/session/job_session.h"

#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/text.h"

namespace convoy {

std::pair<std::string, uint16_t> coordinator_address(const std::string& coord) {
    auto address = split_address(coord, "--coord");
    if (address.second == 0) address.second = 29400;
    return address;
}

Access access_of(const Config& config) {
    const std::string& file = config.token_file;
    // A core dump would hold the key. The limit is 1 byte, as 0 still allows a pipe of
    // core_pattern. PR_SET_DUMPABLE would keep other ranks from /proc/PID/fd
    // (net/ring/shared_sum.h).
    const rlimit no_core{1, 1};
    if (!file.empty() || !config.token.empty()) setrlimit(RLIMIT_CORE, &no_core);
    if (file.empty()) return {config.token, config.open};
    std::ifstream in(file);
    Access access{"", config.open};
    in >> access.token;
    if (access.token = std::string(without_bom(access.token)); access.token.empty())
        fail("--token-file ", file, " cannot be read, or is empty; `trainer token` makes one");
    const auto others = std::filesystem::perms::others_all;
    if ((std::filesystem::status(file).permissions() & others) != std::filesystem::perms::none)
        fail("--token-file ", file, " can be read by every user of this machine: chmod 600 ", file);
    return access;
}

static Job join_job(const CommandLine& line, Log& log, const Stop& stop,
                    const std::function<void(JoinOptions&)>& adjust) {
    const Config& config = line.config;
    JoinOptions options;
    options.access = access_of(config);  // a wrong --token-file is an error for one rank too
    if (config.coord.empty()) return {std::make_unique<Communicator>(), {}};
    std::tie(options.host, options.port) = coordinator_address(config.coord);
    options.rank = config.rank;
    options.world = config.world;
    options.listen_port = uint16_t(config.port);
    options.advertise = config.advertise;
    options.shm = config.shm == Toggle::kOn;
    options.join_timeout = std::chrono::milliseconds(int64_t(config.join_timeout * 1000));
    options.stall = std::chrono::milliseconds(int64_t(config.stall * 1000));
    options.bf16_wire = config.wire == WireType::kBf16;
    // A lost rank takes with it what only this rank holds: images, or a stage of the model.
    options.elastic = line.command == kTrain && config.elastic == Toggle::kOn &&
                      config.schedule != Schedule::kRange && config.shards == ShardMode::kAll &&
                      config.pipeline == 1;
    options.min_world = config.min_world;
    options.alone = config.alone;
    options.newcomer = config.join;
    if (adjust) adjust(options);
    return join(options, log, stop);
}

JobSession::JobSession(const CommandLine& command_line, Log& its_log, Stop its_stop,
                       const std::function<void(JoinOptions&)>& adjust)
    : line(command_line),
      log(its_log),
      stop(std::move(its_stop)),
      config(line.config),
      job_(join_job(line, log, stop, adjust)) {
    if (!job_.what.empty()) offer_ = parse_offer(job_.what);
    if (world() > 1) log.set_prefix(cat("[rank ", number(rank()), "] "));
    if (rank() != 0) log.set_draws(false);  // ranks may share a terminal
}

void JobSession::take_settings_of_rank0() {
    using Settings = std::map<std::string, std::string>;
    const Settings settings =
        is_newcomer()
            ? offer().settings
            : Settings(broadcast_json(communicator(), job_settings(config, line.command)));
    if (rank() == 0) return;
    apply_settings(config, settings);
    for (const auto& [name, who] : line.given) {
        const std::string given = get_option(line.config, name);
        const Option& option = *find_option(name);
        if ((option.flags & kJob) && get_option(config, name) != given)
            fail("rank ", rank(), " says ", option_name(option), " ", given, ", rank 0 says ",
                 get_option(config, name), "; only rank 0 needs it");
        if (option.flags & kFollows) set_option(config, name, given);  // its own --data
    }
    if (line.given.contains("data")) config.val = line.config.val;
}

Ranks JobSession::regroup(int64_t step, bool planned) {
    Ranks ranks = communicator().regroup(step, planned);
    job_.peers = ranks.peers;
    lost_rank0_ |= ranks.before.front() != 0;
    log.set_prefix(cat("[rank ", number(rank()), "] "));
    return ranks;
}

void JobSession::finish() {
    communicator().barrier();
    communicator().leave();
}

int run_in_job(const CommandLine& line, Log& log, const Stop& stop, int (*command)(JobSession&)) {
    stop();  // from here on a signal is kept for whoever asks next
    JobSession job(line, log, stop);
    try {
        return command(job);
    } catch (const std::exception& error) {
        job.communicator().abort(error.what());
        throw;
    }
}

}  // namespace convoy
