// tune.cpp — see tune.h.
#include "src/plan/tune.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "net/control/asio.h"
#include "src/base/check.h"
#include "src/base/clock.h"

namespace convoy {

using nlohmann::json;

std::string Setup::text() const {
    std::string text = ranks > 1 ? cat(ranks, " ranks:") : "";
    for (const auto& [name, value] : options)
        text += cat(text.empty() ? "--" : " --", name, " ", value);
    return text;
}

std::vector<Setup> local_setups(int cores, int gpus) {
    std::vector<Setup> setups;
    const auto add = [&](int ranks, std::map<std::string, std::string> options) {
        if (gpus > 0) options.try_emplace("device", "cpu");
        setups.push_back({std::move(options), ranks});
    };
    const auto each_of = [&](int parts) { return cat(std::max(cores / parts, 1)); };
    std::vector<int> parts;  // all, and powers of two
    if (cores > 1) parts.push_back(cores);
    for (int part = 2; part < cores; part *= 2) parts.push_back(part);

    add(1, {{"threads", "1"}, {"decode-threads", "1"}});
    for (const int threads : parts) add(1, {{"threads", cat(threads)}});
    for (const int ranks : parts) add(ranks, {{"threads", each_of(ranks)}});
    for (const int replicas : parts) add(1, {{"threads", cat(replicas, "x", each_of(replicas))}});
    for (const char* micro_batches : {"2", "4"})
        add(1, {{"threads", cat(cores)}, {"accumulate", micro_batches}});
    if (cores > 1) add(2, {{"threads", each_of(2)}, {"sync", "pipeline:2"}});
    for (int ranks = 1; ranks <= gpus; ranks *= 2) add(ranks, {{"device", "cuda"}});
    if (gpus > 1) add(2, {{"device", "cuda"}, {"sync", "pipeline:2"}});
    return setups;
}

std::vector<Setup> join_setups(int world, const Setup& local) {
    std::vector<Setup> setups = {{{{"sync", "ring"}}},
                                 {{{"wire", "bf16"}}, 1, /*is_exact=*/false},
                                 {{{"sync", "average:8"}}, 1, /*is_exact=*/false},
                                 {{{"sync", "server"}}},
                                 {{{"sync", "async"}}, 1, /*is_exact=*/false},
                                 {{{"sync", cat("pipeline:", world)}}}};
    if (world > 2 && world % 2 == 0) setups.push_back({{{"sync", "pipeline:2"}}});
    for (Setup& one : setups) {
        const bool is_cut = one.text().find("pipeline") != std::string::npos;
        for (const auto& [name, value] : local.options)  // a pipeline has its own micro-batches
            if (!is_cut || (name != "accumulate" && value.find('x') == value.npos))
                one.options.try_emplace(name, value);
    }
    return setups;
}

int race(std::vector<Setup>& setups, const MeasureSetup& measure) {
    constexpr double kClose = 0.9;
    constexpr size_t kFinalists = 3;
    double best = 0;
    std::vector<Setup*> left;
    for (Setup& one : setups) {
        measure(one, 1, best);
        if (!one.is_exact || !one.speed.fault.empty()) continue;
        best = std::max(best, one.speed.images_per_second);
        left.push_back(&one);
    }
    const auto speed_of = [](const Setup* one) { return one->speed.images_per_second; };
    std::erase_if(left, [&](const Setup* one) { return speed_of(one) < kClose * best; });
    std::ranges::stable_sort(left, std::greater(), speed_of);
    left.resize(std::min(left.size(), kFinalists));
    if (left.size() > 1) {
        for (Setup* one : left) measure(*one, 3, 0);
        std::erase_if(left, [](const Setup* one) { return !one->speed.fault.empty(); });
        std::ranges::stable_sort(left, std::greater(), speed_of);
    }
    return left.empty() ? -1 : int(left[0] - setups.data());
}

uint16_t free_port() {
    asio::io_context io;
    const tcp::endpoint any(asio::ip::address_v4::loopback(), 0);
    try {
        return tcp::acceptor(io, any, /*reuse_addr=*/false).local_endpoint().port();
    } catch (const std::system_error& e) {
        fail("no port is free on 127.0.0.1: ", e.code().message());
    }
}

Speed speed_of_log(const std::string& path) {
    std::ifstream file(path);
    Speed speed;
    double images = 0;
    bool is_warm = false;
    for (std::string line; std::getline(file, line);) {
        const json event = json::parse(line, nullptr, /*allow_exceptions=*/false);
        if (!event.is_object() || event.value("event", "") != "step") continue;
        const double n = event.value("images", 0.0), rate = event.value("images_per_second", 0.0);
        if (!std::exchange(is_warm, true) || !(n > 0 && rate > 0)) continue;
        // The means over the time so far; this step's part of it.
        speed.seconds += n / rate, images += n;
        const double part = n / rate / speed.seconds;
        speed.net_wait += part * (event.value("net_wait", 0.0) - speed.net_wait);
        speed.net_busy += part * (event.value("net_busy", 0.0) - speed.net_busy);
        speed.images_per_second = images / speed.seconds;
    }
    return speed;
}

MeasuredRun::MeasuredRun(std::string folder, const std::vector<std::vector<std::string>>& options,
                         const std::vector<std::string>& environment)
    : folder_(std::move(folder)) {
    for (size_t rank = 0; rank < options.size(); ++rank) {
        std::vector<std::string> words = {"trainer", "train", cat("--out=", folder_, "/run", rank)};
        std::vector<std::string> variables = environment;
        for (const std::string& option : options[rank])
            (option.starts_with("--") ? words : variables).push_back(option);
        std::vector<char*> argv, envp;
        for (std::string& word : words) argv.push_back(word.data());
        for (std::string& variable : variables) envp.push_back(variable.data());
        argv.push_back(nullptr), envp.push_back(nullptr);
        const std::string output = cat(folder_, "/", rank, ".out");
        const pid_t process = fork();
        if (process < 0) fail("cannot start a process: ", std::strerror(errno));
        if (process == 0) {  // only calls that are safe in a copy of a process with threads
            const int out = open(output.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
            dup2(out, STDOUT_FILENO), dup2(out, STDERR_FILENO);
            prctl(PR_SET_PDEATHSIG, SIGKILL);  // it must not outlive this process
            close_range(3, ~0u, 0);            // nor keep its sockets
            execve("/proc/self/exe", argv.data(), envp.data());
            _exit(127);
        }
        processes_.push_back(process);
    }
}

double MeasuredRun::cpu_seconds() const {
    double seconds = 0;
    for (const pid_t process : processes_) {
        clockid_t clock;
        timespec used{};
        if (process > 0 && clock_getcpuclockid(process, &clock) == 0) clock_gettime(clock, &used);
        seconds += double(used.tv_sec) + 1e-9 * double(used.tv_nsec);
    }
    return seconds;
}

std::string MeasuredRun::why_ended() {
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
        int status = 0;
        if (waitpid(processes_[rank], &status, WNOHANG) <= 0) continue;
        processes_[rank] = -1;
        if (WIFSIGNALED(status))
            return cat("it was ended by signal ", WTERMSIG(status), "; is there enough memory?");
        std::string why = cat("it ended with status ", WEXITSTATUS(status));
        std::ifstream file(cat(folder_, "/", rank, ".out"));
        for (std::string line; std::getline(file, line);)
            if (const size_t at = line.find("error: "); at != line.npos) why = line.substr(at + 7);
        return why;
    }
    return "";
}

long MeasuredRun::end() {
    long peaks = 0;
    for (const pid_t process : processes_)
        if (process > 0) kill(process, SIGKILL);
    for (pid_t& process : processes_) {
        rusage usage{};
        if (process > 0 && wait4(process, nullptr, 0, &usage) > 0) peaks += usage.ru_maxrss;
        process = -1;
    }
    return peaks;
}

Speed MeasuredRun::watch(double seconds, double to_beat, double limit, const Stop& stop) {
    constexpr double kClearlySlower = 0.75, kShortest = 0.5;
    const auto begin = Clock::now();
    auto since = begin;  // of the measured steps
    double cpu_before = 0;
    Speed speed;
    const auto is_known = [&] {
        const bool is_slow = speed.images_per_second < kClearlySlower * to_beat;
        return speed.seconds > 0 && (is_slow || speed.seconds >= seconds) &&
               seconds_since(since) >= kShortest;
    };
    while (speed.fault.empty() && !is_known()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        if (const int signal = stop()) fail("stopped by signal ", signal);
        if (speed.seconds == 0) since = Clock::now(), cpu_before = cpu_seconds();
        const std::string why = why_ended();  // before the log, which is complete then
        speed = speed_of_log(folder_ + "/run0/log.jsonl");
        speed.fault = why;
        if (why.empty() && seconds_since(begin) > limit)
            speed.fault = fmt::format("too slow: only {:.1f} s were measured in {:.0f} s",
                                      speed.seconds, limit);
    }
    speed.cores = (cpu_seconds() - cpu_before) / std::max(seconds_since(since), 1e-3);
    speed.memory_megabytes = double(end()) / 1024;
    return speed;
}

}  // namespace convoy
