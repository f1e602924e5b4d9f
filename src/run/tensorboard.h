// tensorboard.h — the curves of a run, for TensorBoard.
//
//   RUN/tb/train/events.out.tfevents.<seconds>.<host>.<process>   RUN/tb/val/…: the same names of
//   curves, so that both lie in one chart
//
// A file is a list of records as in a TFRecord (data/sources/shard_writer.h); each record is an
// Event message. TensorBoard reads the files of a folder in the order of their names. Each process
// begins a new file, which gives the first step of this process. TensorBoard then drops later steps
// of older files. So curves do not jump back after --resume, or when another rank takes over.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "src/base/log.h"

namespace convoy {

class TensorBoard {
 public:
    // next_step: the first step of this process.
    TensorBoard(Log& log, const std::string& run_folder, int64_t next_step);
    ~TensorBoard();

    // Draws the numbers of the events "step", "val" and "regroup" (RunLog::event) and ignores
    // others. If a file cannot be written, `log` says so once, and the run continues without it.
    void event(const std::string& name, const nlohmann::json& fields);

 private:
    class File;

    Log& log_;
    const std::string folder_;
    const int64_t next_step_;
    std::unique_ptr<File> train_, val_;  // val_: from the first validation on
};

}  // namespace convoy
