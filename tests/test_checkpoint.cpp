#include "src/checkpoint/checkpoint.h"

#include <signal.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/random.h"
#include "tests/call_hooks.h"
#include "tests/process.h"

using namespace convoy;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

struct Fixture {
    std::unique_ptr<Backend> backend = make_backend("cpu", {1});
    Config config;
    Model model;
    Optimizer optimizer;
    TempDir folder;
    ModelCard card{"net", kText, 8, {"a", "b", "c"}, {{0.1f, 0.2f, 0.3f}, {1, 2, 3}}};

    static constexpr const char* kText =
        "input 8\nconv2d c out 4 size 3\nflatten\nlinear fc out classes\n";

    Fixture()
        : model(kText, {"net", 3, 8, 1, ""}, *backend),
          optimizer(config, model.params(), *backend) {}

    Quiet told;
    Log& log = told.log;

    std::string save(int64_t step, bool best = false, int keep = 3) {
        CheckpointMeta meta;
        meta.position = {1, 64, step};
        meta.settings["batch"] = "8";
        return save_checkpoint(folder.path(), meta, card, model, optimizer, *backend, best, keep,
                               log);
    }
    Checkpoint load() { return load_checkpoint(folder.path(), log); }
    std::vector<std::string> names() const {
        std::vector<std::string> all;
        for (const auto& entry : fs::directory_iterator(folder.path()))
            all.push_back(entry.path().filename());
        std::sort(all.begin(), all.end());
        return all;
    }
};

}  // namespace

// Every checkpoint that has a name of one is whole; the steps, newest first.
static std::vector<int64_t> steps_of(Fixture& all) {
    std::vector<int64_t> steps;
    for (const std::string& name : list_checkpoints(all.folder.path()))
        steps.push_back(load_checkpoint(all.folder / name, all.log).meta.position.step);
    return steps;
}

TEST_CASE_FIXTURE(Fixture, "checkpoint: what is saved comes back") {
    save(12);
    const Checkpoint back = load();
    CHECK(back.meta.position.epoch == 1);
    CHECK(back.meta.position.consumed == 64);
    CHECK(back.meta.position.step == 12);
    CHECK(back.meta.settings.at("batch") == "8");
    const ModelCard again = card_from_metadata(back.model.metadata, "file");
    CHECK(again.classes == card.classes);
    CHECK(again.model_text == card.model_text);
    CHECK(again.statistics == card.statistics);
    CHECK(again.preprocess().bias(1) == doctest::Approx(-0.1));
    CHECK(again.preprocess().augment == Augment::none);
    card.whole = true;
    const auto whole = card_to_metadata(card);
    CHECK(card_from_metadata(whole, "file").preprocess().augment == Augment::resize);
    CHECK(back.model.tensors.at("c.weight").shape == std::vector<int64_t>{4, 3, 3, 3});
    CHECK(back.optimizer.tensors.contains("momentum/fc.bias"));
    auto nothing = back.model.metadata, no_classes = nothing;
    nothing.clear(), no_classes["classes"] = "[]";
    for (const auto& metadata : {nothing, no_classes})
        CHECK_FAILS(card_from_metadata(metadata, "x.safetensors"),
                    "x.safetensors holds weights, but not the classes");
}

TEST_CASE_FIXTURE(Fixture, "checkpoint: the newest few and the best are kept") {
    save(10, true);
    for (int64_t step : {20, 30, 40, 50}) save(step, false, 2);
    CHECK(names() == std::vector<std::string>{"best", "latest", "step-00000010", "step-00000040",
                                              "step-00000050"});
    CHECK(fs::read_symlink(folder.path() / "latest") == "step-00000050");
    CHECK(find_model_file(folder.path(), log) == folder / "step-00000010/model.safetensors");
    save(50);  // the same step again, as a resumed run does
    CHECK(load().meta.position.step == 50);
    // A clock that was set back: by time the newest is the oldest.
    for (const auto& entry : fs::recursive_directory_iterator(folder.path() / "step-00000050"))
        fs::last_write_time(entry, fs::file_time_type::clock::now() - std::chrono::years(1));
    fs::remove(folder.path() / "latest");
    CHECK(load().meta.position.step == 50);
    save(60, false, 2);
    CHECK(load().meta.position.step == 60);
    CHECK(fs::exists(folder.path() / "step-00000050"));
    save(45);  // of a run that went back to the best one
    CHECK(load().meta.position.step == 45);
    fs::remove(folder.path() / "best");
    CHECK(find_model_file(folder.path(), log) == folder / "step-00000045/model.safetensors");
}

