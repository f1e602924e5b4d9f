#include "net/control/rendezvous.h"

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "net/control/ids.h"
#include "src/base/text.h"

namespace convoy {

using std::chrono::milliseconds;

namespace {

// A failure that may pass, so the rank retries: nobody listens yet, or another job is running.
struct TryAgain : Error {
    using Error::Error;
};
// … by who listens there.
struct Refused : TryAgain {
    using TryAgain::TryAgain;
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
        return "is rank 0 running there, on this port? To join a running job, the port of any "
               "rank works";
    if (why.find("no answer") != std::string::npos || why.find("no route") != std::string::npos)
        return "is the address right, the machine up, and no firewall in the way?";
    if (why.find("of a rank") != std::string::npos)
        return "is the port of --coord right, and rank 0 running?";
    return "what is it that listens there?";
}

// One rank that joins a job: dials and asks again until it is welcome or the time is up.
class Rendezvous {
 public:
    Rendezvous(Membership& membership, JoinOptions options)
        : membership_(membership), options_(std::move(options)) {}

    asio::awaitable<std::string> join() {
        deadline_ = Clock::now() + options_.join_timeout;
        const std::string until = clock_time(options_.join_timeout);
        std::string logged;
        for (milliseconds pause = kFirstPause;; pause = std::min(pause * 3 / 2, kLongestPause)) {
            std::string why;
            try {
                co_await attempt();
                break;
            } catch (const TryAgain& e) {
                why = e.what();
            }
            if (Clock::now() + pause >= deadline_) fail_late(cat(why, "; ", advice(why)));
            if (why != logged && Clock::now() - begin_ > kTellWait) {
                membership_.log().info("waiting for the coordinator at ", where(), ": ", why,
                                       "; trying again until ", until);
                logged = why;
            }
            membership_.set_joining(cat("the coordinator at ", where(), ": ", why));
            co_await sleep_for(pause);
        }
        if (options_.newcomer) {
            membership_.visit(welcome_, connection_->remote_endpoint());
            co_return std::move(offer_.what);
        }
        membership_.enter(welcome_);
        membership_.use(connection_);
        co_return "";
    }

 private:
    // Dials, joins and waits for WELCOME. Throws TryAgain if a retry may help, otherwise Error.
    asio::awaitable<void> attempt() {
        std::vector<tcp::endpoint> endpoints;
        try {
            endpoints = co_await resolve(options_.host, options_.port);
        } catch (const Error& e) {
            throw TryAgain(e.what());
        }
        if (options_.rank <= 0 && !options_.newcomer && !serves_) serve_if_mine(endpoints);
        // DNS shuffles the addresses. Sorted, they always fail with the same text, logged once.
        const bool v6 = endpoints.front().address().is_v6();
        std::ranges::sort(endpoints, {}, [v6](const tcp::endpoint& e) {
            return std::pair(e.address().is_v6() != v6, e);
        });
        for (std::string why;;) {
            try {
                co_return co_await ask(endpoints);
            } catch (const TryAgain& e) {
                why += cat(why.empty() ? "" : ", ", e.what());
            }
            if (endpoints.empty()) throw TryAgain(why);
        }
    }

    // Asks the first of `endpoints` that answers. A name may have the addresses of all ranks
    // (Swarm's tasks.SERVICE, a headless service); a rank that is not the coordinator says so.
    asio::awaitable<void> ask(std::vector<tcp::endpoint>& endpoints) {
        co_await connect(endpoints);
        listen_for_links(connection_->local_endpoint().address());
        if (options_.newcomer) co_return co_await take_offer();
        connection_->send(wire::encode(join_message()));
        membership_.send_heartbeats(connection_);
        std::string refused;
        try {
            co_return co_await read_until_welcome();
        } catch (const Refused& e) {
            if (options_.rank >= 0 || options_.world > 0 || !options_.elastic) throw;
            refused = e.what();
        }
        // If the job already trains, a rank without a number joins it as with --join.
        std::vector<tcp::endpoint> there{connection_->remote_endpoint()};
        options_.newcomer = true;
        try {
            co_await connect(there);
            co_await take_offer();
        } catch (const std::exception&) {
            options_.newcomer = false;
            throw TryAgain(refused);
        }
    }

