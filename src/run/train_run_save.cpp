// train_run_save.cpp — the folder of a training run and its checkpoints.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "net/health.h"
#include "src/base/check.h"
#include "src/run/train_run.h"

namespace convoy {

namespace fs = std::filesystem;

FolderLock::FolderLock(const std::string& folder, bool takes_over, Log& log)
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

FolderLock::~FolderLock() {
    if (file_ >= 0) close(file_);
}

std::string FolderLock::holder() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::string open_run_folder(const Config& config, int rank) {
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

// Of a rank that had none. Where it cannot be, that costs checkpoints, not the run.
bool TrainRun::open_folder() {
    try {
        folder_ = open_run_folder(config_, std::max(first_rank_, 1));
        lock_ = std::make_unique<FolderLock>(folder_, /*takes_over=*/true, log_);
        run_log_->become(0, folder_, at_.step);
    } catch (const std::exception& error) {
        folder_.clear();
        log_.notice("error: ", error.what(), ". Training goes on, and saves nothing");
    }
    return !folder_.empty();
}

// The state after step at.step, unless it is saved already. Nothing without a folder, or of a run
// that looks for a rate.
void TrainRun::save(const Position& at, bool is_best) {
    yield_folder();
    if (saved_step_ == at.step && !is_best) return;
    if (folder_.empty() || config_.schedule == Schedule::kRange) return;
    communicator_.set_progress(at.step, Phase::kCheckpoint);
    const Span span(track_, kTraceCheckpoint, at.step);
    const CheckpointMeta meta{at,
                              best_top1_,
                              optimizer_->steps_done,
                              setup_.fingerprint,
                              public_settings(config_),
                              setup_.order,
                              peak_top1_,
                              stale_,
                              costs_ ? costs_->last() : spent_before_};
    const ModelCard card{config_.model, setup_.model_text, model_->input(), setup_.classes};
    const auto begin = Clock::now();
    const std::string folder = save_checkpoint(folder_, meta, card, *model_, *optimizer_, *backend_,
                                               is_best, config_.keep, log_);
    saved_step_ = at.step;
    log_.detail(fmt::format("{} written in {:.2f} s", folder, seconds_since(begin)));
    run_log_->event("checkpoint", {{"step", at.step}, {"folder", folder}});
}

void TrainRun::move_folder() {
    lock_.reset();
    folder_ += cat("-rank", first_rank_), saved_step_ = -1;
    run_log_->become(setup_.rank(), folder_, at_.step);
}

// Where another rank has taken the folder over, for it lost this one: from now on to one of its
// own.
void TrainRun::yield_folder() {
    if (!lock_ || lock_->is_mine()) return;
    move_folder();
    log_.notice("another rank has gone on with the run folder; this one writes to ", folder_);
}

// In mid-run a full disk costs a checkpoint, not the run; the last one must succeed.
void TrainRun::try_to_save(const Position& at, bool is_best) {
    try {
        save(at, is_best);
    } catch (const Error& error) {
        log_.notice("error: ", error.what(), ". Training goes on");
        run_log_->event("error", {{"step", at.step}, {"cause", error.what()}, {"goes_on", true}});
    }
}

static bool answers(const JobSession& job, int rank) {
    const auto [address, port] = coordinator_address(job.peers()[size_t(rank)].address);
    return answers(address, port, std::chrono::milliseconds(1'500), access_of(job.config).token);
}

// Weights and optimizer state are those of the last whole step: worth keeping. Rank 0 saves, or if
// it is lost the lowest rank that answers; others too, once that has ended. One that was left
// behind saves where nobody else answers, or it was done and has a folder. Does not throw: the
// first failure is the one that is reported. Returns whether nothing but the other ranks is lost.
bool TrainRun::save_after_failure(const std::exception& failure) {
    if (!optimizer_) return false;  // it was being made anew
    if (at_.step <= 0 || config_.schedule == Schedule::kRange) return false;
    // What servers or other stages hold is not here.
    if (config_.sync != SyncKind::kRing || config_.pipeline > 1) return false;
    const bool is_left = dynamic_cast<const LeftBehind*>(&failure);
    const bool is_cut_off = dynamic_cast<const CutOff*>(&failure);
    if (setup_.rank() != 0 && communicator_.lost_rank() != 0 && !is_cut_off && !is_left)
        return false;
    try {
        const bool asks = !is_cut_off && !(is_left && is_done_ && !folder_.empty());
        const int end = is_left ? setup_.world() : setup_.rank();
        for (int rank = is_left ? 0 : 1; asks && rank < end; ++rank)
            if (rank != setup_.rank() && answers(setup_.job, rank)) return is_left;
        if (folder_.empty()) folder_ = open_run_folder(config_, std::max(first_rank_, 1));
        const std::vector<std::string> names = list_checkpoints(folder_);
        if ((is_left || is_cut_off) && !names.empty() &&
            names.front() > fmt::format("step-{:08}", at_.step))  // others went on, and save there
            move_folder();
        save(at_, false);  // unless it is saved already
        log_.notice("saved the state after step ", at_.step,
                    config_.sync_every > 1 ? " of this rank; what the other ranks have trained "
                                             "since the last average is lost"
                                           : "",
                    is_done_ ? " in " : "; to continue: trainer --resume ", folder_);
        return is_left || is_cut_off;
    } catch (const std::exception& error) {
        if (error.what() != std::string(failure.what())) log_.notice("error: ", error.what());
        return false;
    }
}

}  // namespace convoy
