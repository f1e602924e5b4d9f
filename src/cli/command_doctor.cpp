// command_doctor.cpp — doctor: checks this machine for everything that would prevent a job, slow it
// down or end it, and says what to do about it.
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "net/control/connection.h"
#include "src/base/text.h"
#include "src/cli/commands.h"
#include "src/session/device_choice.h"
namespace convoy {

namespace {

enum class State { ok, note, bad };  // bad: a job would not start
struct Diagnosis {
    State state = State::ok;
    std::string text = {};
    std::string advice = {};  // printed unless the state is ok
};

// The value of the line "KEY : value" of a file; "" if there is no such line.
std::string line_of(const char* file, const std::string& key) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);)
        if (line.starts_with(key))
            if (const size_t value = line.find_first_not_of(": \t", key.size());
                value < line.size())
                return line.substr(value);
    return "";
}

std::string first_word(const std::string& file) {
    std::string word;
    std::ifstream(file) >> word;
    return word;
}

double gigabytes(double bytes) { return bytes / (1 << 30); }

Diagnosis processors(const Config& config) {
    const std::string name = line_of("/proc/cpuinfo", "model name");
    const int cpus = available_cpus();
    const std::string flags = line_of("/proc/cpuinfo", "flags");
    std::string text = cat(name.empty() ? "" : printable(name) + "; ",
                           make_backend("cpu", {.threads = config.threads})->description(),
                           flags.empty()                              ? ""  // no /proc, or not x86
                           : flags.find(" amx_bf16") != flags.npos    ? "; AMX"
                           : flags.find(" avx512_bf16") != flags.npos ? "; BF16, no AMX"
                                                                      : "; no AMX");
    if (const int cores = available_cores(); cores < cpus)
        text += cat("; ", cpus, " processors on ", counted(cores, "core"));
    const int all = int(std::thread::hardware_concurrency());
    if (cpus < all) text += cat("; ", cpus, " of ", all, " processors, by affinity or cgroup");
    const double load = to_number<double>(first_word("/proc/loadavg")).value_or(0);
    if (load > 0.5 * cpus)
        return {State::note, cat(text, fmt::format("; load {:.1f}", load)),
                "other programs use the processors, so speeds will be lower and vary; stop them"};
    return {State::ok, text};
}

Diagnosis memory() {
    const auto kilobytes =
        to_number<double>(split(line_of("/proc/meminfo", "MemAvailable"), ' ')[0]);
    if (!kilobytes) return {State::note, "not known: there is no /proc/meminfo", "mount /proc"};
    double free = 1024 * *kilobytes;
    std::string text = fmt::format("{:.1f} GB free", gigabytes(free));
    if (const auto limit = to_number<double>(first_word("/sys/fs/cgroup/memory.max"))) {
        const double used =
            to_number<double>(first_word("/sys/fs/cgroup/memory.current")).value_or(0);
        free = std::min(free, *limit - used);
        text += fmt::format("; the cgroup leaves {:.1f} of {:.1f} GB", gigabytes(*limit - used),
                            gigabytes(*limit));
    }
    return {gigabytes(free) < 2 ? State::note : State::ok, text,
            "train with a small --batch and --size, or a smaller --model"};
}

// Of the folder, or of the parent folder in which it would be made.
Diagnosis disk(std::string folder) {
    while (!std::filesystem::exists(folder) && folder != ".") {
        const std::string above = std::filesystem::path(folder).parent_path();
        folder = above.empty() ? "." : above;
    }
    const std::string sample = folder + "/.convoy-doctor-" + std::to_string(getpid());
    std::ofstream file(sample);
    file << "x" << std::flush;
    const bool writable = bool(file);
    const std::string why = std::strerror(errno);
    std::error_code ignored;
    std::filesystem::remove(sample, ignored);
    if (!writable)
        return {State::bad, cat(printable(folder), " cannot be written: ", why),
                "choose another folder with --out"};
    struct statvfs space {};
    if (statvfs(folder.c_str(), &space) != 0) return {State::note, std::strerror(errno)};
    const double free = gigabytes(double(space.f_bavail) * double(space.f_frsize));
    return {free < 2 ? State::note : State::ok,
            fmt::format("{:.1f} GB free in {}", free, printable(folder)),
            "three checkpoints of vgg16 take 3.3 GB: free some space, or --keep fewer"};
}

