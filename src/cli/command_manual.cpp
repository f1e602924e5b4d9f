// command_manual.cpp — the manual page and bash's completion, from the tables of commands and of
// options. Tried: groff 1.22, mandoc 1.14, bash 5.2. Not tried: bash before 4.4, other shells.
#include <cctype>
#include <cstdlib>
#include <ctime>
#include <set>

#include "src/base/text.h"
#include "src/cli/commands.h"
#include "src/cli/version.h"
#include "src/model/model.h"

namespace convoy {

// Text for roff: no character of it is a request, an escape or a typographic quote.
static std::string roff(std::string_view text) {
    std::string out;
    for (const char c : text) switch (c) {
            case '\\': out += "\\(rs"; break;
            case '-': out += "\\-"; break;
            case '\'': out += "\\(aq"; break;
            case '`': out += "\\(ga"; break;
            case '.': out += out.empty() ? "\\&." : "."; break;
            default: out += c;
        }
    return out;
}

static std::string entry(std::string_view bold, std::string_view italic, std::string_view text) {
    return cat(".TP\n\\fB", roff(bold), "\\fR", italic.empty() ? "" : " ",
               italic.empty() ? "" : cat("\\fI", roff(italic), "\\fR"), "\n", roff(text), "\n");
}

// The day of the page: today, or that of a reproducible build (reproducible-builds.org).
static std::string page_date() {
    const char* epoch = std::getenv("SOURCE_DATE_EPOCH");
    const std::time_t time = epoch ? std::atoll(epoch) : std::time(nullptr);
    char text[sizeof "2026-01-31"];
    std::strftime(text, sizeof text, "%F", std::gmtime(&time));
    return text;
}

static int command_man(const CommandLine&, Log&, const Stop&) {
    std::string page = cat(".TH TRAINER 1 ", page_date(), " \"Convoy ", kVersion,
                           R"(" "User Commands"
.SH NAME
trainer \- train convolutional networks on folders of images
.SH SYNOPSIS
\fBtrainer\fR [\fIcommand\fR] [\fIoptions\fR] [\fIfile\fR ...]
.SH DESCRIPTION
Convoy trains convolutional networks on folders of images, on one machine or on
several, on CPUs or GPUs. Without a command it trains; without \fB\-\-data\fR it
trains on generated images.
.SH COMMANDS
)");
    for (const CommandRow* row : kCommands)
        page += entry(row->name, row->usage, cat(row->help, "."));
    page += ".SH OPTIONS\nEach option ends with its default in brackets and its commands.\n";
    std::string group;
    for (const Option& option : options()) {
        if (option.flags & kHidden) continue;
        if (group != option.group) page += cat(".SS ", group = option.group, "\n");
        std::vector<std::string> commands;
        for (const CommandRow* row : kCommands)
            if (row->takes(option)) commands.push_back(row->name);
        page += entry(cat("--", option.name), option.value,
                      cat(help_text(option, *kCommands[0]), ". For: ", join_text(commands), "."));
    }
    page += R"(.SS Of the program
.TP
\fB\-\-help\fR
print the most important options; after a command, all of its options.
.TP
\fB\-\-version\fR
print the version and what the program was built with.
.SH ENVIRONMENT
.TP
\fBCONVOY_\fIOPTION\fR
an option that is not given: CONVOY_WEIGHT_DECAY=0 is \-\-weight\-decay 0.
.TP
\fBRANK\fR, \fBWORLD_SIZE\fR, \fBLOCAL_RANK\fR, \fBMASTER_ADDR\fR, \fBMASTER_PORT\fR
and their like of other launchers: the rank where no option gives it.
.TP
\fBNO_COLOR\fR, \fBTERM\fR
print without colours; TERM=dumb: without progress bars too.
.SH EXIT STATUS
)";
    page += entry("0", "", "done.") + entry("3", "", "eval: below --min-top1 or --min-recall.");
    page +=
        entry("1", "",
              "an error, told on stderr; check, predict: an image did not decode; doctor: a job "
              "would not start; health: no rank answers, or its job stalls.");
    page += entry("128+n", "",
                  "ended by signal n: 130 SIGINT, 143 SIGTERM or SIGHUP, 141 SIGPIPE (nobody reads "
                  "the output "
                  "any more); a training run has saved a checkpoint.");
    page += R"(.SH EXAMPLES
Train on a folder of class folders, then on two machines:
.PP
.EX
trainer \-\-data flowers \-\-model resnet18 \-\-out runs/flowers
machine0$ trainer \-\-coord machine0:29400 \-\-rank 0 \-\-world 2 \-\-data flowers
machine1$ trainer \-\-coord machine0:29400 \-\-rank 1 \-\-data flowers
.EE
)";
    fmt::print("{}", page);
    return 0;
}

