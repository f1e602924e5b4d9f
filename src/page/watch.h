// watch.h — the page of a run as lines of text, for a terminal.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace convoy {

// What PageState::snapshot() holds, without its events. No line is wider than `width` characters,
// and none has a control character in it.
std::vector<std::string> watch_lines(const nlohmann::json& state, int width);
// One line of the newest step, for what is no terminal.
std::string watch_line(const nlohmann::json& state);
// The events of a snapshot: "12:03:44  step 812  rank 3 (…) was lost: …".
std::vector<std::string> watch_events(const nlohmann::json& state);
// Whether the run has ended.
bool is_over(const nlohmann::json& state);

}  // namespace convoy
