#define CONVOY_ASIO_CPP
#include "net/control/asio.h"

#include <memory>

namespace convoy {

void spawn(const asio::any_io_executor& executor, asio::awaitable<void> work) {
    asio::co_spawn(executor, std::move(work), [](std::exception_ptr error) noexcept {
        if (error) std::rethrow_exception(error);  // which std::terminate prints
    });
}

asio::awaitable<void> sleep_for(std::chrono::milliseconds time) {
    asio::steady_timer timer(co_await asio::this_coro::executor, time);
    co_await timer.async_wait(asio::use_awaitable);
}

asio::awaitable<void> within(std::chrono::milliseconds patience, tcp::socket& socket,
                             asio::awaitable<void> work) {
    asio::steady_timer timer(socket.get_executor(), patience);
    // The timer's handler may run after this coroutine has ended: then there is no socket any more.
    const auto watched = std::make_shared<tcp::socket*>(&socket);
    bool timed_out = false;
    timer.async_wait([watched, &timed_out](std::error_code cancelled) {
        if (cancelled || !*watched) return;
        timed_out = true;
        (*watched)->close(cancelled);
    });
    std::exception_ptr failure;
    try {
        co_await std::move(work);
    } catch (...) {
        failure = std::current_exception();
    }
    *watched = nullptr;
    if (timed_out) throw TimedOut(cat("nothing in ", patience.count(), " ms"));
    if (failure) std::rethrow_exception(failure);
}

}  // namespace convoy
