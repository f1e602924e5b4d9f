#include "src/config/config.h"

#include "data/augment.h"
#include "kernels/backend.h"
#include "src/base/text.h"
#include "src/cli/commands.h"
#include "tests/support.h"

using namespace convoy;

static CommandLine parse(std::vector<std::string> words,
                         std::map<std::string, std::string> environment = {}) {
    return parse_command_line(words, environment);
}

TEST_CASE("options: the command line beats CONVOY_ variables, which beat the defaults") {
    CHECK(parse({}).config.batch == Config{}.batch);
    CHECK(parse({}, {{"CONVOY_BATCH", "48"}}).config.batch == 48);
    CHECK(!parse({}, {{"CONVOY_BATCH", ""}}).given.contains("batch"));
    const std::string service = "tcp://10.0.0.1:29400";  // as Kubernetes sets it
    CHECK(parse({"--port", "5000"}, {{"CONVOY_PORT", service}}).config.port == 5000);
    CHECK_THROWS_WITH_AS(parse({}, {{"CONVOY_PORT", service}}),
                         doctest::Contains("enableServiceLinks"), Error);
    const CommandLine line = parse({"--batch", "96"}, {{"CONVOY_BATCH", "48"}});
    CHECK(line.config.batch == 96);
    CHECK(line.given.at("batch") == "--batch");
    CHECK(parse({"train", "--batch=32"}).config.batch == 32);
    CHECK(parse({"bench", "train", "--batch", "8"}).command == kBenchTrain);
    for (const CommandRow* row : kCommands)
        CHECK(parse(split(row->name, ' ')).command == row->command);
    CHECK(parse({"predict", "--from", "runs/x", "a.jpg", "b"}).files ==
          std::vector<std::string>{"a.jpg", "b"});
    CHECK(parse({"--quiet", "--recompute"}).config.recompute);
    CHECK(parse({}).config.size.H == 0);
    CHECK(parse({"--size", "80x64"}).config.size == InputSize(80, 64, 0));
    CHECK(get_option(parse({"--size", "28x28x1"}).config, "size") == "28x28x1");
    CHECK(parse({}).config.augment == Augment::resize);  // of the generated set
    CHECK(parse({"--data", "flowers"}).config.augment == Augment::crop);
    CHECK(parse({"--augment", "crop"}).config.augment == Augment::crop);
    CHECK(parse({"--bucket", "512K"}).config.bucket.bytes == 512 * 1024);
    CHECK(parse({"--bucket", "4M"}).config.bucket.bytes == 4 << 20);
    CHECK(parse({"--bucket", "5000"}).config.bucket.bytes == 5000);
}

