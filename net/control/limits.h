// limits.h — waits and limits of this folder, except those of the kernel (connection.cpp). Tests
// lower the values that are not constexpr.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace convoy {

using std::chrono::milliseconds;

// ---- waits: ranks and the coordinator -----------------------------------------------------------

// A rank, or a coordinator, without a sign of life for this long counts as silent. The time is
// doubled, up to the second, if a ring broke and no rank was lost for certain: the machines are
// slow. It is halved if a ring lasted ten times as long.
constexpr milliseconds kSilence{3'000}, kMostSilence{24'000};
// A connection must be made, and its handshake be answered, in this time.
constexpr milliseconds kDialPatience{5'000};
// A rank that is asked how it is, or for the coordinator of the next ring, must answer in this
// time.
constexpr milliseconds kAskPatience{1'000};
// The coordinator must send its next message to a rank that joins in this time.
constexpr milliseconds kAnswerPatience{10'000};
// A rank that finds no coordinator asks again after the first pause; each later pause is longer.
constexpr milliseconds kFirstPause{50}, kLongestPause{2'000};
// A rank that lost the coordinator asks the lower ranks again after this pause.
constexpr milliseconds kRejoinPause{20};
// A rank that finds no coordinator for the next ring in this many times the silence fails.
constexpr int kNobody = 5;
// A rank that answers and seeks a coordinator, but does not connect to this one in this time, and
// kAskPatience more per rank, counts as silent: a firewall may drop its connections.
constexpr milliseconds kStray{30'000};
// In times the silence: a rank has the first from WELCOME to an open ring, then again for each
// other kind of links. After that the coordinator has the second to say which rank is lost. It
// gives up ranks that do not do their part of forming a ring in the third.
constexpr int kAllLinks = 10, kVerdict = 13, kFormPatience = 20;
// A coordinator gives up a job if no rank has answered for this long.
constexpr milliseconds kLonePatience{600'000};
// The log says what a new ring waits for after the first time, then after twice that time, and so
// on. While a job begins, rank 0 says who is missing every second time, others after the third.
constexpr milliseconds kTellWait{5'000}, kTellMissing{3'000}, kTellOthers{30'000};
// A signal ends a wait for other ranks after this time, and after twice the longest wait so far.
constexpr milliseconds kSignalPatience{2'000};
// A rank whose connection ended is probed after the first pause, as a dying process closes its port
// a moment later. A newcomer is probed again after the second, an unconnected rank after the third.
constexpr milliseconds kFirstProbe{3}, kVisitPause{200}, kProbePause{100};
// The coordinator has this time to name the first cause before a rank reports its own.
constexpr milliseconds kFirstCause{2'000};
// The last messages of a process, such as LEAVE, have this time to be sent and answered.
constexpr milliseconds kLastMessages{1'000};
// Connections of ranks that were left behind, and of refused ones, are closed after this time.
constexpr milliseconds kFormerPatience{60'000}, kRefusedPatience{5'000};
// The stall diagnosis calls a rank silent that has sent no heartbeat for this long.
constexpr milliseconds kQuiet{3'000};

// ---- waits: the machine -------------------------------------------------------------------------

// A look-up of a name must end in this time.
inline milliseconds name_patience{15'000};
// A connection that sends no first message in this time is closed.
inline milliseconds first_message_patience{10'000};
// While a job trains, this many connections are accepted at once, and then one per interval.
constexpr int kAtOnce = 256;
constexpr milliseconds kApart{10};
// After an error of accept() the listener waits this long: it may lack file descriptors.
constexpr milliseconds kAcceptPause{100};
// A rank that waits in shared memory looks this often whether the ring still stands.
constexpr milliseconds kLook{50};

// ---- counts -------------------------------------------------------------------------------------

// A rank dials a peer this many times, with this pause after the first time, twice that, and so on.
constexpr int kLinkAttempts = 3;
constexpr milliseconds kLinkPause{200};
// The coordinator asks the address of a newcomer this many times.
constexpr int kVisits = 3;
// A rank tries this many ports above the coordinator's for its own.
constexpr int kPortsTried = 1'000;
// At most this many newcomers wait at a time.
constexpr size_t kMostNewcomers = 64;
// At most this many links, and at most two per rank, wait until this rank is ready for them.
constexpr size_t kMostWaitingLinks = 16;
// At most this many refused connections stay open until their ranks have read why.
constexpr ptrdiff_t kMostRefused = 64;
// At most this many connections wait for a first message or its answer: in all, from one address.
constexpr size_t kGuests = 64;
constexpr ptrdiff_t kGuestsOfOne = 16;
// A text names at most this many ranks with their addresses; of more, only the numbers.
constexpr size_t kMostNames = 3;
// At most this many lines of the control thread wait for the log; the oldest lines are dropped.
constexpr size_t kMostLines = 1'000;

// ---- bytes --------------------------------------------------------------------------------------

// A connection on which more bytes wait to be sent is closed: its peer does not read.
constexpr size_t kMostQueued = 1 << 20;
// If more bytes than this wait on all connections together, each may have only its fair share.
constexpr size_t kMostInAll = 64 << 20, kFairShare = 16 << 10;
// A rank gives at most this many bytes to an all-gather.
constexpr uint64_t kGatherLimit = 16 << 20;
// Texts are cut to this many bytes: a refusal's reason, a heartbeat's stall, the answer to HEALTH.
constexpr size_t kRefusalText = 1'000, kStallText = 500, kHealthText = 1'000;

namespace wire {

// A job has at most this many ranks.
constexpr int kMaxWorld = 4'096;
// The body of a message that is not of a collective has at most this many bytes.
constexpr uint64_t kControlLimit = 4 << 20;
// The body of a first message, which anybody may send, has at most this many bytes.
constexpr uint64_t kJoinLimit = 40 << 10;
// The body of a message of a process that has no rank yet has at most this many bytes.
constexpr uint64_t kGuestLimit = 4 << 10;
// The bodies of HEALTH and HEARTBEAT have at most this many bytes.
constexpr uint64_t kHealthLimit = 4 << 10;
// A text that people read is cut to this many characters.
constexpr size_t kMostText = 1'100;
// A host id or an address has at most this many bytes, like a name in DNS.
constexpr size_t kMaxName = 255;
// JOIN names at most this many processes of rings; the oldest rings are left out.
constexpr size_t kMostAttempted = 4'096;

}  // namespace wire
}  // namespace convoy
