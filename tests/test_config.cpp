#include "src/config/config.h"

#include <climits>

#include "data/images/augment.h"
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
    CHECK_FAILS(parse({}, {{"CONVOY_PORT", service}}), "enableServiceLinks");
    const CommandLine line = parse({"--batch", "96"}, {{"CONVOY_BATCH", "48"}});
    CHECK(line.config.batch == 96);
    CHECK(line.given.at("batch") == "--batch");
    CHECK(parse({"train", "--batch=32"}).config.batch == 32);
    CHECK(parse({"bench", "train", "--batch", "8"}).command == kBenchTrain);
    for (const CommandRow& row : kCommands)
        CHECK(parse(split(row.name, ' ')).command == row.command);
    CHECK(parse({"tune", "--steps", "40", "--lr"}).command == kLrFind);
    CHECK(parse({"tune", "--lr", "--steps", "40"}).config.lr == 0);
    CHECK(parse({"tune", "--lr=2"}).config.lr == 2);
    CHECK(parse({"tune", "--minutes", "1"}).command == kTune);
    CHECK(parse({"predict", "--from", "runs/x", "a.jpg", "b"}).files ==
          std::vector<std::string>{"a.jpg", "b"});
    CHECK(parse({"--quiet", "--alone"}).config.alone);
    CHECK(parse({}).config.size.H == 0);
    CHECK(parse({"--size", "80x64"}).config.size == InputSize(80, 64, 0));
    CHECK(get_option(parse({"--size", "28x28x1"}).config, "size") == "28x28x1");
    CHECK(parse({}).config.augment == Augment::resize);  // of the generated set
    CHECK(parse({"--data", "flowers"}).config.augment == Augment::crop);
    CHECK(get_option(parse({}).config, "augment") == "resize,flip");
    CHECK(parse({"--augment", "crop"}).config.augment == Augment::crop);
    CHECK(parse({}, {{"CONVOY_CACHE_DECODED", "512K"}}).config.cache_decoded.bytes == 512 * 1024);
    CHECK(parse({"--cache-decoded", "4M"}).config.cache_decoded.bytes == 4 << 20);
    CHECK(parse({"--cache-decoded", "5000"}).config.cache_decoded.bytes == 5000);
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
        {{"--schedule", "linear"}, "--schedule cannot be 'linear'"},
        {{"--schedule", "cosine:3"}, "--schedule cannot be 'cosine:3'"},
        {{"--schedule", "step:0"}, "--schedule cannot be 'step:0'"},
        {{"--optimizer", "adam"}, "--optimizer cannot be 'adam': there are sgd, adamw"},
        {{"--size", "80x"}, "--size cannot be '80x': it takes a height, or height x width (80x64)"},
        {{"--augment", "flop"}, "--augment cannot be 'flop'"},
        {{"--augment", "crop,resize"}, "--augment cannot be 'crop,resize'"},
        {{"--augment", "none,flip"}, "--augment cannot be 'none,flip'"},
        {{"--augment", "crop,erase=2"}, "--augment cannot be 'crop,erase=2'"},
        {{"--augment", ""}, "--augment cannot be ''"},
        {{"--sync", "average"}, "--sync cannot be 'average'"},
        {{"--sync", "diloco:1"}, "--sync cannot be 'diloco:1'"},
        {{"--sync", "ring:2"}, "--sync cannot be 'ring:2'"},
        {{"--sync", "server:2:3"}, "--sync cannot be 'server:2:3'"},
        {{"--sync", "pipeline:1"}, "--sync cannot be 'pipeline:1'"},
        {{"--threads", "2x"}, "--threads cannot be '2x'"},
        {{"--cache", "dir:4M"}, "--cache cannot be 'dir:4M'"},
        {{"--cache-decoded", "4"}, "--cache-decoded cannot be 4: it must be 0 or at least 1K"},
        {{"--cache-decoded", "4MB"}, "--cache-decoded cannot be '4MB'"},
        {{"--cache-decoded", "99999999999G"}, "--cache-decoded cannot be '99999999999G'"},
        {{"--bach", "3"}, "there is no option --bach; did you mean --batch?"},
        {{"--bytes", "3"}, "`train` has no option --bytes"},
        {{"--quiet=3"}, "--quiet cannot be '3'"},
        {{"--lr", "0"}, "--lr"},
        {{"--batch", "8", "train"}, "the command comes first: trainer train [options]"},
        {{"--from", "run", "eval"}, "the command comes first: trainer eval [options]"},
        {{"--json", "bench", "kernels"}, "the command comes first: trainer bench [options]"},
        {{"trian"}, "there is no command 'trian'; did you mean 'train'?"},
        {{"--graph", "on"}, "CONVOY_GRAPH"},
        {{"bench", "kernel"}, "train, kernels, allreduce or data"},
        {{"--batch"}, "--batch needs a value after it"},
        {{"train", "flowers"}, "--data DIR"},
        {{"tune", "--plan", "flowers"}, "`tune --plan` takes no word 'flowers'"},
    };
    for (const auto& [words, message] : cases) {
        CAPTURE(message);
        CHECK_FAILS(parse(words), message);
    }
}