TEST_CASE_FIXTURE(Fixture, "checkpoint: any one damaged byte or missing file is noticed") {
    save(10);
    const std::string newest = save(20);
    for (const char* name : {"model.safetensors", "optim.safetensors", "meta.json"}) {
        CAPTURE(name);
        const std::string path = newest + "/" + name, content = read_file(path);
        std::string changed = content;
        changed[changed.size() / 2] ^= 1;
        for (const std::string& damage :
             {changed, content.substr(0, content.size() / 2), std::string()}) {
            std::ofstream(path, std::ios::binary) << damage;
            Quiet quiet;
            CHECK(load_checkpoint(folder.path(), quiet.log).meta.position.step == 10);
            CHECK(contains(quiet.text(), "step-00000020"));
            // Also if the checkpoint itself is named. Of the optimizer's state it is not asked for.
            for (const std::string& named : {newest, newest + "/model.safetensors"})
                if (std::string(name) != "optim.safetensors")
                    CHECK_FAILS(find_model_file(named, quiet.log), newest);
        }
        fs::remove(path);
        CHECK(load().meta.position.step == 10);
        std::ofstream(path, std::ios::binary) << content;
        CHECK(load().meta.position.step == 20);
    }
}

TEST_CASE_FIXTURE(Fixture, "checkpoint: a meta.json of other types is passed over") {
    save(10);
    const std::string path = save(20) + "/meta.json";
    const json good = json::parse(read_file(path));
    const auto step_with = [&](const char* key, const json& value) {
        json changed = good;
        changed.erase("checksum");
        if (*key) changed[key] = value;
        changed["checksum"] = fmt::format("{:016x}", hash_bytes(changed.dump()));
        std::ofstream(path) << changed;
        return load().meta.position.step;
    };
    CHECK(step_with("", {}) == 20);
    CHECK(step_with("sha256", 5) == 10);
    CHECK(step_with("sha256", {{"model.safetensors", 5}}) == 10);
    for (const json& none : {json("x"), json(1e100), json(1.5), json(-1), json(UINT64_MAX)})
        for (const char* count : {"epoch", "samples_consumed", "step", "stale_validations"})
            CHECK(step_with(count, none) == 10);
    CHECK(step_with("options", json::array()) == 10);
}

TEST_CASE_FIXTURE(Fixture, "checkpoint: a disk that fills up leaves the one before it as it was") {
    save(10);
    const std::vector<std::string> before = names();
    // A limit on file sizes stands in for a full disk: writes fail in the same way.
    const auto old_handler = signal(SIGXFSZ, SIG_IGN);
    for (rlim_t room : {0, 100, 1500}) {
        CAPTURE(room);
        TightLimit limit(RLIMIT_FSIZE, room);
        const std::string message = error_of([&] { save(20); });
        limit.lift();
        CHECK(contains(message, "cannot save the checkpoint"));
        CHECK(contains(message, "File too large"));
        CHECK(names() == before);
        CHECK(load().meta.position.step == 10);
    }
    signal(SIGXFSZ, old_handler);
    save(20);
    CHECK(load().meta.position.step == 20);
}

TEST_CASE_FIXTURE(Fixture,
                  "checkpoint: the model of a run is its best, else its newest valid one") {
    save(10), save(20);
    CHECK(find_model_file(folder.path(), log) == folder / "step-00000020/model.safetensors");
    fs::resize_file(folder.path() / "step-00000020/model.safetensors", 1000);
    CHECK(find_model_file(folder.path(), log) == folder / "step-00000010/model.safetensors");
    save(30, true), save(40);
    CHECK(find_model_file(folder.path(), log) == folder / "step-00000030/model.safetensors");
    fs::remove(folder.path() / "step-00000030/meta.json");
    CHECK(find_model_file(folder.path(), log) == folder / "step-00000040/model.safetensors");
}

