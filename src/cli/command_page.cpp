// command_page.cpp — page: shows a run that trains or has ended in a browser.
#include <unistd.h>

#include <chrono>
#include <thread>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/cli/commands.h"
#include "src/page/server.h"

namespace convoy {

int command_page(const CommandLine& line, Log& log, const Stop& stop) {
    if (line.files.size() != 1)
        fail("page takes the folder of one run, not ", line.files.size(), ": trainer page RUN");
    const std::string& run = line.files[0];
    LogReader reader(run);
    PageState state;
    reader.read(state);
    char host[256] = "localhost";
    gethostname(host, sizeof host - 1);
    const std::string& page = line.config.page;
    const PageServer server(page.empty() ? "on" : page, state);
    log.notice("page: ", server.url(host), "   (Ctrl-C ends it)");
    while (!stop()) {
        reader.read(state);
        // Wait a second, or until a signal comes.
        for (const auto begin = Clock::now(); !stop() && seconds_since(begin) < 1;)
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return 0;
}

}  // namespace convoy