// "A=1 B=2"
static Environment variables(const std::string& text) {
    Environment environment;
    for (const std::string& one : split(text, ' '))
        environment[one.substr(0, one.find('='))] = one.substr(one.find('=') + 1);
    return environment;
}

TEST_CASE("options: what each launcher sets, alone and inside another") {
    const std::string slurm = "SLURM_STEP_ID=0 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_PROCID=3";
    const std::string daemon = "SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_PROCID=1";
    const struct {
        const char* launcher;
        std::string environment;
        int rank, world, local_rank;
        const char* coord;
    } cases[] = {
        {"torchrun", "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=n0 MASTER_PORT=29500", 3, 4, 1,
         "n0:29500"},
        {"an IPv6 address", "RANK=3 MASTER_ADDR=[fd00::2]", 3, 0, -1, "[fd00::2]:29400"},
        {"a bare one", "RANK=3 MASTER_ADDR=fe80::2%eth0", 3, 0, -1, "[fe80::2%eth0]:29400"},
        {"mpirun (Open MPI 4)",
         "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 PMIX_RANK=3",
         3, 4, 1, ""},
        {"mpiexec (MPICH)", "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1", 3, 4, 1, ""},
        {"mpiexec (PALS)",
         "PALS_RANKID=3 PMI_RANK=3 PMI_SIZE=4 PALS_LOCAL_RANKID=1 PMI_LOCAL_RANK=1", 3, 4, 1, ""},
        {"srun", slurm + " SLURM_STEP_NODELIST=gpu[003-004,7],x1", 3, 4, 1, "gpu003:29400"},
        {"srun --mpi=pmi2", slurm + " SLURM_STEP_NODELIST=n[1-2] PMI_RANK=3 PMI_SIZE=4", 3, 4, 1,
         "n1:29400"},
        {"a plain salloc shell", "SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_LOCALID=1", -1, 0, -1, ""},
        {"mpirun, whose daemon on this host srun started",
         daemon + " SLURM_STEP_NODELIST=n2 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 "
                  "OMPI_COMM_WORLD_LOCAL_RANK=1",
         3, 4, 1, ""},
        {"mpiexec (MPICH), likewise", daemon + " PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1", 3, 4, 1,
         ""},
        {"an indexed Job", "JOB_COMPLETION_INDEX=3", 3, 0, -1, ""},
        {"a TrainJob",
         "JOB_COMPLETION_INDEX=3 PET_NODE_RANK=3 PET_NNODES=4 PET_NPROC_PER_NODE=1 "
         "PET_MASTER_ADDR=job-node-0-0.job PET_MASTER_PORT=29500",
         3, 4, -1, "job-node-0-0.job:29500"},
        {"torchrun in a TrainJob, two processes per node",
         "PET_NODE_RANK=1 PET_NNODES=2 PET_NPROC_PER_NODE=2 PET_MASTER_ADDR=node0 RANK=3 "
         "WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=node0",
         3, 4, 1, "node0:29400"},
        {"a Swarm service, which counts from 1",
         "SWARM_TASK_SLOT=4 CONVOY_WORLD=4 CONVOY_COORD=tasks.trainer:29400", 3, 4, -1,
         "tasks.trainer:29400"},
    };
    for (const auto& [launcher, text, rank, world, local_rank, coord] : cases) {
        CAPTURE(launcher);
        const Environment environment = variables(text);
        const Config config = parse({}, environment).config;
        CHECK(config.rank == rank);
        CHECK(config.world == world);
        CHECK(config.local_rank == local_rank);
        CHECK(config.coord == coord);
        CHECK(parse({"--rank", "7"}, environment).config.rank == 7);
        // health looks for the rank at the address of the rank's own variables.
        CHECK(parse({"health"}, environment).config.coord == coord);
    }
    CHECK(parse({}, variables("CONVOY_RANK=1 RANK=1")).given.at("rank") == "CONVOY_RANK");
}

