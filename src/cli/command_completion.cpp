// command_completion.cpp — completion: prints bash's completion, from the tables of commands and
// options. Tried: bash 5.2. Not tried: bash before 4.4, other shells.
#include <cctype>
#include <set>

#include "src/base/text.h"
#include "src/cli/commands.h"
#include "src/model/model.h"

namespace convoy {

// The words that may follow an option, from its placeholder: "crop|resize" gives both words, "DIR"
// and "FILE" give <dir> and <file>, for which bash lists files, "B" gives nothing.
static std::set<std::string> values_of(const Option& option) {
    std::set<std::string> words;
    for (const std::string& part : split(option.value, '|'))
        if (part == "DIR")
            words.insert("<dir>");
        else if (part == "FILE" || part == "PATH")
            words.insert("<file>");
        else if (!part.empty() && std::islower(part[0]))
            words.insert(part.substr(0, part.find_first_of("[:")));  // "cuda[:I]", "average:H"
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
    local all=${typed[*]:1}  # of `tune --lr`, a command of two words
    for key in "${all:-trainer}" "${typed[-1]}=" "${typed[1]} ${typed[2]}" "${typed[1]:-trainer}" trainer; do
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

int command_completion(const CommandLine& line, Log&, const Stop&) {
    if (line.files != std::vector<std::string>{"bash"})
        fail("completion knows only bash: trainer completion bash");
    std::map<std::string, std::set<std::string>> words;  // after a command, after "--option="
    for (const CommandRow& row : kCommands) {
        const std::vector<std::string> parts = split(row.name, ' ');
        words["trainer"].insert(parts[0]);
        if (parts.size() > 1) words[parts[0]].insert(parts[1]);
        auto& own = words[row.name];
        own.merge(std::set<std::string>{"--help", "--help-all"});
        for (const Option& option : options())
            if (row.takes(option) && !(option.flags & kHidden)) own.insert(cat("--", option.name));
        if (row.takes_files) own.insert("<file>");
    }
    for (const Option& option : options())
        if (*option.value && !(option.flags & kHidden))
            words[cat("--", option.name, "=")] = values_of(option);
    words["trainer"].merge(std::set(words["train"]));  // the default command
    words["models"].merge(values_of(*find_option("model")));
    words["completion"].insert("bash"), words["completion"].erase("<file>");
    std::string table;
    for (const auto& [key, list] : words)
        table += cat("        [\"", key, "\"]=\"", join_text(list, " "), "\"\n");
    fmt::print(
        "# Completion of trainer in bash: source <(trainer completion bash)\n"
        "_trainer() {{\n    local -A words=(\n{}{}",
        table, kLookUp);
    return 0;
}

}  // namespace convoy
