// command_line.cpp — words and environment → Config. CLI11 parses; the table says what there is.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "src/base/check.h"
#include "src/base/text.h"
#include "src/config/config.h"

namespace convoy {

struct CommandRow {
    const char* name;
    Command command;
    const char* usage;
    const char* help;
};
static const CommandRow kCommands[] = {
    {"train", kTrain, "[options]", "train a network, alone or as one of several ranks"},
    {"plan", kPlan, "[options]",
     "time edges and ranks before a job, and say how fast it will be and with which options"},
    {"eval", kEval, "--from RUN [options]", "loss and accuracy of a trained model on a data set"},
    {"predict", kPredict, "--from RUN FILE|DIR...", "the five most likely classes of each image"},
    {"check", kCheck, "DIR", "decode every image of a data set and name the bad ones"},
    {"coordinator", kCoordinator, "--coord HOST:PORT --world W",
     "only the meeting point, for jobs whose rank 0 should not serve it"},
    {"models", kModels, "[NAME]", "the built-in networks, or the text of one"},
    {"export", kExport, "--from RUN --out FILE", "weights as one safetensors file"},
    {"import", kImport, "FILE --model NAME --classes A,B --out FILE",
     "a torchvision-named weights file made ready for eval and predict"},
    {"bench train", kBenchTrain, "[--model M --batch B --steps K]",
     "images per second of training steps, without input pipeline"},
    {"bench kernels", kBenchKernels, "[--filter WORD]",
     "each operation at each layer's shape, beside the machine's limit"},
    {"bench allreduce", kBenchAllreduce, "--world W [--bytes 1K,1M]",
     "ring sums among local processes, or across hosts with --coord and --rank"},
    {"bench data", kBenchData, "[--data DIR --size S]", "images per second of the input pipeline"},
};

static std::string environment_name(const std::string& option) {
    std::string name = "CONVOY_" + option;
    for (char& c : name) c = c == '-' ? '_' : char(std::toupper(c));
    return name;
}

static std::string default_text(const Option& option) {
    const std::string text = get_option(Config{}, option);
    return text.empty() || text == "-1" || std::holds_alternative<bool Config::*>(option.field)
               ? ""
               : cat(" [", text, "]");
}

static std::string short_help() {
    std::string text =
        "Convoy trains convolutional networks on folders of images, on one machine or on "
        "several.\n\n"
        "  trainer [train] [options]\n"
        "  trainer COMMAND [options]      trainer COMMAND --help shows all options of a command\n\n"
        "Commands\n";
    for (const CommandRow& row : kCommands)
        text += fmt::format("  {:<16} {}\n", row.name, row.help);
    text += "\nThe options that matter first\n";
    for (const Option& option : options())
        if (option.first)
            text += fmt::format("  {:<24} {}{}\n", cat("--", option.name, " ", option.value),
                                option.help, default_text(option));
    return text +
           "\nEvery option can also stand in the environment: --batch 64 is CONVOY_BATCH=64. "
           "Options win.\n";
}

// The command that the first words name; how many words that took.
static std::pair<const CommandRow*, size_t> find_command(const std::vector<std::string>& words) {
    if (words.empty() || words[0].starts_with("-")) return {&kCommands[0], 0};
    const std::string two = words.size() > 1 ? words[0] + " " + words[1] : words[0];
    std::vector<std::string> names;
    for (const CommandRow& row : kCommands) {
        if (words[0] == row.name) return {&row, 1};
        if (two == row.name) return {&row, 2};
        names.push_back(row.name);
    }
    if (words[0] == "bench")
        fail("bench needs to know what: ", "train, kernels, allreduce or data",
             words.size() > 1 ? cat(", not '", words[1], "'") : "");
    const std::string near = nearest(words[0], names);
    fail(
        "there is no command '", words[0], "'",
        near.empty() ? cat("; there are ", join_text(names)) : cat("; did you mean '", near, "'?"));
}

[[noreturn]] static void unknown_option(const std::string& word, const CommandRow& row) {
    std::vector<std::string> names;
    for (const Option& option : options())
        if (option.commands & row.command) names.push_back(cat("--", option.name));
    const std::string name = word.substr(0, word.find('='));
    const Option* elsewhere = find_option(name.starts_with("--") ? name.substr(2) : name);
    if (elsewhere)
        fail("`", row.name, "` has no option ", name, "; see trainer ", row.name, " --help");
    const std::string near = nearest(name, names);
    fail("there is no option ", name,
         near.empty() ? cat("; see trainer ", row.name, " --help")
                      : cat("; did you mean ", near, "?"));
}

struct UsageFormatter : CLI::Formatter {
    explicit UsageFormatter(const char* text) : usage(text) {}
    std::string make_usage(const CLI::App*, std::string name) const override {
        return cat("Usage: ", name, " ", usage, "\n");
    }
    const char* usage;
};

// Every option of the command. `texts` receives what is given, by name.
static void add_options(CLI::App& app, const CommandRow& row,
                        std::map<std::string, std::string>& texts) {
    for (const Option& option : options()) {
        if (!(option.commands & row.command)) continue;
        const std::string name = option.name, help = cat(option.help, default_text(option));
        CLI::Option* added;
        if (std::holds_alternative<bool Config::*>(option.field))
            added = app.add_flag("--" + name, texts[name], help);  // "true", or what follows a '='
        else
            added = app.add_option("--" + name, texts[name], help)
                        ->type_name(option.value)
                        ->take_last();
        added->group(option.group);
    }
}

// Words without an option: files, of those commands that take some.
static void take_rest(CommandLine& line, const CommandRow& row,
                      const std::vector<std::string>& words, bool row_is_given) {
    for (const std::string& word : words)
        for (const CommandRow& other : kCommands)
            if (!row_is_given && word == split(other.name, ' ')[0])
                fail("the command comes first: trainer ", word, " [options]");
    for (const std::string& word : words) {
        if (word.size() > 1 && word[0] == '-') unknown_option(word, row);
        line.files.push_back(word);
    }
}

CommandLine parse_command_line(const std::vector<std::string>& words,
                               const std::map<std::string, std::string>& environment) {
    CommandLine line;
    if (!words.empty() && (words[0] == "--help" || words[0] == "-h" || words[0] == "help")) {
        line.help = short_help();
        return line;
    }
    const auto [row, taken] = find_command(words);
    line.command = row->command;
    line.command_name = row->name;

    CLI::App app(row->help, cat("trainer ", row->name));
    app.allow_extras();
    app.formatter(std::make_shared<UsageFormatter>(row->usage));
    app.get_formatter()->column_width(34);
    std::map<std::string, std::string> texts;
    add_options(app, *row, texts);
    std::vector<std::string> rest(words.rbegin(),
                                  words.rend() - taken);  // CLI11 wants them reversed
    try {
        app.parse(rest);
    } catch (const CLI::CallForHelp&) {
        line.help = app.help();
        return line;
    } catch (const CLI::ArgumentMismatch& error) {  // "--batch: 1 required B missing"
        fail(split(error.what(), ':')[0], " needs a value after it");
    } catch (const CLI::ParseError& error) {
        fail(error.what());
    }
    take_rest(line, *row, app.remaining(), taken > 0);

    for (const auto& [name, text] : texts) {
        const Option& option = *find_option(name);
        const std::string variable = environment_name(name);
        if (app.count("--" + name) > 0) {
            set_option(line.config, option, text);
            line.given[name] = cat("--", name);
        } else if (const auto found = environment.find(variable); found != environment.end()) {
            set_option(line.config, option, found->second);
            line.given[name] = variable;
        }
    }
    apply_launcher(line, environment);
    return line;
}

// ---- what launchers leave in the environment -------------------------------------------------

// "node[03-07,9],other" → "node03": Slurm's compressed list of hosts.
static std::string first_host(const std::string& list) {
    const size_t bracket = list.find('['), comma = list.find(',');
    if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
    const size_t end = list.find_first_of("-,]", bracket + 1);
    const size_t close = list.find(']', bracket);
    if (end == std::string::npos || close == std::string::npos) return list;
    const size_t rest = std::min(list.find(',', close), list.size());
    return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1) +
           list.substr(close + 1, rest - close - 1);
}

