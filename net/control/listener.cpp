#include "net/control/listener.h"

#include <algorithm>

#include "net/control/addresses.h"

namespace convoy {

void Listener::open(const asio::ip::address& address, uint16_t port) {
    const bool everywhere = address.is_unspecified();
    tcp::endpoint endpoint(everywhere ? asio::ip::address_v6::any() : address, port);
    tcp::acceptor acceptor(io_);
    std::error_code error;
    acceptor.open(endpoint.protocol(), error);
    if (error && everywhere) {  // no IPv6
        endpoint = {tcp::v4(), port};
        acceptor.open(endpoint.protocol(), error);
    }
    if (error) throw std::system_error(error);
    if (endpoint.protocol() == tcp::v6()) acceptor.set_option(asio::ip::v6_only(!everywhere));
    const bool exposed = !tls_ && !is_loopback(endpoint.address());
    if (exposed && !open_)
        throw AccessError(cat(
            "without a token it does not listen at ", address_text(endpoint),
            ", where anybody could join and read the model: give all ranks one --token-file FILE "
            "(`trainer token` makes it), or --open for a network that you trust"));
    acceptor.set_option(tcp::acceptor::reuse_address(true));
    acceptor.bind(endpoint);
    acceptor.listen();
    exposed_ = exposed_ || exposed;
    auto shared = std::make_shared<tcp::acceptor>(std::move(acceptor));
    acceptors_.push_back(shared);
    spawn(io_.get_executor(), accept(shared));  // ends when it is closed
}

void Listener::tell_if_exposed() {
    if (exposed_)
        log_.notice("whoever reaches port ", port(),
                    " can join and read the model: there is no token (`trainer token`)");
}

uint16_t Listener::port() const {
    std::error_code closed;
    return acceptors_.empty() ? 0 : acceptors_.front()->local_endpoint(closed).port();
}

bool Listener::is_everywhere() const {
    std::error_code closed;
    return is_open() && acceptors_.front()->local_endpoint(closed).address().is_unspecified();
}

void Listener::close() noexcept {
    std::error_code ignored;  // it is closed either way
    for (auto& acceptor : acceptors_) acceptor->close(ignored);
    acceptors_.clear();
}

asio::awaitable<void> Listener::accept(std::shared_ptr<tcp::acceptor> acceptor) {
    while (acceptor->is_open()) {
        Socket socket(io_);
        std::error_code error;
        co_await acceptor->async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
        if (error == asio::error::operation_aborted) co_return;
        if (error)  // perhaps out of file descriptors; some may be closed soon
            co_await sleep_for(kAcceptPause);
        else
            spawn(io_.get_executor(), read_first(std::move(socket)));
        co_await slow_down();
    }
}

// A connection costs some 50 us of a core. More connections wait in the kernel, or it drops them.
asio::awaitable<void> Listener::slow_down() {
    paid_until_ = std::max(paid_until_, Clock::now()) + kApart;
    paid_until_ = std::min(paid_until_, Clock::now() + kAtOnce * kApart);
    while (is_calm && is_calm() && Clock::now() + (kAtOnce - 1) * kApart < paid_until_)
        co_await sleep_for(kApart);
}

// A trainer speaks at once. If too many connections are silent, the oldest one closes, first among
// those from the same address. So a rank always gets in, however many strangers connect, and enough
// descriptors are left for images.
void Listener::let_in(Socket& socket) {
    std::error_code ignored;  // of a socket that is gone, which the read below reports
    const asio::ip::address from = socket.remote_endpoint(ignored).address();
    const auto is_same = [&](const Guest& guest) { return guest.from == from; };
    const bool many = std::ranges::count_if(guests_, is_same) >= kGuestsOfOne;
    if (many || guests_.size() >= kGuests) {
        const auto oldest = many ? std::ranges::find_if(guests_, is_same) : guests_.begin();
        oldest->socket->close(ignored);
        guests_.erase(oldest);
    }
    guests_.push_back({from, &socket});
}

asio::awaitable<void> Listener::read_first(Socket socket) {
    std::error_code gone;
    const std::string who = address_text(socket.remote_endpoint(gone));
    std::string answer, why;  // why it is refused
    Message first;
    const auto greet = [&]() -> asio::awaitable<void> {
        co_await secure(socket, tls_, false);
        co_await read_message(socket, wire::kJoinLimit, first);
    };
    let_in(socket);
    try {
        set_options(socket);
        co_await within(first_message_patience, socket, greet());
        const wire::Type type = first.header.type;
        if (type == wire::Type::join && !on_join)
            // Again: the name it dialled may have other addresses, among them the coordinator's.
            answer = wire::encode(wire::Refuse{
                true, cat("port ", port(), " is that of a rank, not of the coordinator",
                          coordinator_at ? coordinator_at() : "")});
        else if (type == wire::Type::health && on_health)
            answer = wire::encode(on_health());
        else if (type == wire::Type::offer && on_offer)
            answer = on_offer();
        else if (type == wire::Type::join)
            on_join(std::move(socket),
                    wire::decode<wire::Join>(first.body, first.header.generation));
        else if (type == wire::Type::link && on_link)
            on_link(std::move(socket),
                    wire::decode<wire::Link>(first.body, first.header.generation));
        else
            fail("its first message is ", wire::name(type), ", not JOIN or LINK");
    } catch (const wire::NotConvoy& e) {
        why = e.what();
        if (e.tls) answer.assign(kTlsAlert, sizeof kTlsAlert);
        if (e.version)
            answer = wire::encode(
                wire::Refuse{false, cat("it speaks version ", wire::kVersion, ", you speak ",
                                        e.version, ": run the same build on all machines")});
    } catch (const TimedOut&) {
        why = "it connected and sent nothing";
    } catch (const std::system_error&) {
        // Closed before the first message: a port check, or a rank that was stopped.
    } catch (const std::exception& e) {
        why = e.what();
    }
    if (!why.empty()) log_refusal(cat("refused ", who, " at port ", port(), ": ", why));
    try {
        if (!answer.empty())
            co_await within(first_message_patience, socket, write_message(socket, answer));
    } catch (const std::exception&) {
        // The peer has hung up.
    }
    std::erase_if(guests_, [&](const Guest& guest) { return guest.socket == &socket; });
}

void Listener::log_refusal(const std::string& text) {
    const std::string line = refusals_.line(Clock::now(), text);
    if (!line.empty()) log_.notice(line);
}

}  // namespace convoy
