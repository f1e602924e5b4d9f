#include "net/listener.h"

namespace convoy {

namespace {
constexpr std::chrono::seconds kFirstMessage{10};  // then a silent connection is dropped
constexpr int kStrangersNamed = 10;                // a port scanner must not fill the log
constexpr size_t kHealthText = 1'000;              // bytes: a list of thousands of ranks is cut
}  // namespace

void Listener::open(const asio::ip::address& address, uint16_t port) {
    const tcp::endpoint endpoint(address, port);
    tcp::acceptor acceptor(io_);
    acceptor.open(endpoint.protocol());
    if (address.is_v6()) acceptor.set_option(asio::ip::v6_only(true));
    listen(std::move(acceptor), endpoint);
}

void Listener::open_everywhere(uint16_t port) {
    tcp::acceptor acceptor(io_);
    std::error_code no_ipv6;
    acceptor.open(tcp::v6(), no_ipv6);
    if (no_ipv6) return open(asio::ip::address_v4::any(), port);
    acceptor.set_option(asio::ip::v6_only(false));
    listen(std::move(acceptor), tcp::endpoint(tcp::v6(), port));
}

void Listener::listen(tcp::acceptor acceptor, const tcp::endpoint& endpoint) {
    acceptor.set_option(tcp::acceptor::reuse_address(true));
    acceptor.bind(endpoint);
    acceptor.listen();
    auto shared = std::make_shared<tcp::acceptor>(std::move(acceptor));
    acceptors_.push_back(shared);
    spawn(io_.get_executor(), accept(shared));  // ends when it is closed
}

uint16_t Listener::port() const {
    std::error_code closed;
    return acceptors_.empty() ? 0 : acceptors_.front()->local_endpoint(closed).port();
}

void Listener::close() noexcept {
    std::error_code ignored;  // it is closed either way
    for (auto& acceptor : acceptors_) acceptor->close(ignored);
    acceptors_.clear();
}

asio::awaitable<void> Listener::accept(std::shared_ptr<tcp::acceptor> acceptor) {
    while (acceptor->is_open()) {
        tcp::socket socket(io_);
        std::error_code error;
        co_await acceptor->async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
        if (error == asio::error::operation_aborted) co_return;
        if (error)  // perhaps out of file descriptors; some may be closed soon
            co_await sleep_for(std::chrono::milliseconds(100));
        else
            spawn(io_.get_executor(), read_first(std::move(socket)));
    }
}

asio::awaitable<void> Listener::read_first(tcp::socket socket) {
    std::error_code gone;
    const std::string who = address_text(socket.remote_endpoint(gone));
    std::string refusal, answer;
    try {
        set_options(socket);
        Message first;
        co_await within(kFirstMessage, socket, read_message(socket, wire::kJoinLimit, first));
        if (first.header.type == wire::Type::join && !on_join)
            // Again: the name it dialled may have other addresses, among them the coordinator's.
            answer = wire::encode(wire::Refuse{
                true, cat("port ", port(), " is that of a rank, not of the coordinator")});
        else if (first.header.type == wire::Type::health && on_health)
            answer = health_message();
        else
            dispatch(socket, first);
    } catch (const wire::NotConvoy& e) {
        turn_away(who, e.what());
        if (e.version)
            refusal = cat("it speaks version ", wire::kVersion, ", you speak ", e.version,
                          ": run the same build on all machines");
    } catch (const TimedOut&) {
        turn_away(who, "it connected and sent nothing");
    } catch (const std::system_error&) {
        // Closed before the first message: a port check, or a rank that was stopped.
    } catch (const Error& e) {
        turn_away(who, e.what());
    }
    if (!refusal.empty()) answer = wire::encode(wire::Refuse{false, refusal});
    if (answer.empty()) co_return;
    co_await within(kFirstMessage, socket, write_message(socket, answer));
}

std::string Listener::health_message() const {
    wire::Health health = on_health();
    if (health.text.size() > kHealthText) health.text = health.text.substr(0, kHealthText) + " …";
    return wire::encode(health);
}

void Listener::dispatch(tcp::socket& socket, const Message& first) {
    if (first.header.type == wire::Type::join)
        on_join(std::move(socket), wire::decode<wire::Join>(first.body));
    else if (first.header.type == wire::Type::edge && on_edge)
        on_edge(std::move(socket), wire::decode<wire::Edge>(first.body, first.header.generation));
    else
        fail("its first message is ", wire::name(first.header.type), ", not JOIN or EDGE");
}

void Listener::turn_away(const std::string& who, const std::string& why) {
    if (++strangers_ > kStrangersNamed) return;
    log_.notice("refused ", who, " at port ", port(), ": ", why,
                strangers_ == kStrangersNamed ? " (no further ones will be logged)" : "");
}

}  // namespace convoy