TEST_CASE_FIXTURE(Fixture, "checkpoint: a run that was copied, links as folders, goes on") {
    save(10, true), save(20);
    for (const char* name : {"best", "latest"}) {
        const fs::path link = folder.path() / name, target = fs::canonical(link);
        fs::remove(link);
        fs::copy(target, link);
    }
    CHECK(load().meta.position.step == 20);
    save(30, false, 1);
    CHECK(names() == std::vector<std::string>{"best", "latest", "step-00000030"});
    CHECK(fs::read_symlink(folder.path() / "latest") == "step-00000030");
    CHECK(find_model_file(folder.path(), log) == folder / "best/model.safetensors");
    save(40, true);
    CHECK(find_model_file(folder.path(), log) == folder / "step-00000040/model.safetensors");
    // Of some copies only the folder behind a link is left.
    fs::rename(folder.path() / "step-00000040", folder.path() / "copy");
    fs::remove_all(folder.path() / "step-00000030");
    fs::remove(folder.path() / "latest");
    fs::rename(folder.path() / "copy", folder.path() / "latest");
    CHECK(load().meta.position.step == 40);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // call_hooks.h
TEST_CASE_FIXTURE(Fixture,
                  "checkpoint: while too many files are open, a save waits for two seconds") {
    for (const int enough : {3, 100}) {
        TightLimit limit(RLIMIT_NOFILE, 3);
        int waits = 0;
        on_wait = [&] {
            if (++waits == enough) limit.lift();
        };
        const std::string fault = error_of([&] { save(enough); });
        limit.lift();
        CHECK(waits == std::min(enough, 20));
        CHECK(!contains(fault, "Too many open files") == (enough == 3));
        CHECK(load().meta.position.step == 3);
    }
    on_wait = nullptr;
}

TEST_CASE("checkpoint: file systems without links, fsync or renaming of folders are told once") {
    for (const std::string lacks : {"symlink", "fsync", "rename"}) {
        CAPTURE(lacks);
        Fixture all;
        refused = lacks;
        for (const int64_t step : {10, 20, 30, 40, 40}) all.save(step, step == 10, 2);
        refused = "";
        CHECK(std::ranges::count(all.told.text(), '\n') == 1);
        CHECK(steps_of(all) == std::vector<int64_t>{40, 30, 10});
        CHECK(find_model_file(all.folder.path(), all.log) ==
              all.folder / "step-00000010/model.safetensors");
        CHECK(load_checkpoint(all.folder / "latest", all.log).meta.position.step == 40);
        all.save(50, true);  // the file system can again
        CHECK(find_model_file(all.folder.path(), all.log) ==
              all.folder / "step-00000050/model.safetensors");
    }
}
#endif

TEST_CASE_FIXTURE(Fixture, "checkpoint: a kill before any call of a save leaves whole ones alone") {
    for (const bool exchanges : {true, false})
        for (const int64_t step : {20, 30})  // 20: once more
            for (int call = 1, status = SIGKILL; status == SIGKILL; ++call) {
                INFO(exchanges, " ", step, " ", call);
                save(10);
                fs::remove_all(folder.path() / "step-00000030");
                save(20);
                const pid_t pid = fork();
                REQUIRE(pid >= 0);
                if (pid == 0) {
                    cannot_exchange = !exchanges;
                    on_file_call = on_entry_call = [&] {
                        if (--call == 0) kill(getpid(), SIGKILL);
                    };
                    save(step, false, 1);
                    _exit(0);
                }
                waitpid(pid, &status, 0);
                const std::vector<int64_t> steps = steps_of(*this);
                CHECK((steps[0] == 20 || steps[0] == step));
                if (exchanges) CHECK(fs::exists(folder.path() / "latest/meta.json"));
                cannot_exchange = !exchanges;
                save(step);
                cannot_exchange = false;
                CHECK(steps_of(*this)[0] == step);
                for (const std::string& name : names()) CHECK(!contains(name, ".writing-"));
            }
}

TEST_CASE_FIXTURE(Fixture, "checkpoint: another optimizer's state is refused by name") {
    save(10);
    Config other;
    other.optimizer = OptimizerKind::kAdamw;
    Optimizer adamw(other, model.params(), *backend);
    CHECK_FAILS(restore(load(), model, adamw, *backend), "holds no mean/");
}
