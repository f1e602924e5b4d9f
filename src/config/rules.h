// rules.h — what the table of options does not say of a single option: the defaults of single
// commands, and which options exclude or need each other.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "src/config/config.h"

namespace convoy {

// A default of some commands, where it differs from Config's. `shown`: in --help, if that is
// another text. Without a value the default is only shown.
struct CommandDefault {
    unsigned commands;
    const char *option, *value, *shown = value;
};
std::span<const CommandDefault> command_defaults();

// Throws Error if the options that `command` takes break a rule. given: option → who gave it, for
// the message. own_only: check only rules about options that are not rank 0's decision.
void check_rules(const Config& config, Command command,
                 const std::map<std::string, std::string>& given, bool own_only = false);

}  // namespace convoy
