// command_line.cpp — from arguments and environment to a CommandLine. CLI11 parses; commands and
// options come from their tables.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "data/augment.h"
#include "src/base/check.h"
#include "src/base/text.h"
#include "src/cli/commands.h"
#include "src/config/settings_file.h"

namespace convoy {

static std::string environment_name(const std::string& option) {
    std::string name = "CONVOY_" + option;
    for (char& c : name) c = c == '-' ? '_' : char(std::toupper(c));
    return name;
}

static bool is_flag(const Option& option) {
    return std::holds_alternative<bool Config::*>(option.field);
}

std::string help_text(const Option& option, const CommandRow& row) {
    std::string text = get_option(Config{}, option.name);
    for (const CommandDefault& own : row.defaults)
        if (own.option == std::string_view(option.name)) text = own.shown;
    const bool shows_default = !text.empty() && text != "-1" && !is_flag(option);
    return cat(option.help, shows_default ? cat(" [", text, "]") : "");
}

static std::string short_help() {
    std::string text =
        "Convoy trains convolutional networks on folders of images, on one machine or on "
        "several.\n\n"
        "  trainer [train] [options]\n"
        "  trainer COMMAND [options]\n"
        "  trainer COMMAND --help         shows all options of a command\n\n"
        "Commands\n";
    for (const CommandRow* row : kCommands)
        text += fmt::format("  {:<16} {}\n", row->name, row->help);
    text += "\nThe most important options\n";
    for (const Option& option : options())
        if (option.flags & kFirst)
            text += fmt::format("  {:<24} {}\n", cat("--", option.name, " ", option.value),
                                help_text(option, *kCommands[0]));
    return text +
           "\nEvery option can also be set in the environment: CONVOY_BATCH=64 is --batch 64. "
           "Options on the command line win.\n";
}

// The command that the first words name, and how many words that took.
static std::pair<const CommandRow*, size_t> find_command(const std::vector<std::string>& words) {
    if (words.empty() || words[0].starts_with("-")) return {kCommands[0], 0};
    const std::string two = words.size() > 1 ? words[0] + " " + words[1] : words[0];
    std::vector<std::string> names;
    for (const CommandRow* row : kCommands) {
        if (words[0] == row->name) return {row, 1};
        if (two == row->name) return {row, 2};
        names.push_back(row->name);
    }
    if (words[0] == "bench")
        fail("bench needs to know what: train, kernels, allreduce or data",
             words.size() > 1 ? cat(", not '", words[1], "'") : "");
    if (const char* instead = replacement(words[0]))
        fail("there is no command '", words[0], "' any more; use ", instead);
    const std::string near = nearest(words[0], names);
    fail(
        "there is no command '", words[0], "'",
        near.empty() ? cat("; there are ", join_text(names)) : cat("; did you mean '", near, "'?"));
}

// The words that CLI11 did not know: files, or mistakes.
static void take_rest(CommandLine& line, const CommandRow& row,
                      const std::vector<std::string>& rest, bool row_is_given) {
    std::vector<std::string> names;
    for (const Option& option : options())
        if (row.takes(option)) names.push_back(cat("--", option.name));
    for (const CommandRow* other : kCommands)
        for (const std::string& word : rest)
            if (!row_is_given && word == split(other->name, ' ')[0])
                fail("the command comes first: trainer ", word, " [options]");
    for (const std::string& word : rest) {
        if (word.size() < 2 || word[0] != '-') {
            if (!row.takes_files)
                fail("`", row.name, "` takes no word '", word, "'",
                     std::ranges::count(names, "--data") ? "; images are given by --data DIR" : "");
            line.files.push_back(word);
            continue;
        }
        const std::string name = word.substr(0, word.find('='));
        if (find_option(name.starts_with("--") ? name.substr(2) : name))
            fail("`", row.name, "` has no option ", name, "; see trainer ", row.name, " --help");
        if (const char* instead = replacement(name))
            fail("there is no option ", name, " any more; use ", instead);
        const std::string near = nearest(name, names);
        fail("there is no option ", name,
             near.empty() ? cat("; see trainer ", row.name, " --help")
                          : cat("; did you mean ", near, "?"));
    }
}

struct UsageFormatter : CLI::Formatter {
    explicit UsageFormatter(const char* text) : usage(text) {}
    std::string make_usage(const CLI::App*, std::string name) const override {
        return cat("Usage: ", name, " ", usage, "\n");
    }
    const char* usage;
};

CommandLine parse_command_line(const std::vector<std::string>& words,
                               const Environment& environment) {
    CommandLine line;
    if (!words.empty() && (words[0] == "--help" || words[0] == "-h" || words[0] == "help")) {
        line.help = short_help();
        return line;
    }
    const auto [row, taken] = find_command(words);
    line.command = row->command;
    CLI::App app(row->help, cat("trainer ", row->name));
    app.allow_extras();
    app.formatter(std::make_shared<UsageFormatter>(row->usage));
    app.get_formatter()->column_width(34);
    std::map<std::string, std::string> texts;  // of each option of the command
    for (const Option& option : options()) {
        if (!row->takes(option)) continue;
        const std::string name = cat("--", option.name);
        std::string& text = texts[option.name];
        (is_flag(option)
             ? app.add_flag(name, text, help_text(option, *row))  // "true", or what follows '='
             : app.add_option(name, text, help_text(option, *row))
                   ->type_name(option.value)
                   ->take_last()
                   ->expected(option.flags & kBare ? 0 : 1, 1))
            ->group(option.flags & kHidden ? "" : option.group);
    }
    try {
        app.parse(std::vector(words.rbegin(), words.rend() - long(taken)));  // CLI11 pops the last
    } catch (const CLI::CallForHelp&) {
        line.help = app.help();
        return line;
    } catch (const CLI::ArgumentMismatch& error) {  // "--batch: 1 required B missing"
        fail(split(error.what(), ':')[0], " needs a value after it");
    } catch (const CLI::ParseError& error) {
        fail(error.what());
    }
    take_rest(line, *row, app.remaining(), taken > 0);

    for (const CommandDefault& own : row->defaults)
        if (own.value) set_option(line.config, own.option, own.value);
    Environment settings;
    const auto take = [&](const std::string& name, const std::string& text) {
        const std::string option = "--" + name, variable = environment_name(name);
        const auto found = environment.find(variable);
        const std::string set = found == environment.end() ? "" : found->second;
        const bool is_typed = app.count(option) > 0, is_set = !set.empty();
        if (!is_typed && !is_set && !settings.contains(name)) return;
        if (!is_typed && set.starts_with("tcp://"))
            fail(variable, " is '", set, "', which Kubernetes sets for a service named '",
                 "convoy': give the pod enableServiceLinks: false, or the service another name");
        line.given[name] = is_typed ? option
                           : is_set ? variable
                                    : cat(line.config.settings, ": --", name);
        const bool bare = is_typed && text.empty() && find_option(name)->flags & kBare;
        set_option(line.config, name,
                   bare       ? "on"
                   : is_typed ? text
                   : is_set   ? set
                              : settings.at(name),
                   line.given[name]);
    };
    if (texts.contains("settings")) take("settings", texts["settings"]);
    if (!line.config.settings.empty()) settings = read_settings(line.config.settings);
    for (const auto& [name, text] : texts) take(name, text);
    if (environment.contains("CONVOY_TOKEN")) line.config.token = environment.at("CONVOY_TOKEN");
    // Crops would cut the generated shapes off.
    if (!line.given.contains("augment") && line.config.data.empty())
        line.config.augment = Augment::resize;
    apply_launcher(line, environment);
    return line;
}

}  // namespace convoy
