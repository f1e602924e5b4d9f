// signals.h — Ctrl-C and SIGTERM: the first asks to stop, the second stops at once.
//
// Signals belong to the process, so this is the one piece of process-wide state; what must be able
// to stop takes a function instead of reading it here.
#pragma once

namespace convoy {

// Catches SIGINT and SIGTERM; a second one ends the process with 128+n. For commands that poll.
void install_signal_handlers();
// A closed pipe or socket is an error of the write, never the end of the process.
void ignore_broken_pipes();
// The first signal that came, 0 if none did.
int stop_signal();

}  // namespace convoy
