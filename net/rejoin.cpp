// rejoin.cpp — how a rank goes from a ring that broke to the next one.
//
//   REJOIN to the coordinator ──► it decides who goes on (regroup.h) ──► WELCOME ──► edges ──►
//   READY
//     │ its connection broke
//     └─► dial it again, then each rank in order (succession.h): the first that lives serves a
//         coordinator, and so does this rank when its own turn comes
#include "net/rendezvous.h"
#include "net/succession.h"

namespace convoy {

namespace {

class Rejoin {
 public:
    Rejoin(Membership& membership, tcp::endpoint first, Addresses from, int64_t step, bool planned)
        : m_(membership),
          first_(std::move(first)),
          from_(std::move(from)),
          step_(step),
          planned_(planned) {}
    asio::awaitable<Connected> run();

 private:
    asio::awaitable<void> until_welcome();
    asio::awaitable<void> find_coordinator();
    asio::awaitable<bool> ask(int candidate, bool believes = true);
    asio::awaitable<Socket> dial_candidate(int candidate);
    void gone(int candidate);
    asio::awaitable<void> find_lower_coordinator();
    asio::awaitable<void> look_around();

    Membership& m_;
    const tcp::endpoint first_;
    const Addresses from_;
    const int64_t step_;
    const bool planned_;
    Succession turn_{Clock::now()};
    int serving_ = -1;  // the rank whose coordinator has taken this one; -1: in its own process
};

asio::awaitable<Connected> Rejoin::run() {
    for (;;) {
        m_.leave_ring();
        co_await until_welcome();
        try {
            const wire::Welcome welcome = m_.welcome();
            Connected connected;
            connected.welcome = welcome;
            connected.links = co_await open_edges(m_, welcome, first_, from_);
            co_return connected;
        } catch (const RingBroken&) {
            // Another rank is lost: once more.
        }
    }
}

asio::awaitable<void> Rejoin::until_welcome() {
    turn_ = Succession(Clock::now());  // ranks have other numbers
    serving_ = m_.welcome().server;
    while (!m_.is_welcome()) {
        if (m_.connected())
            m_.send(wire::encode(m_.rejoin_message(step_, planned_)));
        else
            co_await find_coordinator();
        // Not often: those that are silent take their time, and WELCOME waits for it.
        auto due = Clock::now() + kAskPatience;
        for (; m_.connected() && !m_.is_welcome(); m_.status().throw_if_ended()) {
            co_await m_.wait_for_news(kAskPatience);
            if (Clock::now() < due) continue;
            co_await find_lower_coordinator();
            due = Clock::now() + kSilence;
        }
        m_.status().throw_if_ended();
    }
}

// Leaves the membership with a connection on which REJOIN was accepted.
asio::awaitable<void> Rejoin::find_coordinator() {
    turn_ = Succession(Clock::now());
    for (; !turn_.is_over(Clock::now()); co_await sleep_for(kRejoinPause)) {
        if (m_.welcome().ring.empty()) co_await look_around();
        const wire::Welcome& last = m_.welcome();
        while (const auto candidate = turn_.next(
                   {last.world, last.server, m_.coordinator_is_silent()}, Clock::now())) {
            if (candidate == last.rank) m_.succeed(first_);
            if (co_await ask(*candidate)) co_return;
        }
    }
    fail(
        "the coordinator was lost, and none of the other ranks that it could reach serves one "
        "within ",
        kNobody.count() / 1000, " s");
}

// Ranks that did not hear each other for a while may have served a coordinator each, and would wait
// for one another: all go to that of the lowest rank, or to one in a process of its own.
asio::awaitable<void> Rejoin::find_lower_coordinator() {
    for (int rank = m_.welcome().server < 0 ? -1 : 0; rank < serving_; ++rank) {
        if (m_.is_welcome()) break;
        if (co_await ask(rank, /*believes=*/false)) {
            m_.retire();
            break;
        }
    }
}

// While a newcomer prepared itself, other ranks may have come and gone.
asio::awaitable<void> Rejoin::look_around() {
    const wire::Welcome last = m_.welcome();
    for (int rank = 0; rank < last.rank; ++rank) {
        try {
            const auto offer =
                co_await ask_for_offer(last.peers[size_t(rank)].address, first_, from_, m_.tls());
            if (offer.job != last.job)
                m_.status().end("the job has ended", -1, wire::End::membership);
            else
                m_.visit(as_newcomer(offer, last.peers.back()));
            break;
        } catch (const Error&) {
            // Gone, or it says another time.
        } catch (const std::system_error&) {}
    }
    m_.status().throw_if_ended();
}

// Whether `candidate` (a rank, or -1: a coordinator in a process of its own) serves a coordinator
// and takes this rank. Believes: ends where it says that the job has.
asio::awaitable<bool> Rejoin::ask(int candidate, bool believes) {
    if (turn_.is_gone(candidate)) co_return false;
    try {
        Socket socket = co_await dial_candidate(candidate);
        auto connection = std::make_shared<Connection>(std::move(socket));
        connection->send(wire::encode(m_.rejoin_message(step_, planned_)));
        Message answer;
        co_await connection->read(answer, kAskPatience);
        if (answer.header.type == wire::Type::status) {
            if (m_.is_welcome() || (!believes && m_.has_formed())) co_return false;  // meanwhile
            m_.use(std::move(connection));
            serving_ = candidate;
            co_return true;
        }
        const auto refusal = wire::decode<wire::Refuse>(answer.body);
        refusal.why == wire::kNoJobYet ? gone(candidate) : turn_.answers(candidate);
        if (!refusal.again && believes) m_.status().end(refusal.why, -1, wire::End::membership);
    } catch (const NotReached& e) {
        if (e.all_refused) gone(candidate);
    } catch (const Error&) {
        // Silent, or its name is not known now.
    } catch (const std::system_error&) {
        // It hung up, or dies.
    }
    m_.status().throw_if_ended();
    co_return false;
}

void Rejoin::gone(int candidate) {
    turn_.gone(candidate);
    if (candidate >= 0) m_.refused(candidate);
}

asio::awaitable<Socket> Rejoin::dial_candidate(int candidate) {
    const wire::Welcome& last = m_.welcome();
    if (candidate < 0) {
        std::vector<tcp::endpoint> endpoints{first_};
        co_return co_await dial(endpoints, from_, m_.tls(), kAskPatience);
    }
    const auto [host, port] = reachable(last.peers[size_t(candidate)].address, first_);
    co_return co_await dial(host, port, from_, m_.tls(), kAskPatience);
}

asio::awaitable<void> run_rejoin(std::shared_ptr<Rejoin> rejoin,
                                 std::shared_ptr<std::promise<Connected>> outcome) {
    try {
        outcome->set_value(co_await rejoin->run());
    } catch (const std::exception&) {
        outcome->set_exception(std::current_exception());
    }
}

}  // namespace

std::future<Connected> rejoin(Membership& membership, tcp::endpoint first, Addresses from,
                              int64_t step, bool planned) {
    const auto outcome = std::make_shared<std::promise<Connected>>();
    spawn(membership.io().get_executor(),
          run_rejoin(std::make_shared<Rejoin>(membership, std::move(first), std::move(from), step,
                                              planned),
                     outcome));
    return outcome->get_future();
}

}  // namespace convoy
