#include "data/images/policy.h"

#include <algorithm>
#include <cmath>

#include "src/base/text.h"

namespace convoy {
namespace {

// The two policies have the same operations, with these magnitudes at the last bin.
struct PolicyRow {
    PixelOp op;
    double randaugment, trivial;
    bool signs;  // both signs occur
};
constexpr PolicyRow kRows[kPolicyOps] = {
    {PixelOp::identity, 0, 0, false},
    {PixelOp::shear_x, 0.3, 0.99, true},
    {PixelOp::shear_y, 0.3, 0.99, true},
    {PixelOp::translate_x, 150.0 / 331, 32, true},  // randaugment: of the width
    {PixelOp::translate_y, 150.0 / 331, 32, true},  // of the height
    {PixelOp::rotate, 30, 135, true},
    {PixelOp::brightness, 0.9, 0.99, true},
    {PixelOp::saturation, 0.9, 0.99, true},
    {PixelOp::contrast, 0.9, 0.99, true},
    {PixelOp::sharpness, 0.9, 0.99, true},
    {PixelOp::posterize, 4, 6, false},  // bits that are lost
    {PixelOp::solarize, 255, 255, false},
    {PixelOp::autocontrast, 0, 0, false},
    {PixelOp::equalize, 0, 0, false},
};

// Marsaglia, Tsang: "A Simple Method for Generating Gamma Variables" (2000). Returns the logarithm,
// because with a small shape most numbers are too small for a double.
double log_gamma_variate(double shape, Random& random) {
    if (shape < 1) {
        const double u = 1 - double(random.uniform());  // in (0, 1]
        return log_gamma_variate(shape + 1, random) + std::log(u) / shape;
    }
    const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    for (;;) {
        const double x = random.normal(), v = std::pow(1 + c * x, 3);
        const double u = 1 - double(random.uniform());
        if (v > 0 && std::log(u) < x * x / 2 + d - d * v + d * std::log(v)) return std::log(d * v);
    }
}

double beta_variate(double shape, Random& random) {
    const double a = log_gamma_variate(shape, random), b = log_gamma_variate(shape, random);
    return 1 / (1 + std::exp(b - a));
}

}  // namespace

Jitter parse_jitter(const std::string& text) {
    std::vector<double> values;
    for (const std::string& word : split(text, ':'))
        values.push_back(to_number<double>(word).value_or(-1));
    if (text.empty()) return {};
    const auto good = [](double v) { return v >= 0 && v <= 10; };
    if ((values.size() != 1 && values.size() != 3 && values.size() != 4) ||
        !std::ranges::all_of(values, good) || (values.size() == 4 && values[3] > 0.5))
        fail("--augment jitter cannot be '", text,
             "': it takes brightness:contrast:saturation:hue, such as ",
             "0.4:0.4:0.4:0.1 (hue up to 0.5), without the hue, or one number for the first three");
    if (values.size() == 1) values.assign(3, values[0]);
    values.resize(4);
    return {values[0], values[1], values[2], values[3]};
}

void jitter_steps(const Jitter& jitter, Random random, std::vector<PixelStep>& steps) {
    const std::pair<PixelOp, double> kinds[] = {{PixelOp::brightness, jitter.brightness},
                                                {PixelOp::contrast, jitter.contrast},
                                                {PixelOp::saturation, jitter.saturation},
                                                {PixelOp::hue, jitter.hue}};
    const size_t begin = steps.size();
    for (const auto& [op, reach] : kinds) {
        const double middle = op == PixelOp::hue ? 0 : 1;
        const double low = op == PixelOp::hue ? -reach : std::max(0.0, 1 - reach);
        const double amount = low + (middle + reach - low) * double(random.uniform());
        steps.push_back({reach > 0 ? op : PixelOp::identity, amount});
    }
    for (size_t left = 4; left > 1; --left)
        std::swap(steps[begin + left - 1], steps[begin + random.below(left)]);
}

PixelStep policy_step(AutoAugment policy, int op, int bin, bool negative, int H, int W) {
    const PolicyRow& row = kRows[op];
    const bool wide = policy == AutoAugment::trivial;
    double end = wide ? row.trivial : row.randaugment;
    if (!wide && row.op == PixelOp::translate_x) end *= W;
    if (!wide && row.op == PixelOp::translate_y) end *= H;
    // torch.linspace(0, end, 31): floats, from both ends.
    const float last = float(end);
    const double gap = double(last / float(kPolicyBins - 1));
    const float up =
        float(2 * bin < kPolicyBins - 1 ? gap * bin : double(last) - gap * (kPolicyBins - 1 - bin));
    const double magnitude = row.signs && negative ? -up : up;
    switch (row.op) {
        case PixelOp::translate_x:
        case PixelOp::translate_y: return {row.op, std::trunc(magnitude)};
        case PixelOp::brightness:
        case PixelOp::saturation:
        case PixelOp::contrast:
        case PixelOp::sharpness: return {row.op, 1 + magnitude};
        case PixelOp::posterize: return {row.op, 8 - std::nearbyint(magnitude)};
        case PixelOp::solarize: return {row.op, 255 - magnitude};
        default: return {row.op, magnitude};
    }
}

void policy_steps(AutoAugment policy, int H, int W, Random random, std::vector<PixelStep>& steps) {
    const bool trivial = policy == AutoAugment::trivial;
    for (int i = policy == AutoAugment::off ? 0 : trivial ? 1 : 2; i > 0; --i) {
        const int op = int(random.below(kPolicyOps));
        const int bin = trivial ? int(random.below(kPolicyBins)) : 9;
        steps.push_back(policy_step(policy, op, bin, random.bits() & 1, H, W));
    }
}

Crop erased_part(int H, int W, double p, Random random) {
    constexpr double kMinRatio = 0.3, kMaxRatio = 3.3;
    if (!(double(random.uniform()) < p)) return {0, 0, 0, 0};
    for (int attempt = 0; attempt < 10; ++attempt) {
        const double part = double(H) * W * (0.02 + 0.31 * double(random.uniform()));
        const double ratio =
            kMinRatio * std::exp(std::log(kMaxRatio / kMinRatio) * double(random.uniform()));
        const int h = int(std::nearbyint(std::sqrt(part * ratio)));
        const int w = int(std::nearbyint(std::sqrt(part / ratio)));
        if (h >= H || w >= W) continue;
        const int top = int(random.below(uint64_t(H - h) + 1));
        return {top, int(random.below(uint64_t(W - w) + 1)), h, w};
    }
    return {0, 0, 0, 0};
}

Mix draw_mix(double mixup, double cutmix, int H, int W, Random random) {
    const bool cut = cutmix > 0 && (mixup <= 0 || random.bits() & 1);
    const double own = beta_variate(cut ? cutmix : mixup, random);
    if (!cut) return {float(own)};
    const double half = 0.5 * std::sqrt(1 - own);
    const int half_w = int(half * W), half_h = int(half * H);
    const int x = int(random.below(uint64_t(W))), y = int(random.below(uint64_t(H)));
    const int left = std::max(x - half_w, 0), top = std::max(y - half_h, 0);
    const Crop box{top, left, std::min(y + half_h, H) - top, std::min(x + half_w, W) - left};
    return {float(1 - double(box.H) * box.W / (double(H) * W)), box};
}

void mix_rows(const Mix& mix, int H, int W, int C, const float* partner, float* row) {
    if (mix.box.H > 0) {
        for (int h = mix.box.top; h < mix.box.top + mix.box.H; ++h) {
            const size_t at = (size_t(h) * size_t(W) + size_t(mix.box.left)) * size_t(C);
            std::copy_n(partner + at, size_t(mix.box.W) * size_t(C), row + at);
        }
    } else if (mix.own < 1) {
        for (size_t i = 0; i < size_t(H) * size_t(W) * size_t(C); ++i)
            row[i] = mix.own * row[i] + (1 - mix.own) * partner[i];
    }
}

}  // namespace convoy
