// tensorboard.h — the curves of a run, for TensorBoard.
//
//   RUN/tb/train/events.out.tfevents.<seconds>.<host>.<process>   RUN/tb/val/…: the same names of
//   curves, so that both lie in one chart
//
// A file is records as in a TFRecord (data/shard_writer.h), each a message Event. TensorBoard reads
// the files of a folder in the order of their names. A process begins with a file of its own, which
// says the first step that it will do: TensorBoard then drops what older files have from there on.
// So curves go on without a jump back after --resume, and where another rank takes over.
#pragma once

#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "src/base/log.h"

namespace convoy {

class TensorBoard {
 public:
    // next_step: the first that this process will do.
    TensorBoard(Log& log, const std::string& run_folder, int64_t next_step);
    ~TensorBoard();

    // Numbers of the events "step", "val" and "regroup" (RunLog::event) become curves; other events
    // are left out. If a file cannot be written, `log` says so once and the run goes on without it.
    void event(const std::string& name, const nlohmann::json& fields);

 private:
    class File;
    File& val();

    Log& log_;
    const std::string folder_;
    const int64_t next_step_;
    std::unique_ptr<File> train_, val_;  // val_: from the first validation on
};

}  // namespace convoy
