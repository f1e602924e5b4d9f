// tune.h — the setups with which a machine, or a job of several machines, can train, and a race
// between them by real training runs, which are ended when their speed is known.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "src/job/job_session.h"

namespace convoy {

struct Speed {
    double seconds = 0;                      // duration of the measured steps
    double images_per_second = 0;            // of all ranks
    double net_wait = 0, net_busy = 0;       // parts of the time, of rank 0
    double cores = 0, memory_megabytes = 0;  // of the processes here: in use, sum of their peaks
    std::string fault;                       // why there is no speed; "": there is one
};

struct Setup {
    std::map<std::string, std::string> options = {};  // by name
    int ranks = 1;                                    // on each machine
    bool is_exact = true;  // trains what one rank trains, up to the rounding of sums
    Speed speed = {};      // measured

    std::string text() const;  // "2 ranks: --sync pipeline:2 --threads 1"
};

// On one machine. The first setup is one core, the base of the speed-up.
std::vector<Setup> local_setups(int cores, int gpus);
// On `world` machines, each with one rank and the options of `local`.
std::vector<Setup> join_setups(int world, const Setup& local);

// Measures for this many seconds, or less if the speed is clearly below `to_beat`. Sets its speed.
using MeasureSetup = std::function<void(Setup&, double seconds, double to_beat)>;

// Returns the number of the fastest exact setup; -1 if none could be measured. Measures each setup
// for a second, then for three seconds the best three that are within 10 % of the fastest.
int race(std::vector<Setup>& setups, const MeasureSetup& measure);

// The speed of the steps in a log.jsonl except the first step, which warms up. Ignores lines that
// are not JSON or not a step.
Speed speed_of_log(const std::string& path);

// Runs `trainer train` in processes of this machine. Their output and the run folder of rank 0 are
// in `folder`, which must exist.
class MeasuredRun {
 public:
    // `options`: of each process, "--batch=64" or "CONVOY_GRAPH=on". environment: of all processes,
    // "NAME=value", without variables of options, which would count as given.
    MeasuredRun(std::string folder, const std::vector<std::vector<std::string>>& options,
                const std::vector<std::string>& environment);
    ~MeasuredRun() { end(); }
    MeasuredRun(const MeasuredRun&) = delete;

    // Blocks until rank 0 (the first process) has trained for `seconds` after its first step, or is
    // clearly slower than `to_beat` images per second, or a process has ended (a fault), or `limit`
    // seconds have passed. Then ends all processes. Throws Error on a signal.
    Speed watch(double seconds, double to_beat, double limit, const Stop& stop);

 private:
    double cpu_seconds() const;
    std::string why_ended();  // why a process has ended; "": all run
    long end();               // kills the processes; returns the sum of their peaks in KB

    const std::string folder_;
    std::vector<pid_t> processes_;  // -1: was waited for
};

// A port that is free at this moment, on loopback.
uint16_t free_port();

}  // namespace convoy
