// stop_signal.h — the signals that end the program (README.md says what each does to a run).
#pragma once

namespace convoy {

// SIGINT or SIGTERM, whichever came first, or 0. Signals are caught from the first call on; before
// that a signal ends the process. A second signal ends it at once.
int stop_signal();
// The signal itself, also one that only counts as SIGTERM (SIGHUP, SIGUSR1, SIGXCPU), or 0.
int caught_signal();

}  // namespace convoy