TEST_CASE("options: variables that disagree, or have an impossible value, are named") {
    const struct {
        const char *environment, *message;
    } cases[] = {
        {"RANK=2 PMI_RANK=1", "--rank: RANK says 2, PMI_RANK says 1; unset one"},
        {"RANK=2 OMPI_COMM_WORLD_RANK=1", "RANK says 2, OMPI_COMM_WORLD_RANK says 1"},
        {"CONVOY_RANK=0 PMIX_RANK=1", "CONVOY_RANK says 0, PMIX_RANK says 1"},
        {"PMI_RANK=2 PALS_RANKID=1", "PMI_RANK says 2, PALS_RANKID says 1"},
        {"PMI_RANK=2 SLURM_PROCID=1 SLURM_STEP_ID=0", "PMI_RANK says 2, SLURM_PROCID says 1"},
        {"RANK=0 JOB_COMPLETION_INDEX=1", "RANK says 0, JOB_COMPLETION_INDEX says 1"},
        {"RANK=2 SWARM_TASK_SLOT=2", "RANK says 2, SWARM_TASK_SLOT says 1"},
        {"WORLD_SIZE=4 PMI_SIZE=3", "--world: WORLD_SIZE says 4, PMI_SIZE says 3"},
        {"WORLD_SIZE=4 PET_NNODES=3 PET_NPROC_PER_NODE=1", "WORLD_SIZE says 4, PET_NNODES says 3"},
        {"LOCAL_RANK=1 MPI_LOCALRANKID=0", "LOCAL_RANK says 1, MPI_LOCALRANKID says 0"},
        {"PMI_LOCAL_RANK=1 PALS_LOCAL_RANKID=0", "PMI_LOCAL_RANK says 1, PALS_LOCAL_RANKID says 0"},
        {"MASTER_ADDR=a PET_MASTER_ADDR=b",
         "--coord: MASTER_ADDR says a:29400, PET_MASTER_ADDR says b:29400"},
        {"SWARM_TASK_SLOT=0", "SWARM_TASK_SLOT cannot be '0'"},
        {"SWARM_TASK_SLOT=x7", "SWARM_TASK_SLOT cannot be 'x7'"},  // a node's id: mode global
        {"PMI_RANK=-3", "PMI_RANK cannot be -3"},
        {"LOCAL_RANK=-1", "LOCAL_RANK cannot be -1"},
        {"CONVOY_BATCH=3x", "CONVOY_BATCH cannot be '3x'"},
        {"CONVOY_GRAPH=maybe", "CONVOY_GRAPH cannot be 'maybe'"},
        {"CONVOY_BATHC=8", "did you mean CONVOY_BATCH?"},
        {"convoy_batch=8", "did you mean CONVOY_BATCH?"},
        {"CONVOY_WEIGTH_DECAY=0", "did you mean CONVOY_WEIGHT_DECAY?"},
        {"CONVOY_TOKN=x", "did you mean CONVOY_TOKEN?"},
        {"CONVOY_QQ=1", "CONVOY_QQ"},
    };
    for (const auto& [environment, message] : cases) {
        CAPTURE(message);
        CHECK_FAILS(parse({}, variables(environment)), message);
    }
    // Set but empty; the tests'; Kubernetes' for services named "convoy" and "convoy-ranks".
    parse({}, variables("CONVOY_BATHC= CONVOY_TEST_SIZES=3 CONVOY_SERVICE_HOST=10.0.0.1 "
                        "CONVOY_RANKS_PORT=tcp://10.0.0.1:29400 "
                        "CONVOY_PORT_29400_TCP_ADDR=10.0.0.1 CONVOY_RANKS_SERVICE_PORT=29400"));
}

