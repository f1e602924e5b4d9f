// commands.h — one function a command; each returns the exit status.
#pragma once

#include "src/base/log.h"
#include "src/config/config.h"
#include "src/job/job_setup.h"

namespace convoy {

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

}  // namespace convoy
