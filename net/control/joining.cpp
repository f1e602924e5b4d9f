#include "net/control/joining.h"

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "net/control/ids.h"
#include "net/control/succession.h"
#include "src/base/text.h"

namespace convoy {

using std::chrono::milliseconds;

namespace {

// The loop. FirstJoin and NextJoin differ in where they look for a coordinator, and in their JOIN.
class Joining {
 public:
    explicit Joining(Membership& membership) : m_(membership) {}
    virtual ~Joining() = default;

    asio::awaitable<void> until_welcome() {
        while (!is_welcome()) {
            bool waits = true;
            if (!m_.connected()) waits = co_await find_coordinator();
            if (!waits) co_return;
            while (m_.connected() && !is_welcome()) {
                co_await m_.wait_for_news(kAskPatience);
                if (!is_welcome()) co_await while_waiting();
            }
            if (!is_welcome()) m_.status().throw_if_ended();
        }
    }

 protected:
    bool is_welcome() const { return m_.state() != RankState::kJoining; }
    // Until a coordinator has taken this rank: connected() then. Returns false if this rank shall
    // not wait for WELCOME. Throws Error if the time is up.
    virtual asio::awaitable<bool> find_coordinator() = 0;
    virtual asio::awaitable<void> while_waiting() = 0;

    // The answer to the first message on a connection.
    static asio::awaitable<Message> ask(Connection& connection, std::string first,
                                        milliseconds patience) {
        connection.send(std::move(first));
        Message answer;
        co_await connection.read(answer, patience);
        co_return answer;
    }

    Membership& m_;
};

// ---- the first ring -----------------------------------------------------------------------------

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
    if (why.find("accepts connections") != std::string::npos)
        return "does another program use this port?";
    if (why.find("no answer") != std::string::npos || why.find("no route") != std::string::npos)
        return "is the address right, the machine up, and no firewall in the way?";
    if (why.find("of a rank") != std::string::npos)
        return "is the port of --coord right, and rank 0 running?";
    return "what is it that listens there?";
}

class FirstJoin final : public Joining {
 public:
    FirstJoin(Membership& membership, JoinOptions options)
        : Joining(membership), options_(std::move(options)) {}

    std::string take_offer() { return std::move(offer_.what); }

 private:
    // Asks at --coord until it is accepted. A newcomer gets the offer there.
    asio::awaitable<bool> find_coordinator() override {
        std::string why = m_.refusal().why;  // "" the first time
        if (!m_.refusal().again) fail_refused(why);
        for (;; pause_ = std::min(pause_ * 3 / 2, kLongestPause)) {
            if (!why.empty()) co_await wait_to_retry(why);
            why = co_await attempt();
            if (why.empty()) co_return !options_.newcomer;
        }
    }

    asio::awaitable<void> wait_to_retry(const std::string& why) {
        if (Clock::now() + pause_ >= deadline_) fail_late(cat(why, "; ", advice(why)));
        if (why != logged_ && Clock::now() - begin_ > kTellWait) {
            m_.log().info("waiting for the coordinator at ", where(), ": ", why,
                          "; trying again until ", until_, " (", advice(why), ")");
            logged_ = why;
        }
        m_.set_joining(cat("the coordinator at ", where(), ": ", why));
        co_await sleep_for(pause_);
    }

    asio::awaitable<void> while_waiting() override {
        if (Clock::now() > deadline_) fail_late(m_.joining());
        co_return;
    }

    // Asks each address of --coord. Returns why none accepts this rank, "" if one does. Throws
    // Error if it is of no use to try again.
    asio::awaitable<std::string> attempt() {
        std::vector<tcp::endpoint> endpoints;
        try {
            endpoints = co_await resolve(options_.host, options_.port);
        } catch (const Error& e) {
            co_return e.what();
        }
        if (options_.rank <= 0 && !options_.newcomer && !serves_) serve_if_mine(endpoints);
        // DNS shuffles the addresses. Sorted, they always fail with the same text, logged once.
        const bool v6 = endpoints.front().address().is_v6();
        std::ranges::sort(endpoints, {}, [v6](const tcp::endpoint& e) {
            return std::pair(e.address().is_v6() != v6, e);
        });
        std::string all;
        while (!endpoints.empty()) {
            const std::string why = co_await ask_first(endpoints, options_.newcomer);
            if (why.empty()) co_return "";
            all += cat(all.empty() ? "" : ", ", why);
        }
        co_return all;
    }

