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
// A connection must be made, and its handshake be answered, in the first time. A rank that is asked
// how it is, or for the coordinator of the next ring, must answer in the second. The coordinator
// must send its next message to a rank that joins in the third.
constexpr milliseconds kDialPatience{5'000}, kAskPatience{1'000}, kAnswerPatience{10'000};
// A rank that finds no coordinator asks again after the first pause; each later pause is longer. A
// rank that lost the coordinator asks the lower ranks again after the third.
constexpr milliseconds kFirstPause{50}, kLongestPause{2'000}, kRejoinPause{20};
// A rank that answers and seeks a coordinator, but does not connect to this one in this time and
// kAskPatience more per rank, counts as silent: a firewall may drop its connections.
constexpr milliseconds kStray{30'000};
// In times the silence: a rank that finds no coordinator for the next ring in the first fails. It
// has the second from WELCOME to an open ring, then again for each other kind of links. After that
// the coordinator has the third to say which rank is lost. It gives up ranks that do not do their
// part of forming a ring in the fourth.
constexpr int kNobody = 5, kAllLinks = 10, kVerdict = 13, kFormPatience = 20;
// A coordinator gives up a job if no rank has answered for the first time. A rank is silent for the
// stall diagnosis if it has sent no heartbeat for the second.
constexpr milliseconds kLonePatience{600'000}, kQuiet{3'000};
// The log says what a new ring waits for after kTellWait, then after twice that time, and so on.
// While a job begins, its log says at most once per kTellMissing which ranks are missing.
constexpr milliseconds kTellWait{5'000}, kTellMissing{3'000};
// A control thread that is a tenth of a heartbeat late had no processor: no rank was silent then.
constexpr int kLateness = 10;
// A signal ends a wait for other ranks after this time, and after twice the longest wait so far.
constexpr milliseconds kSignalPatience{2'000};
// A rank whose connection ended is probed after the first pause, as a dying process closes its port
// a moment later. A newcomer is probed again after the second, an unconnected rank after the third.
constexpr milliseconds kFirstProbe{3}, kVisitPause{200}, kProbePause{100};
// The coordinator has the first time to name the first cause before a rank reports its own. The
// last messages of a process, such as LEAVE, have the second to be sent and answered.
constexpr milliseconds kFirstCause{2'000}, kLastMessages{1'000};
// Connections of ranks that were left behind, and of refused ones, are closed after this time.
constexpr milliseconds kFormerPatience{60'000}, kRefusedPatience{5'000};

// ---- waits: the machine -------------------------------------------------------------------------
// A look-up of a name must end in the first time. A connection that sends no first message in the
// second is closed.
inline milliseconds name_patience{15'000}, first_message_patience{10'000};
// While a job trains, this many connections are accepted at once, and then one per interval.
constexpr int kAtOnce = 256;
constexpr milliseconds kApart{10};
// After an error of accept() the listener waits for the first time: it may lack file descriptors. A
// rank that waits in shared memory looks every second time whether the ring still stands.
constexpr milliseconds kAcceptPause{100}, kLook{50};

// ---- counts -------------------------------------------------------------------------------------
// A rank dials a peer this many times, with this pause after the first time, twice that, and so on.
constexpr int kLinkAttempts = 3;
constexpr milliseconds kLinkPause{200};
// The coordinator asks the address of a newcomer this many times. A rank tries so many ports above
// the coordinator's for its own.
constexpr int kVisits = 3, kPortsTried = 1'000;
// At most this many newcomers wait at a time. At most so many links, and at most two per rank, wait
// until this rank is ready for them.
constexpr size_t kMostNewcomers = 64, kMostWaitingLinks = 16;
// At most this many refused connections stay open until their ranks have read why. Of those that
// wait for a first message or its answer, at most so many are from one address.
constexpr ptrdiff_t kMostRefused = 64, kGuestsOfOne = 16;
constexpr size_t kGuests = 64;
// A text gives the addresses of at most this many ranks. At most so many lines of the control
// thread wait for the log; the oldest lines are dropped.
constexpr size_t kMostNames = 3, kMostLines = 1'000;

// ---- bytes --------------------------------------------------------------------------------------
// A connection on which more bytes wait to be sent is closed: its peer does not read. If more bytes
// wait on all connections together than the second, each may have only the third.
constexpr size_t kMostQueued = 1 << 20, kMostInAll = 64 << 20, kFairShare = 16 << 10;
// At most so many bytes: of a rank in an all-gather; of a refusal's reason, a heartbeat's stall and
// the answer to HEALTH, which are cut.
constexpr uint64_t kGatherLimit = 16 << 20;
constexpr size_t kRefusalText = 1'000, kStallText = 500, kHealthText = 1'000;

namespace wire {
constexpr int kMaxWorld = 4'096;  // ranks of a job
// Bodies have at most so many bytes: that of a message that is not of a collective; of a first
// message, which anybody may send; of a process that has no rank yet; of HEALTH and HEARTBEAT.
constexpr uint64_t kControlLimit = 4 << 20, kJoinLimit = 40 << 10, kGuestLimit = 4 << 10,
                   kHealthLimit = 4 << 10;
// A text that people read is cut to this many characters. A host id or an address has at most so
// many bytes, like a name in DNS. JOIN names at most so many processes of rings, of the newest
// ones.
constexpr size_t kMostText = 1'100, kMaxName = 255, kMostAttempted = 4'096;
}  // namespace wire
}  // namespace convoy
