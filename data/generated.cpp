// generated.cpp — drawing the built-in data set.
//
// A shape is a signed distance: negative inside, in pixels, so that 0.5 − distance, cut to [0, 1],
// is how much of a pixel it covers. Paint is a base colour plus a texture.
#include "data/generated.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <opencv2/imgcodecs.hpp>

#include "src/base/check.h"
#include "src/base/random.h"

namespace convoy {
namespace {

constexpr int kSide = 96;

using Colour = std::array<float, 3>;

Colour random_colour(Random& random) {
    Colour colour;
    for (float& c : colour) c = random.uniform(0.1f, 0.9f);
    return colour;
}

float distance(const Colour& a, const Colour& b) {
    return std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
}

float length_of(float x, float y) { return std::sqrt(x * x + y * y); }

// Colour at a place: plain (in half of the cases), stripes, checks or soft waves, in a random
// direction and length.
struct Paint {
    Colour base, swing;
    int kind;
    float kx, ky, phase;

    Paint(Random& random, const Colour& colour) : base(colour) {
        for (float& c : swing) c = random.uniform(-0.10f, 0.10f);
        kind = int(random.below(6));
        const float angle = random.uniform(0, float(M_PI)), length = random.uniform(5, 24);
        kx = 2 * float(M_PI) / length * std::cos(angle);
        ky = 2 * float(M_PI) / length * std::sin(angle);
        phase = random.uniform(0, 2 * float(M_PI));
    }
    Colour at(float x, float y) const {
        float t = 0;
        if (kind == 1) t = std::sin(kx * x + ky * y + phase) > 0 ? 1.f : -1.f;
        if (kind == 2)
            t = std::sin(kx * x + ky * y) * std::sin(ky * x - kx * y + phase) > 0 ? 1.f : -1.f;
        if (kind == 3) t = std::sin(kx * x + ky * y + phase + 2 * std::sin(ky * x * 0.5f));
        return {base[0] + t * swing[0], base[1] + t * swing[1], base[2] + t * swing[2]};
    }
};

// The subject of the picture. All kinds have the area π·radius².
struct Outline {
    int kind;
    float x, y, cos, sin, radius, stretch;

    Outline(Random& random, int kind) : kind(kind) {
        x = kSide * random.uniform(0.40f, 0.60f), y = kSide * random.uniform(0.40f, 0.60f);
        radius = kSide * random.uniform(0.2f, 0.32f);
        const float turn = random.uniform(-0.3f, 0.3f);
        cos = std::cos(turn), sin = std::sin(turn);
        stretch = std::sqrt(random.uniform(0.8f, 1.25f));
    }
    float distance(float px, float py) const {
        const float dx = px - x, dy = py - y;
        const float u = (dx * cos + dy * sin) * stretch, v = (dy * cos - dx * sin) / stretch;
        if (kind == 0) return length_of(u, v) - radius;
        if (kind == 1) return std::max(std::abs(u), std::abs(v)) - 0.8862f * radius;  // √π / 2
        const float inner = 0.7776f * radius;  // of an equilateral triangle: √(π / (3·√3))
        return std::max(v, 0.8660f * std::abs(u) - 0.5f * v) - inner;
    }
};

// Small things that are no subject: lines, dots and rings.
struct Clutter {
    int kind;
    Colour colour;
    float x, y, dx, dy, length, width;

