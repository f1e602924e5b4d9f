// test_policy.cpp — pixels, magnitudes and chances of the augmentations against torchvision's.
#include "data/images/policy.h"

#include <algorithm>
#include <array>
#include <map>

#include "golden_policy.h"
#include "pictures.h"
#include "support.h"

using namespace convoy;

namespace {

Image coloured(int H, int W, int C) {
    Image image = picture(H, W);
    for (size_t i = 0; C == 1 && i < size_t(H) * size_t(W); ++i)
        image.pixels[i] = image.pixels[i * 3];  // red
    image.C = C;
    image.pixels.resize(size_t(H) * size_t(W) * size_t(C));
    return image;
}

template <class T>
uint64_t hash_of(const std::vector<T>& all) {
    return hash_bytes({reinterpret_cast<const char*>(all.data()), all.size() * sizeof(T)});
}

Random random_for(uint64_t sample, Purpose purpose = kTest) { return {1, 2, sample, purpose}; }

// Five standard deviations of a count of n draws with probability p.
double five_sigma(double n, double p) { return 5 * std::sqrt(n * p * (1 - p)); }

}  // namespace

TEST_CASE("every operation gives torchvision's pixels exactly, on RGB, grey and tiny images") {
    Image spare;
    for (const golden::Changed& want : golden::kChanged) {
        std::vector<uint64_t> hashes;
        for (const auto [H, W, C] : {std::array{37, 53, 3}, {40, 40, 3}, {37, 53, 1}, {2, 5, 3}}) {
            Image image = coloured(H, W, C);
            change_pixels({PixelOp(want.op), want.amount}, image, spare);
            hashes.push_back(hash_of(image.pixels));
        }
        INFO("operation ", want.op, ", amount ", want.amount);
        CHECK(hash_of(hashes) == want.hash);
    }
}

TEST_CASE("shift_reflected is a window of the image with mirrored margins") {
    for (int C : {1, 3}) {
        const Image image = coloured(6, 7, C);
        const auto mirrored = [](int i, int n) { return i < 0 ? -i : i >= n ? 2 * n - 2 - i : i; };
        for (auto [down, right] : {std::pair{0, 0}, {2, -3}, {-5, 6}, {5, -6}}) {
            Image moved = image, spare;
            shift_reflected(down, right, moved, spare);
            for (int h = 0; h < 6; ++h)
                for (int i = 0; i < 7 * C; ++i) {
                    const int from = mirrored(h - down, 6) * 7 + mirrored(i / C - right, 7);
                    REQUIRE(moved.pixels[size_t(h * 7 * C + i)] ==
                            image.pixels[size_t(from * C + i % C)]);
                }
        }
        Image moved = image, spare;
        CHECK_THROWS_AS(shift_reflected(6, 0, moved, spare), Error);
    }
}

TEST_CASE("the magnitudes of RandAugment and TrivialAugment are torchvision's") {
    for (auto [policy, table] : {std::pair{AutoAugment::randaugment, golden::kRandAugment},
                                 {AutoAugment::trivial, golden::kTrivial}})
        for (int op = 0; op < kPolicyOps; ++op) {
            std::vector<double> amounts;
            for (bool negative : {false, true})
                for (int bin = 0; bin < kPolicyBins; ++bin) {
                    const PixelStep step = policy_step(policy, op, bin, negative, 60, 83);
                    CHECK(int(step.op) == op);
                    amounts.push_back(step.amount + 0.0);  // -0 becomes 0
                }
            INFO("operation ", op);
            CHECK(hash_of(amounts) == table[op]);
        }
}

