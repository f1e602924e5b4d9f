// command_tune.cpp — tune: the fastest way to train a model on this machine, then on all of a job.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/backend.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/table.h"
#include "src/base/text.h"
#include "src/cli/commands.h"
#include "src/job/exchange.h"
#include "src/model/model.h"
#include "src/plan/tune.h"

namespace convoy {

namespace {

using Words = std::vector<std::string>;

// The user's options that are neither passed to the measured runs nor written to the settings: they
// are decided by a setup, or only concern this command.
bool is_own(const std::string& option) {
    static const std::set<std::string> kOwn = {
        "threads", "out",   "minutes", "json",       "settings", "quiet", "coord",
        "rank",    "world", "port",    "local-rank", "stall",    "plan"};
    return kOwn.contains(option);
}

// The options of every run: those of this rank's user, and rank 0's settings of the job. Later ones
// win: the run has no end, and logs the speed of each step.
Words common_words(const CommandLine& line, const Config& config) {
    Words words;
    for (const Option& option : options()) {
        const std::string name = option.name, value = get_option(config, name);
        const bool is_settled = option.flags & (kJob | kFollows) && value != get_option({}, name);
        if (kTuneRow.takes(option) && !is_own(name) && (line.given.contains(name) || is_settled))
            words.push_back(cat(option_name(option), "=", value));
    }
    for (const char* word : {"--quiet", "--join-timeout=60", "--steps=1000000000", "--log-every=1",
                             "--save-every=0", "CONVOY_CHECK_EVERY=0", "--elastic=off",
                             "--schedule=constant", "--lr=1e-6", "--warmup=0"})
        words.push_back(word);
    if (config.data.empty() && config.generated == Config().generated)
        words.push_back(cat("--generated=", std::clamp<int64_t>(8 * config.batch, 48, 4096)));
    return words;
}

class Tune {
 public:
    explicit Tune(JobSession& job)
        : config_(job.config), job_(job), common_(common_words(job.line, config_)) {
        if (!mkdtemp(folder_.data()))
            fail("cannot make a folder ", folder_, ": ", std::strerror(errno));
        if (job.world() > 1) std::tie(host_, port_) = coordinator_address(config_.coord);
    }
    ~Tune() {
        std::error_code gone;
        std::filesystem::remove_all(folder_, gone);
    }

    // Measures the setups on the ranks of `group` within this fraction of --minutes. Collective:
    // rank 0 decides which setup is measured and for how long. Returns the number of the fastest.
    int measure(Communicator& group, std::vector<Setup>& setups, double part) {
        const auto agreed = [&](int number) { return broadcast_json(group, number).get<int>(); };
        if (group.rank() > 0) {
            for (int number = agreed(-1); number >= 0;) {
                MeasuredRun run(folder_, processes(group, setups[size_t(number)]), environment_);
                number = agreed(-1);  // rank 0 has ended this one
            }
            return agreed(-1);
        }
        const int best = race(setups, [&](Setup& one, double seconds, double to_beat) {
            const double left = 60 * part * config_.minutes - seconds_since(begin_);
            if (left <= 0) {
                if (one.speed.seconds == 0) one.speed.fault = "--minutes are over";
                return;
            }
            job_.log.info("measuring ", one.text(), "  (", clock_text(seconds_since(begin_)),
                          " of at most ", clock_text(60 * config_.minutes), ")");
            agreed(int(&one - setups.data()));
            std::filesystem::remove_all(folder_ + "/run0");
            one.speed = MeasuredRun(folder_, processes(group, one), environment_)
                            .watch(seconds, to_beat, std::max(left / 3, 20.0), job_.stop);
        });
        agreed(-1);
        return agreed(best);
    }

    void print(const std::vector<Setup>& all, int best, double base) const {
        Table table(config_.json), others(config_.json);
        for (const Setup& one : all) {
            const Speed& s = one.speed;
            if (!s.fault.empty()) continue;
            const bool is_best = best >= 0 && &one == &all[size_t(best)];
            table.row({{"setup", one.text(), "setup", "{:<40}"},
                       {"seconds", s.seconds},
                       {"images_per_second", s.images_per_second, "img/s", "{:7.1f}"},
                       {"speed_up", base > 0 ? s.images_per_second / base : 0, "x", "{:.2f}"},
                       {"cores", s.cores, "cores", "{:.1f}"},
                       {"memory_mb", s.memory_megabytes, "memory", "{:6.0f} MB"},
                       {"net_wait", s.net_wait},
                       {"", 100 * s.net_wait, "net wait", "{:.0f} %"},
                       {"net_busy", s.net_busy},
                       {"", 100 * s.net_busy, "net busy", "{:.0f} %"},
                       {"note",
                        is_best         ? "fastest"
                        : !one.is_exact ? "not what one rank trains"
                                        : "",
                        ""}});
        }
        for (const Setup& one : all)
            if (!one.speed.fault.empty())
                others.row({{"setup", one.text(), "not measured", "{:<40}"},
                            {"note", one.speed.fault, "why", "{:<}"}});
    }