TEST_CASE("options: what cannot be is refused in one sentence that names it") {
    const struct {
        std::vector<std::string> words;
        const char* message;
    } cases[] = {
        {{"--batch", "3x"}, "--batch cannot be '3x': it takes a whole number"},
        {{"--batch", ""}, "--batch cannot be ''"},
        {{"--batch", "0"}, "--batch cannot be 0: it must be between 1 and"},
        {{"--batch", "99999999999999999999"}, "--batch cannot be '99999999999999999999'"},
        {{"--lr", "nan"}, "--lr cannot be 'nan'"},
        {{"--world", "0"}, "--world cannot be 0: it must be between 1 and 4096"},
        {{"--rank", "4096"}, "--rank cannot be 4096: it must be between -1 and 4095"},
        {{"--port", "70000"}, "--port cannot be 70000"},
        {{"--schedule", "linear"},
         "--schedule cannot be 'linear': there are constant, step, cosine"},
        {{"--optimizer", "adam"}, "--optimizer cannot be 'adam': there are sgd, adamw"},
        {{"--graph", "maybe"}, "--graph cannot be 'maybe': there are auto, on, off"},
        {{"--size", "80x"}, "--size cannot be '80x': it takes a height, or height x width (80x64)"},
        {{"--augment", "flip"}, "--augment cannot be 'flip': there are crop, resize, none"},
        {{"--bucket", "4"}, "--bucket cannot be 4: it must be 0 or at least 1K"},
        {{"--bucket", "4MB"},
         "--bucket cannot be '4MB': it takes a size in bytes, such as 512K or 4M"},
        {{"--bucket", "99999999999G"}, "--bucket cannot be '99999999999G'"},
        {{"--bach", "3"}, "there is no option --bach; did you mean --batch?"},
        {{"--bytes", "3"}, "`train` has no option --bytes"},
        {{"--quiet=3"}, "--quiet cannot be '3'"},
        {{"--batch", "8", "train"}, "the command comes first: trainer train [options]"},
        {{"--from", "run", "eval"}, "the command comes first: trainer eval [options]"},
        {{"--json", "bench", "kernels"}, "the command comes first: trainer bench [options]"},
        {{"trian"}, "there is no command 'trian'; did you mean 'train'?"},
        {{"watch", "run"}, "trainer page"},  // gone
        {{"--target-top1", "0.9"}, "--early-stop"},
        {{"bench", "kernel"}, "bench needs to know what"},
        {{"--batch"}, "--batch needs a value after it"},
        {{"train", "flowers"}, "`train` takes no word 'flowers'; images are given by --data DIR"},
        {{"plan", "flowers"}, "`plan` takes no word 'flowers'"},
    };
    for (const auto& [words, message] : cases) {
        CAPTURE(message);
        CHECK_THROWS_WITH_AS(parse(words), doctest::Contains(message), Error);
    }
}

