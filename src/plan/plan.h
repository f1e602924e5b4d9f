// plan.h — how fast a job will be: arithmetic on what was measured. No sockets, no tensors.
//
//   compute    forward ─ loss ─ backward ──────────────────────┐   from factors    update
//   params         ready one by one, from the back    n-1 … 1  0 │   ┌─ dw ─┐
//   network               [ bucket 0 ][ bucket 1 ] … [ last ]──┴───┴──────┴─ waited ─┘
//
// A step is simulated: buckets are cut as GradReducer cuts them, a bucket leaves once its params
// are ready on the slowest rank, buckets travel one at a time, gradients of linear layers whose
// factors travel are formed behind the backward pass, and the rest of the network is waited for.
// Where compute and network share processors, each slows the other down while both go on; by how
// much is measured too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "net/communicator.h"
#include "src/train/buckets.h"

namespace convoy {

// A param of gradients, in the order in which the backward pass completes them.
struct PlanParam {
    size_t floats = 0;            // as it travels, padding included
    double ready = 0;             // part of the backward pass that is over by then
    int inputs = 0, outputs = 0;  // of a linear layer, for its weights and its bias; else 0
    bool bias = false;            // of that layer: its weights come next
    bool with_bias = false;       // it has one
    // Seconds of its part of the backward pass, for weights of a linear layer: so many and so many
    // an image. What travels as factors is formed once more, for the images of all ranks.
    double fixed_seconds = 0, image_seconds = 0;
};

// Seconds of one step of one rank without network, at a number of images.
struct StepTiming {
    double images = 0, forward = 0, backward = 0, update = 0;
    double seconds() const { return forward + backward + update; }
};
StepTiming mean_of(std::span<const StepTiming> timings);

// At so many images, on the line through the timings of the fewest and of the most. Where that
// falls images cost nothing beside the rest; where it would start below 0, fewer images than were
// timed cost in proportion, and so do all if there is one timing only. The update does not depend
// on them.
StepTiming timing_at(std::span<const StepTiming> timings, double images);

// The narrowest edge, and what was seen of the ring as a whole.
struct PlanLink {
    double latency_seconds = 0, bytes_per_second = 0;
    double ring_factor = 1;  // seconds of a long sum ÷ those that the edge alone would allow
    // How many times as long each takes while both go on, on processors that they share.
    double compute_slowdown = 1, network_slowdown = 1;
};

// What takes the bytes from rank to rank and so decides how long a step waits.
struct PlanSetting {
    bool bf16 = false;
    FactorMode factors = FactorMode::kOff;
    bool operator==(const PlanSetting&) const = default;
};

// Seconds of a sum of so many floats, and of a gather of so many floats of all ranks together.
double sum_seconds(size_t floats, int world, const PlanLink& link, bool bf16);
double gather_seconds(size_t floats, int world, const PlanLink& link, bool bf16);

// The size of a bucket: so long that latency is 4 % of its time in the ring, from 1 to 25 MB.
// The one place that decides it; --bucket overrides.
size_t bucket_bytes_for(double latency_seconds, double bytes_per_second, int world);

// Whether any linear layer of these goes as factors.
bool any_factors(std::span<const PlanParam> params, int64_t batch, int world, FactorMode mode);

// What travels at once: params that are summed, or the factors of one linear layer.
struct PlanBucket {
    size_t floats = 0;  // of the sum; or of the factors of all ranks together
    double ready = 0;   // as of its last param
    const PlanParam* factors_of = nullptr;
};
std::vector<PlanBucket> plan_buckets(std::span<const PlanParam> params, size_t bucket_bytes,
                                     FactorMode factors, int64_t batch, int world);

// One hand-over to the network.
struct Transfer {
    double handed = 0;   // seconds of compute before it
    double seconds = 0;  // on an idle machine
};
// Compute behind the backward pass, once a transfer has arrived.
struct Afterwork {
    size_t transfer = 0;
    double seconds = 0;
};
struct SimulatedStep {
    double seconds = 0;  // until compute and transfers are over
    double waited = 0;   // of these, with nothing to compute
};
// Transfers go one at a time, in order; so do the pieces of work after `compute_seconds`. While
// compute and a transfer go on, compute takes `compute_slowdown` and the transfer
// `network_slowdown` times as long.
SimulatedStep simulate(double compute_seconds, std::span<const Transfer> transfers,
                       std::span<const Afterwork> afterwork, double compute_slowdown,
                       double network_slowdown);

// Everything that a prediction rests on.
struct PlanJob {
    int64_t batch = 0;
    size_t bucket_bytes = kDefaultBucketBytes;
    size_t exact_floats = 0;  // statistics and counters: travel before the params, in small pieces
    std::vector<PlanParam> params;  // in the order in which they are ready
    // Of the ranks that take part: their timings, and their shares.
    std::vector<std::vector<StepTiming>> timings;
    std::vector<double> shares;
    PlanLink link;
    std::vector<StepTiming>
        param_timings;       // of the rank, and as it was, when the params were timed
    int64_t sync_every = 1;  // above 1: local steps, then a sum of `average_floats` in pieces
    size_t average_floats = 0;
};

struct Prediction {
    double step_seconds = 0, waited_seconds = 0;
    double images_per_second = 0;
    double compute_images_per_second = 0;  // sum over the ranks, each for itself
    double efficiency() const {
        return compute_images_per_second > 0 ? images_per_second / compute_images_per_second : 0;
    }
};
Prediction predict(const PlanJob& job, PlanSetting setting);

// Shares with which all ranks need the same time for their part of the batch, as weights relative
// to the largest, in hundredths. timings[r]: of rank r.
std::vector<double> fair_shares(std::span<const std::vector<StepTiming>> timings, int64_t batch);
std::string shares_text(std::span<const double> shares);  // "1:0.52:0.5", as --share takes them

}  // namespace convoy
