#include "src/run/run_log.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/text.h"

namespace convoy {
using nlohmann::json;

// Loss, accuracy and count, as fields of the events of steps, epochs and validations.
static json quality(const Sums& sums) {
    return {{"loss", sums.mean_loss()}, {"top1", sums.top1_part()}, {"images", sums.count}};
}

RunLog::RunLog(Log& log, const std::string& folder, int rank, int log_every, int classes,
               bool tensorboard)
    : log_(log), shows_curves_(tensorboard), rank_(rank), log_every_(log_every), classes_(classes) {
    open(folder);
}

// The newest step in the last lines of a log that another rank has written; -1: none.
static int64_t last_step(const std::string& path) {
    constexpr std::streamoff kTail = 1 << 16;
    std::ifstream file(path, std::ios::ate);
    file.seekg(std::max<std::streamoff>(0, std::streamoff(file.tellg()) - kTail));
    int64_t step = -1;
    for (std::string line; std::getline(file, line);)
        if (const json event = json::parse(line, nullptr, /*allow_exceptions=*/false);
            event.is_object() && event.value("event", "") == "step")
            step = event.value("step", step);
    return step;
}

void RunLog::become(int rank, const std::string& folder, int64_t next_step) {
    std::lock_guard lock(mutex_);
    rank_ = rank;
    if (folder == folder_ || folder.empty()) return;
    file_.reset();
    open(folder);
    known_step_ = last_step(path_);
    open_tensorboard(next_step);
}

void RunLog::show_on(PageState* page) {
    page_ = page;
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) page->line(line);
}

void RunLog::open_tensorboard(int64_t next_step) {
    if (shows_curves_ && file_)
        tensorboard_ = std::make_unique<TensorBoard>(log_, folder_, next_step);
}

void RunLog::open(const std::string& folder) {
    if (folder.empty()) return;
    folder_ = folder;
    path_ = folder + "/log.jsonl";
    if (!open_file()) fail("cannot write ", path_, ": ", std::strerror(errno));
}

// A full disk may have cut a line short. Then the next event begins on a new line.
bool RunLog::open_file() {
    std::error_code failed;  // as the next call says
    std::filesystem::create_directories(folder_, failed);
    file_.reset(std::fopen(path_.c_str(), "a+"));
    if (!file_) return false;
    std::FILE* file = file_.get();
    const bool cut = std::fseek(file, -1, SEEK_END) == 0 && std::fgetc(file) != '\n';
    std::fseek(file, 0, SEEK_END);
    if (cut) std::fputc('\n', file);
    return true;
}

// Opens the file first if it is not open, or was removed.
bool RunLog::write(const std::string& text) {
    struct stat status = {};
    if (file_ && fstat(fileno(file_.get()), &status) == 0 && status.st_nlink == 0) file_.reset();
    if (!file_ && !open_file()) return false;
    if (std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() &&
        std::fflush(file_.get()) == 0)
        return true;
    const int error = errno;
    file_.reset();
    errno = error;
    return false;
}

void RunLog::plan(int64_t epochs, int64_t steps_per_epoch, int64_t total_steps, int64_t first_step,
                  const Clocks& clocks) {
    epochs_ = epochs, steps_per_epoch_ = steps_per_epoch;
    total_steps_ = total_steps, first_step_ = first_step;
    clocks_ = clocks;
    all_ = own_ = {.clocks = clocks};
    begin_ = drawn_ = epoch_begin_ = Clock::now();
    open_tensorboard(first_step + 1);
}

double RunLog::seconds() const { return seconds_since(begin_); }
double RunLog::images_per_second() const { return double(run_.count) / std::max(seconds(), 1e-9); }

void RunLog::event(const char* name, const json& fields) {
    std::lock_guard lock(mutex_);
    // Not stalls: another thread reports them, and only one thread may write curves.
    if (tensorboard_ && std::string_view(name) != "stall") tensorboard_->event(name, fields);
    if (path_.empty() && !page_) return;
    json line = {{"event", name}, {"time", unix_seconds()}, {"rank", rank_}};
    line.update(fields);
    if (page_) page_->event(line);
    if (path_.empty()) return;
    if (std::string_view(name) == "step" &&
        std::exchange(known_step_, -1) == fields.value("step", int64_t(-2)))
        return;
    const std::string text = line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
    if (prints_) std::fwrite(text.data(), 1, text.size(), stdout), std::fflush(stdout);
    const bool failed = !write(text);
    if (failed && !fails_)
        log_.notice("cannot write ", path_, ": ", std::strerror(errno),
                    "; the run goes on without it");  // a log is not worth a run
    if (fails_ && !failed) log_.notice("events go to ", path_, " again");
    fails_ = failed;
}

void RunLog::event_at(const char* name, const Position& at, json fields) {
    fields.update({{"epoch", at.epoch}, {"step", at.step}});
    event(name, fields);
}

