// communicator.h — collectives among the ranks of a job: floats and bytes, no models, no Asio.
//
// When a peer is lost, every collective in flight ends with an Error on every rank, within seconds
// and with the first cause. The data it was working on is then undefined, and all later calls throw
// the same Error.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "net/control/job_status.h"
#include "net/control/join_options.h"
#include "src/base/log.h"
#include "src/base/trace.h"

namespace convoy {

// One direction of one link of the ring: the connection of two neighbouring ranks.
struct LinkTiming {
    int from = 0, to = 0;         // ranks
    double latency_seconds = 0;   // one way, of a few bytes
    double bytes_per_second = 0;  // of a long message
};

class Messenger;  // messenger.h

using Peer = wire::Member;

// Ranks and their numbers after regroup().
struct Ranks {
    std::vector<Peer> peers;  // by rank
    std::vector<int> before;  // the rank of each peer in the broken ring; -1: a newcomer
    std::string why;          // "ring 4: rank 2 (…) lost: …; 3 ranks, step 812 redone"
};

// This class itself has no network: each collective is done when it is called, and leaves the data
// as it is. That is right for a job of one rank; tests and measurements override what they need.
class Communicator {
 public:
    explicit Communicator(int rank = 0, int world = 1) : rank_(rank), world_(world) {}
    virtual ~Communicator() = default;

    // Sums of at most this many bytes are sent as fp32, whatever --wire says, and in few steps.
    static constexpr size_t kExactBytes = 16 << 10;

    virtual int rank() const { return rank_; }
    virtual int world() const { return world_; }
    // The number of ranks on the ring for sums of more than kExactBytes. If the ranks of a host
    // share memory, only one rank per host is on this ring.
    virtual int around() const { return world(); }

    // Starts summing `data` over all ranks, in place. Sums run one at a time in the order
    // submitted, which must be the same on every rank. `data` must stay alive, unread and
    // unwritten until the future is ready; the future carries the Error, if any. Ready means that
    // this rank holds the result, not that the others do. Every rank ends with the same bits.
    virtual std::future<void> allreduce_sum(std::span<float> /*data*/) { return done(); }

    // Starts an all-gather of floats, in order with the sums: blocks[r] of rank r reaches every
    // rank. All ranks know all sizes (they may differ, or be 0); the caller fills this rank's own
    // block first. With the bf16 wire each block is rounded once, on its owner as well, unless they
    // are `exact`. The blocks (not the vector) must stay alive, unread and unwritten until the
    // future is ready.
    virtual std::future<void> gather(std::vector<std::span<float>> /*blocks*/,
                                     bool /*exact*/ = false) {
        return done();
    }

    // The next three calls block and run in order with the sums.
    // data = the data of rank `root`. The size is the same on every rank.
    virtual void broadcast(std::span<std::byte> /*data*/, int /*root*/ = 0) {}
    // Returns each rank's bytes, by rank; lengths may differ (at most 16 MB each).
    virtual std::vector<std::vector<std::byte>> allgather(std::span<const std::byte> data) {
        return std::vector(size_t(world()), std::vector(data.begin(), data.end()));
    }
    // Returns when every rank has called it.
    virtual void barrier() {}

    // After RingBroken, when no collective is under way: forms a ring of the remaining ranks, which
    // must call it too. rank() and world() change. `step`: steps done. `planned`: all ranks have
    // done this step and nothing broke. Blocks while any rank still computes. Throws Error if the
    // job cannot continue.
    virtual Ranks regroup(int64_t /*step*/, bool /*planned*/) { fail("there is no other rank"); }
    // The fewest ranks with which an elastic job trains; 0: the job is not elastic (--elastic off).
    virtual int min_world() const { return 0; }
    // Sets what newcomers are told from now on.
    virtual void offer(std::string what) { (void)what; }
    // Whether a newcomer has asked to join. regroup() adds it, after a step of all ranks.
    virtual bool newcomer_waits() const { return false; }

    // Whether the ring is broken or the job has ended: the next collective says why.
    virtual bool ended() const { return false; }

    // Opens direct links to `ranks`. Every rank calls it once per ring; of two ranks, both or none
    // name the other. Blocks. Destroy the links before regroup() and before this object.
    virtual std::shared_ptr<Messenger> open_messenger(const std::vector<int>& /*ranks*/) {
        fail("there is no other rank");
    }

