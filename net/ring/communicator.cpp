// communicator.cpp — one thread that runs the collectives of a rank in the order of their calls.
#include "net/ring/communicator.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <numeric>
#include <thread>

#include "net/control/membership.h"
#include "net/ring/messenger.h"
#include "net/ring/open_links.h"
#include "net/ring/ring.h"
#include "src/base/clock.h"

namespace convoy {

namespace {

// all[r] = the bytes of rank r. `data` holds the bytes of `rank`.
void gather_bytes(Ring& ring, int rank, std::span<const std::byte> data,
                  std::vector<std::vector<std::byte>>& all) {
    if (data.size() > kGatherLimit)
        fail("a rank may send ", kGatherLimit, " bytes in an all-gather, not ", data.size());
    // First every length, so that all ranks have room; then the bytes.
    std::vector<uint64_t> lengths(all.size(), 0);
    lengths[size_t(rank)] = data.size();
    ring.gather_each(lengths);
    for (size_t r = 0; r < all.size(); ++r) {
        if (lengths[r] > kGatherLimit)
            throw PeerMistake(int(r), cat("rank ", r, " announces ", lengths[r],
                                          " bytes; the limit is ", kGatherLimit));
        all[r].resize(lengths[r]);
    }
    std::copy(data.begin(), data.end(), all[size_t(rank)].begin());
    ring.gather(std::vector<std::span<std::byte>>(all.begin(), all.end()), false);
}

// The collectives of one ring. Derived classes say how they are queued.
class RingCollectives : public Communicator {
 public:
    using Communicator::Communicator;
    std::future<void> allreduce_sum(std::span<float> data) override {
        return submit([this, data] { ring().sum(data); });
    }
    std::future<void> gather(std::vector<std::span<float>> blocks, bool exact) override {
        ENSURE(int(blocks.size()) == world(), blocks.size(), " blocks");
        std::vector<std::span<std::byte>> bytes;
        for (const auto& block : blocks) bytes.push_back(std::as_writable_bytes(block));
        return submit([this, bytes, exact] { ring().gather(bytes, !exact); });
    }
    void broadcast(std::span<std::byte> data, int root) override {
        submit([this, data, root] { ring().broadcast(data, root); }).get();
    }
    std::vector<std::vector<std::byte>> allgather(std::span<const std::byte> data) override {
        auto all = std::vector<std::vector<std::byte>>(size_t(world()));
        submit([&] { gather_bytes(ring(), rank(), data, all); }).get();
        return all;
    }
    void barrier() override {
        submit([this] { ring().barrier(); }).get();
    }

 private:
    virtual Ring& ring() = 0;
    virtual std::future<void> submit(std::function<void()> run) = 0;
};

class RingCommunicator final : public RingCollectives {
    // A group of ranks with its own ring. Its collectives run in the queue of all ranks.
    class Group final : public RingCollectives {
     public:
        Group(RingCommunicator& all, Ring& ring, std::vector<int> ranks, int rank)
            : RingCollectives(rank, int(ranks.size())),
              all_(all),
              ring_(ring),
              ranks_(std::move(ranks)) {}

     private:
        Ring& ring() override { return ring_; }
        std::future<void> submit(std::function<void()> run) override {
            return all_.submit([this, run = std::move(run)] {
                try {
                    run();
                } catch (const PeerMistake& e) {
                    throw PeerMistake(ranks_[size_t(e.rank)], e.what());
                }
            });
        }
        RingCommunicator& all_;
        Ring& ring_;
        const std::vector<int> ranks_;
    };

 public:
    RingCommunicator(std::unique_ptr<Membership> membership, Connected connected,
                     std::function<int()> stop, std::function<size_t(size_t)> limit)
        : membership_(std::move(membership)),
          record_{membership_->progress().moved, std::move(limit)},
          ring_(connected.welcome.ring.empty() ? nullptr : make_ring(connected)),
          me_(std::move(connected.welcome)),
          thread_([this] { work(); }) {
        membership_->status().on_end([this] { shut_ring(); });
        membership_->watch_signals(std::move(stop));
        share_memory();
    }