TEST_CASE("the policies draw each operation, magnitude and sign equally often") {
    const int n = 20'000;
    for (AutoAugment policy : {AutoAugment::randaugment, AutoAugment::trivial}) {
        const bool trivial = policy == AutoAugment::trivial;
        std::map<int, int> ops;
        int positive = 0, negative = 0;
        std::map<double, int> angles;
        std::vector<PixelStep> steps;
        for (int i = 0; i < n; ++i) {
            steps.clear();
            policy_steps(policy, 60, 83, random_for(uint64_t(i)), steps);
            REQUIRE(steps.size() == (trivial ? 1 : 2));
            for (const PixelStep& step : steps) {
                ++ops[int(step.op)];
                bool is_known = false;
                for (int bin = trivial ? 0 : 9; bin <= (trivial ? kPolicyBins - 1 : 9); ++bin)
                    for (bool sign : {false, true})
                        is_known |= step == policy_step(policy, int(step.op), bin, sign, 60, 83);
                CHECK(is_known);
                if (step.op == PixelOp::rotate) {
                    positive += step.amount > 0, negative += step.amount < 0;
                    ++angles[std::abs(step.amount)];
                }
            }
        }
        const double draws = n * (trivial ? 1 : 2);
        CHECK(ops.size() == kPolicyOps);
        for (auto [op, count] : ops)
            CHECK(std::abs(count - draws / kPolicyOps) < five_sigma(draws, 1.0 / kPolicyOps));
        const double turned = positive + negative;
        CHECK(std::abs(positive - turned / 2) < five_sigma(turned, 0.5));
        CHECK(angles.size() == (trivial ? kPolicyBins : 1));
        for (auto [angle, count] : angles)
            if (trivial)
                CHECK(std::abs(count - draws / kPolicyOps / kPolicyBins) <
                      five_sigma(draws, 1.0 / kPolicyOps / kPolicyBins));
    }
    std::vector<PixelStep> none;
    policy_steps(AutoAugment::off, 60, 83, random_for(0), none);
    CHECK(none.empty());
}

TEST_CASE(
    "--augment jitter: factors uniform within the reach, in each of the orders equally often") {
    const Jitter jitter = parse_jitter("0.4:0.2:1.5:0.1");
    const int n = 12'000;
    std::map<std::vector<PixelOp>, int> orders;
    std::map<PixelOp, double> low, high, sum;
    for (int i = 0; i < n; ++i) {
        std::vector<PixelStep> steps;
        jitter_steps(jitter, random_for(uint64_t(i)), steps);
        REQUIRE(steps.size() == 4);
        std::vector<PixelOp> order;
        for (const PixelStep& step : steps) {
            order.push_back(step.op);
            if (i == 0) low[step.op] = high[step.op] = step.amount;
            low[step.op] = std::min(low[step.op], step.amount);
            high[step.op] = std::max(high[step.op], step.amount);
            sum[step.op] += step.amount;
        }
        ++orders[order];
    }
    CHECK(orders.size() == 24);
    for (const auto& [order, count] : orders)
        CHECK(std::abs(count - n / 24.0) < five_sigma(n, 1 / 24.0));
    const std::tuple<PixelOp, double, double> ranges[] = {{PixelOp::brightness, 0.6, 1.4},
                                                          {PixelOp::contrast, 0.8, 1.2},
                                                          {PixelOp::saturation, 0, 2.5},
                                                          {PixelOp::hue, -0.1, 0.1}};
    for (const auto& [op, from, to] : ranges) {
        CHECK(low[op] >= from);
        CHECK(high[op] <= to);
        CHECK(high[op] - low[op] > 0.99 * (to - from));
        CHECK(sum[op] / n == doctest::Approx((from + to) / 2).epsilon(0.02 * (to - from)));
    }
}

TEST_CASE("--augment jitter takes one number, three or four, and says so") {
    const Jitter one = parse_jitter("0.4"), three = parse_jitter("0.1:0.2:0.3");
    CHECK((one.brightness == 0.4 && one.contrast == 0.4 && one.saturation == 0.4 && one.hue == 0));
    CHECK((three.brightness == 0.1 && three.contrast == 0.2 && three.saturation == 0.3));
    CHECK((parse_jitter("").contrast == 0 && parse_jitter("0:0:0:0.5").hue == 0.5));
    std::vector<PixelStep> steps;
    jitter_steps(one, random_for(1), steps);
    CHECK(std::ranges::count(steps, PixelOp::identity, &PixelStep::op) == 1);  // no hue
    for (const char* text :
         {"x", "0.4:0.4", "-1", "0.4:0.4:0.4:0.6", "1:1:1:0.1:1", "0.4:", "nan", "11"})
        CHECK_FAILS(parse_jitter(text), "0.4:0.4:0.4:0.1");
}

