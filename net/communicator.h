// communicator.h — collectives among the ranks of a job: floats and bytes, no models, no Asio.
//
// When a peer is lost, every collective in flight ends with an Error on every rank, within seconds
// and with the first cause. The data it was working on is then undefined, and all later calls throw
// the same Error.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/base/log.h"
#include "src/base/trace.h"

namespace convoy {

// One direction of one edge of the ring: the connection of two neighbouring ranks.
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

// A rank was lost, and with it the ring: regroup() forms a new one of those that are left.
struct RingBroken : Error {
    using Error::Error;
};
// Every rank sees this error (NaN in summed gradients): it ends the job, also an elastic one.
struct JobError : Error {
    using Error::Error;
};
// The others go on without this rank, which was silent for too long.
struct LeftBehind : Error {
    using Error::Error;
};

// The others may live, but were not reached for long: this rank saves what it has.
struct CutOff : Error {
    using Error::Error;
};

// Messages between this rank and some others, beside the collectives. Any thread may call.
class Links {
 public:
    // Closes the links: messages under way end with an Error, and their bytes are touched no more.
    virtual ~Links() = default;
    // Starts to send `bytes`, which must stay as they are until the future is ready: then they have
    // left this process. Messages to one rank arrive in order.
    virtual std::future<void> send(int rank, std::span<const std::byte> bytes, int channel = 0) = 0;
    // Starts to receive the next message of rank's channel; its size is that of `bytes`. They must
    // stay until the future is ready. Then `then` is called, by another thread. A message that is
    // not received yet holds up those of other channels behind it.
    virtual std::future<void> receive(int rank, std::span<std::byte> bytes, int channel = 0,
                                      std::function<void()> then = {}) = 0;
    // Blocks until the future is ready. Such waits count for the stall diagnosis like those in
    // collectives. Throws the communicator's Error where the other rank is lost.
    virtual void wait(std::future<void>& done) = 0;
};

struct Peer {
    int rank = 0;
    std::string host;     // host id: the same for two ranks of one machine or container
    std::string address;  // "10.0.0.5:29400" as its peers dial it
};

// Ranks and their numbers after regroup().
struct Ranks {
    std::vector<Peer> peers;  // by rank
    std::vector<int> before;  // the rank that each was in the ring that broke
    std::string why;          // "ring 4: rank 2 (…) lost: …; 3 ranks, step 812 redone"
};

class Communicator {
 public:
    virtual ~Communicator() = default;

    // Sums of at most this many bytes are sent as fp32, whatever --wire says, and in few steps.
    static constexpr size_t kExactBytes = 16 << 10;

    virtual int rank() const = 0;
    virtual int world() const = 0;
    // The ranks that a sum of more than kExactBytes goes around: one of each host, where the ranks
    // of a host share memory.
    virtual int around() const { return world(); }

    // Starts summing `data` over all ranks, in place. Sums run one at a time in the order
    // submitted, which must be the same on every rank. `data` must stay alive, unread and
    // unwritten until the future is ready; the future carries the Error, if any. Ready means that
    // this rank holds the result, not that the others do. Every rank ends with the same bits.
    virtual std::future<void> allreduce_sum(std::span<float> data) = 0;

    // Starts an all-gather of floats, in order with the sums: blocks[r] of rank r reaches every
    // rank. All ranks know all sizes (they may differ, or be 0); the caller fills this rank's own
    // block first. With the bf16 wire each block is rounded once, on its owner as well, unless they
    // are `exact`. The blocks (not the vector) must stay alive, unread and unwritten until the
    // future is ready.
    virtual std::future<void> gather(std::vector<std::span<float>> blocks, bool exact = false) = 0;

