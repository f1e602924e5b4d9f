// What --tensorboard writes, src/run/tensorboard.h.
#include "src/run/tensorboard.h"

#include "data/sources/shard_writer.h"
#include "src/base/protobuf.h"
#include "src/run/run_log.h"
#include "tests/event_files.h"
#include "tests/jobs.h"

using namespace convoy;
using nlohmann::json;

static std::string hex(const std::string& bytes) {
    std::string text;
    for (const char c : bytes) text += fmt::format("{:02x}", uint8_t(c));
    return text;
}

TEST_CASE("tensorboard: records have the bytes that its own writer makes") {
    CHECK(hex(tfrecord(ProtoMessage().real(1, 1.0).bytes(3, "brain.Event:2"))) ==
          "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a");
    const ProtoMessage loss = ProtoMessage().bytes(1, "loss").real(2, 0.5f);
    CHECK(hex(tfrecord(
              ProtoMessage().real(1, 2.0).number(2, 3).bytes(5, ProtoMessage().bytes(1, loss)))) ==
          "1a00000000000000129bd82d09000000000000004010032a0d0a0b0a046c6f7373150000003fbac36b94");
}

TEST_CASE("tensorboard: each process has a file that begins with the step it will do") {
    TempDir folder;
    Quiet quiet;
    Log& log = quiet.log;
    for (const int64_t first : {0, 4}) {  // the second one goes on after step 4
        RunLog run_log(log, folder.path(), 0, 1, 3, true);
        run_log.plan(1, 10, 10, first, {});
        for (int64_t step = first + 1; step <= first + 6; ++step)
            run_log.step({0, 8 * step, step}, step, {double(step), 2, 4, 4, 0}, false, 0.1, {});
        run_log.validation({0, 0, first + 6}, {1, 2, 3, 4, 0}, false);
    }
    // A rank that takes over writes down its last step once more.
    RunLog heir(log, "", 1, 1, 3, true);
    heir.plan(1, 10, 10, 0, {});
    heir.become(0, folder.path(), 10);
    heir.event("step", {{"epoch", 0}, {"step", 10}, {"loss", 7}});
    heir.event("regroup", {{"step", 10}, {"ranks", 3}, {"why", "\xff lost"}});

    const std::vector<std::string> files = files_of(folder / "tb/train");
    REQUIRE(files.size() == 3);
    uint64_t starts[] = {1, 5, 10};
    for (size_t i = 0; i < 3; ++i) {
        const std::vector<std::string> events = events_of(files[i]);
        REQUIRE(events.size() > 2);
        CHECK(proto_text(events[0], 3) == "brain.Event:2");
        CHECK(proto_one(events[0], 1).real64() > 1.7e9);
        CHECK(step_of(events[1]) == starts[i]);
        CHECK(proto_one(proto_text(events[1], 7), 1).value == 1);
    }
    const auto losses = points(folder / "tb/train", "loss");
    REQUIRE(losses.size() == 13);
    CHECK(losses[5] == std::pair(uint64_t(6), 1.5f));
    CHECK(losses[6] == std::pair(uint64_t(5), 1.25f));
    CHECK(losses[12] == std::pair(uint64_t(10), 7.0f));
    CHECK(points(folder / "tb/val", "top1") ==
          std::vector<std::pair<uint64_t, float>>{{6, 0.5f}, {10, 0.5f}});
    CHECK(points(folder / "tb/train", "job/ranks").size() == 1);
}

TEST_CASE("tensorboard: a file that cannot be written costs a notice, not the run") {
    TempDir folder;
    Quiet quiet;
    std::ofstream(folder / "tb") << "no folder";
    TensorBoard board(quiet.log, folder.path(), 1);
    board.event("step", {{"step", 1}, {"loss", 1.0}});
    board.event("val", {{"step", 1}, {"loss", 1.0}});
    CHECK(contains(quiet.text(), "the run goes on without it"));
}

TEST_CASE("program: curves of a resumed run have each step once, as TensorBoard reads them") {
    TempDir folder;
    const std::string run = folder / "run";
    output_of(typed("--generated 48 --size 16 --batch 8 --epochs 2 --log-every 1 --device cpu "
                    "--tensorboard --out") +
              Words{run});
    CHECK(points(run + "/tb/train", "loss").size() == 10);
    CHECK(points(run + "/tb/val", "loss").size() == 2);
    std::filesystem::remove_all(run + "/step-00000010");  // steps 6 to 10 are done once more
    std::filesystem::remove(run + "/best");
    output_of({"--resume", run, "--epochs", "3", "--device", "cpu"});
    CHECK(points(run + "/tb/train", "loss").size() == 20);
    CHECK(files_of(run + "/tb/train").size() == 2);
    CHECK(step_of(events_of(files_of(run + "/tb/train")[1])[1]) == 6);
    python_agrees("tensorboard_check.py", run);
}