    asio::awaitable<void> read_until_welcome() {
        try {
            for (Message message;;) {
                co_await connection_->read(message,
                                           std::max(kAnswerPatience, 5 * options_.heartbeat));
                if (handle(message)) co_return;
                if (Clock::now() > deadline_) fail_late(last_status_);
            }
        } catch (const std::system_error& e) {
            throw TryAgain(cat(reason(e.code()), " by ", connection_->remote()));
        } catch (const TimedOut&) {
            throw TryAgain(
                cat("no answer from ", connection_->remote(), ", though it accepts connections"));
        } catch (const wire::NotConvoy& e) {
            fail("what listens at ", where(), " is ", e.version ? "another Convoy: " : "", e.what(),
                 e.version ? "" : "; check host and port of --coord");
        }
    }

    asio::awaitable<void> connect(std::vector<tcp::endpoint>& endpoints) {
        if (connection_) connection_->close();
        try {
            connection_ = std::make_shared<Connection>(
                co_await dial(endpoints, membership_.tls(), kDialPatience));
        } catch (const NotReached& e) {
            throw TryAgain(e.what());
        }
    }

    asio::awaitable<void> take_offer() {
        connection_->send(wire::encode_empty(wire::Type::offer));
        co_await read_until_welcome();
        connection_->close();
        membership_.log().info("a job of ", counted(offer_.peers.size(), "rank"), " trains there");
        // The job as a newcomer sees it: it comes after the ranks, and there is no ring.
        const int ranks = int(offer_.peers.size());
        welcome_ = {offer_.job,    offer_.generation, ranks,       ranks + 1,
                    offer_.server, offer_.rules,      offer_.peers};
        const int number = welcome_.peers.back().number + 1;  // probably: another may join now
        welcome_.peers.push_back({host_id(), advertised(), membership_.process(), number});
    }

    // Rank 0 serves the coordinator, and so does the first rank without a number on the machine
    // that --coord names. If the port is in use, a job may be ending there: the next attempt tells.
    void serve_if_mine(std::vector<tcp::endpoint>& endpoints) {
        // A host name that means loopback here (Debian's /etc/hosts does that to one's own name)
        // means this machine's outer address to the others: listen everywhere.
        const bool own_name =
            !means_this_machine(options_.host) &&
            std::ranges::any_of(endpoints, [](const auto& e) { return is_loopback(e.address()); });
        bool in_use = false;
        for (const tcp::endpoint& endpoint : endpoints)
            if (!own_name) in_use = !try_to_listen(endpoint.address()) || in_use;
        // If no address is ours, --coord names a forwarded port, or a public address in front of
        // this machine.
        if (!serves_ && !in_use && (own_name || options_.rank == 0)) try_to_listen({});
        if (!serves_) return;
        for (tcp::endpoint& endpoint : endpoints) endpoint.port(options_.port);
        membership_.listener().tell_if_exposed();
        membership_.serve(options_.world);
        if (options_.listening) options_.listening(options_.port);
    }

    // If `address` is ours, listens there for the coordinator (no address: at all addresses of this
    // machine). Returns false if the port is already in use there.
    bool try_to_listen(const asio::ip::address& address) {
        Listener& listener = membership_.listener();
        try {
            listener.open(address, options_.port);
            if (options_.port == 0) options_.port = listener.port();
            serves_ = true;
        } catch (const std::system_error& e) {
            if (e.code() == asio::error::access_denied)
                fail("listening at port ", options_.port, " is not allowed: take one above 1023");
            if (e.code() == asio::error::address_in_use) return false;
            if (e.code().value() != EADDRNOTAVAIL) throw;  // Asio knows no condition for this one
        }
        return true;
    }