    ~RingCommunicator() override {
        {
            std::lock_guard lock(mutex_);
            closing_ = true;
        }
        shut_ring();  // a collective that nobody waits for any more
        wake_.notify_all();
        thread_.join();
        membership_->status().on_end(nullptr);
        membership_.reset();  // its control thread may still have used the ring
    }

    int rank() const override { return me_.rank; }
    int world() const override { return me_.world; }
    int around() const override { return ring_ ? ring_->around() : world(); }  // none: a newcomer

    Ranks regroup(int64_t step, bool planned) override {
        auto next = asio::co_spawn(membership_->io(), next_ring(*membership_, step, planned),
                                   asio::use_future);
        Connected connected = next.get();
        {
            std::lock_guard lock(ring_mutex_);
            ring_ = make_ring(connected);
            links_.reset();
            if (membership_->status().ended()) ring_->shut();
        }
        Ranks ranks{connected.welcome.peers,
                    {},
                    cat("ring ", connected.welcome.generation, ": ", connected.welcome.why)};
        for (const wire::Member& peer : connected.welcome.peers)
            ranks.before.push_back(rank_of(me_, peer.process));
        me_ = std::move(connected.welcome);
        share_memory();
        return ranks;
    }
    bool ended() const override { return membership_->status().ended(); }
    int min_world() const override {
        return me_.rules.elastic ? std::max(1, int(me_.rules.min_world)) : 0;
    }
    void offer(std::string what) override { membership_->offer(std::move(what)); }
    bool newcomer_waits() const override { return membership_->newcomer_waits(); }
    std::shared_ptr<Messenger> open_messenger(const std::vector<int>& ranks) override {
        auto links = std::make_shared<Messenger>(*membership_, me_.generation,
                                                 open_more(ranks, wire::kMessageLink));
        std::lock_guard lock(ring_mutex_);
        links_ = links;
        if (membership_->status().ended()) links->shut();
        return links;
    }
    std::unique_ptr<Communicator> open_group(const std::vector<int>& ranks) override {
        ENSURE(!group_ring_, "a second group");
        const int rank = int(std::ranges::find(ranks, me_.rank) - ranks.begin());
        std::vector<int> order(ranks.size()), peers = neighbours(me_.rank, ranks);
        std::iota(order.begin(), order.end(), 0);
        std::vector<Link> all = open_more(peers, wire::kGroupLink), links(ranks.size());
        for (const int peer : order)
            links[size_t(peer)] = std::move(all[size_t(ranks[size_t(peer)])]);
        std::lock_guard lock(ring_mutex_);
        group_ring_ = std::make_unique<Ring>(rank, order, std::move(links), me_.generation,
                                             me_.rules.bf16, record_);
        if (membership_->status().ended()) group_ring_->shut();
        return std::make_unique<Group>(*this, *group_ring_, ranks, rank);
    }
    std::vector<LinkTiming> measure_links() override {
        std::vector<LinkTiming> timings;
        submit([&] { timings = ring_->measure_links(); }).get();
        return timings;
    }

    void set_progress(int64_t step, Phase phase) override {
        Progress& progress = membership_->progress();
        progress.step = step;
        progress.phase = phase;
        progress.since = Clock::now();
    }
    void set_waiting(bool waits) override {
        ++(waits ? membership_->progress().begun : membership_->progress().done);
    }
    void abort(const std::string& why) noexcept override { membership_->report(-1, why); }
    void fail_alone(const std::string& why) noexcept override { membership_->fail_alone(why); }
    void leave() noexcept override { membership_->leave(); }
    int lost_rank() const override { return membership_->status().lost_rank(); }
    void record(Track* sent, Track* received) override {
        record_.sent_track = sent, record_.received_track = received;
    }
    void on_stall(std::function<void(const std::string&)> then) override {
        membership_->on_stall(std::move(then));
    }
    uint64_t bytes_sent() const override { return record_.sent; }
    double seconds_busy() const override { return busy_seconds_; }

 private:
    struct Operation {
        std::function<void()> run;
        std::promise<void> done;
    };

    Ring& ring() override { return *ring_; }
    std::future<void> submit(std::function<void()> run) override {
        Operation operation{std::move(run), {}};
        std::future<void> future = operation.done.get_future();
        {
            std::lock_guard lock(mutex_);
            ++membership_->progress().begun;
            queue_.push_back(std::move(operation));
        }
        wake_.notify_one();
        return future;
    }