    // Returns a communicator for the sums, gathers and barriers of `ranks`: ascending, this rank
    // included. Every rank calls it once per ring, for its own group. The ranks of a group are
    // numbered 0, 1, …. The group's collectives run in order with those of this communicator.
    // Blocks. The result must not outlive this object.
    virtual std::unique_ptr<Communicator> open_group(const std::vector<int>& /*ranks*/) {
        fail("there is no other rank");
    }

    // Times both directions of every link of the ring, one after the other. Collective; blocks, in
    // order with the sums, about 0.1 s per link. Every rank returns the same list: two entries per
    // link, none if there is no link.
    virtual std::vector<LinkTiming> measure_links() { return {}; }

    // Sets the step and phase of this rank. Heartbeats carry them, so the log of a waiting rank can
    // say why it waits. Cheap: call it at each change of phase.
    virtual void set_progress(int64_t step, Phase phase) { (void)step, (void)phase; }

    // Tells all ranks that this rank fails, and why. The others fail with "rank N (address): why".
    virtual void abort(const std::string& /*why*/) noexcept {}
    // Leaves the job: from now on the end of this rank's connection is no failure. Call it once all
    // collectives are done (a barrier before it keeps ranks from leaving early).
    virtual void leave() noexcept {}
    // The rank that was lost first or called abort(), the same on all survivors; -1 if none.
    virtual int lost_rank() const { return -1; }

    // Sets the tracks (src/base/trace.h) that record collectives and their pieces from now on: one
    // track for what is sent, one for what arrives.
    virtual void record(Track* sent, Track* received) { (void)sent, (void)received; }
    // When the job begins to wait for a rank, another thread calls `then` with a sentence that
    // names the rank. null: no call from now on.
    virtual void on_stall(std::function<void(const std::string&)> then) { (void)then; }

    // Payload bytes that this rank has sent to its peers in collectives, headers included.
    virtual uint64_t bytes_sent() const { return 0; }
    // Seconds in which a collective was at work, waiting for other ranks included.
    virtual double seconds_busy() const { return 0; }

    // Only this rank fails. It leaves an elastic job with this reason; the others log the reason
    // and continue. Any other job ends, as by abort().
    virtual void fail_alone(const std::string& why) noexcept { abort(why); }
    // Call it before and after any other wait for another rank, so that the stall diagnosis counts
    // the wait like a collective.
    virtual void set_waiting(bool waits) { (void)waits; }

 protected:
    static std::future<void> done() {
        std::promise<void> promise;
        promise.set_value();
        return promise.get_future();
    }

 private:
    const int rank_, world_;
};

struct Job {
    std::unique_ptr<Communicator> communicator;
    std::vector<Peer> peers;  // by rank
    std::string what = {};    // only for a newcomer: the offer of a rank
};

// Joins the job: one outbound connection to the coordinator, one listening port. Rank 0 serves the
// coordinator on a thread of this process. Blocks until all ranks
// have joined and the ring is open; retries with back-off and fresh DNS until join_timeout, and
// logs who is missing. `log` must outlive the communicator, which logs silent ranks and stalls.
// `stop` is asked while this rank waits, here and later, by another thread: the signal that ends
// the wait by an Error.
Job join(const JoinOptions& options, Log& log, const std::function<int()>& stop = {});

// Small texts and lists between the ranks. Collective; both block until all ranks have called.
// Returns every rank's list (a text or a vector of numbers), by rank.
template <class List>
std::vector<List> gather_lists(Communicator& communicator, const List& mine) {
    std::vector<List> all;
    for (const auto& bytes : communicator.allgather(std::as_bytes(std::span(mine)))) {
        all.emplace_back().resize(bytes.size() / sizeof mine[0]);
        const auto list = std::as_writable_bytes(std::span(all.back()));
        std::copy_n(bytes.begin(), list.size(), list.begin());
    }
    return all;
}
// Returns rank 0's text.
inline std::string broadcast_text(Communicator& communicator, const std::string& text) {
    return gather_lists(communicator, communicator.rank() == 0 ? text : "").front();
}

}  // namespace convoy
