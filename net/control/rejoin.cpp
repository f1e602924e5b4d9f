// rejoin.cpp — how a rank goes from a ring that broke to the next one.
//
//   JOIN to the coordinator ──► it decides which ranks continue (regroup.h) ──► WELCOME
//     │ the connection to the coordinator broke
//     └─► dial it again, then each rank in order (succession.h): the first that lives serves a
//         coordinator, and so does this rank when its own turn comes
#include "net/control/rendezvous.h"
#include "net/control/succession.h"

namespace convoy {

namespace {

class Rejoin {
 public:
    Rejoin(Membership& membership, int64_t step, bool planned)
        : m_(membership), step_(step), planned_(planned) {}

    asio::awaitable<void> until_welcome() {
        m_.leave_ring();
        serving_ = m_.welcome().server;
        while (!is_welcome()) {
            if (m_.connected())
                m_.send(wire::encode(m_.join_message(step_, planned_)));
            else
                co_await find_coordinator();
            // Rarely, because each silent rank takes ask_patience(), and WELCOME waits for that.
            auto due = Clock::now() + turn_.ask_patience();
            for (; m_.connected() && !is_welcome(); m_.status().throw_if_ended()) {
                co_await m_.wait_for_news(kAskPatience);
                if (Clock::now() < due) continue;
                co_await find_lower_coordinator();
                due = Clock::now() + m_.silence();
            }
            m_.status().throw_if_ended();
        }
    }

 private:
    bool is_welcome() const { return m_.state() != RankState::kJoining; }

    // Finds a coordinator. Afterwards the membership has a connection on which JOIN was accepted.
    asio::awaitable<void> find_coordinator() {
        turn_ = Succession(Clock::now(), m_.silence());
        for (; !turn_.is_over(Clock::now()); co_await sleep_for(kRejoinPause)) {
            const wire::Welcome& last = m_.welcome();
            while (const auto candidate = turn_.next(
                       {last.world, last.server, m_.coordinator_is_silent()}, Clock::now())) {
                if (candidate == last.rank) m_.succeed();
                if (co_await ask(*candidate)) co_return;
            }
        }
        fail(
            "the coordinator was lost, and no rank that this rank could reach served the next one "
            "within ",
            kNobody * m_.silence() / std::chrono::seconds(1), " s");
    }

    // Whether the rank `candidate` serves a coordinator and accepts this rank. believes: this rank
    // ends if the candidate says that the job has ended.
    asio::awaitable<bool> ask(int candidate, bool believes = true) {
        if (turn_.is_gone(candidate)) co_return false;
        try {
            auto connection = std::make_shared<Connection>(co_await dial_candidate(candidate));
            connection->send(wire::encode(m_.join_message(step_, planned_)));
            Message answer;
            co_await connection->read(answer, turn_.ask_patience());
            if (answer.header.type == wire::Type::status) {
                if (is_welcome() || (!believes && m_.has_formed())) co_return false;  // meanwhile
                m_.use(std::move(connection));
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

    // Ranks that did not hear each other for a while may each serve a coordinator, and would wait
    // for each other. So all go to that of the lowest rank.
    asio::awaitable<void> find_lower_coordinator() {
        for (int rank = 0; rank < serving_; ++rank) {
            if (is_welcome()) break;
            if (co_await ask(rank, /*believes=*/false)) {
                m_.retire();
                break;
            }
        }
    }

    Membership& m_;
    const int64_t step_;
    const bool planned_;
    Succession turn_{Clock::now(), m_.silence()};
    int serving_ = 0;  // the rank whose coordinator has taken this one
};

}  // namespace

asio::awaitable<void> rejoin(Membership& membership, int64_t step, bool planned) {
    co_await Rejoin(membership, step, planned).until_welcome();
}

}  // namespace convoy
