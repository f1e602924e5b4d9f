#include "src/cli/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace convoy {

// A signal belongs to the process, so this is the only global state.
static std::atomic<int> caught = 0;  // threads ask too

// Count as SIGTERM, unless the caller ignores them, as nohup does: a terminal that closes, a batch
// system that announces the end of the job, and a limit of processor time. They may be repeated.
constexpr int kNotices[] = {SIGHUP, SIGUSR1, SIGXCPU};

static bool is_notice(int number) { return std::ranges::count(kNotices, number) > 0; }

static void on_signal(int number) {
    int before = 0;  // threads may get signals at the same time
    if (caught.compare_exchange_strong(before, number) || is_notice(number)) return;
    if (!is_notice(before)) _exit(128 + number);
    caught = number;
}

int stop_signal() {
    [[maybe_unused]] static const bool installed = [] {
        struct sigaction action {};
        action.sa_handler = on_signal;
        action.sa_flags = SA_RESTART;
        for (int number : {SIGINT, SIGTERM}) sigaction(number, &action, nullptr);
        for (int number : kNotices) {
            struct sigaction inherited {};
            sigaction(number, nullptr, &inherited);
            if (inherited.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
        }
        return true;
    }();
    return is_notice(caught) ? SIGTERM : caught.load();
}

int caught_signal() { return caught; }

}  // namespace convoy
