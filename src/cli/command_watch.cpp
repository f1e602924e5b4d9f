// command_watch.cpp — page and watch: a run that trains, or has ended, in a browser or a terminal.
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/terminal.h"
#include "src/cli/commands.h"
#include "src/page/server.h"
#include "src/page/watch.h"

namespace convoy {

using nlohmann::json;

// Sleeps, but not past a signal.
static void wait(double seconds, const Stop& stop) {
    for (const auto begin = Clock::now(); !stop() && seconds_since(begin) < seconds;)
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

static const std::string& the_word(const CommandLine& line, const char* what) {
    if (line.files.size() != 1) fail(what, ", not ", line.files.size(), " words");
    return line.files[0];
}

static int command_page(const CommandLine& line, Log& log, const Stop& stop) {
    LogReader reader(the_word(line, "page takes the folder of one run"));
    PageState state;
    reader.read(state);
    char host[256] = "localhost";
    gethostname(host, sizeof host - 1);
    const std::string& page = line.config.page;
    const PageServer server(page.empty() ? "on" : page, state, the_word(line, "page"));
    log.notice("page: ", server.url(host), "   (Ctrl-C ends it)");
    for (; !stop(); wait(1, stop)) reader.read(state);
    return 0;
}

// Snapshots of a run, each with what is new since the one before: from its log, or from its page.
static std::function<json()> source_of(const std::string& run) {
    if (std::filesystem::exists(run))
        return [reader = std::make_shared<LogReader>(run), state = std::make_shared<PageState>(),
                next = uint64_t(0)]() mutable {
            reader->read(*state);
            const std::chrono::duration<double> now =
                std::chrono::system_clock::now().time_since_epoch();
            json snapshot = state->snapshot(next, now.count());
            next = snapshot["next"];
            return snapshot;
        };
    // HOST:PORT, or the URL that the trainer has printed.
    std::string place = run.starts_with("http://") ? run.substr(7) : run, token;
    const size_t slash = std::min(place.find('/'), place.size());
    if (const size_t at = place.find("?t=", slash); at != place.npos) token = place.substr(at + 3);
    place.resize(slash);
    if (place.find(':') == place.npos)
        fail("there is no run folder ", run,
             "; watch takes one, or HOST:PORT of a run with --page");
    const auto [host, port] = page_address(place);
    return [host = host, port = port, token, next = uint64_t(0)]() mutable {
        json snapshot = json::parse(fetch_page(host, port, cat("/state.json?after=", next), token),
                                    nullptr, false);
        if (!snapshot.is_object() || !snapshot["next"].is_number_unsigned())
            fail("what answers at ", host, ":", port, " is no page of a trainer");
        next = snapshot["next"];
        return snapshot;
    };
}

static int command_watch(const CommandLine& line, Log&, const Stop& stop) {
    const auto next = source_of(the_word(line, "watch takes a run folder or HOST:PORT"));
    const bool json = line.config.json;
    const int width = json ? 0 : terminal_width(stdout);  // 0: a line each, nothing is drawn again
    size_t drawn = 0;                                     // lines that the next ones overwrite
    double last_step = -1;
    while (!stop()) {
        const nlohmann::json state = next();
        std::string text = drawn > 0 ? fmt::format("\033[{}A\033[J", drawn) : "";
        for (const std::string& event : watch_events(state))
            if (!json) text += event + "\n";
        const std::vector<std::string> lines =
            width > 0 ? watch_lines(state, width)
                      : std::vector{json ? state.dump() : watch_line(state)};
        const double step = std::fmax(json_number(state, "step"), 0);
        if (width > 0 || step != last_step || is_over(state))
            for (const std::string& one : lines) text += one + "\n";
        drawn = width > 0 ? lines.size() : 0, last_step = step;
        fmt::print("{}", text);
        std::fflush(stdout);
        if (is_over(state)) return 0;
        wait(width > 0 ? 1 : 2, stop);
    }
    return 128 + stop();
}

const CommandRow kPageRow =
    with_files({"page", kPage, "RUN [--page ADDRESS:PORT]",
                "show a finished run, or one that trains, on a web page", command_page});
const CommandRow kWatchRow =
    with_files({"watch", kWatch, "RUN | HOST:PORT",
                "follow a run in the terminal, from its folder or its --page", command_watch});

}  // namespace convoy
