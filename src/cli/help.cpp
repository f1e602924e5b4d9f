// help.cpp — --help and --help-all, from the tables of commands and options.
#include <algorithm>
#include <utility>

#include "src/base/text.h"
#include "src/cli/commands.h"

namespace convoy {

// If a command has more options than this, --help shows only the most important ones.
constexpr int kScreen = 30;

// "  --batch B                 images per step, over all ranks [64]"
static std::string option_line(const Option& option, unsigned command) {
    std::string name = cat("--", option.name);
    if (*option.value)
        name += cat(
            " ", name.size() + std::string_view(option.value).size() < 24 ? option.value : "WORD");
    std::string value = option.is_flag() ? "" : get_option({}, option.name);
    for (const CommandDefault& own : command_defaults())
        if (own.option == std::string_view(option.name) && own.commands & command)
            value = own.shown;
    return fmt::format("  {:<24}  {}{}\n", name, option.help,
                       value.empty() ? "" : cat(" [", value, "]"));
}

// The options of the commands for which `shows` returns true, below the names of their groups.
template <class Shows>
static std::string option_lines(unsigned command, Shows shows, bool has_groups = true) {
    std::string text, group;
    for (const Option& option : options()) {
        if (!(option.commands & command) || option.flags & kHidden || !shows(option)) continue;
        if (has_groups && group != option.group) text += cat(group = option.group, ":\n");
        text += option_line(option, option.commands & kTrain & command ? kTrain : command);
    }
    return text;
}

std::string command_usage(const CommandRow& row) {
    return fmt::format("Usage: trainer {} {}\n{}\n", row.name, row.usage, row.help);
}

std::string command_help(const CommandRow& row, bool all) {
    const auto is_own = [&](const Option& option) {
        return std::ranges::any_of(command_defaults(), [&](const CommandDefault& own) {
            return own.option == std::string_view(option.name) && own.commands == row.command;
        });
    };
    const auto count = std::ranges::count_if(
        options(), [&](const Option& one) { return row.takes(one) && !(one.flags & kHidden); });
    all |= count <= kScreen;
    return command_usage(row) +
           option_lines(row.command,
                        [&](const Option& option) {
                            return all || option.flags & (kFirst | kCommon) || is_own(option);
                        }) +
           (all ? "" : fmt::format("All other options: trainer {} --help-all\n", row.name));
}

std::string program_help(bool all) {
    std::string text =
        "Convoy trains convolutional networks on folders of images, on one machine or on several.\n"
        "\nUsage: trainer [train] [options]\n"
        "       trainer COMMAND --help      the options of a command\n\nCommands:\n";
    std::string last;
    for (const CommandRow& row : kCommands) {
        const std::string name = split(row.name, ' ')[0];
        if (std::exchange(last, name) == name && !all) continue;
        text += fmt::format(
            "  {:<16} {}\n", all ? row.name : name,
            !all && name == "bench" ? "measure speed: train, kernels, allreduce, data" : row.help);
    }
    text += all ? "\n" : "\nThe most important options:\n";
    text += option_lines(
        all ? ~0u : unsigned(kTrain),
        [&](const Option& option) { return all || option.flags & kFirst; }, /*has_groups=*/all);
    return text + (all ? R"(
Environment:
  CONVOY_BATCH=64  is --batch 64, and so on for every option; the command line wins
  RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT  set the rank, as do those of other launchers
  NO_COLOR, TERM=dumb  print without colours, and without progress bars

Exit status:
  0      done
  1      an error, printed on stderr; check, predict: an image did not decode; doctor: a job would
         not start; health: no rank answers, or its job stalls
  3      eval: below --min-top1 or --min-recall
  128+n  ended by signal n; a training run has saved a checkpoint
)"
                       : "\nCONVOY_BATCH=64 in the environment is --batch 64. All options: trainer "
                         "--help-all\n");
}

}  // namespace convoy