    explicit Clutter(Random& random) : kind(int(random.below(3))), colour(random_colour(random)) {
        x = kSide * random.uniform(), y = kSide * random.uniform();
        const float angle = random.uniform(0, 2 * float(M_PI));
        dx = std::cos(angle), dy = std::sin(angle);
        length = kind == 0 ? random.uniform(10, 50) : random.uniform(2, 6);
        width = random.uniform(0.6f, 1.6f);
    }
    float distance(float px, float py) const {
        const float far = length + width + 1;
        if (std::abs(px - x) > far || std::abs(py - y) > far) return 1;  // outside, and cheap
        const float along = (px - x) * dx + (py - y) * dy, across = (py - y) * dx - (px - x) * dy;
        if (kind == 0) return length_of(along - std::clamp(along, 0.f, length), across) - width;
        const float dot = length_of(along, across) - length;
        return kind == 1 ? dot : std::abs(dot) - width;
    }
};

void mix(Colour& under, const Colour& over, float distance) {
    const float cover = std::clamp(0.5f - distance, 0.f, 1.f);
    for (size_t c = 0; c < 3; ++c) under[c] += cover * (over[c] - under[c]);
}

// About normal with deviation 1, from one draw: the sum of four bytes.
float rough_normal(Random& random) {
    const uint32_t bits = random.bits();
    const uint32_t sum = (bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24);
    return (float(sum) - 510) / 147.8f;  // 2·√(256² / 12)
}

}  // namespace

Image draw_shape(int kind, uint64_t seed, uint64_t index) {
    Random random(seed, 0, index, kGenerate);
    const Colour ground_colour = random_colour(random);
    Colour shape_colour = random_colour(random);
    while (distance(ground_colour, shape_colour) < 0.5f) shape_colour = random_colour(random);
    const Paint ground(random, ground_colour), fill(random, shape_colour);
    const Outline outline(random, kind);
    std::vector<Clutter> behind, before;
    for (uint64_t i = random.below(4); i-- > 0;) behind.emplace_back(random);
    for (uint64_t i = random.below(2); i-- > 0;) before.emplace_back(random);
    const float noise = random.uniform(0, 0.04f);
    const float light_x = random.uniform(-0.25f, 0.25f), light_y = random.uniform(-0.25f, 0.25f);

    Image image{kSide, kSide, std::vector<uint8_t>(size_t(kSide) * kSide * 3)};
    uint8_t* out = image.pixels.data();
    for (int h = 0; h < kSide; ++h)
        for (int w = 0; w < kSide; ++w) {
            const float x = float(w) + 0.5f, y = float(h) + 0.5f;
            Colour colour = ground.at(x, y);
            for (const Clutter& thing : behind) mix(colour, thing.colour, thing.distance(x, y));
            const float edge = outline.distance(x, y);
            if (edge < 0.5f) mix(colour, fill.at(x, y), edge);
            for (const Clutter& thing : before) mix(colour, thing.colour, thing.distance(x, y));
            const float light = 1 + light_x * (x / kSide - 0.5f) + light_y * (y / kSide - 0.5f);
            for (float c : colour)
                *out++ = uint8_t(std::clamp(255 * (c * light + noise * rough_normal(random)) + 0.5f,
                                            0.f, 255.f));
        }
    return image;
}

const std::vector<std::string>& GeneratedSource::all_classes() {
    static const std::vector<std::string> names = {"circle", "square", "triangle"};
    return names;
}

GeneratedSource::GeneratedSource(std::vector<std::string> classes, uint64_t seed, uint64_t first,
                                 size_t count)
    : seed_(seed), first_(first), samples_(count) {
    classes_ = std::move(classes);
    for (const std::string& name : classes_) {
        const auto& all = all_classes();
        kinds_.push_back(int(std::find(all.begin(), all.end(), name) - all.begin()));
        ENSURE(kinds_.back() < int(all.size()), "no generated class ", name);
    }
    for (size_t i = 0; i < count; ++i) labels_.push_back(int32_t(i % classes_.size()));
}

std::string GeneratedSource::name(size_t i) const {
    return cat("generated/", classes_[size_t(labels_[i])], "/", first_ + i);
}

void GeneratedSource::read(size_t i, std::vector<uint8_t>& bytes) const {
    Lazy& sample = samples_[i];
    std::call_once(sample.drawn, [&] {
        Image image = draw_shape(kinds_[size_t(labels_[i])], seed_, first_ + i);
        for (size_t at = 0; at < image.pixels.size(); at += 3)
            std::swap(image.pixels[at], image.pixels[at + 2]);  // OpenCV's order is BGR
        const cv::Mat bgr(image.H, image.W, CV_8UC3, image.pixels.data());
        cv::imencode(".jpg", bgr, sample.jpeg, {cv::IMWRITE_JPEG_QUALITY, 90});
    });
    bytes = sample.jpeg;
}

uint64_t GeneratedSource::fingerprint() const {
    std::string text = cat("generated 1 ", seed_, " ", first_, " ", size());
    for (const std::string& name : classes_) text += " " + name;
    return hash_bytes(text);
}

}  // namespace convoy