void RunLog::step(const Position& at, int64_t step_in_epoch, const Sums& sums, bool local,
                  double lr, const Clocks& clocks, double norm) {
    clocks_ = clocks, norm_ = norm;
    ++own_.steps;
    if (local) {
        own_.sums += sums;
    } else {
        own_ = {.clocks = clocks};
        all_.sums += sums, run_ += sums;
    }
    Window& window = local ? own_ : all_;
    const bool due =
        at.step % log_every_ == 0 || step_in_epoch == steps_per_epoch_ || at.step == total_steps_;
    line_due_ |= due;  // without sums of all ranks, or without images, it is left to a later step
    const bool prints =
        window.sums.count > 0 && (local ? due && own_.steps >= log_every_ : line_due_);
    if (prints || (log_.draws() && rank_ == 0 && seconds_since(drawn_) > 0.1))
        print_step(at, step_in_epoch, window, lr, prints);
    if (!prints) return;
    line_due_ = local;
    window = {.clocks = clocks};
}

void RunLog::print_step(const Position& at, int64_t step_in_epoch, const Window& window, double lr,
                        bool whole_line) {
    const bool local = &window == &own_;
    const double elapsed = std::max(seconds_since(window.begin), 1e-9);
    const double speed = double(window.sums.count) / elapsed;
    const double data = (clocks_.data_wait - window.clocks.data_wait) / elapsed;
    const double net = (clocks_.net_wait - window.clocks.net_wait) / elapsed;
    const double busy = (clocks_.net_busy - window.clocks.net_busy) / elapsed;
    const double done = double(std::max<int64_t>(at.step - first_step_, 1));
    const double left = seconds() / done * double(total_steps_ - at.step);
    std::string text = fmt::format("epoch {}/{}  step {}/{}  ", at.epoch + 1, epochs_,
                                   step_in_epoch, steps_per_epoch_);
    if (window.sums.count > 0)
        text +=
            fmt::format("loss {:.4f}  top1 {:.1f} %  {:.1f} img/s{}  ", window.sums.mean_loss(),
                        100 * window.sums.top1_part(), speed, local ? " (this rank alone)" : "");
    if (norm_ > 0) text += fmt::format("norm {:.3g}  ", norm_);
    text += fmt::format("waits: data {:.0f} %", 100 * data);
    if (net + busy > 0) text += fmt::format(", network {:.0f} %", 100 * net);
    text += fmt::format("  lr {:.4g}  eta {}", lr, clock_text(left));
    drawn_ = Clock::now();
    if (!whole_line) {
        log_.draw(double(step_in_epoch) / double(std::max<int64_t>(steps_per_epoch_, 1)), text);
        return;
    }
    if (rank_ == 0) log_.info(text);
    json fields = quality(window.sums);
    fields.update({{"images_per_second", speed},
                   {"data_wait", data},
                   {"net_wait", net},
                   {"net_busy", busy},
                   {"lr", lr}});
    if (norm_ > 0) fields["gradient_norm"] = norm_;
    event_at(local ? "local_step" : "step", at, fields);
}

void RunLog::epoch(const Position& at, const Sums& sums, const Amounts& cost) {
    json fields = quality(sums);
    fields.update({{"skipped", sums.skipped}, {"seconds", seconds_since(epoch_begin_)}});
    fields.update(json(cost));
    event_at("epoch", at, fields);
    epoch_begin_ = Clock::now();
}

std::string quality_text(const Sums& sums, int classes) {
    return fmt::format("loss {:.4f}  top1 {:.2f} %", sums.mean_loss(), 100 * sums.top1_part()) +
           (classes > 5 ? fmt::format("  top5 {:.2f} %", 100 * sums.top5_part()) : "");
}

void RunLog::validation(const Position& at, const Sums& sums, bool is_best,
                        const std::vector<ClassQuality>& by_class,
                        const std::vector<std::string>& classes) {
    if (rank_ == 0)
        log_.info(fmt::format("validation after epoch {}  {}  ({} of {} images){}", at.epoch + 1,
                              quality_text(sums, classes_), sums.correct, sums.count,
                              is_best ? "  best so far" : ""));
    const std::string text = class_text(by_class, classes);
    if (rank_ == 0 && !text.empty()) log_.info("  ", text);
    json fields = quality(sums);
    fields.update({{"top5", sums.top5_part()}, {"skipped", sums.skipped}});
    fields.update(class_fields(by_class));
    event_at("val", at, fields);
    all_.begin = own_.begin = Clock::now();  // the next lines are about training alone
    all_.clocks = own_.clocks = clocks_;
}

void RunLog::done(const Position& at, const std::string& how, const Amounts& cost) {
    json fields = cost;
    fields.update({{"how", how},
                   {"images", run_.count},
                   {"seconds", seconds()},
                   {"images_per_second", images_per_second()}});
    event_at("done", at, fields);
}

}  // namespace convoy
