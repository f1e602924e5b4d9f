// commands.h — one function a command; each returns the exit status.
#pragma once

#include <functional>

#include "src/base/log.h"
#include "src/config.h"
#include "src/model.h"

namespace convoy {

using Stop = std::function<int()>;  // the signal that asked to stop, 0 if none did

int command_train(const CommandLine& line, Log& log, const Stop& stop);
int command_plan(const CommandLine& line, Log& log, const Stop& stop);
int command_eval(const CommandLine& line, Log& log, const Stop& stop);
int command_predict(const CommandLine& line, Log& log, const Stop& stop);
int command_check(const CommandLine& line, Log& log);
int command_coordinator(const CommandLine& line, Log& log, const Stop& stop);
int command_models(const CommandLine& line);
int command_export(const CommandLine& line, Log& log);
int command_import(const CommandLine& line, Log& log);
int command_bench_train(const CommandLine& line, Log& log, const Stop& stop);
int command_bench_allreduce(const CommandLine& line, Log& log, const Stop& stop);
int command_bench_data(const CommandLine& line, Log& log);

int command_bench_kernels(const CommandLine& line);

ConvMethod parse_conv_method(const std::string& text);  // of --conv
Precision parse_precision(const std::string& text);     // of --precision
Gemm parse_gemm(const std::string& text);               // of --gemm
// The backend that --device, --threads and --conv ask for.
std::unique_ptr<Backend> make_backend(const Config& config);
// Of --classes where there is no data: a number, or as many as there are names; 3 without it.
int class_count(const Config& config);
// Host memory for a loader: slots for batches as large as the model is planned for.
std::vector<float*> lend_slots(Backend& backend, const Model& model, int count, bool packed);
// Threads that decode: as asked, or one for each two processors.
int decode_threads(const Config& config);

}  // namespace convoy
