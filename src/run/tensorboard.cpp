// tensorboard.cpp — see tensorboard.h. Numbers of fields are those of TensorBoard's event.proto,
// summary.proto, tensor.proto, and of plugins/hparams/{api,plugin_data}.proto.
#include "src/run/tensorboard.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/shard_writer.h"
#include "src/base/check.h"
#include "src/base/number.h"
#include "src/base/text.h"

namespace convoy {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Fields of events that become curves.
struct Curve {
    const char *field, *tag;
};
constexpr Curve kCurves[] = {{"loss", "loss"},
                             {"top1", "top1"},
                             {"top5", "top5"},
                             {"lr", "learning_rate"},
                             {"images_per_second", "speed/images_per_second"},
                             {"data_wait", "wait/data"},
                             {"net_wait", "wait/network"},
                             {"ranks", "job/ranks"}};
// Settings that are shown as hyper-parameters.
constexpr const char* kHyperParameters[] = {
    "model",    "size",         "batch",    "epochs",       "optimizer",
    "lr",       "momentum",     "schedule", "weight-decay", "label-smoothing",
    "augment",  "auto-augment", "mixup",    "cutmix",       "warmup",
    "bn-group", "seed",         "init",     "freeze",       "nesterov"};

double now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

ProtoMessage plugin(const char* name, std::string_view content = {}) {
    return ProtoMessage().bytes(1, ProtoMessage().bytes(1, name).bytes(2, content));
}

// A message with text that is not UTF-8 cannot be read at all.
std::string as_utf8(std::string text) {
    if (!is_utf8(text))
        for (char& c : text)
            if (c & 0x80) c = '?';
    return text;
}

// A Value of the hparams plugin: all is in its metadata, the tensor has no numbers. `kind`: the
// field of HParamsPluginData.
ProtoMessage hyper_parameters(const char* tag, int kind, const ProtoMessage& content) {
    const ProtoMessage tensor =
        ProtoMessage().number(1, 1).bytes(2, ProtoMessage().bytes(2, ""));  // float, shape [0]
    return ProtoMessage()
        .bytes(1, cat("_hparams_/", tag))
        .bytes(8, tensor)
        .bytes(9, plugin("hparams", ProtoMessage().bytes(kind, content)));
}

}  // namespace

class TensorBoard::File {
 public:
    File(Log& log, const fs::path& folder, int64_t next_step) : log_(log) {
        // Later names come later, also where two processes begin in the same second.
        const std::string prefix = "events.out.tfevents.";
        int64_t time = std::time(nullptr);
        std::error_code error;
        fs::create_directories(folder, error);
        for (const auto& entry : fs::directory_iterator(folder, error))
            if (const std::string name = entry.path().filename(); name.starts_with(prefix))
                time = std::max(time,
                                1 + to_number<int64_t>(name.substr(prefix.size(), 10)).value_or(0));
        char host[256] = "host";
        gethostname(host, sizeof host - 1);
        path_ = folder / cat(prefix, time, ".", host, ".", getpid());
        file_.reset(std::fopen(path_.c_str(), "wbxe"));
        if (!file_) give_up();
        write(ProtoMessage().real(1, now()).bytes(3, "brain.Event:2"));
        constexpr int kStart = 1;  // SessionLog::START
        write(ProtoMessage()
                  .real(1, now())
                  .number(2, next_step)
                  .bytes(7, ProtoMessage().number(1, kStart)));
    }

    // A Summary, of Values.
    void add(int64_t step, const ProtoMessage& summary) {
        write(ProtoMessage().real(1, now()).number(2, step).bytes(5, summary));
    }
    void add_value(int64_t step, const ProtoMessage& value) {
        add(step, ProtoMessage().bytes(1, value));
    }

 private:
    void write(const ProtoMessage& event) {
        if (!file_) return;
        const std::string record = tfrecord(event);
        if (std::fwrite(record.data(), 1, record.size(), file_.get()) != record.size() ||
            std::fflush(file_.get()) != 0)
            give_up();
    }
    void give_up() {
        log_.notice("cannot write ", path_, ": ", std::strerror(errno),
                    "; the run goes on without it");
        file_.reset();
    }

