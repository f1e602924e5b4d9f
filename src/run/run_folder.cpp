#include "src/run/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "net/control/ask_health.h"
#include "src/base/check.h"

namespace convoy {
namespace fs = std::filesystem;

// RUN/lock, which names the process that writes to the run folder. While this object lives, no
// other process gets the lock, except a rank that takes the run over.
class FolderLock {
 public:
    // Throws Error that names the other process, except if this process takes the run over.
    FolderLock(const std::string& folder, bool takes_over, Log& log)
        : path_(folder + "/lock"), file_(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
        char host[256] = "";
        gethostname(host, sizeof host - 1);
        mine_ = cat("process ", getpid(), " on host ", host, "\n");
        const int error = file_ < 0 || flock(file_, LOCK_EX | LOCK_NB) != 0 ? errno : 0;
        const std::string other = holder();
        if (error == EWOULDBLOCK && !takes_over) {
            close(file_);
            fail(folder, " is in use by ", other.substr(0, other.find('\n')),
                 ": end it first, or give another --out");
        }
        if (error && error != EWOULDBLOCK)
            log.notice(path_, " cannot be locked: ", std::strerror(error),
                       "; nothing stops another process from using the run folder too");
        std::ofstream(path_) << mine_;
    }
    ~FolderLock() {
        if (file_ >= 0) close(file_);
    }
    FolderLock(const FolderLock&) = delete;
    bool is_mine() const { return holder().empty() || holder() == mine_; }

