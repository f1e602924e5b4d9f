// communicator.h — collectives among the ranks of a job: floats and bytes, no models, no Asio.
//
// A collective belongs to a generation of the job. When a peer is lost, every collective in
// flight ends with an Error on every rank, within seconds and with the first cause; the data it
// was working on is then undefined, and all later calls throw the same Error.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/log.h"

namespace convoy {

// One direction of one edge of the ring.
struct EdgeTiming {
    int from = 0, to = 0;         // ranks
    double latency_seconds = 0;   // one way, of a few bytes
    double bytes_per_second = 0;  // of a long message
};

// What a rank is doing, for the ranks that wait for it.
enum class Phase {
    kStart,
    kMeasure,
    kData,
    kForward,
    kBackward,
    kReduce,
    kUpdate,
    kAverage,
    kValidation,
    kCheckpoint
};

class Communicator {
 public:
    virtual ~Communicator() = default;

    // A sum of at most so many bytes takes few steps rather than few bytes, and fp32 on every wire.
    static constexpr size_t kExactBytes = 16 << 10;

    virtual int rank() const = 0;
    virtual int world() const = 0;

    // Starts summing `data` over all ranks, in place. Sums run one at a time in the order
    // submitted, which must be the same on every rank. `data` must stay alive, unread and
    // unwritten until the future is ready; the future carries the Error, if any. Ready means that
    // this rank holds the result, not that the others do. Every rank ends with the same bits.
    virtual std::future<void> allreduce_sum(std::span<float> data) = 0;

    // Starts collecting blocks[r] of every rank r on every rank, at its place in the order of the
    // sums. Sizes are known to all (they may differ, or be 0); this rank's own block is there
    // before the call. With the bf16 wire each block is rounded once, on its owner as well. The
    // blocks (not the vector) must stay alive, unread and unwritten until the future is ready.
    virtual std::future<void> gather(std::vector<std::span<float>> blocks) = 0;

    // The three below block, and keep their place in the order of the sums.
    // `data` of rank `root` to all, in place; the same size on every rank.
    virtual void broadcast(std::span<std::byte> data, int root) = 0;
    // Each rank's bytes, by rank; lengths may differ (at most 16 MB each).
    virtual std::vector<std::vector<std::byte>> allgather(std::span<const std::byte> data) = 0;
    // Returns when every rank has called it.
    virtual void barrier() = 0;

    // Times every edge of the ring, one after the other, both directions; blocks, in its place in
    // the order of the sums, about 0.1 s an edge. Every rank returns the same list: two entries an
    // edge. Empty where there is no edge.
    virtual std::vector<EdgeTiming> measure_edges() = 0;

    // Where this rank is. Heartbeats carry it, so that the log of a rank that waits can say why.
    // Cheap: call it at each change of phase.
    virtual void set_progress(int64_t step, Phase phase) = 0;

    // Tells every rank that this one ends in failure, and why; they fail with "rank N (address):
    // why".
    virtual void abort(const std::string& why) noexcept = 0;
    // Says good-bye, after which the loss of this connection is no failure. Call it once all
    // collectives are done (a barrier before it keeps ranks from leaving early).
    virtual void leave() noexcept = 0;
    // The rank that was lost first, or gave up by abort(); -1 if none was: the survivors agree on
    // who saves the checkpoint.
    virtual int lost_rank() const = 0;

    // Payload bytes that this rank has sent to its peers in collectives, headers included.
    virtual uint64_t bytes_sent() const = 0;
    // Seconds in which a collective was at work, waiting for other ranks included.
    virtual double seconds_busy() const = 0;
};

// A job of one rank: nothing is sent.
std::unique_ptr<Communicator> make_single_rank();

// What a rank gives the coordinator. Settings are opaque pairs here: "batch" → "64".
struct JoinOptions {
    std::string host;   // of the coordinator
    uint16_t port = 0;  // of the coordinator
    int rank = -1;      // wanted; -1: assigned on arrival
    int world = 0;      // ranks of the job; 0: whoever knows says so
    uint16_t listen_port =
        0;                  // --port; 0: the coordinator's port number, or the next free one above
    std::string advertise;  // host or host:port to tell the peers; "": what the socket shows
    // What to use where a machine has several ways: interface, address or network ("eth1",
    // "10.0.0.7", "10.0.0.0/24"); "": the route to the coordinator decides.
    std::string iface;
    std::chrono::milliseconds join_timeout{600'000};
    // Three missed and a machine that does not answer, or a lost connection: the rank is lost. One
    // that is stopped or starved is named and waited for.
    std::chrono::milliseconds heartbeat{1'000};
    // Rank 0's counts: after so long without a byte moved, every log says who all wait for.
    std::chrono::milliseconds stall{30'000};
    bool bf16_wire = false;  // rank 0's counts: sums above 16 KB and gathers travel as bf16

    // Called once with the port, when this process has begun to serve the coordinator. With port 0
    // and rank 0 the system picks one.
    std::function<void(uint16_t)> listening;

    // Rank 0 gives every setting of the job; the others give what their user typed, which must
    // agree with rank 0's value of the same name, or they are refused by a line naming both.
    std::map<std::string, std::string> settings;
};

struct Peer {
    int rank = 0;
    std::string host;     // host id: the same for two ranks of one machine
    std::string address;  // "10.0.0.5:29400" as its peers dial it
};

struct Job {
    std::unique_ptr<Communicator> communicator;
    std::map<std::string, std::string> settings;  // rank 0's
    std::vector<Peer> peers;                      // by rank
    std::vector<int> ring;                        // ranks in ring order; ranks of a host together
};

// Joins the job: one outbound connection to the coordinator, one listening port. Rank 0 serves the
// coordinator from this process, on a thread, unless one already listens there. Blocks until all
// ranks are there and the ring stands, retrying with back-off and fresh DNS until join_timeout;
// says on `log` who is missing. `log` must outlive the communicator, which speaks when a rank is
// silent or all wait for one. `stop` is polled while waiting: non-zero ends the wait by an Error.
Job join(const JoinOptions& options, Log& log, const std::function<int()>& stop = {});

// The coordinator on its own (`./trainer coordinator`): serves one job after the other at
// `host:port` ("" or "0.0.0.0": every address; port 0: the system picks) until stop() is non-zero.
// `listening` is called once with the port.
void serve_coordinator(const std::string& host, uint16_t port, int world, Log& log,
                       const std::function<int()>& stop,
                       const std::function<void(uint16_t)>& listening = {});

// Texts between the ranks, as small messages. Collective; each blocks until all have called it.
// One text of rank 0 to all ranks.
std::string broadcast_text(Communicator& communicator, const std::string& text);
// Every rank's text, by rank.
std::vector<std::string> allgather_text(Communicator& communicator, const std::string& text);

}  // namespace convoy
