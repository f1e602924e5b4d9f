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

// The options of every run: those of this rank's user, and rank 0's settings of the job.
std::vector<std::string> given_words(const CommandLine& line, const Config& config) {
    static const std::set<std::string> kOwn = {"out",  "minutes", "json",  "settings",    "coord",
                                               "rank", "world",   "port",  "local-rank",  "quiet",
                                               "lr",   "elastic", "stall", "join-timeout"};
    std::vector<std::string> words = {"--quiet", "--join-timeout=60"};
    for (const Option& option : options()) {
        const std::string name = option.name, value = get_option(config, name);
        const bool is_settled = option.flags & (kJob | kFollows) && value != get_option({}, name);
        if (kTuneRow.takes(option) && !kOwn.contains(name) && !is_tuned(name) &&
            (line.given.contains(name) || is_settled))
            words.push_back(cat(option_name(option), "=", value));
    }
    return words;
}

// More options for rank 0: the run has no end, and logs the speed of each step.
std::vector<std::string> leading_words(const CommandLine& line, const Config& config) {
    std::vector<std::string> words = {
        "--steps=1000000000", "--log-every=1",       "--save-every=0", "CONVOY_CHECK_EVERY=0",
        "--elastic=off",      "--schedule=constant", "--lr=1e-6",      "--warmup=0"};
    if (config.data.empty() && !line.given.contains("generated"))
        words.push_back(cat("--generated=", std::clamp<int64_t>(8 * config.batch, 48, 4096)));
    return words;
}

class Tune {
 public:
    explicit Tune(JobSession& job)
        : config_(job.config),
          rank_(job.rank()),
          log_(job.log),
          stop_(job.stop),
          given_(given_words(job.line, config_)),
          leading_(leading_words(job.line, config_)),
          folder_(make_folder()) {}
    ~Tune() {
        std::error_code gone;
        std::filesystem::remove_all(folder_, gone);
    }
    int cores() const { return config_.threads > 0 ? config_.threads : available_cpus(); }

    // Measures within this fraction of --minutes; returns the fastest setup.
    const Tried* measure_here(std::vector<Tried>& setups, double part) {
        const auto ranks = [&](const Setup& of) {
            std::vector<std::vector<std::string>> all;
            const std::string coord = cat("--coord=127.0.0.1:", free_port());
            for (int rank = 0; rank < of.ranks; ++rank) {
                all.push_back(words(of));
                if (of.ranks > 1)
                    all.back().insert(all.back().end(),
                                      {coord, cat("--rank=", rank), cat("--world=", of.ranks),
                                       "CONVOY_PREFLIGHT=off"});
            }
            return all;
        };
        return race(setups, [&](Tried& one, double seconds, double to_beat) {
            measure(one, seconds, to_beat, part, ranks);
        });
    }

    // Collective: rank 0 decides which setup is measured and for how long; the others follow.
    // `own`: the fastest setup of this machine alone. Returns the fastest setup, on rank 0.
    const Tried* measure_together(JobSession& job, const Setup& own, std::vector<Tried>& setups) {
        const auto [host, port] = coordinator_address(config_.coord);
        for (Tried& one : setups) {
            const auto sync = one.setup.options.find("sync");
            const bool is_cut =  // a pipeline has micro-batches of its own
                sync != one.setup.options.end() && sync->second.starts_with("pipeline");
            for (const auto& [name, value] : own.options)
                if (!is_cut || (name != "accumulate" && value.find('x') == value.npos))
                    one.setup.options.try_emplace(name, value);
        }
        // The ranks of this job listen on the numbers after the coordinator's.
        auto ranks = [&, next = port + 50](const Setup& of) mutable {
            std::vector<std::string> all = words(of, job.rank() == 0);
            all.insert(all.end(), {cat("--coord=", host, ":", ++next), cat("--rank=", job.rank()),
                                   cat("--world=", job.world())});
            return std::vector<std::vector<std::string>>{all};
        };
        const auto begin_next = [&](int number) {
            return broadcast_json(job.communicator(), number).get<int>();
        };
        if (job.rank() > 0) {
            for (int number = begin_next(-1); number >= 0;) {
                MeasuredRun run(folder_, ranks(setups[size_t(number)].setup), environment_);
                number = begin_next(-1);  // rank 0 has ended this one
            }
            return nullptr;
        }
        const Tried* best = race(setups, [&](Tried& one, double seconds, double to_beat) {
            measure(one, seconds, to_beat, 1, [&](const Setup& of) {
                begin_next(int(&one - setups.data()));
                return ranks(of);
            });
        });
        begin_next(-1);
        return best;
    }

