#include "net/rendezvous.h"

#include <algorithm>
#include <ctime>

#include "net/host.h"

namespace convoy {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

constexpr milliseconds kDialPatience{5'000};     // for one address to answer
constexpr milliseconds kAnswerPatience{10'000};  // for a coordinator to say its next word
constexpr milliseconds kFirstPause{50}, kLongestPause{2'000};
constexpr int kPortsTried = 1000;

// It may work in a moment: nobody listens yet, or a job still ends.
struct TryAgain : Error {
    using Error::Error;
};

std::string clock_time(milliseconds from_now) {
    const std::time_t then =
        std::chrono::system_clock::to_time_t(std::chrono::system_clock::now() + from_now);
    std::tm local{};
    localtime_r(&then, &local);
    return fmt::format("{:02}:{:02}:{:02}", local.tm_hour, local.tm_min, local.tm_sec);
}

const char* advice(const std::string& why) {
    if (why.find("not known") != std::string::npos)
        return "is --coord spelled right, and known to DNS or /etc/hosts here?";
    if (why.find("refused") != std::string::npos)
        return "is rank 0 (or `trainer coordinator`) running there, on this port?";
    if (why.find("no answer") != std::string::npos || why.find("no route") != std::string::npos)
        return "is the address right, the machine up, and no firewall in the way?";
    return "what is it that listens there?";
}

asio::awaitable<std::vector<tcp::endpoint>> resolve(asio::io_context& io, std::string host,
                                                    uint16_t port) {
    std::error_code not_an_address;
    const auto address = asio::ip::make_address(host, not_an_address);
    if (!not_an_address) co_return std::vector{tcp::endpoint(address, port)};
    tcp::resolver resolver(io);
    std::error_code error;
    const auto found = co_await resolver.async_resolve(
        host, std::to_string(port), asio::redirect_error(asio::use_awaitable, error));
    if (error) fail("the name '", host, "' is not known (", error.message(), ")");
    std::vector<tcp::endpoint> endpoints;
    for (const auto& entry : found) endpoints.push_back(entry.endpoint());
    co_return endpoints;
}

// The way of one rank into a job, attempt after attempt.
class Rendezvous {
 public:
    Rendezvous(Membership& membership, JoinOptions options)
        : membership_(membership), options_(std::move(options)) {
        if (!options_.iface.empty()) from_ = addresses_of(options_.iface);
    }

    asio::awaitable<Connected> run();

 private:
    asio::awaitable<void> attempt();
    asio::awaitable<void> serve_if_mine();
    asio::awaitable<bool> handle(Message& message);
    void listen_for_edges(const asio::ip::address& local);
    wire::Join join_message() const;
    std::string advertised() const;
    std::string where() const { return cat(options_.host, ":", options_.port); }

    Membership& membership_;
    JoinOptions options_;
    Addresses from_;  // of --iface
    Clock::time_point deadline_;
    bool serve_decided_ = false, serves_ = false, own_port_ = false;
    std::shared_ptr<Connection> connection_;
    asio::ip::address listening_at_;
    std::string last_status_;
    wire::Welcome welcome_;
};

asio::awaitable<Connected> Rendezvous::run() {
    deadline_ = Clock::now() + options_.join_timeout;
    const std::string until = clock_time(options_.join_timeout);
    std::string said;
    milliseconds pause = kFirstPause;
    for (bool joined = false; !joined;) {
        std::string why;
        try {
            co_await attempt();
            joined = true;
        } catch (const TryAgain& e) {
            why = e.what();
        }
        if (joined) break;
        const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - Clock::now());
        if (left <= pause)
            fail("no job at ", where(), " in ", options_.join_timeout.count() / 1000, " s: ", why,
                 "; ", advice(why));
        if (why != said)
            membership_.log().info("waiting for the coordinator at ", where(), ": ", why,
                                   "; trying again until ", until);
        said = why;
        co_await sleep_for(pause);
        pause = std::min(pause * 3 / 2, kLongestPause);
    }

    membership_.attend(connection_, welcome_);
    Connected connected;
    connected.welcome = welcome_;
    connected.links =
        co_await open_edges(membership_, welcome_, connection_->remote_endpoint(), from_);
    membership_.listener().on_edge = nullptr;  // whoever comes now is a stranger
    co_return connected;
}

// Dials, joins and waits for WELCOME. Throws TryAgain for what may pass, Error for what will not.
asio::awaitable<void> Rendezvous::attempt() {
    std::string why;
    try {
        if (!serve_decided_) co_await serve_if_mine();
        tcp::socket socket =
            co_await dial(membership_.io(), options_.host, options_.port, from_, kDialPatience);
        connection_ = std::make_shared<Connection>(std::move(socket));
    } catch (const Error& e) {
        why = e.what();
    }
    if (!why.empty()) throw TryAgain(why);

    listen_for_edges(connection_->local_endpoint().address());
    connection_->send(wire::encode(join_message()));
    membership_.keep_alive(connection_);
    try {
        for (bool welcome = false; !welcome;) {
            Message message;
            co_await connection_->read(message, std::max(kAnswerPatience, 5 * options_.heartbeat));
            welcome = co_await handle(message);
            if (!welcome && Clock::now() > deadline_)
                fail("no job at ", where(), " in ", options_.join_timeout.count() / 1000,
                     " s: ", last_status_);
        }
        co_return;
    } catch (const std::system_error& e) {
        why = cat(reason(e.code()), " by ", connection_->remote());
    } catch (const TimedOut&) {
        why = cat("no answer from ", connection_->remote(), ", though it takes connections");
    } catch (const wire::NotConvoy& e) {
        connection_->close();
        fail("what listens at ", where(), " is ", e.version ? "another Convoy: " : "", e.what(),
             e.version ? "" : "; check host and port of --coord");
    } catch (...) {
        connection_->close();
        throw;
    }
    connection_->close();
    throw TryAgain(why);
}

// One message of the coordinator before the job stands; true for WELCOME.
asio::awaitable<bool> Rendezvous::handle(Message& message) {
    using wire::Type;
    switch (message.header.type) {
        case Type::status:
            if (std::string text = wire::decode_text(message.body); text != last_status_)
                membership_.log().info(last_status_ = text);
            co_return false;
        case Type::refuse: {
            const wire::Refuse refuse = wire::decode_refuse(message.body);
            if (refuse.again) throw TryAgain(refuse.why);
            fail("the coordinator at ", where(), " refuses this rank: ", refuse.why);
        }
        case Type::welcome:
            welcome_ = wire::decode_welcome(message.body, message.header.generation);
            co_return true;
        case Type::heartbeat:
        case Type::notice: co_return false;
        default:
            fail("the coordinator at ", where(), " sent ", wire::name(message.header.type),
                 " to a rank that is not in a job yet");
    }
}

// Rank 0 serves the coordinator, and so does a rank without a number whose machine --coord names,
// unless somebody listens there already. Throws Error while the name is not known.
asio::awaitable<void> Rendezvous::serve_if_mine() {
    if (options_.rank > 0) {
        serve_decided_ = true;
        co_return;
    }
    const auto endpoints = co_await resolve(membership_.io(), options_.host, options_.port);
    serve_decided_ = true;
    Listener& listener = membership_.listener();
    const auto taken = [&](const std::system_error& e) {
        if (e.code() == asio::error::address_in_use)
            membership_.log().info("port ", options_.port,
                                   " is taken on this machine: by the coordinator, it seems");
        else if (e.code() == asio::error::access_denied)
            fail("listening at port ", options_.port, " is not allowed: take one above 1023");
        else if (e.code() != std::errc::address_not_available)
            throw;
        return e.code() == asio::error::address_in_use;
    };
    // A name that leads to loopback here (Debian's /etc/hosts does that to one's own name) leads
    // the others to this machine's outer address.
    const bool own_name =
        !means_this_machine(options_.host) &&
        std::any_of(endpoints.begin(), endpoints.end(),
                    [](const tcp::endpoint& e) { return is_loopback(e.address()); });
    bool in_use = false;
    for (const tcp::endpoint& endpoint : endpoints) {
        if (own_name) break;
        try {
            listener.open(endpoint.address(), listener.is_open() ? listener.port() : options_.port);
        } catch (const std::system_error& e) {
            in_use = taken(e) || in_use;
        }
    }
    // None of the addresses is ours: a forwarded port or a public address in front of us, or a
    // coordinator elsewhere that is not up yet. Whichever it is, the JOIN finds it.
    if (!listener.is_open() && !in_use && (own_name || options_.rank == 0)) {
        try {
            if (from_.empty()) listener.open_everywhere(options_.port);
            for (const auto& address : from_)
                listener.open(address, listener.is_open() ? listener.port() : options_.port);
        } catch (const std::system_error& e) {
            taken(e);
        }
    }
    if (!listener.is_open()) co_return;
    serves_ = true;
    listening_at_ = endpoints.front().address();
    if (options_.port == 0) options_.port = listener.port();
    membership_.serve(options_.world);
    if (options_.listening) options_.listening(listener.port());
}

// The one port of a rank that does not serve the coordinator: at the address its peers will dial.
void Rendezvous::listen_for_edges(const asio::ip::address& local) {
    Listener& listener = membership_.listener();
    const bool wanted_elsewhere = options_.listen_port && options_.listen_port != options_.port;
    if (serves_ && (!wanted_elsewhere || own_port_)) return;
    if (!serves_ && listener.is_open()) {
        if (local == listening_at_) return;
        listener.close();  // another way to the coordinator since the last attempt
    }
    const bool everywhere =
        !options_.advertise.empty() || (is_loopback(local) && !means_this_machine(options_.host));
    const int first = options_.listen_port ? options_.listen_port : options_.port;
    const int last = options_.listen_port ? first : std::min(first + kPortsTried, 65'535);
    for (int port = first; port <= last; ++port) {
        try {
            everywhere ? listener.open_everywhere(uint16_t(port))
                       : listener.open(local, uint16_t(port));
            listening_at_ = local;
            own_port_ = true;
            return;
        } catch (const std::system_error& e) {
            if (e.code() != asio::error::address_in_use || port == last)
                fail("cannot listen at ", local.to_string(), ", port ", port,
                     " (--port): ", reason(e.code()));
        }
    }
}

std::string Rendezvous::advertised() const {
    const uint16_t port =
        own_port_ && options_.listen_port ? options_.listen_port : membership_.listener().port();
    if (options_.advertise.empty())
        return address_text(tcp::endpoint(connection_->local_endpoint().address(), port));
    const auto [host, own] = split_address(options_.advertise, "--advertise");
    return cat(host.find(':') == std::string::npos ? host : cat("[", host, "]"), ":",
               own ? own : port);
}

wire::Join Rendezvous::join_message() const {
    wire::Join join;
    join.rank = options_.rank;
    join.world = options_.world;
    join.serves = membership_.coordinator_number();
    join.heartbeat_ms = uint32_t(options_.heartbeat.count());
    join.stall_ms = uint32_t(options_.stall.count());
    join.bf16 = options_.bf16_wire;
    join.host = host_id();
    join.address = advertised();
    join.settings = options_.settings;
    return join;
}

}  // namespace

asio::awaitable<tcp::socket> dial(asio::io_context& io, const std::string& host, uint16_t port,
                                  const Addresses& from, milliseconds patience) {
    std::string why;
    const std::vector<tcp::endpoint> endpoints = co_await resolve(io, host, port);
    for (const tcp::endpoint& endpoint : endpoints) {
        tcp::socket socket(io);
        std::string here;
        try {
            socket.open(endpoint.protocol());
            const auto own = std::find_if(from.begin(), from.end(), [&](const auto& address) {
                return address.is_v4() == endpoint.address().is_v4();
            });
            if (!from.empty() && own == from.end())
                throw std::system_error(make_error_code(std::errc::address_family_not_supported));
            if (own != from.end()) socket.bind(tcp::endpoint(*own, 0));
            co_await within(patience, socket, socket.async_connect(endpoint, asio::use_awaitable));
            co_return socket;
        } catch (const std::system_error& e) {
            here = reason(e.code());
        } catch (const TimedOut&) {
            here = cat("no answer in ", patience.count() / 1000, " s");
        }
        if (endpoints.size() > 1) here += cat(" (", address_text(endpoint), ")");
        why += why.empty() ? here : ", " + here;
    }
    fail(why);
}

asio::awaitable<Connected> rendezvous(Membership& membership, JoinOptions options) {
    Rendezvous way(membership, std::move(options));
    co_return co_await way.run();
}

}  // namespace convoy
