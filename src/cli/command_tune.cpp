// command_tune.cpp — tune: measures the fastest way to train a model on this machine, then on all
// machines of a job. tune --plan: forecasts how fast a job will be.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <set>

#include "src/base/clock.h"
#include "src/base/table.h"
#include "src/base/text.h"
#include "src/cli/commands.h"
#include "src/model/model.h"
#include "src/plan/timing.h"
#include "src/plan/tune.h"
#include "src/run/usage.h"
#include "src/session/device_choice.h"
#include "src/session/rank_json.h"
namespace convoy {

namespace {

// Returns the options that the user of this rank gave, as lines of a --settings file, without those
// that a trial decides or that only `tune` takes.
std::string user_settings(const CommandLine& line, const Config& config) {
    static const std::set<std::string> kOwn = {"threads",  "out",   "minutes",    "json",
                                               "settings", "quiet", "coord",      "rank",
                                               "world",    "port",  "local-rank", "stall"};
    std::string text;
    for (const auto& [name, who] : line.given)
        if (const std::string value = get_option(config, name);
            row_of(kTune).takes(*find_option(name)) && !kOwn.contains(name) && !value.empty())
            text += cat(name, " ", value, "\n");
    return text;
}

class Tune {
 public:
    explicit Tune(JobSession& job) : config_(job.config), job_(job), run_(job.line) {
        if (!mkdtemp(folder_.data()))
            fail("cannot make a folder ", folder_, ": ", std::strerror(errno));
        // Runs have no end, save nothing, and log the speed of each step.
        run_.command = kTrain, run_.given.erase("local-rank");
        Config& config = run_.config = config_;
        config.local_rank = -1, config.stall = Config().stall, config.join_timeout = 60;
        config.steps = 1'000'000'000, config.log_every = 1;
        config.save_every = 0, config.check_every = 0;
        config.schedule = Schedule::kRange, config.lr = 1e-6;
        if (config.data.empty() && config.generated == Config().generated)
            config.generated = int(std::clamp<int64_t>(8 * config.batch, 48, 4096));
        job.log.detail("every run: model ", config.model, ", size ", input_size_text(config.size),
                       ", batch ", config.batch);
        if (job.world() > 1) std::tie(host_, port_) = coordinator_address(config.coord);
    }
    ~Tune() {
        std::error_code gone;
        std::filesystem::remove_all(folder_, gone);
    }

    // Measures each trial for two seconds on the ranks of `group`, while less than this fraction of
    // --minutes has passed. Collective: rank 0 decides. Returns the number of the fastest trial
    // that trains what one rank trains; -1 if none could be measured.
    int measure(Communicator& group, std::vector<Trial>& trials, double part) {
        int best = -1;
        for (int i = 0; i < int(trials.size()); ++i) {
            Trial& one = trials[size_t(i)];
            const double left = 60 * part * config_.minutes - seconds_since(begin_);
            if (!broadcast_json(group, left > 0).get<bool>()) {
                one.speed.fault = "--minutes are over";
                continue;
            }
            job_.log.info("measuring ", one.text(), "  (", clock_text(seconds_since(begin_)),
                          " of at most ", clock_text(60 * config_.minutes), ")");
            one.speed = train(group, one, std::max(left / 3, 20.0));
            if (one.is_exact && one.speed.fault.empty() &&
                (best < 0 ||
                 one.speed.images_per_second > trials[size_t(best)].speed.images_per_second))
                best = i;
        }
        return broadcast_json(group, best);
    }

