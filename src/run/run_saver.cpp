// run_saver.cpp — see run_saver.h.
#include "src/run/run_saver.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "data/augment.h"
#include "src/base/check.h"
#include "src/run/run_folder.h"

namespace convoy {

RunSaver::RunSaver(JobSetup& setup, Model& model, Optimizer& optimizer, Backend& backend,
                   RunLog& run_log, Log& log, std::string folder, int64_t steps_per_epoch)
    : setup_(setup),
      model_(model),
      optimizer_(optimizer),
      backend_(backend),
      run_log_(run_log),
      log_(log),
      folder_(std::move(folder)) {
    if (config_.save_every > 0)
        every_steps_ =
            std::max<int64_t>(1, std::llround(config_.save_every * double(steps_per_epoch)));
}

void RunSaver::save(const Position& at, double best_top1, bool is_best) {
    if (saved_step_ == at.step || folder_.empty()) return;
    saved_step_ = at.step;
    setup_.communicator().set_progress(at.step, Phase::kCheckpoint);
    CheckpointMeta meta{at, best_top1, optimizer_.steps_done, setup_.data.train->fingerprint(),
                        job_settings(config_)};
    meta.settings["data"] = config_.data;
    meta.settings["val"] = config_.val;
    const Preprocess defaults;
    ModelCard card{config_.model, setup_.model_text, model_.size(), setup_.classes, {}, {}};
    std::copy_n(defaults.mean, 3, card.mean);
    std::copy_n(defaults.std, 3, card.std);
    const std::string folder =
        save_checkpoint(folder_, meta, card, model_, optimizer_, backend_, is_best, config_.keep);
    run_log_.event("checkpoint", {{"step", at.step}, {"folder", folder}});
}

void RunSaver::save_or_go_on(const Position& at, double best_top1, bool is_best) {
    try {
        save(at, best_top1, is_best);
    } catch (const Error& error) {
        saved_step_ = -1;
        log_.notice("error: ", error.what(), ". Training goes on");
        run_log_.event("error", {{"step", at.step}, {"cause", error.what()}});
    }
}

void RunSaver::save_after_failure(const Position& at, double best_top1) {
    if (at.step == 0 || saved_step_ == at.step) return;
    const bool in_its_place = setup_.rank() == 1 && setup_.communicator().lost_rank() == 0;
    if (setup_.rank() != 0 && !in_its_place) return;
    try {
        if (folder_.empty()) folder_ = open_run_folder(config_, setup_.rank());
        save(at, best_top1, false);
        log_.notice("saved the state after step ", at.step,
                    config_.sync_every > 1
                        ? ", as of this rank: what the others have trained since "
                          "the last average is lost"
                        : "",
                    "; `trainer --resume ", folder_, "` goes on from there");
    } catch (const std::exception& error) {
        log_.notice("error: ", error.what());  // the first failure is the one that is thrown
    }
}

}  // namespace convoy