    void print(const std::vector<Tried>& all, const Tried* best, double base) const {
        Table table(config_.json);
        for (const auto& [setup, s] : all) {
            std::string options;
            for (const auto& [name, value] : setup.options)
                options += cat(options.empty() ? "" : " ", "--", name, " ", value);
            std::vector<Cell> row = {{"setup", setup.name, "setup", "{:<34}"},
                                     {"options", options}};
            // A setup that was not measured has no figures.
            const auto figure = [&](const char* key, double value, const char* title,
                                    const char* format, double scale = 1) {
                if (s.fault.empty()) row.emplace_back(key, value);
                row.emplace_back(
                    "", s.fault.empty() ? fmt::format(fmt::runtime(format), scale * value) : "-",
                    title, "{:>7}");
            };
            if (s.fault.empty()) row.emplace_back("seconds", s.seconds);
            figure("images_per_second", s.images_per_second, "img/s", "{:.1f}");
            figure("speed_up", base > 0 ? s.images_per_second / base : 0, "x", "{:.2f}");
            figure("cores", s.cores, "cores", "{:.1f}");
            figure("memory_mb", s.memory_megabytes, "memory", "{:.0f} MB");
            figure("net_wait", s.net_wait, "net wait", "{:.0f} %", 100);
            figure("net_busy", s.net_busy, "net busy", "{:.0f} %", 100);
            row.push_back({"note",
                           !s.fault.empty()                 ? s.fault
                           : best && &setup == &best->setup ? "fastest"
                           : !setup.is_exact                ? "not what one rank trains"
                                                            : "",
                           ""});
            table.row(row);
        }
    }

    // Writes a file for `trainer --settings`: the user's options and those of the setup. Rank 0's
    // file has the name that was asked for; another rank's file also has its number.
    void write(const CommandLine& line, const Setup& setup) {
        static const std::set<std::string> kNot = {"coord",    "rank",       "world", "out",
                                                   "settings", "token-file", "json",  "minutes"};
        const std::string file = cat(config_.out, rank_ > 0 ? cat(".rank", rank_) : "");
        const std::string start =
            cat(setup.ranks > 1 ? cat("tools/launch -n ", setup.ranks, " -- ") : "",
                "trainer --settings ", file);
        std::ofstream out(file);
        out << "# Written by `trainer tune`: " << setup.name << ". To start it: " << start << "\n";
        for (const auto& [name, who] : line.given) {
            const std::string value = get_option(line.config, name);
            if (!kNot.contains(name) && !is_tuned(name) && !value.empty())
                out << name << " " << value << "\n";
        }
        for (const auto& [name, value] : setup.options) out << name << " " << value << "\n";
        if (!out.flush()) fail("cannot write ", file, ": ", std::strerror(errno));
        log_.info("written: ", file, "   try: ", start);
    }

 private:
    static std::string make_folder() {
        std::string name = (std::filesystem::temp_directory_path() / "tune-XXXXXX").string();
        if (!mkdtemp(name.data())) fail("cannot make a folder ", name, ": ", std::strerror(errno));
        return name;
    }
    std::vector<std::string> words(const Setup& setup, bool decides = true) const {
        std::vector<std::string> all = given_;
        if (decides) all.insert(all.end(), leading_.begin(), leading_.end());
        for (const auto& [name, value] : setup.options)
            if (decides || !(find_option(name)->flags & kJob))
                all.push_back(cat(option_name(*find_option(name)), "=", value));
        return all;
    }

    // Begins no measurement after this fraction of --minutes. `ranks`: the options per process.
    template <class Ranks>
    void measure(Tried& tried, double seconds, double to_beat, double part, Ranks&& ranks) {
        const double left = 60 * part * config_.minutes - seconds_since(begin_);
        if (left > 0) {
            log_.info("measuring ", tried.setup.name, "  (", clock_text(seconds_since(begin_)),
                      " of at most ", clock_text(60 * config_.minutes), ")");
            std::filesystem::remove_all(folder_ + "/run0");
            const auto options = ranks(tried.setup);
            log_.detail("trainer train ", join_text(options[0], " "));
            tried.speed = MeasuredRun(folder_, options, environment_)
                              .watch(seconds, to_beat, std::max(left / 3, 20.0), stop_);
        } else if (tried.speed.seconds == 0) {
            tried.speed.fault = "not measured: --minutes are over";
        }
    }

    const Config& config_;
    const int rank_;
    Log& log_;
    const Stop& stop_;
    const std::vector<std::string> given_, leading_;
    const std::string folder_;
    const std::vector<std::string> environment_ = plain_environment();
    const Clock::time_point begin_ = Clock::now();
};

int tune_in_job(JobSession& job) {
    const bool alone = job.world() == 1;
    if (!alone) job.take_settings_of_rank0();
    const Config& config = job.config;
    model_text(config.model);  // an unknown name is an error before anything is measured
    Tune tune(job);
    std::vector<Tried> here, joined;
    for (Setup& one : local_setups(tune.cores(), count_gpus()))
        if (alone || one.ranks == 1) here.push_back({std::move(one)});
    const Tried* best = tune.measure_here(here, alone ? 1 : 0.5);
    const double base = here[0].speed.images_per_second;
    tune.print(here, best, base);
    if (!best)
        fail("no setup could be measured (", here[0].setup.name, ": ", here[0].speed.fault,
             "); try more --minutes, or a smaller --model or --batch");
    if (alone) {
        tune.write(job.line, best->setup);
        return 0;
    }
    for (Setup& one : join_setups(job.world())) joined.push_back({std::move(one)});
    const Tried* fast = tune.measure_together(job, best->setup, joined);
    if (job.rank() == 0) tune.print(joined, fast, base);
    const int found =
        broadcast_json(job.communicator(), fast ? int(fast - joined.data()) : -1).get<int>();
    if (found < 0)
        job.log.notice(
            "no setup of several machines could be measured; writing this machine's own");
    tune.write(job.line, found < 0 ? best->setup : joined[size_t(found)].setup);
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
