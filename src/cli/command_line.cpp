// command_line.cpp — makes a CommandLine from arguments and environment, by CLI11 and the tables.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>

#include "data/images/augment.h"
#include "src/base/text.h"
#include "src/cli/commands.h"

namespace convoy {

// The command that the words name, and the number of words of its name.
static std::pair<const CommandRow*, size_t> find_command(const std::vector<std::string>& words) {
    if (words.empty() || words[0].starts_with("-")) return {&kCommands[0], 0};
    std::pair<const CommandRow*, size_t> found = {nullptr, 1};
    std::vector<std::string> names;
    for (const CommandRow& row : kCommands) {
        const std::vector<std::string> parts = split(row.name, ' ');
        names.push_back(parts[0]);
        if (parts[0] != words[0]) continue;
        if (parts.size() == 1) found.first = &row;
        if (parts.size() == 1 || words.size() == 1) continue;
        if (parts[1] == words[1] && parts[1][0] != '-') return {&row, 2};
        if (std::ranges::any_of(words, [&](const std::string& word) {
                return parts[1][0] == '-' && word.substr(0, word.find('=')) == parts[1];
            }))
            return {&row, 1};
    }
    if (found.first) return found;
    if (words[0] == "bench")
        fail("bench needs one of train, kernels, allreduce or data",
             words.size() > 1 ? cat(", not '", words[1], "'") : "");
    const std::string near = nearest(words[0], names);
    fail("there is no command '", words[0], "'",
         near.empty() ? "; trainer --help lists all" : cat("; did you mean '", near, "'?"));
}

// Handles the words that CLI11 did not know: files, or mistakes.
static void take_rest(CommandLine& line, const CommandRow& row,
                      const std::vector<std::string>& rest, bool row_is_given) {
    std::vector<std::string> names;
    for (const Option& option : options())
        if (row.takes(option) && !(option.flags & kHidden)) names.push_back(option_name(option));
    for (const CommandRow& other : kCommands)
        for (const std::string& word : rest)
            if (!row_is_given && word == split(other.name, ' ')[0])
                fail("the command comes first: trainer ", word, " [options]");
    for (const std::string& word : rest) {
        if (word.size() < 2 || word[0] != '-') {
            if (!row.takes_files)
                fail("`", row.name, "` takes no word '", word, "'",
                     std::ranges::count(names, "--data") ? "; give images with --data DIR" : "");
            line.files.push_back(word);
            continue;
        }
        const std::string name = word.substr(0, word.find('='));
        if (const std::string instead = replacement(name); !instead.empty())
            fail("there is no option ", name, "; use ", instead);
        if (find_option(name.starts_with("--") ? name.substr(2) : name))
            fail("`", row.name, "` has no option ", name, "; see trainer ", row.name, " --help");
        const std::string near = nearest(name, names);
        fail("there is no option ", name,
             near.empty() ? cat("; see trainer ", row.name, " --help-all")
                          : cat("; did you mean ", near, "?"));
    }
}

// Variables of no option would otherwise be ignored silently. Those of tests/lab/hosts and of the
// tests are known, and Kubernetes sets some for each service whose name begins with "convoy".
static void refuse_unknown_variables(const Environment& environment) {
    std::vector<std::string> names = {"CONVOY_TOKEN", "CONVOY_HOSTS"};
    for (const Option& option : options()) names.push_back(environment_name(option.name));
    for (const auto& [name, value] : environment) {
        std::string upper = name;
        for (char& letter : upper) letter = char(std::toupper(uint8_t(letter)));
        if (!upper.starts_with("CONVOY_") || upper.starts_with("CONVOY_TEST_") || value.empty() ||
            std::ranges::count(names, name) > 0 || value.find("://") != value.npos ||
            name.find("_SERVICE_") != name.npos || name.find("_PORT_") != name.npos)
            continue;
        const std::string near = nearest(upper, names);
        fail(
            printable(name), " is set, but there is no such option; ",
            near.empty() ? "unset it, or see trainer --help-all" : cat("did you mean ", near, "?"));
    }
}

CommandLine parse_command_line(const std::vector<std::string>& words,
                               const Environment& environment) {
    CommandLine line;
    const auto asks = [&](const char* option) { return std::ranges::count(words, option) > 0; };
    const bool all = asks("--help-all"), help = all || asks("--help") || asks("-h");
    if (!words.empty() && (words[0] == "help" || (help && words[0].find("-h") <= 1))) {
        line.help = program_help(all);
        return line;
    }
    if (help && words.size() == 2 && words[0] == "bench") {
        for (const CommandRow& row : kCommands)
            if (split(row.name, ' ')[0] == "bench") line.help += command_usage(row);
        return line;
    }
    const auto [row, taken] = find_command(words);
    line.command = row->command;
    if (help) {
        line.help = command_help(*row, all);
        return line;
    }
    CLI::App app;
    app.set_help_flag();
    app.allow_extras();
    const auto may_be_bare = [&](const Option& option) {  // `tune --lr` needs no value
        return option.flags & kBare ||
               (row->command == kLrFind && option.name == std::string("lr"));
    };
    std::map<std::string, std::string> texts;  // of each option of the command
    for (const Option& option : options()) {
        if (!row->takes(option)) continue;
        std::string& text = texts[option.name];
        if (option.flags & kHidden) continue;
        if (option.is_flag())
            app.add_flag(option_name(option), text);  // "true", or what follows '='
        else
            app.add_option(option_name(option), text)
                ->take_last()
                ->expected(may_be_bare(option) ? 0 : 1, 1);
    }
    try {
        app.parse(std::vector(words.rbegin(), words.rend() - long(taken)));  // CLI11 pops the last
    } catch (const CLI::ArgumentMismatch& error) {  // "--batch: 1 required B missing"
        fail(split(error.what(), ':')[0], " needs a value after it");
    } catch (const CLI::ParseError& error) {
        fail(error.what());
    }
    take_rest(line, *row, app.remaining(), taken > 0);
    for (const char* set : {"data", "val"})
        if (texts.contains(set) && app.count(cat("--", set)) > 1)
            fail("--", set,
                 " is given twice: give one folder, one list, or a pattern of shards "
                 "such as 'a/{00..12}.tar'");

    refuse_unknown_variables(environment);
    for (const CommandDefault& own : command_defaults())
        if (own.value && own.commands & row->command)
            set_option(line.config, own.option, own.value);
    Environment settings;
    const auto take = [&](const std::string& name, const std::string& text) {
        const Option& option = *find_option(name);
        const std::string typed = option_name(option), variable = environment_name(name);
        const auto found = environment.find(variable);
        const std::string set = found == environment.end() ? "" : found->second;
        const bool is_typed = typed != variable && app.count(typed) > 0, is_set = !set.empty();
        if (!is_typed && !is_set && !settings.contains(name)) return;
        if (!is_typed && set.starts_with("tcp://"))
            fail(variable, " is '", set, "', which Kubernetes sets for a service named '",
                 "convoy': give the pod enableServiceLinks: false, or the service another name");
        line.given[name] = is_typed ? typed
                           : is_set ? variable
                                    : cat(line.config.settings, ": ", name);
        const bool is_bare = is_typed && text.empty() && may_be_bare(option);
        set_option(line.config, name,
                   is_bare    ? (option.flags & kBare ? "on" : "auto")
                   : is_typed ? text
                   : is_set   ? set
                              : settings.at(name),
                   line.given[name]);
    };
    if (texts.contains("settings")) take("settings", texts["settings"]);
    if (!line.config.settings.empty()) settings = read_settings(line.config.settings);
    for (const auto& [name, text] : texts) take(name, text);
    if (line.given.contains("data") && line.given.contains("generated"))
        fail(line.given["data"], " does not go with ", line.given["generated"], " ",
             line.config.generated, ": each is the training set");
    if (environment.contains("CONVOY_TOKEN")) line.config.token = environment.at("CONVOY_TOKEN");
    // Crops would cut off the generated shapes.
    if (!line.given.contains("augment") && line.config.data.empty())
        line.config.augment = Augment::resize;
    apply_launcher(line, environment);
    return line;
}

void check_command_line(const CommandLine& line) {
    // Rank 0 decides most options of a training run, some of them from its checkpoint; they are
    // checked later (job_setup.cpp).
    const bool decides_later = line.command & (kTrain | kFinetune | kTune | kLrFind);
    check_rules(line.config, line.command, line.given, /*own_only=*/decides_later);
}

}  // namespace convoy