TEST_CASE("options: every one survives the way to another rank as text") {
    Config config;
    config.batch = 77, config.lr = 0.1234567890123, config.factors = FactorMode::kOff,
    config.model = "vgg16";
    config.replicas = 3;
    Config other;
    apply_settings(other, job_settings(config, kTrain));
    CHECK(other.batch == 77);
    CHECK(other.lr == config.lr);
    CHECK(other.factors == FactorMode::kOff);
    CHECK(other.replicas == 3);
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
    is("--optimizer", "adamw", &Config::optimizer, OptimizerKind::kAdamw);
    is("--precision", "bf16", &Config::precision, Precision::kBf16);
    is("--wire", "bf16", &Config::wire, WireType::kBf16);
    is("--shm", "auto", &Config::shm, Toggle::kOn);
    for (const char* name : {"lr", "port", "decode-threads", "threads", "size", "watts"}) {
        CHECK(get_option(parse({cat("--", name), "auto"}).config, name) == "auto");
        if (name != std::string("lr"))
            CHECK(get_option(parse({cat("--", name), "0"}).config, name) == "auto");
    }
    const auto hidden = [](const char* variable, const char* text) {
        return parse({}, {{variable, text}}).config;
    };
    CHECK(hidden("CONVOY_GRAPH", "on").graph == GraphMode::kOn);
    CHECK(hidden("CONVOY_FACTORS", "off").factors == FactorMode::kOff);
    CHECK(hidden("CONVOY_PREFLIGHT", "off").preflight == Toggle::kOff);
}

TEST_CASE("options: a value of several parts sets its fields, and is printed as it is read") {
    const auto read = [](const char* option, const std::string& text) {
        const Config config = parse({cat("--", option), text}).config;
        CHECK(get_option(config, option) == text);
        Config again;  // every part that the text does not name has its default
        again.mixup = 1, again.sync_every = 9, again.pipeline = 3, again.gamma = 0.5;
        again.replicas = 5, again.jitter = "1";
        set_option(again, option, text);
        CHECK(get_option(again, option) == text);
        return config;
    };
    const Config changed =
        read("augment",
             "crop,flip,translate=4,jitter=0.4:0.4:0.4:0.1,randaugment,erase=0.25,"
             "mixup=0.2,cutmix=1");
    CHECK((changed.augment == Augment::crop && changed.flip == Flip::random));
    CHECK((changed.translate == 4 && changed.jitter == "0.4:0.4:0.4:0.1"));
    CHECK(changed.auto_augment == AutoAugment::randaugment);
    CHECK((changed.erase == 0.25 && changed.mixup == 0.2 && changed.cutmix == 1));
    const Config plain = read("augment", "resize");
    CHECK((plain.augment == Augment::resize && plain.flip == Flip::off && plain.mixup == 0));
    CHECK(read("augment", "none").augment == Augment::none);
    CHECK(read("augment", "resize,flip=alternating,trivial").flip == Flip::alternating);
    CHECK(get_option(parse({"--augment", "flip"}).config, "augment") == "resize,flip");

    const Config step = read("schedule", "step:20:0.2");
    CHECK((step.schedule == Schedule::kStep && step.step_epochs == 20 && step.gamma == 0.2));
    CHECK(get_option(parse({"--schedule", "step"}).config, "schedule") == "step:30:0.1");
    for (const char* name : {"constant", "cosine", "onecycle"}) read("schedule", name);

    const Config cache = read("cache", "some/dir:20G");
    CHECK((cache.cache == "some/dir" && cache.cache_size.bytes == size_t(20) << 30));
    CHECK(read("cache", "C:dir").cache == "C:dir");
    CHECK(read("cache", "dir").cache_size.bytes == Config{}.cache_size.bytes);

    const Config threads = read("threads", "3x4");
    CHECK((threads.replicas == 3 && threads.threads == 12));
    CHECK((read("threads", "6").threads == 6 && read("threads", "6").replicas == 1));
    CHECK((read("threads", "2xauto").replicas == 2 && read("threads", "auto").threads == 0));

    CHECK(read("sync", "ring").sync_every == 1);
    CHECK((read("sync", "average:8").sync_every == 8));
    const Config diloco = read("sync", "diloco:50");
    CHECK((diloco.sync_every == 50 && diloco.outer));
    CHECK((diloco.outer_lr == 0.7 && diloco.outer_momentum == 0.9));
    CHECK(read("sync", "diloco:50:0.5:0.8").outer_momentum == 0.8);
    CHECK((read("sync", "server").sync == SyncKind::kServer &&
           read("sync", "server:2").servers == 2));
    const Config async = read("sync", "async:2:none");
    CHECK((async.sync == SyncKind::kAsync && async.servers == 2 && async.staleness == INT_MAX));
    CHECK((read("sync", "async").staleness == 3 && read("sync", "async:1:0").staleness == 0));
    const Config pipeline = read("sync", "pipeline:4:16");
    CHECK((pipeline.pipeline == 4 && pipeline.micro == 16));
    CHECK((read("sync", "pipeline:2").micro == 8 && pipeline.sync == SyncKind::kRing));
}