    // Asks the first of `endpoints` that answers. A name may have the addresses of all ranks
    // (Swarm's tasks.SERVICE, a headless service); a rank that is not the coordinator says so.
    asio::awaitable<std::string> ask_first(std::vector<tcp::endpoint>& endpoints, bool newcomer) {
        wire::Refuse refusal;
        try {
            connection_ =
                std::make_shared<Connection>(co_await dial(endpoints, m_.tls(), kDialPatience));
            listen_for_links(connection_->local_endpoint().address());
            std::string first = wire::encode_empty(wire::Type::offer);
            if (!newcomer) first = wire::encode(join_message());
            const Message answer = co_await ask(*connection_, std::move(first),
                                                std::max(kAnswerPatience, 5 * options_.heartbeat));
            switch (answer.header.type) {
                case wire::Type::refuse: refusal = wire::decode<wire::Refuse>(answer.body); break;
                case wire::Type::leave: co_return cat(connection_->remote(), " has ended");
                case wire::Type::status:
                    if (newcomer) fail_unasked(answer);
                    m_.use(connection_, answer);
                    co_return "";
                case wire::Type::offer:
                    if (!newcomer) fail_unasked(answer);
                    visit(wire::decode<wire::Offer>(answer.body, answer.header.generation));
                    co_return "";
                default: fail_unasked(answer);
            }
        } catch (const NotReached& e) {
            co_return e.what();
        } catch (const std::system_error& e) {
            co_return cat(reason(e.code()), " by ", connection_->remote());
        } catch (const TimedOut&) {
            co_return cat("no answer from ", connection_->remote(),
                          ", though it accepts connections");
        } catch (const wire::NotConvoy& e) {
            fail("what listens at ", where(), " is ", e.version ? "another Convoy: " : "", e.what(),
                 e.version ? "" : "; check host and port of --coord");
        }
        if (!refusal.again) fail_refused(refusal.why);
        // If the job already trains, a rank without a number joins it as with --join.
        if (newcomer || options_.rank >= 0 || options_.world > 0 || !options_.elastic)
            co_return refusal.why;
        std::vector<tcp::endpoint> there{connection_->remote_endpoint()};
        bool is_taken = false;
        try {
            is_taken = (co_await ask_first(there, true)).empty();
        } catch (const std::exception&) {
            // The first answer says more.
        }
        co_return is_taken ? "" : refusal.why;
    }

    // The job as a newcomer sees it: it comes after the ranks, and there is no ring.
    void visit(wire::Offer offer) {
        offer_ = std::move(offer), options_.newcomer = true;
        connection_->close();
        const int ranks = int(offer_.peers.size());
        m_.log().info("a job of ", counted(size_t(ranks), "rank"), " trains there");
        wire::Welcome job{offer_.job,    offer_.generation, ranks,       ranks + 1,
                          offer_.server, offer_.rules,      offer_.peers};
        const int number = job.peers.back().number + 1;  // probably: another may join now
        job.peers.push_back({host_id(), advertised(), m_.process(), number});
        m_.visit(job, connection_->remote_endpoint());
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
        m_.listener().tell_if_exposed();
        m_.serve(options_.world);
        if (options_.listening) options_.listening(options_.port);
    }

    // If `address` is ours, listens there for the coordinator (no address: at all addresses of this
    // machine). Returns false if the port is already in use there.
    bool try_to_listen(const asio::ip::address& address) {
        Listener& listener = m_.listener();
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

    // Opens the port that peers dial. Without --port, the coordinator of this process uses it too.
    void listen_for_links(const asio::ip::address& local) {
        Listener& listener = m_.listener();
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
        join.process = m_.process();
        join.host = options_.host_id.empty() ? host_id() : options_.host_id;
        join.address = advertised();
        return join;
    }

    std::string advertised() const {
        const uint16_t port =
            own_port_ && options_.listen_port ? options_.listen_port : m_.listener().port();
        if (options_.advertise.empty())
            return address_text(tcp::endpoint(connection_->local_endpoint().address(), port));
        const auto [host, own] = split_address(options_.advertise, "--advertise");
        return cat(host.find(':') == std::string::npos ? host : cat("[", host, "]"), ":",
                   own ? own : port);
    }

    [[noreturn]] void fail_late(const std::string& why) const {
        fail("no job at ", where(), " in ", options_.join_timeout.count() / 1000, " s: ", why);
    }
    [[noreturn]] void fail_refused(const std::string& why) const {
        fail("the coordinator at ", where(), " refuses this rank: ", why);
    }
    [[noreturn]] void fail_unasked(const Message& message) const {
        fail("the coordinator at ", where(), " sent ", wire::name(message.header.type),
             ", for which this rank did not ask");
    }
    std::string where() const { return cat(options_.host, ":", options_.port); }

    JoinOptions options_;
    const Clock::time_point begin_ = Clock::now(), deadline_ = begin_ + options_.join_timeout;
    const std::string until_ = clock_time(options_.join_timeout);
    milliseconds pause_ = kFirstPause;
    std::string logged_;
    bool serves_ = false, own_port_ = false;
    wire::Offer offer_;  // to a newcomer
    std::shared_ptr<Connection> connection_;
    asio::ip::address listening_at_;
};

// ---- each later ring ----------------------------------------------------------------------------

class NextJoin final : public Joining {
 public:
    NextJoin(Membership& membership, int64_t step, bool planned)
        : Joining(membership), step_(step), broken_by_(m_.leave_ring()) {
        if (planned) broken_by_.clear();
        serving_ = m_.welcome().server;
        if (m_.connected()) m_.send(join_message());
    }

