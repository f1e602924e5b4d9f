// plan.cpp — see plan.h.
#include "src/plan/plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <tuple>

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
        // Recursive doubling (net/ring_small.cpp): everything, once a step; ranks beyond the
        // largest power of two add a step at each end.
        const int whole = int(std::bit_floor(unsigned(world)));
        const int steps = std::bit_width(unsigned(whole)) - 1 + (whole < world ? 2 : 0);
        return steps * (link.latency_seconds + bytes / link.bytes_per_second);
    }
    const int around = ring_size(link, world).around;
    if (around == 1) return bytes / link.memory_bytes_per_second;
    const double travels = 2.0 * (around - 1) / around * bytes * (bf16 ? 0.5 : 1);
    return link.ring_factor * travels / link.bytes_per_second +
           2 * (around - 1) * link.latency_seconds;
}

double gather_seconds(size_t floats, int world, const PlanLink& link, bool bf16) {
    const double travels = double(world - 1) / world * double(floats) * (bf16 ? 2 : 4);
    return link.ring_factor * travels / link.bytes_per_second + (world - 1) * link.latency_seconds;
}

// A bucket of s bytes takes 2(W-1)/W·s/bandwidth + 2(W-1)·latency; the second part is 4 % of the
// first at s = 25·W·latency·bandwidth.
size_t bucket_bytes_for(double latency_seconds, double bytes_per_second, int world) {
    constexpr double kLeast = 1 << 20, kMost = 25 << 20;
    return size_t(std::clamp(25.0 * world * latency_seconds * bytes_per_second, kLeast, kMost));
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

// ---- what was measured of the first ranks -----------------------------------------------------

PlanLink slowest_link(std::span<const EdgeTiming> edges, int ranks) {
    PlanLink link;
    for (const EdgeTiming& edge : edges) {
        if (edge.from >= ranks || edge.to >= ranks) continue;
        link.latency_seconds = std::max(link.latency_seconds, edge.latency_seconds);
        if (link.bytes_per_second == 0 || edge.bytes_per_second < link.bytes_per_second)
            link.bytes_per_second = edge.bytes_per_second;
    }
    return link;
}

static std::map<std::string, int> ranks_by_machine(const JobTiming& timing, int ranks) {
    std::map<std::string, int> count;
    for (int rank = 0; rank < ranks; ++rank) ++count[timing.ranks[size_t(rank)].machine];
    return count;
}

std::vector<std::vector<StepTiming>> timings_of(const JobTiming& timing, int ranks) {
    auto at_once = ranks_by_machine(timing, ranks);
    std::vector<std::vector<StepTiming>> timings;
    for (int rank = 0; rank < ranks; ++rank) {
        const RankTiming& one = timing.ranks[size_t(rank)];
        const auto round = std::ranges::lower_bound(timing.rounds, at_once[one.machine]);
        timings.push_back(one.rounds[size_t(round - timing.rounds.begin())]);
    }
    return timings;
}

PlanLink link_among(const JobTiming& timing, int ranks) {
    PlanLink link = timing.link;
    const PlanLink slowest = slowest_link(timing.edges, ranks);
    if (slowest.bytes_per_second > 0)
        std::tie(link.latency_seconds, link.bytes_per_second) =
            std::tie(slowest.latency_seconds, slowest.bytes_per_second);
    // Ranks of one machine are taken to share memory where all do; how fast is known where all of
    // the job are on one.
    if (const int all = int(timing.ranks.size()); ranks < all && link.around > 0) {
        const int machines = int(ranks_by_machine(timing, ranks).size());
        link.around = link.around == all || (machines == 1 && link.around > 1) ? ranks : machines;
    }
    // Fewer ranks share processors: the network takes so much less from compute.
    const auto crowd = [&](size_t count) {
        int most = 0;
        for (const auto& [machine, sharing] : ranks_by_machine(timing, int(count)))
            most = std::max(most, sharing);
        return most;
    };
    const double part = double(crowd(size_t(ranks))) / crowd(timing.ranks.size());
    for (double* slowdown : {&link.compute_slowdown, &link.network_slowdown})
        *slowdown = 1 / (1 - (1 - 1 / *slowdown) * part);
    return link;
}

std::vector<double> compute_speeds(const JobTiming& timing, int64_t batch,
                                   const std::vector<double>& shares) {
    std::vector<double> speeds;
    for (const auto& timings : timings_of(timing, int(timing.ranks.size()))) {
        const Range part = share_of(batch, shares, int(speeds.size()));
        const double images = double(std::max<int64_t>(1, part.size()));
        speeds.push_back(images / timing_at(timings, images).seconds());
    }
    return speeds;
}

// As predict() counts them.
static std::vector<std::vector<StepTiming>> evened(const JobTiming& timing, int ranks) {
    const auto each = timings_of(timing, ranks);
    const auto kind = [&](size_t rank) {
        const RankTiming& one = timing.ranks[rank];
        return std::tuple(one.machine, one.threads, each[rank].front().images,
                          each[rank].back().images);
    };
    auto result = each;
    for (size_t rank = 0; rank < each.size(); ++rank)
        for (size_t i = 0; i < each[rank].size(); ++i) {
            std::vector<StepTiming> alike;
            for (size_t other = 0; other < each.size(); ++other)
                if (kind(other) == kind(rank)) alike.push_back(each[other][i]);
            result[rank][i] = mean_of(alike);
        }
    return result;
}

// ---- the step ---------------------------------------------------------------------------------

static bool as_factors(const PlanParam& param, int64_t batch, RingSize ring, FactorMode mode) {
    return param.outputs > 0 &&
           linear_traffic(param.inputs, param.outputs, param.with_bias, batch, ring)
               .as_factors(mode);
}

bool any_factors(std::span<const PlanParam> params, int64_t batch, RingSize ring, FactorMode mode) {
    return std::any_of(params.begin(), params.end(), [&](const PlanParam& param) {
        return as_factors(param, batch, ring, mode);
    });
}

std::vector<PlanBucket> plan_buckets(std::span<const PlanParam> params, size_t bucket_bytes,
                                     FactorMode factors, int64_t batch, RingSize ring) {
    std::vector<TravelParam> sizes;
    for (const PlanParam& param : params)
        sizes.push_back({param.floats, as_factors(param, batch, ring, factors), param.bias});
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

static Handovers hand_over(const JobTiming& timing, PlanSetting setting, int64_t batch, int world,
                           const PlanLink& link, const StepTiming& slowest) {
    Handovers result;
    constexpr size_t kPiece = Communicator::kExactBytes / sizeof(float);
    for (size_t left = timing.exact_floats; left > 0; left -= std::min(left, kPiece))
        result.transfers.push_back(
            {slowest.forward, sum_seconds(std::min(left, kPiece), world, link, false)});
    // How many times as long the backward pass takes as when rank 0 timed the parameters.
    const auto timed = evened(timing, int(timing.ranks.size())).front();
    const double scale = slowest.backward / timing_at(timed, slowest.images).backward;
    // A layer sent as factors leaves the backward pass: what follows it is ready earlier.
    double& moved = result.moved_seconds;
    for (const PlanBucket& bucket : plan_buckets(timing.params, timing.bucket_bytes,
                                                 setting.factors, batch, ring_size(link, world))) {
        const PlanParam* param = bucket.factors_of;
        if (param) {
            const auto seconds = [&](double images) {
                return scale * (param->fixed_seconds + images * param->image_seconds);
            };
            moved += seconds(slowest.images);
            result.afterwork.push_back({result.transfers.size(), seconds(double(batch))});
        }
        result.transfers.push_back(
            {slowest.forward + std::max(0.0, bucket.ready * slowest.backward - moved),
             param ? gather_seconds(bucket.floats, world, link, setting.bf16)
                   : sum_seconds(bucket.floats, world, link, setting.bf16)});
    }
    moved = std::min(moved, slowest.backward);
    return result;
}

Prediction predict(const JobTiming& timing, PlanSetting setting, int64_t batch,
                   const std::vector<double>& shares, int64_t sync_every) {
    const int world = int(shares.size());
    Prediction result;
    StepTiming slowest;
    int rank = 0;
    for (const std::vector<StepTiming>& steps : evened(timing, world)) {
        const double images = double(share_of(batch, shares, rank++).size());
        const StepTiming own = timing_at(steps, images);
        slowest.images = std::max(slowest.images, images);
        slowest.forward = std::max(slowest.forward, own.forward);
        slowest.backward = std::max(slowest.backward, own.backward);
        slowest.update = std::max(slowest.update, own.update);
        if (images > 0) result.compute_images_per_second += images / own.seconds();
    }
    const PlanLink link = link_among(timing, world);
    if (sync_every > 1 && world > 1) {
        result.waited_seconds =
            sum_seconds(timing.average_floats, world, link, setting.bf16) / double(sync_every);
        result.step_seconds = slowest.seconds() + result.waited_seconds;
    } else {
        const Handovers handed = hand_over(timing, setting, batch, world, link, slowest);
        const double compute = slowest.forward + slowest.backward - handed.moved_seconds;
        const SimulatedStep step = simulate(compute, handed.transfers, handed.afterwork,
                                            link.compute_slowdown, link.network_slowdown);
        result.step_seconds = step.seconds + slowest.update;
        result.waited_seconds = step.waited;
    }
    result.images_per_second = double(batch) / result.step_seconds;
    return result;
}

// ---- unequal machines -------------------------------------------------------------------------

// Rank r needs f_r + c_r·b seconds for b images. All need T for b_r = max(0, (T − f_r)/c_r), and
// Σ b_r = B: T is found by halving.
std::vector<double> fair_shares(std::span<const std::vector<StepTiming>> timings, int64_t batch) {
    std::vector<double> images(timings.size());
    double least = 0, most = 1e9;
    for (int halvings = 0; halvings < 100; ++halvings) {
        const double T = (least + most) / 2;
        double all = 0;
        for (size_t r = 0; r < timings.size(); ++r) {
            const double one = timing_at(timings[r], 1).seconds();
            const double per_image = std::max(timing_at(timings[r], 2).seconds() - one, 1e-9);
            const double fixed = std::max(0.0, one - per_image);
            all += images[r] = std::max(0.0, (T - fixed) / per_image);
        }
        (all < double(batch) ? least : most) = T;
    }
    const double largest = *std::max_element(images.begin(), images.end());
    for (double& share : images) share = std::round(100 * share / largest) / 100;
    return images;
}

std::string shares_text(std::span<const double> shares) { return join_text(shares, ":"); }

}  // namespace convoy