TEST_CASE("options: a name that other trainers use gives an error with the name here") {
    CHECK_FAILS(parse({"--learning-rate", "1"}), "--lr");
    CHECK_FAILS(parse({"--workers=4"}), "--decode-threads");
    CHECK_FAILS(parse({"--gpus", "2"}), "tools/launch");
    CHECK_FAILS(parse({"--arch", "resnet18"}), "--model");
}

TEST_CASE("options: what excludes or needs another option is named with it") {
    const auto check = [](std::vector<std::string> words, Environment environment = {}) {
        check_command_line(parse(words, environment));
    };
    const struct {
        std::vector<std::string> words;
        std::vector<const char*> names;
    } cases[] = {
        {{"--join", "--coord", "x", "--rank", "1"}, {"--join", "--rank 1"}},
        {{"--join"}, {"--join", "--coord"}},
        {{"--world", "2"}, {"--world 2", "--coord"}},
        {{"eval", "--rank", "1"}, {"--rank 1", "--coord"}},
        {{"--init", "w", "--resume", "r"}, {"--init", "--resume"}},
        {{"--min-world", "2", "--elastic", "off"}, {"--min-world 2", "--elastic off"}},
        {{"bench", "train", "--forward", "--compute", "1"}, {"--forward", "--compute"}},
        {{"bench", "train", "--sync", "server"}, {"--sync server"}},
    };
    for (const auto& [words, names] : cases)
        for (const char* name : names) {
            CAPTURE(name);
            CHECK_FAILS(check(words), name);
        }
    CHECK_FAILS(check({}, {{"WORLD_SIZE", "2"}}), "WORLD_SIZE");
    CHECK_NOTHROW(check({"bench", "allreduce", "--world", "2"}));
    CHECK_NOTHROW(check({"--world", "1"}));
    // Whether rank 0 gives these is known later.
    CHECK_NOTHROW(check({"--clip-norm", "1", "--sync", "server"}));
    Config config;
    config.clip_norm = 1;
    CHECK_NOTHROW(check_rules(config, kTrain, {}));
    config.sync = SyncKind::kAsync;
    CHECK_FAILS(check_rules(config, kTrain, {}), "--sync async");
}

TEST_CASE("options: a command's --help lists what it takes, with its own defaults") {
    for (const CommandRow& row : kCommands) {
        std::vector<std::string> words = split(row.name, ' ');
        words.push_back("--help");
        const std::string some = parse(words).help;
        words.back() = "--help-all";
        const std::string all = parse(words).help;
        CAPTURE(some);
        CHECK(std::ranges::count(some, '\n') <= 40);
        for (const std::string& line : split(all, '\n')) {
            CAPTURE(line);
            CHECK(line.size() <= 104);
        }
        for (const Option& option : options()) {
            CAPTURE(option.name);
            CHECK(contains(all, cat("\n  --", option.name, " ")) ==
                  (row.takes(option) && !(option.flags & kHidden)));
        }
        for (const CommandDefault& own : command_defaults())
            if (own.commands == row.command) {
                CAPTURE(own.option);
                CHECK(row.takes(*find_option(own.option)));
                CHECK(contains(some, "[" + std::string(own.shown)));
            }
    }
    CHECK(std::ranges::count(parse({"--help"}).help, '\n') <= 40);
    CHECK(std::ranges::count(parse({"bench", "--help"}).help, '\n') <= 40);
    CHECK_FAILS(parse({"finetune", "w", "--join"}), "--join");
    CHECK(parse({"finetune", "w"}).config.epochs == 3);
    CHECK(parse({"finetune", "w", "--epochs", "9"}).config.epochs == 9);
    CHECK(parse({"finetune", "w"}, {{"CONVOY_EPOCHS", "9"}}).config.epochs == 9);
    CHECK(parse({"tune", "--lr"}).config.steps == 120);
    CHECK(parse({"tune"}).config.out == "tuned.settings");
    for (const char* size : {"0", "1K", "1500", "20G", "3T", "5000M"})
        CHECK(parse_size(get_option(parse({"--cache-decoded", size}).config, "cache-decoded"), "")
                  .bytes == parse_size(size, "").bytes);
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
    CHECK(contains(parse({"--help"}).help, "--batch"));
    CHECK(contains(parse({"train", "--help-all"}).help, "--label-smoothing"));
}
