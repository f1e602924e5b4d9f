// deadline.h — no wait on the network without an end: within(patience, work).
#pragma once

#include <chrono>
#include <exception>
#include <string>
#include <utility>

#include "net/asio.h"
#include "src/base/check.h"

namespace convoy {

// A wait that ended because its time was up.
struct TimedOut : Error {
    using Error::Error;
};

// Runs `work` for at most `patience`, then cancels it and throws TimedOut ("nothing in 5000 ms").
// An exception of `work` is rethrown as soon as it happens: the group ends with the first of the
// two to finish, success or not, so a refused connection never looks like a silent one.
inline asio::awaitable<void> within(std::chrono::milliseconds patience,
                                    asio::awaitable<void> work) {
    using asio::experimental::deferred;
    auto executor = co_await asio::this_coro::executor;
    asio::steady_timer timer(executor, patience);
    auto group = asio::experimental::make_parallel_group(
        asio::co_spawn(executor, std::move(work), deferred), timer.async_wait(deferred));
    auto [order, failure, timer_status] =
        co_await group.async_wait(asio::experimental::wait_for_one(), asio::use_awaitable);
    if (order[0] == 1) throw TimedOut(cat("nothing in ", patience.count(), " ms"));
    if (failure) std::rethrow_exception(failure);
    (void)timer_status;
}

}  // namespace convoy
