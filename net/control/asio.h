// asio.h — the only file that includes Asio, and the waits that net's coroutines use.
//
// Asio stands alone (no Boost) and is compiled once, in asio.cpp; other files see declarations.
#pragma once

// Asio looks for this macro. clang 14 has the coroutines of C++20 but does not define it.
#if defined(__clang__) && !defined(__cpp_impl_coroutine)
#define __cpp_impl_coroutine 201902L
#endif
#define ASIO_HAS_CO_AWAIT 1
#define ASIO_HAS_STD_COROUTINE 1
#define ASIO_STANDALONE
#define ASIO_NO_DEPRECATED
#define ASIO_SEPARATE_COMPILATION

// Asio has its own functions that allocate and free coroutine frames. GCC 12 reports a mismatch,
// wrongly, whenever it inlines only one of these two functions.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

#include <version>  // first: Asio 1.22 reads its macros
#ifdef CONVOY_ASIO_CPP
#include <asio/impl/src.hpp>
#endif
#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/dispatch.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/ip/udp.hpp>
#include <asio/ip/v6_only.hpp>
#include <asio/post.hpp>
#include <asio/read.hpp>
#include <asio/read_until.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/use_future.hpp>
#include <asio/write.hpp>
#include <chrono>

#include "src/base/check.h"

namespace convoy {

using asio::ip::tcp;

// Runs `work` alongside the caller. `work` reports its own failures. An exception from it is a bug
// of this program and ends the process with a message.
void spawn(const asio::any_io_executor& executor, asio::awaitable<void> work);

asio::awaitable<void> sleep_for(std::chrono::milliseconds time);

// A wait ended because its time was up.
struct TimedOut : Error {
    using Error::Error;
};

// Runs `work`, which waits only for `socket`, for at most `patience`; then closes the socket and
// throws TimedOut ("nothing in 5000 ms"). An exception of `work` passes through at once.
asio::awaitable<void> within(std::chrono::milliseconds patience, tcp::socket& socket,
                             asio::awaitable<void> work);

}  // namespace convoy