    void work() {
        for (;;) {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [this] { return closing_ || !queue_.empty(); });
            if (queue_.empty()) return;
            Operation operation = std::move(queue_.front());
            queue_.pop_front();
            lock.unlock();
            const auto begin = Clock::now();
            const std::exception_ptr error = run(operation.run);
            busy_seconds_ += seconds_since(begin);
            ++membership_->progress().done;
            error ? operation.done.set_exception(error) : operation.done.set_value();
        }
    }

    // Runs one collective. Returns null, or the first cause of the end of the job.
    std::exception_ptr run(const std::function<void()>& collective) {
        JobStatus& status = membership_->status();
        if (status.ended()) return status.error();
        try {
            collective();
            return nullptr;
        } catch (const LinkLost& e) {
            if (closing_ && !status.ended())
                return std::make_exception_ptr(
                    Error("this communicator was closed during a collective"));
            membership_->link_lost(e.what());
        } catch (const PeerMistake& e) {
            membership_->report(e.rank, e.what());
        } catch (const std::exception& e) {
            membership_->fail_alone(e.what());  // half a collective cannot be resumed
        }
        return status.error();
    }

    // Links to `peers`, alongside those of the ring. All ranks call it.
    std::vector<Link> open_more(const std::vector<int>& peers, uint32_t kind) {
        barrier();  // no rank waits long for another one to dial
        return asio::co_spawn(membership_->io(), open_more_links(*membership_, me_, peers, kind),
                              asio::use_future)
            .get();
    }
    std::unique_ptr<Ring> make_ring(Connected& connected) {
        const wire::Welcome& w = connected.welcome;
        return std::make_unique<Ring>(w.rank, w.ring, std::move(connected.links), w.generation,
                                      w.rules.bf16, record_);
    }
    // Only if a host has several ranks. The next collective reports an error of this call.
    void share_memory() {
        if (!me_.rules.shm || hosts_of(me_.ring, me_.peers).size() == me_.ring.size()) return;
        submit([this] {
            const auto [news, all] = ring_->share_memory(me_.peers);
            if (me_.rank > 0) return;
            all ? membership_->log().info(news) : membership_->log().notice(news);
        }).wait();
    }
    void shut_ring() noexcept {
        std::lock_guard lock(ring_mutex_);
        if (ring_) ring_->shut();
        if (group_ring_) group_ring_->shut();
        if (const auto links = links_.lock()) links->shut();
    }

    std::unique_ptr<Membership> membership_;
    std::mutex ring_mutex_;  // another ring takes the place of one that broke
    RingRecord record_;
    std::unique_ptr<Ring> ring_, group_ring_;
    wire::Welcome me_;
    std::weak_ptr<Messenger> links_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<Operation> queue_;
    std::atomic<bool> closing_{false};
    std::atomic<double> busy_seconds_{0};
    std::thread thread_;
};

}  // namespace

Job join(const JoinOptions& options, Log& log, const std::function<int()>& stop) {
    if (options.world < 0 || options.world > wire::kMaxWorld)
        fail("--world ", options.world, ": a job has 1 to ", wire::kMaxWorld, " ranks");
    if (options.rank < -1 || (options.world > 0 && options.rank >= options.world))
        fail("--rank ", options.rank, " cannot be in a world of ", options.world,
             ": its ranks are 0 to ", options.world - 1);
    if (options.host.empty()) fail("joining needs the host of the coordinator (--coord HOST:PORT)");

    auto membership = std::make_unique<Membership>(log, options);
    std::future<Connected> future =
        asio::co_spawn(membership->io(), first_ring(*membership, options), asio::use_future);
    while (future.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready)
        if (const int signal = stop ? stop() : 0; signal != 0)
            fail("stopped by signal ", signal, " before the job began");
    Connected result = future.get();

    Job job{nullptr, result.welcome.peers, std::move(result.what)};
    job.communicator =
        std::make_unique<RingCommunicator>(std::move(membership), std::move(result),
                                           options.watch_signals ? stop : nullptr, options.limit);
    return job;
}

}  // namespace convoy