    void print(const std::vector<Trial>& all, int best, double base) const {
        Table table(config_.json), others(config_.json);
        for (const Trial& one : all) {
            const Speed& s = one.speed;
            if (!s.fault.empty()) continue;
            const bool is_best = best >= 0 && &one == &all[size_t(best)];
            table.row({{"trial", one.text(), "trial", "{:<44}"},
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
        for (const Trial& one : all)
            if (!one.speed.fault.empty())
                others.row({{"trial", one.text(), "not measured", "{:<44}"},
                            {"note", one.speed.fault, "why", "{:<}"}});
    }

    // Writes a file for `trainer --settings`: the user's options and those of the trial. Rank 0's
    // file has the name that was asked for; another rank's file also has its number.
    void write_settings(const Trial& trial) const {
        const std::string file = cat(config_.out, job_.rank() > 0 ? cat(".rank", job_.rank()) : "");
        const std::string start =
            cat(trial.ranks > 1 ? cat("tools/launch -n ", trial.ranks, " -- ") : "",
                program_invocation_name, " --settings ", file);
        std::string text = cat("# Written by `trainer tune`. To start it: ", start, "\n",
                               user_settings(job_.line, config_));
        for (const auto& [name, value] : trial.options) text += cat(name, " ", value, "\n");
        write(file, text);
        job_.log.info("written: ", file, "   try: ", start);
    }

 private:
    static void write(const std::string& file, const std::string& text) {
        std::ofstream out(file);
        if (!(out << text).flush()) fail("cannot write ", file, ": ", std::strerror(errno));
    }
    // Trains with this trial: the ranks of this machine are threads. Rank 0 of `group` ends it,
    // when the steps after the first have taken two seconds, or after `limit` seconds.
    Speed train(const Communicator& group, const Trial& trial, double limit) {
        std::filesystem::remove_all(folder_ + "/run0");
        std::vector<CommandLine> lines(size_t(trial.ranks), run_);
        const int world = group.world() * trial.ranks;
        // The ranks of the job listen at the ports after the coordinator's.
        const std::string coord =
            group.world() > 1 ? cat(host_, ":", 50 + ++port_) : cat("127.0.0.1:", free_port());
        for (int i = 0; i < trial.ranks; ++i) {
            Config& config = lines[size_t(i)].config;
            for (const auto& [name, value] : trial.options) set_option(config, name, value);
            config.out = cat(folder_, "/run", i);
            config.coord = world > 1 ? coord : "";
            config.rank = group.rank() * trial.ranks + i, config.world = world;
            if (group.world() == 1) config.preflight = Toggle::kOff;
        }
        std::atomic<bool> ends = false;
        const Stop stop = [&] { return ends ? SIGINT : job_.stop(); };
        std::vector<std::future<int>> ranks;
        for (const CommandLine& line : lines)
            ranks.push_back(std::async(std::launch::async, [&] {
                Log unheard(nullptr);
                return run_in_job(line, unheard, stop, train_in_job);
            }));
        Speed speed;
        const auto begin = Clock::now();
        auto since = begin;  // of the measured steps
        std::clock_t cpu_before = std::clock();
        const auto goes_on = [&] {
            return ranks[0].wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout;
        };
        while (goes_on() && group.rank() == 0 && speed.seconds < 2 && speed.fault.empty()) {
            if (speed.seconds == 0) since = Clock::now(), cpu_before = std::clock();
            speed = speed_of_log(folder_ + "/run0/log.jsonl");
            if (seconds_since(begin) > limit)
                speed.fault = fmt::format("too slow: only {:.1f} s were measured in {:.0f} s",
                                          speed.seconds, limit);
        }
        const double cpu = double(std::clock() - cpu_before) / CLOCKS_PER_SEC;
        speed.cores = cpu / std::max(seconds_since(since), 1e-3);
        speed.memory_megabytes = memory_bytes() / (1 << 20);
        ends = group.rank() == 0;
        for (std::future<int>& rank : ranks) try {
                rank.get();
            } catch (const std::exception& error) {
                speed.fault = error.what();
            }
        if (speed.seconds == 0 && speed.fault.empty()) speed.fault = "it ended in its first steps";
        if (const int signal = job_.stop()) fail("stopped by signal ", signal);
        return speed;
    }

    const Config& config_;
    JobSession& job_;
    CommandLine run_;  // of every run, without the trial
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
    std::vector<Trial> here =
        local_trials(config.threads > 0 ? config.threads : available_cpus(), count_gpus());
    if (!alone) std::erase_if(here, [](const Trial& one) { return one.ranks > 1; });
    Communicator this_rank;
    int best = tune.measure(this_rank, here, alone ? 1 : 0.5);
    const double base = here[0].speed.images_per_second;
    tune.print(here, best, base);
    if (best < 0)
        fail("no trial could be measured (", here[0].text(), ": ", here[0].speed.fault,
             "); try more --minutes, or a smaller --model or --batch");
    Trial fastest = here[size_t(best)];
    if (!alone) {
        std::vector<Trial> joined = join_trials(job.world(), fastest);
        best = tune.measure(job.communicator(), joined, 1);
        if (job.rank() == 0) tune.print(joined, best, base);
        if (best >= 0)
            fastest = joined[size_t(best)];
        else
            job.log.notice(
                "no trial of several machines could be measured; writing this machine's own");
    }
    tune.write_settings(fastest);
    job.finish();
    return 0;
}

// ---- tune --plan: how fast will a job be, and with which options? -----------------------------

void print_measured(const JobTiming& timing, const std::vector<Peer>& peers,
                    const std::vector<double>& shares, bool json) {
    Table links(json), ranks(json);
    for (const LinkTiming& link : timing.links)
        links.row({{"plan", "link"},
                   {"from", link.from, "from"},
                   {"to", link.to, "to"},
                   {"latency_ms", 1e3 * link.latency_seconds, "latency", "{:.3f} ms"},
                   {"mbit_per_second", mbit_per_second(link), "Mbit/s", "{:.0f}"}});
    if (!json && !timing.links.empty())
        fmt::print("buckets of {:.1f} MB\n\n", double(timing.bucket_bytes) / (1 << 20));
    for (size_t rank = 0; rank < timing.ranks.size(); ++rank)
        ranks.row({{"plan", "rank"},
                   {"rank", rank, "rank"},
                   {"threads", timing.ranks[rank].threads, "threads"},
                   {"share", shares[rank], "share", "{:g}"},
                   {"images_per_second", timing.ranks[rank].together, "compute img/s", "{:.1f}"},
                   {"address", rank < peers.size() ? peers[rank].address : "", "address"}});
    if (!json) fmt::print("\n");
}

void print_forecasts(const JobTiming& timing, const Config& config, const Shares& shares) {
    struct Row {
        Forecast forecast;
        std::string options;
    };
    std::vector<Row> rows;
    // The fastest of the ways with the same result as one rank. More ranks, or another format, must
    // be at least 2 % faster.
    size_t best = 0;
    for (int ranks = 1; ranks <= std::ssize(shares.weights); ++ranks) {
        std::vector<double> part = shares.weights;
        part.resize(size_t(ranks));
        if (shares.fair) part = fair_shares(timing, ranks);
        if (std::ranges::max(part) == 0) continue;
        for (const Way& way : kWays) {
            if (ranks == 1 && &way != kWays) break;
            rows.push_back(
                {forecast(timing, way, config.batch, part),
                 cat("--world ", ranks, ranks > 1 ? cat(" ", way.options) : "",
                     shares.fair && ranks > 1 ? " --share " + join_text(part, ":") : "")});
            const auto speed_of = [&](size_t i) { return rows[i].forecast.images_per_second; };
            if (way.every == 1 && speed_of(rows.size() - 1) > 1.02 * speed_of(best))
                best = rows.size() - 1;
        }
    }
    Table table(config.json);
    for (const auto& [one, options] : rows) {
        const bool is_best = &one == &rows[best].forecast;
        table.row({{"plan", "prediction"},
                   {"ranks", one.ranks, "ranks"},
                   {"wire", one.way->bf16 ? "bf16" : "fp32"},
                   {"steps_per_sum", one.way->every},
                   {"", one.ranks == 1 ? "" : one.way->name, "sends", "{:<6}"},
                   {"images_per_second", one.images_per_second, "img/s", "{:.1f}"},
                   {"efficiency", one.efficiency},
                   {"", 100 * one.efficiency, "of compute", "{:.0f} %"},
                   {"step_ms", 1e3 * one.step_seconds},
                   {"best", is_best},
                   {"options", options},
                   {"", is_best ? "best: " + options : "", "", "{:<}"}});
    }
}

}  // namespace

int plan_in_job(JobSession& job) {
    job.take_settings_of_rank0();
    JobSetup setup{job};
    Shares& shares = setup.shares;
    const Config& config = job.config;
    setup.model.text =
        broadcast_text(job.communicator(), job.rank() == 0 ? model_text(config.model) : "");
    setup.model.classes.resize(size_t(class_count(config)));
    shares = gather_shares(job.communicator(), config.share, job.log);
    if (config.batch < job.world())
        fail("--batch ", config.batch, " cannot be divided among ", job.world(),
             " ranks: give more");
    choose_device(job);
    const JobTiming timing = time_job(setup, job.communicator(), /*brief=*/false);
    if (shares.fair) shares.weights = fair_shares(timing, job.world());
    job.finish();
    if (job.rank() != 0) return 0;
    print_measured(timing, job.peers(), shares.weights, config.json);
    print_forecasts(timing, config, shares);
    if (!config.json)
        for (const std::string& warning :
             plan_warnings(timing, job.peers(), config.batch, shares.weights))
            fmt::print("{}\n", warning);
    return 0;
}

int command_tune(const CommandLine& given, Log& log, const Stop& stop) {
    CommandLine line = given;
    line.config.stall = 1e6;  // the other ranks wait while rank 0 measures
    return run_in_job(line, log, stop, tune_in_job);
}

}  // namespace convoy
