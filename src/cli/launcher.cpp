// launcher.cpp — options from the environment variables that launchers set.
#include "src/base/check.h"
#include "src/cli/commands.h"

namespace convoy {

static constexpr std::pair<const char*, const char*> kVariables[] = {
    {"rank", "RANK"},
    {"rank", "OMPI_COMM_WORLD_RANK"},
    {"rank", "SLURM_PROCID"},
    {"rank", "JOB_COMPLETION_INDEX"},
    {"world", "WORLD_SIZE"},
    {"world", "OMPI_COMM_WORLD_SIZE"},
    {"world", "SLURM_NTASKS"},
    {"local-rank", "LOCAL_RANK"},
    {"local-rank", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"local-rank", "SLURM_LOCALID"},
    {"coord", "MASTER_ADDR"},
    {"coord", "SLURM_STEP_NODELIST"},
};

// The first host of Slurm's compressed list: "node[03-07,9],other" → "node03".
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

void apply_launcher(CommandLine& line, const Environment& environment) {
    // Commands of a rank, and `health`, which must find the same port.
    if (!(find_option("port")->commands & line.command)) return;
    const auto look = [&](const std::string& name) {
        const auto found = environment.find(name);
        return found == environment.end() ? "" : found->second;
    };
    // Slurm sets SLURM_NTASKS in a plain salloc shell too; only a step (srun) has ranks.
    const bool slurm_step = !look("SLURM_PROCID").empty() && !look("SLURM_STEP_ID").empty();
    const std::string port = look("MASTER_PORT").empty() ? "29400" : look("MASTER_PORT");
    for (const auto& [option, variable] : kVariables) {
        const std::string name = variable;
        std::string value = look(name);
        if (value.empty() || (name.starts_with("SLURM_") && !slurm_step)) continue;
        if (name == "SLURM_STEP_NODELIST" && !look("MASTER_ADDR").empty()) continue;
        if (name == "SLURM_STEP_NODELIST") value = first_host(value);
        if (option == std::string("coord")) value += ":" + port;

        const auto [given, is_new] = line.given.try_emplace(option, name);
        if (given->second.starts_with("--")) continue;  // options win
        Config config = line.config;
        set_option(config, option, value, name);
        if (!is_new && get_option(config, option) != get_option(line.config, option))
            fail("the environment disagrees about --", option, ": ", given->second, " says ",
                 get_option(line.config, option), ", ", name, " says ", value,
                 "; unset one of them or give --", option);
        line.config = config;
    }
}

}  // namespace convoy
