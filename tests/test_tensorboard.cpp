// What --tensorboard writes, src/run/tensorboard.h and pictures.h.
#include "src/run/tensorboard.h"

#include <nlohmann/json.hpp>

#include "data/shard_writer.h"
#include "src/checkpoint/safetensors.h"
#include "src/run/pictures.h"
#include "src/run/run_log.h"
#include "tests/event_files.h"

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
    std::FILE* out = std::fopen((folder / "log").c_str(), "w");
    Log log(out);
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
    CHECK(!heir.tensorboard());
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
    CHECK(read_file(files[2]).find("? lost") != std::string::npos);
}

TEST_CASE("tensorboard: a file that cannot be written costs a notice, not the run") {
    TempDir folder;
    std::FILE* out = std::fopen((folder / "log").c_str(), "w");
    Log log(out);
    std::ofstream(folder / "tb") << "no folder";
    TensorBoard board(log, folder.path(), 1);
    board.event("step", {{"step", 1}, {"loss", 1.0}});
    board.event("val", {{"step", 1}, {"loss", 1.0}});
    std::fflush(out);
    CHECK(read_file(folder / "log").find("the run goes on without it") != std::string::npos);
}

TEST_CASE("tensorboard: pictures are the rows of a batch, and what was taken for what") {
    Preprocess how(InputSize(2, 1, 3));
    std::vector<float> rows;
    for (int i = 0; i < 9; ++i)
        for (int v = 0; v < 6; ++v)
            rows.push_back(float(10 * i + v) * how.scale(v % 3) + how.bias(v % 3));
    const Image image = rows_picture(rows.data(), 9, how);
    CHECK(image.H == 4);
    CHECK(image.W == 8);
    CHECK(image.pixels[3 * 3 + 1] == 31);                // image 3, first row, green
    CHECK(image.pixels[size_t(3 * image.W) * 3] == 83);  // image 8, second row, red

    TempDir folder;
    std::FILE* out = std::fopen((folder / "log").c_str(), "w");
    Log log(out);
    TensorBoard board(log, folder.path(), 1);
    board.picture("p", image, 1, true, "");
    const std::string shown = events_of(files_of(folder / "tb/train")[0]).back();
    const std::string content = proto_text(proto_text(proto_text(proto_text(shown, 5), 1), 4), 4);
    Decoder decoder;
    Image stored;
    decoder.open({reinterpret_cast<const uint8_t*>(content.data()), content.size()}, "p");
    decoder.read(stored);
    CHECK(stored.pixels == image.pixels);  // red is red

    struct OneName : Source {
        std::string name(size_t i) const override { return cat("image ", i); }
        void read(size_t, std::vector<uint8_t>&) const override {}
        uint64_t fingerprint() const override { return 0; }
    } source;
    Batch batch;
    batch.x = rows.data(), batch.n = 4;
    batch.labels = {0, 1, 1, 2}, batch.samples = {10, 11, 12, 13};
    Quality quality(3);
    quality.add(batch, std::vector<float>{5, 0, 0, 1, 0, 0, 9, 0, 0, 0, 0, 2});
    quality.gather(*make_single_rank(), source);
    CHECK(quality.pairs == std::vector<float>{1, 0, 0, 2, 0, 0, 0, 0, 1});
    show_quality(board, quality, {"hat", "shoe", "cap"}, 1);
    const std::string file = read_file(files_of(folder / "tb/train")[0]);
    CHECK(file.find("| shoe | hat | 2 |") != std::string::npos);
    const size_t worst = file.find("| shoe | hat | 1.000 | image 12 |");
    REQUIRE(worst != std::string::npos);
    CHECK(file.find("| shoe | hat | 0.576 | image 11 |") > worst);
    CHECK(Quality(5000).pairs.empty());
}

// Packed doubles of a field.
static std::vector<double> packed(std::string_view message, int field) {
    const std::string bytes(proto_text(message, field));
    std::vector<double> values(bytes.size() / sizeof(double));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
}