 private:
    std::string holder() const {
        std::ifstream file(path_);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    const std::string path_;
    std::string mine_;
    const int file_;
};

static std::string open_run_folder(const Config& config, int rank) {
    std::string folder = config.out;
    if (folder.empty() && !config.resume.empty()) {
        folder = config.resume;
        if (fs::exists(fs::path(folder) / "meta.json"))  // one checkpoint: its run goes on
            folder = fs::canonical(folder).parent_path();
        if (fs::is_regular_file(folder)) folder = fs::path(folder).parent_path();  // RUN/latest
    } else if (folder.empty()) {
        const std::time_t now = std::time(nullptr);
        char time[32];
        std::strftime(time, sizeof time, "%Y%m%d-%H%M%S", std::localtime(&now));
        const std::string name = cat("runs/", time, rank == 0 ? "" : cat("-rank", rank));
        folder = name;
        for (int n = 2; fs::exists(folder); ++n) folder = cat(name, "-", n);
    }
    std::error_code error;
    const bool goes_on = !config.resume.empty() && fs::equivalent(folder, config.resume, error);
    if (!config.out.empty() && !goes_on && rank == 0 && !list_checkpoints(folder).empty())
        fail("--out: ", folder, " holds a run already; continue it by --resume ", folder,
             ", or choose another folder");
    fs::create_directories(folder, error);
    if (error || access(folder.c_str(), W_OK) != 0)
        fail("--out: cannot write into ", folder, ": ",
             error ? error.message() : std::string("no permission"));
    return folder;
}

RunFolder::RunFolder(const RunState& run)
    : RunState(run),
      path_(first_rank_ == 0 ? open_run_folder(config_, 0) : ""),
      lock_(path_.empty() ? nullptr
                          : std::make_shared<FolderLock>(path_, /*takes_over=*/false, log_)),
      log(log_, path_, first_rank_, config_.log_every, int(setup_.model.classes.size()),
          config_.tensorboard) {
    if (config_.save_every > 0)
        save_steps_ = std::max<int64_t>(
            1, std::llround(config_.save_every * double(engine_.loader->steps())));
}

void RunFolder::open() { path_ = open_run_folder(config_, std::max(first_rank_, 1)); }

bool RunFolder::try_to_open() {
    try {
        open();
        lock_ = std::make_shared<FolderLock>(path_, /*takes_over=*/true, log_);
        log.become(0, path_, progress_.at.step);
    } catch (const std::exception& error) {
        path_.clear();
        log_.notice("error: ", error.what(), ". Training continues without saving");
    }
    return !path_.empty();
}

void RunFolder::save(const Position& at, bool is_best) {
    yield();
    if (saved_step_ == at.step && !is_best) return;
    if (path_.empty() || config_.schedule == Schedule::kRange) return;
    communicator_.set_progress(at.step, Phase::kCheckpoint);
    const Span span(engine_.track, kTraceCheckpoint, at.step);
    const CheckpointMeta meta{at,
                              progress_.best_top1,
                              engine_.optimizer->steps_done,
                              setup_.fingerprint,
                              public_settings(config_),
                              setup_.order,
                              progress_.peak_top1,
                              progress_.stale,
                              progress_.spent};
    ModelCard card{config_.model, setup_.model.text, engine_.model->input(), setup_.model.classes,
                   engine_.model->statistics()};
    card.whole = config_.augment == Augment::resize;
    const auto begin = Clock::now();
    const std::string folder =
        save_checkpoint(path_, meta, card, *engine_.model, *engine_.optimizer, *engine_.backend,
                        is_best, config_.keep, log_);
    saved_step_ = at.step;
    log_.detail(fmt::format("{} written in {:.2f} s", folder, seconds_since(begin)));
    log.event("checkpoint", {{"step", at.step}, {"folder", folder}});
}

bool RunFolder::try_to_save(const Position& at, bool is_best) {
    try {
        save(at, is_best);
        return true;
    } catch (const Error& error) {
        log_.notice("error: ", error.what(), ". Training goes on");
        log.event("error", {{"step", at.step}, {"cause", error.what()}, {"goes_on", true}});
        return false;
    }
}

void RunFolder::move() {
    lock_.reset();
    path_ += cat("-rank", first_rank_), saved_step_ = -1;
    log.become(setup_.rank(), path_, progress_.at.step);
}

void RunFolder::yield() {
    if (!lock_ || lock_->is_mine()) return;
    move();
    log_.notice("another rank has taken over the run folder; this rank writes to ", path_);
}

static bool answers(const JobSession& job, int rank) {
    const auto [address, port] = coordinator_address(job.peers()[size_t(rank)].address);
    return answers(address, port, std::chrono::milliseconds(1'500), access_of(job.config).token);
}

// Rank 0 saves. If it is lost, the lowest rank that answers saves. A rank that was left behind
// saves if no other rank answers, or if its run was done and it has a folder.
bool RunFolder::save_after_failure(const std::exception& failure) {
    if (!engine_.optimizer || !engine_.holds_all) return false;  // is being rebuilt, or elsewhere
    const Position& at = progress_.at;
    if (at.step <= 0 || config_.schedule == Schedule::kRange) return false;
    const bool is_left = dynamic_cast<const LeftBehind*>(&failure);
    const bool is_cut_off = dynamic_cast<const CutOff*>(&failure);
    if (setup_.rank() != 0 && communicator_.lost_rank() != 0 && !is_cut_off && !is_left)
        return false;
    try {
        const bool is_done = progress_.is_done;
        const bool by_signal = is_cut_off && setup_.job.stop();  // on all ranks, probably
        const bool asks = by_signal || (!is_cut_off && !(is_left && is_done && !path_.empty()));
        const int end = is_left ? setup_.world() : setup_.rank();
        const auto begin = Clock::now();
        for (int rank = is_left || by_signal ? 0 : 1; asks && rank < end; ++rank) {
            if (rank != setup_.rank() && answers(setup_.job, rank)) return is_left;
            if (by_signal && seconds_since(begin) > 2) break;  // better twice than never
        }
        if (path_.empty()) open();
        const std::vector<std::string> names = list_checkpoints(path_);
        if (by_signal && !names.empty() && names.front() == fmt::format("step-{:08}", at.step))
            return true;  // a lower rank has saved, and ended
        if ((is_left || is_cut_off) && !names.empty() &&
            names.front() > fmt::format("step-{:08}", at.step))  // others went on, and save there
            move();
        save(at);
        log_.notice(
            "saved the state after step ", at.step,
            at.step > progress_.committed.step
                ? " of this rank; what the other ranks have trained since the "
                  "last average is lost"
                : "",
            is_done ? " in " : cat("; to continue: ", program_invocation_name, " --resume "),
            path_);
        return is_left || is_cut_off;
    } catch (const std::exception& error) {
        if (error.what() != std::string(failure.what())) log_.notice("error: ", error.what());
        return false;
    }
}

}  // namespace convoy
