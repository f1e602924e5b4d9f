// join_options.h — how a rank joins: where its coordinator is, who may connect, and what rank 0
// says for the whole job.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace convoy {

// Who may connect to this process.
struct Access {
    std::string token;  // "": anybody; else only holders of this token, by TLS 1.3
    bool open = false;  // without a token: other machines may connect too
};

// How a rank joins.
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
    // A rank is lost when its connection ends, or when it misses three heartbeats and its machine
    // does not answer. The job waits for a stopped or starved rank, and the log names that rank.
    std::chrono::milliseconds heartbeat{1'000};
    // Rank 0's value. When no byte has moved for this long, the log of the coordinator names the
    // rank to blame.
    std::chrono::milliseconds stall{30'000};
    // Rank 0's values. bf16_wire: send sums above 16 KB and gathers as bf16. elastic: if a rank is
    // lost, collectives throw RingBroken, and regroup() continues with the remaining ranks.
    // min_world: the result of min_world() in an elastic job. alone: continue even if only a few
    // ranks answer and the others may still live.
    bool bf16_wire = false, elastic = false, alone = false;
    int min_world = 1;
    bool shm = false;  // rank 0's value: ranks of one host sum in shared memory if they can

    // Join a running job. The communicator's rank is above all existing ranks, and it has no ring
    // until its first regroup(). `rank` and `world` are ignored.
    bool newcomer = false;

    // Called once with the port, when this process has begun to serve the coordinator. If rank 0
    // gives port 0, the system picks the port.
    std::function<void(uint16_t)> listening;

    // For tests: called before each socket operation of the ring, and before each write to shared
    // memory that others see. Gets a number of bytes and returns how many of them may be moved.
    std::function<size_t(size_t)> limit;
    bool watch_signals = true;  // For tests: whether `stop` of join() may be asked by any thread.
    // For tests: the name of this rank's host instead of the real name; "": the real name.
    std::string host_id;
};

// Splits "host:port", "[v6]:port", "host" or a bare IPv6 address; port 0 if there is none. `what`
// is the option with the address. The text of an Error begins with it.
std::pair<std::string, uint16_t> split_address(const std::string& text, const std::string& what);

}  // namespace convoy