void apply_launcher(CommandLine& line, const std::map<std::string, std::string>& environment) {
    const Option* rank_option = find_option("rank");
    if (!(rank_option->commands & line.command)) return;
    const auto look = [&](const char* name) -> std::string {
        const auto found = environment.find(name);
        return found == environment.end() ? "" : found->second;
    };
    // Slurm sets NTASKS in a plain salloc shell too; only a step (srun) has ranks.
    const bool slurm = !look("SLURM_PROCID").empty() && !look("SLURM_STEP_ID").empty();
    for (const char* name :
         {"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "CUDA_VISIBLE_DEVICES"})
        if (!look(name).empty() && (slurm || name != std::string("SLURM_LOCALID")))
            line.launcher[name] = look(name);
    struct Source {
        std::string option, variable, value;
    };
    std::vector<Source> sources = {
        {"rank", "RANK", look("RANK")},
        {"rank", "OMPI_COMM_WORLD_RANK", look("OMPI_COMM_WORLD_RANK")},
        {"rank", "SLURM_PROCID", slurm ? look("SLURM_PROCID") : ""},
        {"rank", "JOB_COMPLETION_INDEX", look("JOB_COMPLETION_INDEX")},
        {"world", "WORLD_SIZE", look("WORLD_SIZE")},
        {"world", "OMPI_COMM_WORLD_SIZE", look("OMPI_COMM_WORLD_SIZE")},
        {"world", "SLURM_NTASKS", slurm ? look("SLURM_NTASKS") : ""},
    };
    const std::string port = look("MASTER_PORT").empty() ? "29400" : look("MASTER_PORT");
    if (!look("MASTER_ADDR").empty())
        sources.push_back({"coord", "MASTER_ADDR", look("MASTER_ADDR") + ":" + port});
    else if (slurm && !look("SLURM_STEP_NODELIST").empty())
        sources.push_back(
            {"coord", "SLURM_STEP_NODELIST", first_host(look("SLURM_STEP_NODELIST")) + ":" + port});

    std::map<std::string, Source> by_option;
    for (const auto& [option, who] : line.given)
        if (who.starts_with("CONVOY_"))
            by_option[option] = {option, who, get_option(line.config, *find_option(option))};
    for (const Source& source : sources) {
        if (source.value.empty()) continue;
        const auto given = line.given.find(source.option);
        if (given != line.given.end() && given->second.starts_with("--")) continue;  // flags win
        const auto [known, fresh] = by_option.try_emplace(source.option, source);
        if (!fresh && known->second.value != source.value)
            fail("the environment disagrees about --", source.option, ": ", known->second.variable,
                 " says ", known->second.value, ", ", source.variable, " says ", source.value,
                 "; unset one of them or give --", source.option);
        set_option(line.config, *find_option(source.option), source.value);
        line.given[source.option] = source.variable;
    }
}

}  // namespace convoy
