// generated.cpp — drawing the built-in data set with OpenCV.
#include "data/sources/generated.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <opencv2/imgproc.hpp>

#include "src/base/check.h"
#include "src/base/random.h"

namespace convoy {
namespace {

constexpr int kSide = 96;
constexpr int kShift = 4;  // coordinates are in sixteenths of a pixel

using Colour = cv::Vec3f;  // 0 to 1

cv::Point fixed(float x, float y) {
    return {int(std::lround(x * (1 << kShift))), int(std::lround(y * (1 << kShift)))};
}

Colour random_colour(Random& random, float low = 0.1f, float high = 0.9f) {
    Colour colour;
    for (int c = 0; c < 3; ++c) colour[c] = random.uniform(low, high);
    return colour;
}

// Covers the masked part of the canvas with a colour: plain (in half of the cases), or with
// stripes, checks or soft waves in a random direction and length.
void paint(cv::Mat canvas, const cv::Mat& mask, Random& random, const Colour& base) {
    const Colour swing = random_colour(random, -0.10f, 0.10f);
    const int kind = int(random.below(6));
    const float angle = random.uniform(0, float(M_PI)), length = random.uniform(5, 24);
    const float kx = 2 * float(M_PI) / length * std::cos(angle);
    const float ky = 2 * float(M_PI) / length * std::sin(angle);
    const float phase = random.uniform(0, 2 * float(M_PI));
    for (int y = 0; y < kSide; ++y)
        for (int x = 0; x < kSide; ++x) {
            const float cover = float(mask.at<uint8_t>(y, x)) / 255,
                        along = kx * float(x) + ky * float(y);
            if (cover == 0) continue;
            float wave = 0;
            if (kind == 1) wave = std::copysign(1.f, std::sin(along + phase));
            if (kind == 2)
                wave = std::copysign(
                    1.f, std::sin(along) * std::sin(ky * float(x) - kx * float(y) + phase));
            if (kind == 3) wave = std::sin(along + phase + 2 * std::sin(ky * float(x) / 2));
            cv::Vec3b& pixel = canvas.at<cv::Vec3b>(y, x);
            pixel = Colour(pixel) * (1 - cover) + (base + swing * wave) * 255 * cover;
        }
}

// The subject of the picture, as a mask: a circle, a square or a triangle (regular polygons of 64,
// 4 and 3 corners), all with the area π·radius², stretched and turned a little.
cv::Mat draw_outline(int kind, Random& random) {
    const float x = kSide * random.uniform(0.40f, 0.60f), y = kSide * random.uniform(0.40f, 0.60f);
    const float radius = kSide * random.uniform(0.2f, 0.32f), turn = random.uniform(-0.3f, 0.3f);
    const float stretch = std::sqrt(random.uniform(0.8f, 1.25f));
    const int corners = kind == 0 ? 64 : kind == 1 ? 4 : 3;
    const float step = 2 * float(M_PI) / float(corners);
    const float far = radius * std::sqrt(step / std::sin(step));  // from the centre to a corner
    std::vector<cv::Point> points;
    for (int i = 0; i < corners; ++i) {
        const float angle = step * (float(i) + (kind == 1 ? 0.5f : 0)) - float(M_PI) / 2;
        const float u = far * std::cos(angle) / stretch, v = far * std::sin(angle) * stretch;
        points.push_back(fixed(x + u * std::cos(turn) - v * std::sin(turn),
                               y + u * std::sin(turn) + v * std::cos(turn)));
    }
    cv::Mat mask = cv::Mat::zeros(kSide, kSide, CV_8U);
    cv::fillConvexPoly(mask, points, 255, cv::LINE_AA, kShift);
    return mask;
}

// Draws up to `most` small distractions: lines, dots and rings.
void draw_clutter(cv::Mat canvas, Random& random, uint64_t most) {
    for (uint64_t i = random.below(most + 1); i > 0; --i) {
        const uint64_t kind = random.below(3);
        const Colour colour = random_colour(random) * 255;
        const float x = kSide * random.uniform(), y = kSide * random.uniform();
        const float angle = random.uniform(0, 2 * float(M_PI));
        const float length = kind == 0 ? random.uniform(10, 50) : random.uniform(2, 6);
        const int width = 1 + int(random.below(3));
        if (kind == 0)
            cv::line(canvas, fixed(x, y),
                     fixed(x + length * std::cos(angle), y + length * std::sin(angle)), colour,
                     width, cv::LINE_AA, kShift);
        else
            cv::circle(canvas, fixed(x, y), fixed(length, 0).x, colour,
                       kind == 1 ? cv::FILLED : width, cv::LINE_AA, kShift);
    }
}

class GeneratedSource final : public Source {
 public:
    GeneratedSource(std::vector<std::string> classes, uint64_t seed, uint64_t first, size_t count)
        : seed_(seed), first_(first), samples_(count) {
        classes_ = std::move(classes);
        std::string text = cat("generated 2 ", seed, " ", first, " ", count);
        for (const std::string& name : classes_) {
            const auto kind = std::ranges::find(kGeneratedClasses, name);
            ENSURE(kind != kGeneratedClasses.end(), "no generated class ", name);
            kinds_.push_back(int(kind - kGeneratedClasses.begin()));
            text += " " + name;
        }
        for (size_t i = 0; i < count; ++i) labels_.push_back(int32_t(i % classes_.size()));
        fingerprint_ = hash_bytes(text);
    }
    std::string name(size_t i) const override {
        return cat("generated/", classes_[size_t(labels_[i])], "/", first_ + i);
    }
    void read(size_t i, std::vector<uint8_t>& bytes) const override {
        Lazy& sample = samples_[i];
        std::call_once(sample.drawn, [&] {
            sample.file = encoded(draw_shape(kinds_[size_t(labels_[i])], seed_, first_ + i));
        });
        bytes = sample.file;
    }