TEST_CASE("histogram: every number is in the bucket whose limits enclose it") {
    Histogram histogram;
    std::vector<float> values = random_floats(1000, 1);
    for (float& value : values) value *= value * value;  // of many sizes
    values.insert(values.end(), {0, -0.0f, 1e-30f, -1e-30f, 1, -1, 3e38f, -3e38f});
    histogram.add(std::span(values).first(500));
    histogram.add(std::span(values).subspan(500));
    histogram.add(std::vector<float>{NAN, INFINITY, -INFINITY});
    const ProtoMessage message = histogram.message();
    CHECK(proto_one(message, 1).real64() == -3e38f);
    CHECK(proto_one(message, 2).real64() == 3e38f);
    CHECK(proto_one(message, 3).real64() == double(values.size()));
    double sum = 0, squares = 0;
    for (const float value : values) sum += value, squares += double(value) * value;
    CHECK(proto_one(message, 4).real64() == doctest::Approx(sum));
    CHECK(proto_one(message, 5).real64() == doctest::Approx(squares));
    const std::vector<double> limits = packed(message, 6), counts = packed(message, 7);
    REQUIRE(limits.size() == counts.size());
    CHECK(std::ranges::is_sorted(limits, std::less_equal()));
    double before = -INFINITY;
    for (size_t i = 0; i < limits.size(); before = limits[i++]) {
        CAPTURE(limits[i]);
        // A limit is of the bucket that is further from 0.
        const auto inside = [&](double x) {
            return limits[i] > 0 ? (x >= before || (before < 0 && x > before)) && x < limits[i]
                                 : x > before && x <= limits[i];
        };
        CHECK(counts[i] == double(std::ranges::count_if(values, inside)));
        if (i > 0 && counts[i] > 0 && limits[i] < 1e30 && limits[i] > 1e-9 && before > 0)
            CHECK(limits[i] / before <= 1.125);
    }
    Histogram twice;
    twice.add(std::vector<float>{1, 2}, 0.5f);
    CHECK(proto_one(twice.message(), 4).real64() == 1.5);
}

TEST_CASE("program: curves of a resumed run have each step once, as TensorBoard reads them") {
    TempDir folder;
    const std::string run = folder / "run";
    const auto train = [&](std::vector<std::string> words) {
        const auto [status, output] = run_trainer(words);
        CAPTURE(output);
        REQUIRE(status == 0);
    };
    train({"--generated", "48", "--size", "16", "--batch", "8", "--epochs", "2", "--log-every", "1",
           "--device", "cpu", "--histograms", "2", "--out", run});
    CHECK(points(run + "/tb/train", "loss").size() == 10);
    CHECK(points(run + "/tb/val", "loss").size() == 2);
    // Of every second epoch: as many weights as the model has, and their mean gradients.
    std::map<std::string, double> numbers;
    for (const std::string& event : events_of(files_of(run + "/tb/train")[0]))
        for (const ProtoField& summary : proto_all(event, 5))
            for (const ProtoField& value : proto_all(summary.bytes, 1))
                if (const auto histogram = proto_all(value.bytes, 5); !histogram.empty()) {
                    CHECK(step_of(event) == 10);
                    const std::string tag(proto_text(value.bytes, 1));
                    CHECK(numbers.emplace(tag, proto_one(histogram[0].bytes, 3).real64()).second);
                    CHECK(proto_one(histogram[0].bytes, 5).real64() > 0);
                }
    const SafeTensors weights = read_safetensors(run + "/latest/model.safetensors");
    size_t trained = 0;
    for (const auto& [name, tensor] : weights.tensors) {
        if (name.find("running") != name.npos || name.ends_with("num_batches_tracked")) continue;
        ++trained;
        CAPTURE(name);
        CHECK(numbers["weights/" + name] == double(tensor.values.size()));
        CHECK(numbers["gradients/" + name] == double(tensor.values.size()));
    }
    CHECK(trained > 3);
    CHECK(numbers.size() == 2 * trained);
    std::filesystem::remove_all(run + "/step-00000010");  // steps 6 to 10 are done once more
    std::filesystem::remove(run + "/best");
    train({"--resume", run, "--epochs", "3", "--device", "cpu"});
    CHECK(points(run + "/tb/train", "loss").size() == 20);
    CHECK(files_of(run + "/tb/train").size() == 2);
    CHECK(step_of(events_of(files_of(run + "/tb/train")[1])[1]) == 6);
    python_agrees("tensorboard_check.py", run);
}
