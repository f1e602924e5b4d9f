// signals.cpp — see signals.h.
#include "src/cli/signals.h"

#include <signal.h>
#include <unistd.h>

namespace convoy {

static volatile sig_atomic_t caught = 0;

static void on_signal(int number) {
    if (caught) _exit(128 + number);  // asked twice: no time for anything
    caught = number;
}

void install_signal_handlers() {
    struct sigaction action {};
    action.sa_handler = on_signal;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
}

void ignore_broken_pipes() { signal(SIGPIPE, SIG_IGN); }

int stop_signal() { return caught; }

}  // namespace convoy