    // Handles one message of the coordinator. Returns true for WELCOME.
    bool handle(const Message& message) {
        using wire::Type;
        switch (message.header.type) {
            case Type::status: {
                membership_.set_joining(last_status_ = wire::decode_text(message.body));
                if (serves_) membership_.log().info(last_status_);  // once per job
                return false;
            }
            case Type::refuse: {
                const auto refuse = wire::decode<wire::Refuse>(message.body);
                if (refuse.again) throw Refused(refuse.why);
                fail("the coordinator at ", where(), " refuses this rank: ", refuse.why);
            }
            case Type::welcome:
                if (options_.newcomer) break;
                welcome_ = wire::decode<wire::Welcome>(message.body, message.header.generation);
                return true;
            case Type::offer:
                if (!options_.newcomer) break;
                offer_ = wire::decode<wire::Offer>(message.body, message.header.generation);
                return true;
            case Type::leave: throw TryAgain(cat(connection_->remote(), " has ended"));
            case Type::heartbeat:
            case Type::notice: return false;
            default: break;
        }
        fail("the coordinator at ", where(), " sent ", wire::name(message.header.type),
             ", for which this rank did not ask");
    }

    // Opens the port that peers dial. Without --port, the coordinator of this process uses it too.
    void listen_for_links(const asio::ip::address& local) {
        Listener& listener = membership_.listener();
        const bool wanted_elsewhere = options_.listen_port && options_.listen_port != options_.port;
        if (serves_ && (!wanted_elsewhere || own_port_)) return;
        if (!serves_ && listener.is_open()) {
            if (local == listening_at_) return;
            listener.close();  // another route to the coordinator since the last attempt
        }
        const bool everywhere = !options_.advertise.empty() ||
                                (is_loopback(local) && !means_this_machine(options_.host));
        // On the coordinator's machine a rank never takes the coordinator's port: if the
        // coordinator is killed, its successor must be able to listen there.
        const bool beside_coordinator = connection_->remote_endpoint().address() == local;
        const int first = options_.listen_port
                              ? options_.listen_port
                              : std::min(options_.port + int{beside_coordinator}, 65'535);
        const int last = options_.listen_port ? first : std::min(first + kPortsTried, 65'535);
        for (int port = first; port <= last; ++port) {
            try {
                listener.open(everywhere ? asio::ip::address() : local, uint16_t(port));
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

    wire::Join join_message() const {
        const auto ms = [](milliseconds time) {
            return uint32_t(std::clamp<int64_t>(time.count(), 0, UINT32_MAX));
        };
        wire::Join join;
        join.rank = options_.rank;
        join.world = options_.world;
        join.heartbeat_ms = ms(options_.heartbeat);
        join.rules = {options_.bf16_wire,           options_.elastic,   options_.alone,
                      uint32_t(options_.min_world), ms(options_.stall), options_.shm};
        join.process = membership_.process();
        join.host = options_.host_id.empty() ? host_id() : options_.host_id;
        join.address = advertised();
        return join;
    }

    std::string advertised() const {
        const uint16_t port = own_port_ && options_.listen_port ? options_.listen_port
                                                                : membership_.listener().port();
        if (options_.advertise.empty())
            return address_text(tcp::endpoint(connection_->local_endpoint().address(), port));
        const auto [host, own] = split_address(options_.advertise, "--advertise");
        return cat(host.find(':') == std::string::npos ? host : cat("[", host, "]"), ":",
                   own ? own : port);
    }

    [[noreturn]] void fail_late(const std::string& why) const {
        fail("no job at ", where(), " in ", options_.join_timeout.count() / 1000, " s: ", why);
    }
    std::string where() const { return cat(options_.host, ":", options_.port); }

    Membership& membership_;
    JoinOptions options_;
    const Clock::time_point begin_ = Clock::now();
    Clock::time_point deadline_;
    bool serves_ = false, own_port_ = false;
    wire::Offer offer_;  // to a newcomer
    std::shared_ptr<Connection> connection_;
    asio::ip::address listening_at_;
    std::string last_status_;
    wire::Welcome welcome_;
};

}  // namespace

asio::awaitable<std::string> rendezvous(Membership& membership, JoinOptions options) {
    co_return co_await Rendezvous(membership, std::move(options)).join();
}

}  // namespace convoy
