// trace_file.h — writes the records of a rank (src/base/trace.h) to a file for ui.perfetto.dev.
//
// Times in the file are Unix times, so files of several ranks can be opened together. They lie on
// one axis as exactly as the system clocks of the machines agree.
#pragma once

#include <string>

#include "src/base/trace.h"

namespace convoy {

struct TraceSteps {
    long first = 0, last = 0;  // counted from 1
};
TraceSteps trace_steps(const std::string& option);  // of --trace; throws Error

// Writes the slices from step `first` on (0: of the last three steps), at most the newest 100,000,
// to FOLDER/trace-FIRST-LAST-rankR.json.gz, and returns the path. An `automatic` trace, which
// nobody asked for, has -auto-rankR, and a rank's newest 8 of these stay. Any thread. Throws Error.
std::string write_trace(const Tracer& tracer, const std::string& folder, int rank, bool automatic,
                        int64_t first = 0);

}  // namespace convoy
