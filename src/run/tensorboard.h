// tensorboard.h — what a run shows in TensorBoard: curves, text, pictures, hyper-parameters.
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

#include "data/decode.h"
#include "src/base/log.h"
#include "src/run/histogram.h"

namespace convoy {

class TensorBoard {
 public:
    // next_step: the first that this process will do.
    TensorBoard(Log& log, const std::string& run_folder, int64_t next_step);
    ~TensorBoard();

    // Where a file cannot be written, `log` says so once and the run goes on without it.

    // Of an event of the log (RunLog::event): numbers of "step" and "val" become curves, the
    // settings of "start" a table and hyper-parameters, causes a text.
    void event(const std::string& name, const nlohmann::json& fields);
    // Markdown.
    void text(const std::string& tag, const std::string& markdown, int64_t step);
    // RGB or grey, stored as JPEG, or as PNG where `exact`. description: Markdown.
    void picture(const std::string& tag, const Image& image, int64_t step, bool exact,
                 const std::string& description);
    void histogram(const std::string& tag, const Histogram& histogram, int64_t step);

 private:
    class File;
    File& val();

    Log& log_;
    const std::string folder_;
    const int64_t next_step_;
    std::unique_ptr<File> train_, val_;  // val_: from the first validation on
};

}  // namespace convoy
