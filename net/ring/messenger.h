// messenger.h — messages from rank to rank, over connections of their own alongside the ring
// (Communicator::open_messenger).
//
//   send(rank, bytes)    ─► queue of the rank              ─┐                     ┌─► socket
//                                                           ├─ one thread, poll() ┤
//   receive(rank, bytes) ─► queue of the rank and channel  ─┘                     └◄─ socket
//
// A message is a wire::Header of type MESSAGE, whose number is the channel, and then its bytes. The
// first receive() for the channel gets the message. If nobody receives it yet, it stays in the
// socket, and all later messages, of other channels too, wait behind it.
#pragma once

#include <sys/eventfd.h>

#include <array>
#include <atomic>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "net/control/wire.h"
#include "net/ring/link.h"

namespace convoy {

class Membership;

// Thread-safe.
class Messenger {
 public:
    // `links` by rank; closed for ranks without a link. The membership must outlive this object.
    Messenger(Membership& membership, uint32_t generation, std::vector<Link> links);
    // Closes its links. Messages under way end with an Error; their bytes are no longer accessed.
    ~Messenger();

    // Starts to send `bytes`, which must not change until the future is ready. A ready future means
    // that the bytes have left this process. Messages to one rank arrive in order.
    std::future<void> send(int rank, std::span<const std::byte> bytes, int channel = 0);
    // Starts to receive the next message of the rank's channel into `bytes`, which must have
    // its size. The memory must stay until the future is ready. Then another thread calls `then`.
    std::future<void> receive(int rank, std::span<std::byte> bytes, int channel = 0,
                              std::function<void()> then = {});
    // Blocks until the future is ready. The stall diagnosis counts this wait like a wait in a
    // collective. Throws the communicator's Error if the other rank is lost.
    void wait(std::future<void>& done);
    void shut() noexcept;  // every message fails from now on; any thread

 private:
    struct Sent {
        std::array<std::byte, wire::kHeaderBytes> header;
        std::span<const std::byte> bytes;
        std::promise<void> done;
    };
    struct Wanted {
        std::span<std::byte> bytes;
        std::promise<void> done;
        std::function<void()> then;
    };
    struct End {  // of the link to one rank
        Link link;
        std::deque<Sent> out;
        size_t sent = 0;                            // bytes of the first one, with its header
        std::map<uint32_t, std::deque<Wanted>> in;  // by channel
        std::array<std::byte, wire::kHeaderBytes> header_bytes;
        wire::Header header;         // of the message that is arriving
        size_t received = 0;         // bytes of it, with its header
        std::exception_ptr failure;  // of every message from now on
        std::deque<Wanted>& wanted() { return in[header.number]; }
        bool has_header() const { return received >= wire::kHeaderBytes; }
    };
    using Done = std::vector<std::pair<std::promise<void>, std::function<void()>>>;
    std::future<void> enqueue(int rank, auto message, const auto& queue_of);
    void run();
    bool send_some(End& end, Done& done);
    bool receive_some(int rank, End& end, Done& done);
    void fail_end(End& end, std::exception_ptr failure);
    void wait_for_sockets();
    void wake() noexcept { eventfd_write(wake_, 1); }

    Membership& membership_;
    const uint32_t generation_;
    std::mutex mutex_;  // guards ends_, all but shutting their links
    std::vector<End> ends_;
    std::atomic<bool> closing_{false};
    const int wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    std::thread thread_;
};

}  // namespace convoy