    Log& log_;
    std::string path_;
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, std::fclose};
};

TensorBoard::TensorBoard(Log& log, const std::string& run_folder, int64_t next_step)
    : log_(log),
      folder_(run_folder + "/tb"),
      next_step_(next_step),
      train_(std::make_unique<File>(log, folder_ + "/train", next_step)) {}

TensorBoard::~TensorBoard() = default;

TensorBoard::File& TensorBoard::val() {
    if (!val_) val_ = std::make_unique<File>(log_, folder_ + "/val", next_step_);
    return *val_;
}

void TensorBoard::event(const std::string& name, const json& fields) {
    const int64_t step = fields.value("step", next_step_ - 1);
    if (name == "step" || name == "val" || name == "regroup") {
        ProtoMessage curves;
        for (const auto& [field, tag] : kCurves)
            if (fields.contains(field))
                curves.bytes(1, ProtoMessage().bytes(1, tag).real(2, fields[field].get<float>()));
        (name == "val" ? val() : *train_).add(step, curves);
    }
    for (const char* cause : {"why", "cause"})
        if (fields.contains(cause)) text("events", fields[cause], step);
    if (name == "start") {
        std::string table = "| option | value |\n| --- | --- |\n";
        for (const auto& [option, value] : fields.items())
            table += cat("| ", option, " | ", value.get<std::string>(), " |\n");
        text("settings", table, step);
        ProtoMessage experiment, session;
        for (const char* option : kHyperParameters) {
            const std::string value = fields.value(option, "");
            const auto number = to_number<double>(value);
            experiment.bytes(4, ProtoMessage().bytes(1, option).number(4, number ? 3 : 1));
            const ProtoMessage typed =
                number ? ProtoMessage().real(2, *number) : ProtoMessage().bytes(3, value);
            session.bytes(1, ProtoMessage().bytes(1, option).bytes(2, typed));
        }
        for (const char* group : {"", "../val"})  // beside this folder, train
            for (const char* tag : {"loss", "top1"})
                experiment.bytes(
                    5, ProtoMessage().bytes(1, ProtoMessage().bytes(1, group).bytes(2, tag)));
        session.real(5, now());
        train_->add_value(step, hyper_parameters("experiment", 2, experiment));
        train_->add_value(step, hyper_parameters("session_start_info", 3, session));
    }
    constexpr int kSuccess = 1;  // Status; without one the session counts as running
    if (name == "done" && fields.value("how", "") == "finished")
        train_->add_value(step,
                          hyper_parameters("session_end_info", 4,
                                           ProtoMessage().number(1, kSuccess).real(2, now())));
}

void TensorBoard::text(const std::string& tag, const std::string& markdown, int64_t step) {
    constexpr int kString = 7;  // DataType
    const ProtoMessage tensor =
        ProtoMessage().number(1, kString).bytes(2, {}).bytes(8, as_utf8(markdown));  // a scalar
    train_->add_value(step, ProtoMessage().bytes(1, tag).bytes(8, tensor).bytes(9, plugin("text")));
}

void TensorBoard::histogram(const std::string& tag, const Histogram& histogram, int64_t step) {
    train_->add_value(step, ProtoMessage().bytes(1, tag).bytes(5, histogram.message()));
}

void TensorBoard::picture(const std::string& tag, const Image& image, int64_t step, bool exact,
                          const std::string& description) {
    const std::vector<uint8_t> bytes = encoded(image, exact ? ".png" : ".jpg", 95);
    const ProtoMessage picture =
        ProtoMessage()
            .number(1, image.H)
            .number(2, image.W)
            .number(3, image.C)
            .bytes(4, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    train_->add_value(step, ProtoMessage()
                                .bytes(1, tag)
                                .bytes(4, picture)
                                .bytes(9, plugin("images").bytes(3, as_utf8(description))));
}

}  // namespace convoy