Diagnosis open_files() {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    return {limit.rlim_cur < 1024 ? State::note : State::ok, cat("up to ", limit.rlim_cur),
            "raise the limit with `ulimit -n 1024`"};
}

Diagnosis clock() {
    timex time{};
    if (adjtimex(&time) >= 0 && !(time.status & STA_UNSYNC)) return {State::ok, "synchronised"};
    return {State::note, "not synchronised, or not visible here",
            "times in the logs of several machines may differ; training does not depend on them"};
}

Diagnosis gpu() {
    std::string why;
    const int gpus = count_gpus(&why);
    if (gpus == 0) return {State::ok, cat("none: ", why)};
    return {State::ok,
            make_backend("cuda:0")->description() + (gpus > 1 ? cat("; ", gpus, " GPUs") : "")};
}

// Whether a rank could listen at `port`.
Diagnosis port(uint16_t port) {
    asio::io_context io;
    std::string why;
    for (const tcp& family : {tcp::v4(), tcp::v6()}) try {
            const tcp::acceptor listens(io, tcp::endpoint(family, port));
        } catch (const std::system_error& error) {
            if (error.code() != asio::error::address_family_not_supported)
                why = error.code().message();
        }
    if (why.empty()) return {State::ok, cat(port, " is free")};
    return {State::note, cat(port, ": ", why),
            "`trainer health` tells whether a rank listens there; choose another port with --port"};
}

// Whether the coordinator can be reached. Waits for its name, and two seconds per address.
Diagnosis coordinator(const std::string& coord) {
    const auto [host, number] = coordinator_address(coord);
    asio::io_context io;
    const auto call = [host = host, number = number]() -> asio::awaitable<void> {
        const TlsContext none;
        co_await dial(host, number, none, std::chrono::seconds(2));
    };
    std::future<void> called = asio::co_spawn(io, call, asio::use_future);
    io.run();
    try {
        called.get();
        return {State::ok, cat(coord, " answers")};
    } catch (const NotReached& error) {
        if (std::string_view(error.what()).find("connection refused") != std::string::npos)
            return {State::ok, cat(coord, " can be reached; nobody listens there yet")};
        return {State::bad, cat(printable(coord), ": ", error.what()),
                "check the address and the route, and open this port in firewalls"};
    } catch (const Error& error) {
        return {State::bad, printable(error.what()), "check the name, or give the IP address"};
    }
}

}  // namespace

int command_doctor(const CommandLine& line, Log&, const Stop&) {
    const Config& config = line.config;
    const auto address = coordinator_address(config.coord.empty() ? "localhost" : config.coord);
    const uint16_t own = config.port > 0 ? uint16_t(config.port) : address.second;
    const std::pair<const char*, std::function<Diagnosis()>> checks[] = {
        {"processor", [&] { return processors(config); }},
        {"memory", memory},
        {"disk", [&] { return disk(config.out.empty() ? "." : config.out); }},
        {"open files", open_files},
        {"clock", clock},
        {"GPU", gpu},
        {"port", [&] { return port(own); }},
        {"coordinator", [&] { return coordinator(config.coord); }}};
    bool good = true;
    for (const auto& [what, check] : checks) {
        if (what == std::string("coordinator") && config.coord.empty()) continue;
        Diagnosis finding;
        try {
            finding = check();
        } catch (const Error& error) {
            finding = {State::bad, error.what(),
                       "look for other programs that use it, and into the driver's log"};
        }
        if (finding.state == State::ok) finding.advice = "";
        const auto& [state, text, advice] = finding;
        const char* name = state == State::ok ? "ok" : state == State::note ? "note" : "BAD";
        good = good && state != State::bad;
        if (config.quiet && state == State::ok) continue;
        if (config.json)
            fmt::print("{}\n",
                       nlohmann::json{
                           {"check", what}, {"state", name}, {"finding", text}, {"advice", advice}}
                           .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
        else
            fmt::print("{:<5} {:<12} {}{}{}\n", name, what, text,
                       advice.empty() ? "" : "\n                   → ", advice);
    }
    return good ? 0 : 1;
}

}  // namespace convoy
