#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <signal.h>

// As in src/cli/main.cpp.
static const auto kNoSignal = signal(SIGPIPE, SIG_IGN);
