// plan.cpp — see plan.h.
#include "src/plan/plan.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "data/order.h"
#include "src/base/text.h"

namespace convoy {

StepTiming mean_of(std::span<const StepTiming> timings) {
    StepTiming sum;
    for (const StepTiming& t : timings) {
        sum.images += t.images, sum.forward += t.forward;
        sum.backward += t.backward, sum.update += t.update;
    }
    const double count = double(timings.size());
    return {sum.images / count, sum.forward / count, sum.backward / count, sum.update / count};
}

StepTiming timing_at(std::span<const StepTiming> timings, double images) {
    ENSURE(!timings.empty(), "no timing");
    const auto fewer = [](const StepTiming& a, const StepTiming& b) { return a.images < b.images; };
    const StepTiming few = *std::min_element(timings.begin(), timings.end(), fewer);
    const StepTiming many = *std::max_element(timings.begin(), timings.end(), fewer);
    const auto line = [&](double at_few, double at_many) {
        const double more = many.images - few.images;
        const double slope = more > 0 ? std::max(0.0, (at_many - at_few) / more) : -1;
        const bool from_origin = slope < 0 || at_few < slope * few.images;
        if (images <= few.images && from_origin) return at_few * images / few.images;
        return slope < 0 ? at_many * images / many.images
                         : at_many + slope * (images - many.images);
    };
    if (images <= 0) return {0, 0, 0, many.update};
    return {images, line(few.forward, many.forward), line(few.backward, many.backward),
            many.update};
}

// ---- the network ------------------------------------------------------------------------------

double sum_seconds(size_t floats, int world, const PlanLink& link, bool bf16) {
    if (world < 2) return 0;
    const double bytes = double(floats) * sizeof(float);
    if (bytes <= double(Communicator::kExactBytes)) {
        // Recursive doubling (net/ring.cpp): everything, once a step; ranks beyond the largest
        // power of two add a step at each end.
        const int whole = int(std::bit_floor(unsigned(world)));
        const int steps = std::bit_width(unsigned(whole)) - 1 + (whole < world ? 2 : 0);
        return steps * (link.latency_seconds + bytes / link.bytes_per_second);
    }
    const double travels = 2.0 * (world - 1) / world * bytes * (bf16 ? 0.5 : 1);
    return link.ring_factor * travels / link.bytes_per_second +
           2 * (world - 1) * link.latency_seconds;
}

double gather_seconds(size_t floats, int world, const PlanLink& link, bool bf16) {
    if (world < 2) return 0;
    const double travels = double(world - 1) / world * double(floats) * (bf16 ? 2 : 4);
    return link.ring_factor * travels / link.bytes_per_second + (world - 1) * link.latency_seconds;
}

// A bucket of s bytes takes 2(W-1)/W·s/bandwidth + 2(W-1)·latency; the second part is 4 % of the
// first at s = 25·W·latency·bandwidth.
size_t bucket_bytes_for(double latency_seconds, double bytes_per_second, int world) {
    constexpr double kLeast = 1 << 20, kMost = 25 << 20;
    const double bytes = 25.0 * world * latency_seconds * bytes_per_second;
    return size_t(std::isfinite(bytes) ? std::clamp(bytes, kLeast, kMost)
                                       : double(kDefaultBucketBytes));
}

SimulatedStep simulate(double compute_seconds, std::span<const Transfer> transfers,
                       std::span<const Afterwork> afterwork, double compute_slowdown,
                       double network_slowdown) {
    constexpr double kNever = 1e300, kTiny = 1e-12;
    struct Piece {
        size_t needs;  // transfers that have arrived before it begins
        double seconds;
    };
    std::vector<Piece> pieces{{0, compute_seconds}};
    for (const Afterwork& after : afterwork) pieces.push_back({after.transfer + 1, after.seconds});
    SimulatedStep step;
    size_t piece = 0, arrived = 0;
    double computed = 0, sent = 0;  // seconds' worth of the current piece, of the current transfer
    while (piece < pieces.size() || arrived < transfers.size()) {
        const bool computes = piece < pieces.size() && pieces[piece].needs <= arrived;
        const bool left = arrived < transfers.size();
        const double handed = left ? std::min(transfers[arrived].handed, compute_seconds) : 0;
        const bool sends = left && (piece > 0 || computed >= handed - kTiny);
        const double slow_compute = sends ? compute_slowdown : 1;
        const double slow_network = computes ? network_slowdown : 1;
        // Until the piece is over, or the next hand-over comes, or the transfer is over.
        double until = kNever;
        if (computes)
            until = ((left && !sends ? handed : pieces[piece].seconds) - computed) * slow_compute;
        if (sends) until = std::min(until, (transfers[arrived].seconds - sent) * slow_network);
        ENSURE(until < kNever, "work that waits for a transfer which does not exist");
        step.seconds += until;
        computes ? computed += until / slow_compute : step.waited += until;
        if (sends) sent += until / slow_network;
        if (sends && sent >= transfers[arrived].seconds - kTiny) ++arrived, sent = 0;
        if (computes && computed >= pieces[piece].seconds - kTiny) ++piece, computed = 0;
    }
    return step;
}

// ---- the step ---------------------------------------------------------------------------------

static bool as_factors(const PlanParam& param, int64_t batch, int world, FactorMode mode) {
    return param.outputs > 0 &&
           linear_traffic(param.inputs, param.outputs, param.with_bias, batch, world)
               .as_factors(mode);
}

bool any_factors(std::span<const PlanParam> params, int64_t batch, int world, FactorMode mode) {
    return std::any_of(params.begin(), params.end(), [&](const PlanParam& param) {
        return as_factors(param, batch, world, mode);
    });
}

std::vector<PlanBucket> plan_buckets(std::span<const PlanParam> params, size_t bucket_bytes,
                                     FactorMode factors, int64_t batch, int world) {
    std::vector<TravelParam> sizes;
    for (const PlanParam& param : params)
        sizes.push_back({param.floats, as_factors(param, batch, world, factors), param.bias});
    std::vector<PlanBucket> buckets;
    for (const BucketSpan& part : cut_buckets(sizes, bucket_bytes)) {
        const PlanParam& last = params[part.end - 1];
        PlanBucket bucket{0, last.ready, part.as_factors ? &last : nullptr};
        if (part.as_factors)
            bucket.floats = size_t(batch) * size_t(last.inputs + last.outputs);
        else
            for (size_t i = part.begin; i < part.end; ++i) bucket.floats += params[i].floats;
        buckets.push_back(bucket);
    }
    return buckets;
}

// What a step hands to the network, and what it computes after the backward pass.
struct Handovers {
    std::vector<Transfer> transfers;
    std::vector<Afterwork> afterwork;
    double moved_seconds = 0;  // of the backward pass, into the afterwork
};

static Handovers hand_over(const PlanJob& job, PlanSetting setting, int world,
                           const StepTiming& slowest) {
    Handovers result;
    constexpr size_t kPiece = Communicator::kExactBytes / sizeof(float);
    for (size_t left = job.exact_floats; left > 0; left -= std::min(left, kPiece))
        result.transfers.push_back(
            {slowest.forward, sum_seconds(std::min(left, kPiece), world, job.link, false)});
    // How many times as long the backward pass takes as when the parameters were timed.
    double scale = 1;
    if (!job.param_timings.empty() && slowest.images > 0) {
        const double timed = timing_at(job.param_timings, slowest.images).backward;
        if (timed > 0) scale = slowest.backward / timed;
    }
    // A layer sent as factors leaves the backward pass: what comes behind it is earlier.
    double& moved = result.moved_seconds;
    for (const PlanBucket& bucket :
         plan_buckets(job.params, job.bucket_bytes, setting.factors, job.batch, world)) {
        const PlanParam* param = bucket.factors_of;
        if (param) {
            moved += scale * (param->fixed_seconds + slowest.images * param->image_seconds);
            result.afterwork.push_back(
                {result.transfers.size(),
                 scale * (param->fixed_seconds + double(job.batch) * param->image_seconds)});
        }
        result.transfers.push_back(
            {slowest.forward + std::max(0.0, bucket.ready * slowest.backward - moved),
             param ? gather_seconds(bucket.floats, world, job.link, setting.bf16)
                   : sum_seconds(bucket.floats, world, job.link, setting.bf16)});
    }
    moved = std::min(moved, slowest.backward);
    return result;
}

Prediction predict(const PlanJob& job, PlanSetting setting) {
    const int world = int(job.timings.size());
    ENSURE(world >= 1 && job.shares.size() == job.timings.size(), world, " ranks, ",
           job.shares.size(), " shares");
    Prediction result;
    StepTiming slowest;
    for (int rank = 0; rank < world; ++rank) {
        const double images = double(share_of(job.batch, job.shares, rank).size());
        const StepTiming own = timing_at(job.timings[size_t(rank)], images);
        slowest.images = std::max(slowest.images, images);
        slowest.forward = std::max(slowest.forward, own.forward);
        slowest.backward = std::max(slowest.backward, own.backward);
        slowest.update = std::max(slowest.update, own.update);
        if (own.seconds() > 0) result.compute_images_per_second += images / own.seconds();
    }
    if (job.sync_every > 1 && world > 1) {
        result.waited_seconds =
            sum_seconds(job.average_floats, world, job.link, setting.bf16) / double(job.sync_every);
        result.step_seconds = slowest.seconds() + result.waited_seconds;
    } else {
        const Handovers handovers = hand_over(job, setting, world, slowest);
        const SimulatedStep simulated = simulate(
            slowest.forward + slowest.backward - handovers.moved_seconds, handovers.transfers,
            handovers.afterwork, job.link.compute_slowdown, job.link.network_slowdown);
        result.step_seconds = simulated.seconds + slowest.update;
        result.waited_seconds = simulated.waited;
    }
    result.images_per_second = double(job.batch) / std::max(result.step_seconds, 1e-9);
    return result;
}

// ---- unequal machines -------------------------------------------------------------------------

// Rank r needs f_r + c_r·b seconds for b images. All need T for b_r = (T − f_r)/c_r, and Σ b_r = B:
// T = (B + Σ f_r/c_r) / Σ 1/c_r. A rank whose f_r alone is above T gets nothing, and T is computed
// again without it.
std::vector<double> fair_shares(std::span<const std::vector<StepTiming>> timings, int64_t batch) {
    struct Line {
        double fixed, per_image;
    };
    std::vector<Line> lines;
    for (const auto& one : timings) {
        const double few = timing_at(one, 1).seconds(), many = timing_at(one, 2).seconds();
        lines.push_back({std::max(0.0, 2 * few - many), std::max(many - few, 1e-9)});
    }
    std::vector<bool> in(lines.size(), true);
    std::vector<double> images(lines.size(), 0);
    for (bool again = true; again;) {
        double above = double(batch), below = 0;
        for (size_t r = 0; r < lines.size(); ++r)
            if (in[r])
                above += lines[r].fixed / lines[r].per_image, below += 1 / lines[r].per_image;
        again = false;
        for (size_t r = 0; r < lines.size(); ++r) {
            images[r] = in[r] ? (above / below - lines[r].fixed) / lines[r].per_image : 0;
            if (images[r] < 0) in[r] = false, again = true;
        }
    }
    const double most = *std::max_element(images.begin(), images.end());
    for (double& share : images) share = std::round(100 * std::max(share, 0.0) / most) / 100;
    return images;
}

std::string shares_text(std::span<const double> shares) { return join_text(shares, ":"); }

}  // namespace convoy
