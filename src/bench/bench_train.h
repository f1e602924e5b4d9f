// bench_train.h — training steps without the input pipeline: how fast, and what the network costs.
#pragma once

#include <functional>

#include "net/communicator.h"
#include "src/base/clock.h"
#include "src/config/config.h"

namespace convoy {

// Times config.steps steps on random pixels, the same in every step, and prints a table or a JSON
// object on rank 0. Every rank must call it. Returns the signal that ended it early, else 0.
//
// config.forward: forward passes alone, as of eval. config.compute > 0: layers sleep so many
// seconds a step instead of computing, in proportion to their operations, while gradients are sent
// as ever: the network of many hosts on a machine of few cores.
// `started`: when the command began; the times of the first step count from there.
int bench_train(const Config& config, Communicator& communicator, Log& log,
                const std::function<int()>& stop, Clock::time_point started);

}  // namespace convoy