 private:
    asio::awaitable<bool> find_coordinator() override {
        turn_ = Succession(Clock::now(), m_.silence());
        for (; !turn_.is_over(Clock::now()); co_await sleep_for(kRejoinPause)) {
            const wire::Welcome& last = m_.welcome();
            while (const auto candidate =
                       turn_.next(last, m_.coordinator_is_silent(), Clock::now())) {
                if (candidate == last.rank) m_.succeed(broken_by_);
                if (!co_await ask_rank(*candidate)) continue;
                due_ = Clock::now() + turn_.ask_patience();
                co_return true;
            }
        }
        fail(
            "the coordinator was lost, and no rank that this rank could reach served the next one "
            "within ",
            kNobody * m_.silence() / std::chrono::seconds(1), " s");
    }

    // Ranks that did not hear each other for a while may each serve a coordinator, and would wait
    // for each other. So all go to that of the lowest rank. Rarely, because each silent rank takes
    // ask_patience(), and WELCOME waits for that.
    asio::awaitable<void> while_waiting() override {
        if (Clock::now() < due_) co_return;
        for (int rank = 0; rank < serving_ && !is_welcome(); ++rank)
            if (co_await ask_rank(rank, /*believes=*/false)) {
                m_.retire();
                break;
            }
        due_ = Clock::now() + m_.silence();
    }

    // Whether the rank `candidate` serves a coordinator and accepts this rank. believes: this rank
    // ends if the candidate says that the job has ended.
    asio::awaitable<bool> ask_rank(int candidate, bool believes = true) {
        if (turn_.is_gone(candidate)) co_return false;
        try {
            auto connection = std::make_shared<Connection>(co_await dial_candidate(candidate));
            const Message answer = co_await ask(*connection, join_message(), turn_.ask_patience());
            if (answer.header.type == wire::Type::status) {
                if (is_welcome() || (!believes && m_.has_formed())) co_return false;  // meanwhile
                m_.use(std::move(connection), answer);
                serving_ = candidate;
                co_return true;
            }
            const auto refusal = wire::decode<wire::Refuse>(answer.body);
            refusal.no_job ? gone(candidate) : turn_.answers(candidate);
            if (!refusal.again && believes) m_.status().end(refusal.why, -1, wire::End::membership);
        } catch (const NotReached& e) {
            if (e.all_refused) gone(candidate);
        } catch (const std::runtime_error&) {
            // Silent, or its name is not known now; or it hung up, or dies.
        }
        m_.status().throw_if_ended();
        co_return false;
    }

    asio::awaitable<Socket> dial_candidate(int candidate) {
        // The network may not lead back to this machine's own --advertise address.
        const bool everywhere = candidate == m_.welcome().rank && m_.listener().is_everywhere();
        const auto [host, port] =
            everywhere ? std::pair(std::string("127.0.0.1"), m_.listener().port())
                       : reachable(m_.welcome().peers[size_t(candidate)].address, m_.first());
        co_return co_await dial(host, port, m_.tls(), turn_.ask_patience());
    }

    void gone(int candidate) {
        turn_.gone(candidate);
        m_.refused(candidate);
    }

    std::string join_message() const { return wire::encode(m_.join_message(step_, broken_by_)); }

    const int64_t step_;
    std::string broken_by_;  // the last ring
    Succession turn_{Clock::now(), m_.silence()};
    Clock::time_point due_ = Clock::now() + turn_.ask_patience();
    int serving_ = 0;  // the rank that runs the coordinator which this rank joined
};

}  // namespace

asio::awaitable<std::string> join_first(Membership& membership, JoinOptions options) {
    FirstJoin join(membership, std::move(options));
    co_await join.until_welcome();
    co_return join.take_offer();
}

asio::awaitable<void> join_next(Membership& membership, int64_t step, bool planned) {
    co_await NextJoin(membership, step, planned).until_welcome();
}

}  // namespace convoy
