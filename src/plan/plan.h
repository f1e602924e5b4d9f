// plan.h — how fast a job will be: arithmetic on what was measured. No sockets, no tensors.
//
//   compute    forward ─ loss ─ backward ──────────────────────┐   from factors    update
//   params         ready one by one, from the back    n-1 … 1  0 │   ┌─ dw ─┐
//   network               [ bucket 0 ][ bucket 1 ] … [ last ]──┴───┴──────┴─ waited ─┘
//
// A step is simulated. Buckets are cut as GradReducer cuts them. A bucket leaves once its
// parameters are ready on the slowest rank; buckets are sent one at a time. Linear layers whose
// factors are sent form their gradients after the backward pass. Then the step waits for the rest
// of the network. Where compute and network share processors each slows the other down while both
// are at work; by how much is measured too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "net/communicator.h"
#include "src/train/buckets.h"

namespace convoy {

// A trained parameter, in the order in which the backward pass completes the gradients.
struct PlanParam {
    size_t floats = 0;            // as they are sent, padding included
    double ready = 0;             // part of the backward pass that is over by then
    int inputs = 0, outputs = 0;  // of a linear layer, for its weights and its bias; else 0
    bool bias = false;            // of a linear layer: its weights come next
    bool with_bias = false;       // the layer has one
    // Weights of a linear layer: seconds of the gradient, and seconds more for each image. A
    // layer sent as factors computes it for the images of all ranks.
    double fixed_seconds = 0, image_seconds = 0;
};

// Seconds of one step of one rank without network, at a number of images.
struct StepTiming {
    double images = 0, forward = 0, backward = 0, update = 0;
    double seconds() const { return forward + backward + update; }
};
StepTiming mean_of(std::span<const StepTiming> timings);

// At `images` images, on the line through the timings with the fewest and the most. If that falls,
// images cost nothing. If it starts below 0, or there is one timing only, fewer images than were
// timed cost in proportion. The update does not depend on the images.
StepTiming timing_at(std::span<const StepTiming> timings, double images);

// The slowest edge, and measurements of the ring as a whole.
struct PlanLink {
    double latency_seconds = 0, bytes_per_second = 0;
    double ring_factor = 1;  // measured seconds of a long sum ÷ those the edge alone would allow
    // How many times as long each takes while both are at work, on processors that they share.
    double compute_slowdown = 1, network_slowdown = 1;
    // Ranks that a sum goes around; 0: all. Where 1, bytes of a sum in memory that they share.
    int around = 0;
    double memory_bytes_per_second = 0;
};

// How gradients are sent.
struct PlanSetting {
    bool bf16 = false;
    FactorMode factors = FactorMode::kOff;
    bool operator==(const PlanSetting&) const = default;
};

// Seconds of a sum of `floats` floats, and of a gather of `floats` floats of all ranks together.
double sum_seconds(size_t floats, int world, const PlanLink& link, bool bf16);
double gather_seconds(size_t floats, int world, const PlanLink& link, bool bf16);

// The size of a bucket without CONVOY_BUCKET: latency takes 4 % of its time in the ring; 1 to 25
// MB.
size_t bucket_bytes_for(double latency_seconds, double bytes_per_second, int world);

// Whether any linear layer of these is sent as factors.
bool any_factors(std::span<const PlanParam> params, int64_t batch, RingSize ring, FactorMode mode);

// What is sent at once: parameters that are summed, or the factors of one linear layer.
struct PlanBucket {
    size_t floats = 0;  // of the sum; or of the factors of all ranks together
    double ready = 0;   // as of its last parameter
    const PlanParam* factors_of = nullptr;
};
std::vector<PlanBucket> plan_buckets(std::span<const PlanParam> params, size_t bucket_bytes,
                                     FactorMode factors, int64_t batch, RingSize ring);

// One hand-over to the network.
struct Transfer {
    double handed = 0;   // seconds of compute before it
    double seconds = 0;  // on an idle machine
};
// Compute after the backward pass, once a transfer has arrived.
struct Afterwork {
    size_t transfer = 0;
    double seconds = 0;
};
struct SimulatedStep {
    double seconds = 0;  // until compute and transfers are over
    double waited = 0;   // of these, with nothing to compute
};
// Transfers go one at a time, in order; so does the afterwork, after `compute_seconds`.
SimulatedStep simulate(double compute_seconds, std::span<const Transfer> transfers,
                       std::span<const Afterwork> afterwork, double compute_slowdown,
                       double network_slowdown);

struct RankTiming {
    std::string machine;  // the same for ranks that share processors
    int threads = 0;
    // rounds[i]: steps with two numbers of images, while the first JobTiming::rounds[i] ranks of
    // each machine compute; empty where this rank is not among them.
    std::vector<std::vector<StepTiming>> rounds;
};

// All that was measured (time_job); the same on every rank.
struct JobTiming {
    std::vector<EdgeTiming> edges;
    PlanLink link;
    size_t bucket_bytes = kDefaultBucketBytes;
    std::vector<int> rounds;  // ranks of a machine that computed at once; the last: all
    std::vector<RankTiming> ranks;
    std::vector<PlanParam> params;  // as rank 0 timed them
    size_t exact_floats = 0;        // statistics and counters, sent first and in small pieces
    size_t average_floats = 0;      // what an average of --sync average sums
};

// The slowest edge among the first `ranks` ranks; all 0 where there is none.
PlanLink slowest_link(std::span<const EdgeTiming> edges, int ranks);
// The link of the first ranks: their edges, and the slowdowns as of fewer ranks on a machine.
PlanLink link_among(const JobTiming& timing, int ranks);
inline RingSize ring_size(const PlanLink& link, int ranks) {
    return {ranks, link.around > 0 ? link.around : ranks};
}
// Steps of the first ranks, while only these compute.
std::vector<std::vector<StepTiming>> timings_of(const JobTiming& timing, int ranks);
// Images a second of each rank without network, while all ranks compute their part of the batch.
std::vector<double> compute_speeds(const JobTiming& timing, int64_t batch,
                                   const std::vector<double>& shares);

struct Prediction {
    double step_seconds = 0, waited_seconds = 0;
    double images_per_second = 0;
    double compute_images_per_second = 0;  // of all ranks together, without network
    double efficiency() const { return images_per_second / compute_images_per_second; }
};
// A step of the first ranks, one for each of `shares`. Ranks of one machine with as many threads
// and images count as their mean: they take turns, and what one loses another gains. With
// sync_every above 1 steps are local, and a sum of `average_floats` follows the last of them.
Prediction predict(const JobTiming& timing, PlanSetting setting, int64_t batch,
                   const std::vector<double>& shares, int64_t sync_every = 1);

// Shares with which all ranks need the same time for their part of the batch, as weights relative
// to the largest, in hundredths. timings[r]: of rank r.
std::vector<double> fair_shares(std::span<const std::vector<StepTiming>> timings, int64_t batch);
std::string shares_text(std::span<const double> shares);  // "1:0.52:0.5", as --share takes them

}  // namespace convoy