 private:
    struct Lazy {
        std::once_flag drawn;
        std::vector<uint8_t> file;
    };
    const uint64_t seed_, first_;
    std::vector<int> kinds_;             // of each class
    mutable std::vector<Lazy> samples_;  // a cache: read() gives the same bytes every time
};

}  // namespace

Image draw_shape(int kind, uint64_t seed, uint64_t index) {
    Random random(seed, 0, index, kGenerate);
    const Colour ground = random_colour(random);
    Colour fill = random_colour(random);
    while (cv::norm(ground - fill) < 0.5) fill = random_colour(random);

    Image image{kSide, kSide, std::vector<uint8_t>(size_t(kSide) * kSide * 3)};
    cv::Mat canvas(kSide, kSide, CV_8UC3, image.pixels.data());
    paint(canvas, cv::Mat(kSide, kSide, CV_8U, 255), random, ground);
    draw_clutter(canvas, random, 3);
    const cv::Mat outline = draw_outline(kind, random);
    paint(canvas, outline, random, fill);
    draw_clutter(canvas, random, 1);

    const float noise = 255 * 1.732f * random.uniform(0, 0.04f);  // √3: from a deviation to a range
    const float light_x = random.uniform(-0.25f, 0.25f), light_y = random.uniform(-0.25f, 0.25f);
    for (int y = 0; y < kSide; ++y)
        for (int x = 0; x < kSide; ++x) {
            const float light =
                1 + light_x * (float(x) / kSide - 0.5f) + light_y * (float(y) / kSide - 0.5f);
            for (uint8_t& c : canvas.at<cv::Vec3b>(y, x).val)
                c = cv::saturate_cast<uint8_t>(float(c) * light + random.uniform(-noise, noise));
        }
    return image;
}

SourcePtr generated_source(std::vector<std::string> classes, uint64_t seed, uint64_t first,
                           size_t count) {
    return std::make_shared<GeneratedSource>(std::move(classes), seed, first, count);
}

}  // namespace convoy