    // The next three calls block and run in order with the sums.
    // data = that of rank `root`; it has the same size on every rank.
    virtual void broadcast(std::span<std::byte> data, int root = 0) = 0;
    // Returns each rank's bytes, by rank; lengths may differ (at most 16 MB each).
    virtual std::vector<std::vector<std::byte>> allgather(std::span<const std::byte> data) = 0;
    // Returns when every rank has called it.
    virtual void barrier() = 0;

    // After RingBroken, with nothing under way any more: forms a ring of those that are left, who
    // call it too. rank() and world() are new ones then. `step`: steps done; `planned`: all ranks
    // have done them, and nothing broke. Blocks while any of them computes. Throws Error where the
    // job cannot go on.
    virtual Ranks regroup(int64_t step, bool planned) = 0;
    // With how few ranks the job trains when others have left; 0: with none (--elastic off).
    virtual int min_world() const { return 0; }
    // Newcomers are told `what`, from now on.
    virtual void offer(std::string what) { (void)what; }
    // One has asked to be taken in: regroup() does it, after a step of all ranks.
    virtual bool newcomer_waits() const { return false; }

    // Whether the ring is broken or the job has ended: the next collective says why.
    virtual bool ended() const { return false; }

    // Opens direct links to `ranks`. All ranks call it, once for a ring, and if one of two names
    // the other, both do. Blocks. Destroy them before regroup() and before this.
    virtual std::shared_ptr<Links> open_links(const std::vector<int>& ranks) = 0;

    // The sums, gathers and barriers of some of the ranks, ascending, this one among them. All
    // ranks call it, once for a ring, each for its own group. In the group ranks have the numbers
    // 0, 1, …; its collectives run in order with those of this communicator. Blocks. Must not
    // outlive this.
    virtual std::unique_ptr<Communicator> open_group(const std::vector<int>& ranks) = 0;

    // Times both directions of every edge of the ring, one after the other. Collective; blocks, in
    // order with the sums, about 0.1 s an edge. Every rank returns the same list: two entries an
    // edge. Empty where there is no edge.
    virtual std::vector<EdgeTiming> measure_edges() = 0;

    // Where this rank is. Heartbeats carry it, so that the log of a rank that waits can say why.
    // Cheap: call it at each change of phase.
    virtual void set_progress(int64_t step, Phase phase) = 0;

    // Tells all ranks that this one fails, and why; they fail with "rank N (address): why".
    virtual void abort(const std::string& why) noexcept = 0;
    // Leaves the job: from now on the end of this rank's connection is no failure. Call it once all
    // collectives are done (a barrier before it keeps ranks from leaving early).
    virtual void leave() noexcept = 0;
    // The rank that was lost first or called abort(), the same on all survivors; -1 if none.
    virtual int lost_rank() const = 0;

    // Where collectives and their pieces are written down from now on (src/base/trace.h): what is
    // sent, what arrives.
    virtual void record(Track* sent, Track* received) { (void)sent, (void)received; }
    // `then` is called by another thread when the job begins to wait for a rank, with a sentence
    // that names it; null: by none any more.
    virtual void on_stall(std::function<void(const std::string&)> then) { (void)then; }

    // Payload bytes that this rank has sent to its peers in collectives, headers included.
    virtual uint64_t bytes_sent() const = 0;
    // Seconds in which a collective was at work, waiting for other ranks included.
    virtual double seconds_busy() const = 0;

