// null_communicator.h — a communicator without a network: every collective is done when it is
// called, and leaves the data as it is. After abort() every collective fails. Tests and
// measurements derive from it and override what they need.
#pragma once

#include "net/control/job_status.h"
#include "net/ring/communicator.h"

namespace convoy {

class NullCommunicator : public Communicator {
 public:
    NullCommunicator(int rank, int world) : rank_(rank), world_(world) {}
    int rank() const override { return rank_; }
    int world() const override { return world_; }
    std::future<void> allreduce_sum(std::span<float>) override { return done(); }
    std::future<void> gather(std::vector<std::span<float>>, bool) override { return done(); }
    void broadcast(std::span<std::byte>, int) override { status_.throw_if_ended(); }
    Ranks regroup(int64_t, bool) override { fail("there is no other rank"); }
    // Returns the same bytes for every rank.
    std::vector<std::vector<std::byte>> allgather(std::span<const std::byte> data) override {
        status_.throw_if_ended();
        return std::vector(size_t(world_), std::vector(data.begin(), data.end()));
    }
    void barrier() override { status_.throw_if_ended(); }
    std::shared_ptr<Messenger> open_messenger(const std::vector<int>&) override {
        fail("there is no other rank");
    }
    std::unique_ptr<Communicator> open_group(const std::vector<int>&) override {
        fail("there is no other rank");
    }
    void abort(const std::string& why) noexcept override { status_.end(why, rank_); }
    int lost_rank() const override { return status_.lost_rank(); }

 protected:
    std::future<void> done() const { return done(status_.error()); }
    static std::future<void> done(std::exception_ptr error) {
        std::promise<void> promise;
        error ? promise.set_exception(error) : promise.set_value();
        return promise.get_future();
    }

 private:
    int rank_, world_;
    JobStatus status_;
};

}  // namespace convoy