TEST_CASE("erased parts obey torchvision's scale, ratio and probability, and lie inside") {
    const int n = 8000;
    int erased = 0, at_top = 0, at_bottom = 0;
    for (int i = 0; i < n; ++i) {
        const Crop part = erased_part(120, 160, 0.25, random_for(uint64_t(i)));
        if (part.H == 0) continue;
        ++erased;
        CHECK((part.top >= 0 && part.left >= 0 && part.top + part.H <= 120 &&
               part.left + part.W <= 160));
        CHECK((part.H + 0.5) * (part.W + 0.5) >= 0.02 * 120 * 160);
        CHECK((part.H - 0.5) * (part.W - 0.5) <= 0.33 * 120 * 160);
        CHECK((part.H + 0.5) / (part.W - 0.5) >= 0.3);
        CHECK((part.H - 0.5) / (part.W + 0.5) <= 3.3);
        at_top += part.top == 0, at_bottom += part.top + part.H == 120;
    }
    // Ten attempts all fail too rarely to be seen.
    CHECK(std::abs(erased - n * 0.25) < five_sigma(n, 0.25));
    CHECK((at_top > 0 && at_bottom > 0));
    CHECK(erased_part(120, 160, 0, random_for(0)).H == 0);
    CHECK(erased_part(1, 1, 1, random_for(0)).H == 0);  // nothing smaller fits
}

TEST_CASE("mixup's part is Beta(A, A): mean and variance, also for a small A and a large one") {
    const int n = 20'000;
    for (double shape : {0.01, 0.2, 1.0, 4.0}) {
        CAPTURE(shape);
        double sum = 0, squares = 0;
        for (int i = 0; i < n; ++i) {
            const double own = double(draw_mix(shape, 0, 8, 8, random_for(uint64_t(i))).own);
            REQUIRE((own >= 0 && own <= 1));
            sum += own, squares += own * own;
        }
        const double mean = sum / n, variance = squares / n - mean * mean;
        const double want = 1 / (4 * (2 * shape + 1));
        CHECK(std::abs(mean - 0.5) < 5 * std::sqrt(want / n));
        CHECK(variance == doctest::Approx(want).epsilon(0.05));
    }
}

TEST_CASE("cutmix's box is torchvision's: half sides int(√(1 − λ)/2 · side), cut at the edges") {
    int cut_at_edge = 0, boxes = 0;
    double own = 0;
    for (int i = 0; i < 4000; ++i) {
        const Mix mix = draw_mix(0, 1, 30, 50, random_for(uint64_t(i)));
        const Crop box = mix.box;
        CHECK((box.top >= 0 && box.left >= 0 && box.top + box.H <= 30 && box.left + box.W <= 50));
        CHECK(mix.own == doctest::Approx(1 - box.H * box.W / 1500.0));
        own += double(mix.own) / 4000;
        const bool free =
            box.top > 0 && box.left > 0 && box.top + box.H < 30 && box.left + box.W < 50;
        if (!free) ++cut_at_edge;
        if (!free || box.H == 0) continue;
        ++boxes;  // both sides come from one λ
        CHECK((box.H % 2 == 0 && box.W % 2 == 0));
        CHECK(box.W / 2 >= box.H / 2 * 50 / 30);
        CHECK(box.W / 2 <= (box.H / 2 + 1) * 50 / 30);
    }
    CHECK((cut_at_edge > 500 && boxes > 500));
    CHECK(own > 0.6);  // λ has mean 1/2, and the edges cut much of large boxes off
    CHECK(own < 0.75);
}

TEST_CASE("mix_rows blends all of a row, or copies the box") {
    const std::vector<float> partner = random_floats(4 * 5 * 3, 1),
                             own = random_floats(4 * 5 * 3, 2);
    std::vector<float> row = own;
    mix_rows({0.25f, {}}, 4, 5, 3, partner.data(), row.data());
    for (size_t i = 0; i < row.size(); ++i)
        CHECK(row[i] == doctest::Approx(0.25 * own[i] + 0.75 * partner[i]).epsilon(1e-6));
    row = own;
    mix_rows({0.7f, {1, 2, 2, 3}}, 4, 5, 3, partner.data(), row.data());
    for (int h = 0; h < 4; ++h)
        for (int i = 0; i < 15; ++i) {
            const bool inside = h >= 1 && h < 3 && i / 3 >= 2;
            CHECK(row[size_t(h * 15 + i)] == (inside ? partner : own)[size_t(h * 15 + i)]);
        }
    row = own;
    mix_rows({}, 4, 5, 3, partner.data(), row.data());
    CHECK(row == own);
    int mixed = 0;
    for (int i = 0; i < 1000; ++i)
        mixed += draw_mix(0.2, 1, 8, 8, random_for(uint64_t(i))).box.H == 0;
    CHECK(mixed > 400);  // mixup, or a cutmix whose box is empty
    CHECK(mixed < 800);
}
