// trace_file.h — writes the records of all ranks (src/base/trace.h) to a file for ui.perfetto.dev.
//
// The steady clocks of two machines differ by a constant d. Adding d to a time of rank r gives the
// time of the writer w. All ranks pass some barriers, and note when they entered and left each
// barrier. No rank leaves a barrier before all ranks have entered it, so for each barrier
//
//   entered_w − left_r  ≤  d  ≤  left_w − entered_r
//
// d is the middle of the tightest bounds, and half their distance limits the error. For two ranks
// and one barrier this is NTP's formula, without messages of its own.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "net/ring/communicator.h"

namespace convoy {

struct TraceSteps {
    long first = 0, last = 0;  // counted from 1
};
TraceSteps trace_steps(const std::string& option);  // of --trace; throws Error

// The events of this rank from step `first` on; 0: the last three steps. Any thread.
nlohmann::json trace_part(const Tracer& tracer, int64_t first = 0);
// Collective. Returns the parts of all ranks, cut to 15 MB, with clocks; {} if not `writes`.
std::vector<nlohmann::json> gather_trace(Communicator& communicator, nlohmann::json part,
                                         const std::string& name, bool writes);
// Writes FOLDER/trace-FIRST-LAST`ending`.json.gz, in the clock of part `writer`. Returns the path.
// ending: "" if somebody asked for the trace; else "-auto…", of which 8 are kept. Throws Error.
std::string write_trace(const std::string& folder, const std::string& ending,
                        std::vector<nlohmann::json> parts, size_t writer);

}  // namespace convoy
