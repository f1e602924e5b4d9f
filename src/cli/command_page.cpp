// command_page.cpp — page: shows a run that trains or has ended in a browser.
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/cli/commands.h"
#include "src/page/server.h"

namespace convoy {

// Gives the new whole lines of a log, which may still grow, to the state.
static void read_log(std::FILE* log, std::string& rest, PageState& state) {
    char part[1 << 16];
    std::clearerr(log);
    while (const size_t n = std::fread(part, 1, sizeof part, log)) {
        rest.append(part, n);
        size_t begin = 0;
        for (size_t end; (end = rest.find('\n', begin)) != rest.npos; begin = end + 1)
            state.line(std::string_view(rest).substr(begin, end - begin));
        rest.erase(0, begin);
        if (rest.size() > PageState::kMostLine) rest.assign(1, '?');  // not a line of a log
    }
}

int command_page(const CommandLine& line, Log& log, const Stop& stop) {
    if (line.files.size() != 1)
        fail("page takes the folder of one run, not ", line.files.size(), ": trainer page RUN");
    const std::string& run = line.files[0];
    const std::string path = std::filesystem::is_directory(run) ? run + "/log.jsonl" : run;
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                               std::fclose);
    if (!file)
        fail("cannot read ", path, ": ", std::strerror(errno),
             ": give the folder of a run (--out, or runs/<time>)");
    std::string rest;
    PageState state;
    read_log(file.get(), rest, state);
    const std::string& page = line.config.page;
    const auto server = serve_page(page.empty() ? "on" : page, state);
    log.notice("page: ", url_of(*server), "   (Ctrl-C ends it)");
    while (!stop()) {
        read_log(file.get(), rest, state);
        // Wait a second, or until a signal comes.
        for (const auto begin = Clock::now(); !stop() && seconds_since(begin) < 1;)
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return 0;
}

}  // namespace convoy