TEST_CASE("options: launchers' variables are understood, and contradictions named") {
    const CommandLine torchrun = parse(
        {},
        {{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}});
    CHECK(torchrun.config.rank == 2);
    CHECK(torchrun.config.world == 4);
    CHECK(torchrun.config.coord == "node0:29500");
    CHECK(parse({}, {{"RANK", "1"}, {"MASTER_ADDR", "[fd00::2]"}}).config.coord ==
          "[fd00::2]:29400");
    CHECK(parse({"--rank", "1"}, {{"RANK", "2"}}).config.rank == 1);
    // health looks for the rank where the rank's own variables put it.
    CHECK(parse({"health"}, {{"RANK", "1"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}})
              .config.coord == "node0:29500");
    CHECK(parse({"health"}, {{"CONVOY_PORT", "29501"}}).config.port == 29501);

    const CommandLine slurm = parse({}, {{"SLURM_PROCID", "3"},
                                         {"SLURM_STEP_ID", "0"},
                                         {"SLURM_NTASKS", "8"},
                                         {"SLURM_STEP_NODELIST", "gpu[003-004,7],x1"}});
    CHECK(slurm.config.rank == 3);
    CHECK(slurm.config.coord == "gpu003:29400");
    // A plain salloc shell has NTASKS but no step: not a rank of anything.
    CHECK(parse({}, {{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}).config.world == 0);

    CHECK_THROWS_WITH_AS(parse({}, {{"RANK", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}}),
                         doctest::Contains("RANK says 2, OMPI_COMM_WORLD_RANK says 1"), Error);
    CHECK(parse({}, {{"CONVOY_RANK", "1"}, {"RANK", "1"}}).given.at("rank") == "CONVOY_RANK");
    CHECK_THROWS_WITH_AS(parse({}, {{"CONVOY_BATCH", "3x"}}),
                         doctest::Contains("CONVOY_BATCH cannot be '3x'"), Error);
    CHECK_THROWS_WITH_AS(parse({}, {{"LOCAL_RANK", "-1"}}),
                         doctest::Contains("LOCAL_RANK cannot be -1"), Error);
    CHECK_THROWS_WITH_AS(parse({}, {{"LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "2"}}),
                         doctest::Contains("LOCAL_RANK says 1, OMPI_COMM_WORLD_LOCAL_RANK says 2"),
                         Error);
    CHECK(parse({}, {{"LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}})
              .given.at("local-rank") == "LOCAL_RANK");
    CHECK(parse({}, {{"SLURM_LOCALID", "1"}, {"SLURM_PROCID", "3"}}).config.local_rank == -1);
    CHECK(parse({}, {{"SLURM_LOCALID", "1"}, {"SLURM_PROCID", "3"}, {"SLURM_STEP_ID", "0"}})
              .config.local_rank == 1);
    CHECK_THROWS_WITH_AS(parse({}, {{"CONVOY_RANK", "0"}, {"RANK", "1"}}),
                         doctest::Contains("CONVOY_RANK says 0, RANK says 1"), Error);
}

TEST_CASE("options: what each launcher sets, alone and inside another") {
    const struct {
        const char* launcher;
        Environment environment;
        int rank, world, local_rank;
        const char* coord;
    } cases[] = {
        {"mpirun (Open MPI 4)",
         {{"OMPI_COMM_WORLD_RANK", "3"},
          {"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
          {"PMIX_RANK", "3"}},
         3,
         4,
         1,
         ""},
        {"mpiexec (MPICH)",
         {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}},
         3,
         4,
         1,
         ""},
        {"mpiexec (PALS)",
         {{"PALS_RANKID", "3"},
          {"PMI_RANK", "3"},
          {"PMI_SIZE", "4"},
          {"PALS_LOCAL_RANKID", "1"},
          {"PMI_LOCAL_RANK", "1"}},
         3,
         4,
         1,
         ""},
        {"srun --mpi=pmi2",
         {{"SLURM_PROCID", "3"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_NTASKS", "4"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_STEP_NODELIST", "n[1-2]"},
          {"PMI_RANK", "3"},
          {"PMI_SIZE", "4"}},
         3,
         4,
         1,
         "n1:29400"},
        {"mpirun, whose daemon on this host srun started",
         {{"SLURM_PROCID", "0"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_NTASKS", "1"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_STEP_NODELIST", "n2"},
          {"OMPI_COMM_WORLD_RANK", "3"},
          {"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}},
         3,
         4,
         1,
         ""},
        {"mpiexec (MPICH), likewise",
         {{"SLURM_PROCID", "1"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_NTASKS", "2"},
          {"SLURM_LOCALID", "0"},
          {"PMI_RANK", "3"},
          {"PMI_SIZE", "4"},
          {"MPI_LOCALRANKID", "1"}},
         3,
         4,
         1,
         ""},
        {"an indexed Job", {{"JOB_COMPLETION_INDEX", "3"}}, 3, 0, -1, ""},
        {"a TrainJob",
         {{"JOB_COMPLETION_INDEX", "3"},
          {"PET_NODE_RANK", "3"},
          {"PET_NNODES", "4"},
          {"PET_NPROC_PER_NODE", "1"},
          {"PET_MASTER_ADDR", "job-node-0-0.job"},
          {"PET_MASTER_PORT", "29500"}},
         3,
         4,
         -1,
         "job-node-0-0.job:29500"},
        {"torchrun in a TrainJob, two processes a node",
         {{"PET_NODE_RANK", "1"},
          {"PET_NNODES", "2"},
          {"PET_NPROC_PER_NODE", "2"},
          {"PET_MASTER_ADDR", "job-node-0-0.job"},
          {"RANK", "3"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"MASTER_ADDR", "job-node-0-0.job"}},
         3,
         4,
         1,
         "job-node-0-0.job:29400"},
        {"a Swarm service, which counts from 1",
         {{"SWARM_TASK_SLOT", "4"}, {"CONVOY_WORLD", "4"}, {"CONVOY_COORD", "tasks.trainer:29400"}},
         3,
         4,
         -1,
         "tasks.trainer:29400"},
    };
    for (const auto& [launcher, environment, rank, world, local_rank, coord] : cases) {
        CAPTURE(launcher);
        const Config config = parse({}, environment).config;
        CHECK(config.rank == rank);
        CHECK(config.world == world);
        CHECK(config.local_rank == local_rank);
        CHECK(config.coord == coord);
        CHECK(parse({"--rank", "7"}, environment).config.rank == 7);
    }
}

TEST_CASE("options: variables that disagree, or cannot be, are named") {
    const struct {
        Environment environment;
        const char* message;
    } cases[] = {
        {{{"RANK", "2"}, {"PMI_RANK", "1"}}, "--rank: RANK says 2, PMI_RANK says 1; unset one"},
        {{{"CONVOY_RANK", "0"}, {"PMIX_RANK", "1"}}, "CONVOY_RANK says 0, PMIX_RANK says 1"},
        {{{"PMI_RANK", "2"}, {"PALS_RANKID", "1"}}, "PMI_RANK says 2, PALS_RANKID says 1"},
        {{{"PMI_RANK", "2"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_ID", "0"}},
         "PMI_RANK says 2, SLURM_PROCID says 1"},
        {{{"RANK", "0"}, {"JOB_COMPLETION_INDEX", "1"}},
         "RANK says 0, JOB_COMPLETION_INDEX says 1"},
        {{{"RANK", "2"}, {"SWARM_TASK_SLOT", "2"}}, "RANK says 2, SWARM_TASK_SLOT says 1"},
        {{{"WORLD_SIZE", "4"}, {"PMI_SIZE", "3"}}, "--world: WORLD_SIZE says 4, PMI_SIZE says 3"},
        {{{"WORLD_SIZE", "4"}, {"PET_NNODES", "3"}, {"PET_NPROC_PER_NODE", "1"}},
         "WORLD_SIZE says 4, PET_NNODES says 3"},
        {{{"LOCAL_RANK", "1"}, {"MPI_LOCALRANKID", "0"}},
         "LOCAL_RANK says 1, MPI_LOCALRANKID says 0"},
        {{{"PMI_LOCAL_RANK", "1"}, {"PALS_LOCAL_RANKID", "0"}},
         "PMI_LOCAL_RANK says 1, PALS_LOCAL_RANKID says 0"},
        {{{"MASTER_ADDR", "a"}, {"PET_MASTER_ADDR", "b"}},
         "--coord: MASTER_ADDR says a:29400, PET_MASTER_ADDR says b:29400"},
        {{{"SWARM_TASK_SLOT", "0"}}, "SWARM_TASK_SLOT cannot be '0': slots are numbers from 1"},
        {{{"SWARM_TASK_SLOT", "x7"}},
         "SWARM_TASK_SLOT cannot be 'x7'"},  // a node's id: mode global
        {{{"PMI_RANK", "-3"}}, "PMI_RANK cannot be -3"},
    };
    for (const auto& [environment, message] : cases) {
        CAPTURE(message);
        CHECK_THROWS_WITH_AS(parse({}, environment), doctest::Contains(message), Error);
    }
}

TEST_CASE("options: every one survives the way to another rank as text") {
    Config config;
    config.batch = 77, config.lr = 0.1234567890123, config.recompute = true, config.model = "vgg16";
    Config other;
    apply_settings(other, job_settings(config, kTrain));
    CHECK(other.batch == 77);
    CHECK(other.lr == config.lr);
    CHECK(other.recompute);
    CHECK(other.model == "vgg16");
    for (const Option& option : options())
        if (option.flags & kJob)
            CHECK(get_option(other, option.name) == get_option(config, option.name));
}

TEST_CASE("options: a choice is parsed to the value that its name means, and back") {
    const auto is = [](const char* option, const char* name, auto field, auto value) {
        CAPTURE(option);
        const Config config = parse({option, name}).config;
        CHECK(config.*field == value);
        CHECK(get_option(config, option + 2) == name);
    };
    is("--augment", "none", &Config::augment, Augment::none);
    is("--flip", "alternating", &Config::flip, Flip::alternating);
    is("--auto-augment", "trivial", &Config::auto_augment, AutoAugment::trivial);
    is("--optimizer", "adamw", &Config::optimizer, OptimizerKind::kAdamw);
    is("--schedule", "step", &Config::schedule, Schedule::kStep);
    is("--conv", "winograd", &Config::conv, ConvMethod::kWinograd);
    is("--precision", "bf16", &Config::precision, Precision::kBf16);
    is("--gemm", "cublas", &Config::gemm, Gemm::kCublas);
    is("--graph", "on", &Config::graph, GraphMode::kOn);
    is("--wire", "bf16", &Config::wire, WireType::kBf16);
    is("--shm", "auto", &Config::shm, Toggle::kOn);
    is("--factors", "off", &Config::factors, FactorMode::kOff);
    is("--preflight", "off", &Config::preflight, Toggle::kOff);
    CHECK(parse({"export", "--layout", "krsc"}).config.layout == WeightLayout::kKrsc);
}

TEST_CASE("options: a command's --help lists what it takes, with its own defaults") {
    const auto help = [](const char* command) { return parse({command, "--help"}).help; };
    for (const CommandRow* row : kCommands) {
        for (const std::string_view name : row->without) {
            const std::string text = help(row->name);
            CAPTURE(name);
            REQUIRE(find_option(std::string(name)));
            CHECK(text.find(cat("\n  --", name, " ")) == text.npos);
            CHECK_THROWS_WITH_AS(parse({row->name, cat("--", name, "=1")}),
                                 doctest::Contains(cat("has no option --", name).c_str()), Error);
        }
        for (const CommandDefault& own : row->defaults) {
            CAPTURE(own.option);
            CHECK(row->takes(*find_option(own.option)));
            CHECK(help(row->name).find("[" + std::string(own.shown)) != std::string::npos);
        }
    }
    CHECK(parse({"finetune", "w"}).config.epochs == 6);
    CHECK(parse({"finetune", "w", "--epochs", "9"}).config.epochs == 9);
    CHECK(parse({"finetune", "w"}, {{"CONVOY_EPOCHS", "9"}}).config.epochs == 9);
    CHECK(parse({"lr-find"}).config.steps == 120);
    CHECK(parse({"tune"}).config.out == "tuned.settings");
    CHECK(help("train").find("[10G]") != std::string::npos);
    CHECK(help("train").find("[2]") != std::string::npos);  // --keep
    CHECK(parse({"--cache-size", "1T"}).config.cache_size.bytes == size_t(1) << 40);
    for (const char* size : {"0", "1K", "1500", "20G", "3T", "5000M"})
        CHECK(parse_size(get_option(parse({"--bucket", size}).config, "bucket"), "").bytes ==
              parse_size(size, "").bytes);
}

TEST_CASE("options: names are unique, and every help text says something") {
    std::map<std::string, int> seen;
    for (const Option& option : options()) {
        CAPTURE(option.name);
        CHECK(++seen[option.name] == 1);
        CHECK(std::string(option.help).size() > 10);
        CHECK(option.commands != 0);
        Config config;  // each default is a value that the option itself accepts
        if (const std::string text = get_option(config, option.name);
            option.limits.low <= -1e17 || text != "0")
            if (text != "-1" && std::string(option.name) != "world")
                CHECK_NOTHROW(set_option(config, option.name, text));
    }
    CHECK(parse({"--help"}).help.find("--batch") != std::string::npos);
    const std::string help = parse({"train", "--help"}).help;
    CHECK(help.find("--label-smoothing") != std::string::npos);
    CHECK(help.find("--graph") == std::string::npos);  // for tests and benches
    CHECK(parse({}, {{"CONVOY_GRAPH", "off"}}).config.graph == GraphMode::kOff);
}