// What may follow an option, from its placeholder: of "crop|resize" the words, of "DIR" and "FILE"
// what bash finds by itself (<dir>, <file>), of "B" nothing.
static std::set<std::string> values_of(const Option& option) {
    std::set<std::string> words;
    for (const std::string& part : split(option.value, '|'))
        if (part == "DIR")
            words.insert("<dir>");
        else if (part == "FILE" || part == "PATH")
            words.insert("<file>");
        else if (!part.empty() && std::islower(part[0]))
            words.insert(part.substr(0, part.find('[')));  // "cuda[:I]"
    if (option.name == std::string("model"))
        for (const std::string& name : built_in_models()) words.insert(name);
    return words;
}

// The function that completes, after its table.
static constexpr const char* kLookUp = R"(    )
    local key list current=${COMP_WORDS[COMP_CWORD]} typed=("${COMP_WORDS[@]:0:COMP_CWORD}")
    # --option=value comes as three words.
    [[ $current == = ]] && current= && typed+=("=")
    [[ ${typed[-1]} == = ]] && unset 'typed[-1]'
    for key in "${typed[-1]}=" "${typed[1]} ${typed[2]}" "${typed[1]:-trainer}" trainer; do
        [[ ${words[$key]+is} ]] && list=${words[$key]} && break
    done
    [[ $list == *'<'* ]] && compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(
        [[ $list == *'<dir>'* ]] && compgen -d -- "$current"
        [[ $list == *'<file>'* ]] && compgen -f -- "$current"
        compgen -W "$list" -X '<*' -- "$current"
    )
}
complete -F _trainer trainer
)";

static int command_completion(const CommandLine& line, Log&, const Stop&) {
    if (line.files != std::vector<std::string>{"bash"})
        fail("completion needs the name of a shell it knows: trainer completion bash");
    std::map<std::string, std::set<std::string>> words;  // after a command, after "--option="
    for (const CommandRow* row : kCommands) {
        const std::vector<std::string> parts = split(row->name, ' ');
        words["trainer"].insert(parts[0]);
        if (parts.size() > 1) words[parts[0]].insert(parts[1]);
        auto& own = words[row->name] = {"--help"};
        for (const Option& option : options())
            if (row->takes(option) && !(option.flags & kHidden)) own.insert(cat("--", option.name));
        if (row->takes_files) own.insert("<file>");
    }
    for (const Option& option : options())
        if (*option.value && !(option.flags & kHidden))
            words[cat("--", option.name, "=")] = values_of(option);
    words["trainer"].merge(std::set(words["train"]));  // the default command
    words["models"].merge(values_of(*find_option("model")));
    words["completion"] = {"bash", "--help"};
    std::string table;
    for (const auto& [key, list] : words)
        table += cat("        [\"", key, "\"]=\"", join_text(list, " "), "\"\n");
    fmt::print(
        "# Completion of trainer in bash: source <(trainer completion bash)\n"
        "_trainer() {{\n    local -A words=(\n{}{}",
        table, kLookUp);
    return 0;
}

const CommandRow kManRow = {"man", kMan, "", "print the manual page, for `man -l -`", command_man};
const CommandRow kCompletionRow =
    with_files({"completion", kCompletion, "bash",
                "print the completion of commands and options for bash", command_completion});

}  // namespace convoy