    // Writes a file for `trainer --settings`: the user's options and those of the setup. Rank 0's
    // file has the name that was asked for; another rank's file also has its number.
    void write(const Setup& setup) const {
        const std::string file = cat(config_.out, job_.rank() > 0 ? cat(".rank", job_.rank()) : "");
        const std::string start =
            cat(setup.ranks > 1 ? cat("tools/launch -n ", setup.ranks, " -- ") : "",
                "trainer --settings ", file);
        std::ofstream out(file);
        out << "# Written by `trainer tune`. To start it: " << start << "\n";
        for (const auto& [name, who] : job_.line.given)
            if (const std::string value = get_option(job_.line.config, name);
                !is_own(name) && !value.empty())
                out << name << " " << value << "\n";
        for (const auto& [name, value] : setup.options) out << name << " " << value << "\n";
        if (!out.flush()) fail("cannot write ", file, ": ", std::strerror(errno));
        job_.log.info("written: ", file, "   try: ", start);
    }

 private:
    // The options of each process of this rank. Rank 0 decides the settings of the job.
    std::vector<Words> processes(const Communicator& group, const Setup& setup) {
        Words words = common_;
        for (const auto& [name, value] : setup.options)
            if (const Option& option = *find_option(name);
                group.rank() == 0 || !(option.flags & kJob))
                words.push_back(cat(option_name(option), "=", value));
        std::vector<Words> all(size_t(setup.ranks), words);
        const int world = group.world() * setup.ranks;
        // The ranks of the job listen at the ports after the coordinator's.
        const std::string coord =
            group.world() > 1 ? cat(host_, ":", 50 + ++port_) : cat("127.0.0.1:", free_port());
        for (int i = 0; i < setup.ranks && world > 1; ++i)
            for (const std::string& word :
                 {cat("--coord=", coord), cat("--rank=", group.rank() * setup.ranks + i),
                  cat("--world=", world)})
                all[size_t(i)].push_back(word);
        if (group.world() == 1) all[0].push_back("CONVOY_PREFLIGHT=off");
        job_.log.detail("trainer train ", join_text(all[0], " "));
        return all;
    }

    const Config& config_;
    JobSession& job_;
    const Words common_, environment_ = plain_environment();
    std::string folder_ = std::filesystem::temp_directory_path() / "tune-XXXXXX";
    std::string host_;
    int port_ = 0;
    const Clock::time_point begin_ = Clock::now();
};

int tune_in_job(JobSession& job) {
    const bool alone = job.world() == 1;
    if (!alone) job.take_settings_of_rank0();
    const Config& config = job.config;
    model_text(config.model);  // an unknown name is an error before anything is measured
    Tune tune(job);
    std::vector<Setup> here =
        local_setups(config.threads > 0 ? config.threads : available_cpus(), count_gpus());
    if (!alone) std::erase_if(here, [](const Setup& one) { return one.ranks > 1; });
    int best = tune.measure(*make_single_rank(), here, alone ? 1 : 0.5);
    const double base = here[0].speed.images_per_second;
    tune.print(here, best, base);
    if (best < 0)
        fail("no setup could be measured (", here[0].text(), ": ", here[0].speed.fault,
             "); try more --minutes, or a smaller --model or --batch");
    Setup fastest = here[size_t(best)];
    if (!alone) {
        std::vector<Setup> joined = join_setups(job.world(), fastest);
        best = tune.measure(job.communicator(), joined, 1);
        if (job.rank() == 0) tune.print(joined, best, base);
        if (best >= 0)
            fastest = joined[size_t(best)];
        else
            job.log.notice(
                "no setup of several machines could be measured; writing this machine's own");
    }
    tune.write(fastest);
    job.finish();
    return 0;
}

int command_tune(const CommandLine& given, Log& log, const Stop& stop) {
    CommandLine line = given;
    line.config.stall = 1e6;  // the other ranks wait while rank 0 measures
    return run_in_job(line, log, stop, tune_in_job);
}

}  // namespace

const CommandRow kTuneRow = {
    "tune", kTune, "[options]   or: tune --plan [options], tune --lr [MAX] [options]",
    "measure the fastest settings; --plan: predict a job's speed; --lr: suggest a learning rate",
    command_tune};

}  // namespace convoy