    // This rank alone fails: from an elastic job it leaves with this reason, which the others log,
    // and they go on. Any other job ends, as by abort().
    virtual void fail_alone(const std::string& why) noexcept { abort(why); }
    // Call it before and after any other wait for another rank, so that the stall diagnosis counts
    // the wait like a collective.
    virtual void set_waiting(bool waits) { (void)waits; }
};

// A job of one rank: nothing is sent.
std::unique_ptr<Communicator> make_single_rank();

// Who may connect to this process.
struct Access {
    std::string token;  // "": anybody; else whoever holds it, by TLS 1.3 (tls.h)
    bool open = false;  // without a token: also from other machines
};

// What a rank gives the coordinator. Settings are opaque pairs here: "batch" → "64".
struct JoinOptions {
    std::string host;   // of the coordinator
    uint16_t port = 0;  // of the coordinator
    int rank = -1;      // wanted; -1: assigned on arrival
    int world = 0;      // ranks of the job; 0: another rank gives it
    // --port; 0: the coordinator's port number, or the next free one above it.
    uint16_t listen_port = 0;
    std::string advertise;  // host or host:port to tell the peers; "": the socket's address
    Access access;
    std::chrono::milliseconds join_timeout{600'000};
    // A rank is lost when its connection ends, or when three heartbeats are missing and its machine
    // does not answer. One that is stopped or starved is named and waited for.
    std::chrono::milliseconds heartbeat{1'000};
    // Rank 0's value. When no byte has moved for this long, every log names the rank to blame.
    std::chrono::milliseconds stall{30'000};
    // Rank 0's values: send sums above 16 KB and gathers as bf16; where a rank is lost, collectives
    // throw RingBroken, and regroup() goes on with those that are left. min_world: what
    // min_world() says there. `alone`: go on even if only few of them answer and the others may be
    // alive.
    bool bf16_wire = false, elastic = false, alone = false;
    int min_world = 1;
    bool shm = false;  // rank 0's value: ranks of one host sum in shared memory, where they can

    // Take part in a job that trains: the communicator is that of a rank after the others, and has
    // no ring until its first regroup(-1, true). `rank` and `world` are not asked for.
    bool newcomer = false;

    // Called once with the port, when this process has begun to serve the coordinator. The system
    // picks a port where port is 0 on rank 0.
    std::function<void(uint16_t)> listening;

    // For tests: called before each socket operation of the ring, and each that others see in
    // shared memory; returns how many of so many bytes it may move.
    std::function<size_t(size_t)> limit;
    // For tests: the name of the host that this rank is taken to be on; "": its own.
    std::string host_id;

    // Rank 0 gives every setting of the job. Another rank gives what its user typed; one that
    // differs from rank 0's is refused with an error that names both values.
    std::map<std::string, std::string> settings;
};

// Cuts "host:port", "[v6]:port", "host" or a bare IPv6 address; port 0 if there is none. Throws
// Error that begins with `what`, the option or thing that it comes from.
std::pair<std::string, uint16_t> split_address(const std::string& text, const std::string& what);

struct Job {
    std::unique_ptr<Communicator> communicator;
    std::vector<Peer> peers;  // by rank
    std::string what = {};    // of a newcomer: what a rank has offered
};

// Joins the job: one outbound connection to the coordinator, one listening port. Rank 0 serves the
// coordinator on a thread of this process, unless one already listens there. Blocks until all ranks
// have joined and the ring is open; retries with back-off and fresh DNS until join_timeout, and
// logs who is missing. `log` must outlive the communicator, which logs silent ranks and stalls.
// `stop` is polled while waiting, here and in regroup(): the signal that ends the wait by an Error.
Job join(const JoinOptions& options, Log& log, const std::function<int()>& stop = {});

// Serves the coordinator alone (`./trainer coordinator`), one job after the other, at `host:port`
// ("" or "0.0.0.0": every address; port 0: the system picks) until stop() is non-zero. `listening`
// is called once with the port.
void serve_coordinator(const std::string& host, uint16_t port, int world, Log& log,
                       const std::function<int()>& stop,
                       const std::function<void(uint16_t)>& listening = {},
                       const Access& access = {});

// The same for two ranks on one kernel, whatever containers they are in: they share processors.
std::string machine_id();

// Small texts between the ranks. Collective; both block until all ranks have called.
// Returns rank 0's text.
std::string broadcast_text(Communicator& communicator, const std::string& text);
// Returns every rank's text, by rank.
std::vector<std::string> allgather_text(Communicator& communicator, const std::string& text);

}  // namespace convoy
