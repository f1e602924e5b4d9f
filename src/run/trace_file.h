// trace_file.h — from what ranks wrote down (src/base/trace.h) to a file for ui.perfetto.dev.
//
// Steady clocks of two machines differ by a constant d, to be added to the times of rank r to get
// those of the writer w. All ranks go through some barriers, and note when they entered and left
// each. No rank leaves one that another has not entered, so for each of them
//
//   entered_w − left_r  ≤  d  ≤  left_w − entered_r
//
// The middle between the largest and the least is taken; half their distance is the error, at most.
// For two ranks and one barrier that is NTP's formula; it needs no messages of its own.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "net/communicator.h"

namespace convoy {

struct TraceSteps {
    long first = 0, last = 0;  // counted from 1
};
TraceSteps trace_steps(const std::string& option);  // of --trace; throws Error

// The events of this rank from step `first` on; 0: of the last three. Any thread.
nlohmann::json trace_part(const Tracer& tracer, int64_t first = 0);
// Collective: the parts of all ranks that fit in 15 MB, with their clocks; {} where not `writes`.
std::vector<nlohmann::json> gather_trace(Communicator& communicator, nlohmann::json part,
                                         const std::string& name, bool writes);
// Writes FOLDER/trace-FIRST-LAST`ending`.json.gz with the clock of part `writer`; returns the path.
// ending: "" where somebody asked for it; else "-auto…", of which 8 are kept. Throws Error.
std::string write_trace(const std::string& folder, const std::string& ending,
                        std::vector<nlohmann::json> parts, size_t writer);

}  // namespace convoy
