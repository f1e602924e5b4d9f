// tensorboard.cpp — see tensorboard.h. Numbers of fields are those of TensorBoard's event.proto and
// summary.proto.
#include "src/run/tensorboard.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/sources/shard_writer.h"
#include "src/base/protobuf.h"
#include "src/base/text.h"
namespace convoy {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Fields of events that become curves.
struct Scalar {
    const char *field, *tag;
};
constexpr Scalar kScalars[] = {{"loss", "loss"},
                               {"top1", "top1"},
                               {"top5", "top5"},
                               {"lr", "learning_rate"},
                               {"images_per_second", "speed/images_per_second"},
                               {"data_wait", "wait/data"},
                               {"net_wait", "wait/network"},
                               {"ranks", "job/ranks"}};
}  // namespace

class TensorBoard::File {
 public:
    File(Log& log, const fs::path& folder, int64_t next_step) : log_(log) {
        // Later files get later names, even if two processes begin in the same second.
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
        write(ProtoMessage().bytes(3, "brain.Event:2"));
        constexpr int kStart = 1;  // SessionLog::START
        write(ProtoMessage().number(2, next_step).bytes(7, ProtoMessage().number(1, kStart)));
    }

    // A Summary, of Values.
    void add(int64_t step, const ProtoMessage& summary) {
        write(ProtoMessage().number(2, step).bytes(5, summary));
    }

 private:
    // An Event, of these fields and the time.
    void write(const ProtoMessage& fields) {
        if (!file_) return;
        const std::string record = tfrecord(ProtoMessage().real(1, unix_seconds()).append(fields));
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

void TensorBoard::event(const std::string& name, const json& fields) {
    if (name != "step" && name != "val" && name != "regroup") return;
    ProtoMessage scalars;
    for (const auto& [field, tag] : kScalars)
        if (fields.contains(field))
            scalars.bytes(1, ProtoMessage().bytes(1, tag).real(2, fields[field].get<float>()));
    if (name == "val" && !val_) val_ = std::make_unique<File>(log_, folder_ + "/val", next_step_);
    (name == "val" ? val_ : train_)->add(fields.value("step", next_step_ - 1), scalars);
}

}  // namespace convoy
