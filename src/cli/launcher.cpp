// launcher.cpp — sets options from the environment variables of launchers.
#include <algorithm>

#include "src/base/text.h"
#include "src/cli/commands.h"

namespace convoy {

// PMI: MPICH, Intel MPI, srun --mpi=pmi2. PMIX: Open MPI 5, srun --mpi=pmix. PALS: Cray's mpiexec.
// PET: Kubeflow's TrainJob. SWARM_TASK_SLOT is set by tools/deploy/swarm.yaml, and counts from 1.
static const std::pair<const char*, std::vector<std::string>> kVariables[] = {
    {"rank",
     {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID", "SLURM_PROCID",
      "JOB_COMPLETION_INDEX", "PET_NODE_RANK", "SWARM_TASK_SLOT"}},
    {"world", {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "PET_NNODES"}},
    {"local-rank",
     {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK",
      "PALS_LOCAL_RANKID", "SLURM_LOCALID"}},
    {"coord", {"MASTER_ADDR", "PET_MASTER_ADDR", "SLURM_STEP_NODELIST"}}};

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

// Slots count from 1: "4" → "3".
static std::string rank_of_slot(const std::string& slot) {
    const int number = to_number<int>(slot).value_or(0);
    if (number < 1)
        fail("SWARM_TASK_SLOT cannot be '", slot,
             "': slots are numbers from 1; set it to "
             "\"{{.Task.Slot}}\" in a service with replicas");
    return cat(number - 1);
}

void apply_launcher(CommandLine& line, const Environment& environment) {
    // Only for commands that run as a rank, and for `health`, which must find the same port.
    if (!(find_option("port")->commands & line.command)) return;
    const auto look = [&](const std::string& name) {
        const auto found = environment.find(name);
        return found == environment.end() ? "" : found->second;
    };
    const auto has = [&](const std::string& name) { return !look(name).empty(); };
    // Slurm also sets SLURM_NTASKS in a plain salloc shell, but only a step (srun) has ranks. Under
    // mpirun and mpiexec, the step runs their daemons, one per host, instead of ranks.
    const bool slurm_step = has("SLURM_PROCID") && has("SLURM_STEP_ID") &&
                            !has("OMPI_COMM_WORLD_RANK") && !has("MPI_LOCALRANKID");
    for (const auto& [option, variables] : kVariables)
        for (const std::string& name : variables) {
            std::string value = look(name);
            if (value.empty() || (name.starts_with("SLURM_") && !slurm_step)) continue;
            // With several processes per node, torchrun numbers them and sets RANK.
            if (name.starts_with("PET_N") && look("PET_NPROC_PER_NODE") != "1") continue;
            if (name == "SLURM_STEP_NODELIST" && (has("MASTER_ADDR") || has("PET_MASTER_ADDR")))
                continue;
            if (name == "SLURM_STEP_NODELIST") value = first_host(value);
            if (name == "SWARM_TASK_SLOT") value = rank_of_slot(value);
            if (option == std::string("coord")) {
                const std::string port =
                    look(name.starts_with("PET_") ? "PET_MASTER_PORT" : "MASTER_PORT");
                const bool is_v6 = std::ranges::count(value, ':') > 1 && value[0] != '[';
                value = (is_v6 ? "[" + value + "]" : value) + ":" + (port.empty() ? "29400" : port);
            }

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
