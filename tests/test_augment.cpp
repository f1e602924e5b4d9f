// test_augment.cpp — resizing against Pillow's pixels, crops and flips against torchvision's rules.
#include "data/images/augment.h"

#include <algorithm>

#include "golden.h"
#include "golden_resized.h"
#include "pictures.h"
#include "support.h"

using namespace convoy;

namespace {

constexpr float kOnes[3] = {1, 1, 1}, kZeros[3] = {0, 0, 0};

std::vector<float> resized(const Image& from, int H, int W, Crop window, bool flip) {
    Guarded out(size_t(window.H) * size_t(window.W) * size_t(from.C));
    Resizer().run(from, {H, W, window, flip}, kOnes, kZeros, out.data());
    return out;
}

uint64_t hash_of_pixels(const std::vector<float>& whole_numbers) {
    const std::string pixels(whole_numbers.begin(), whole_numbers.end());
    return hash_bytes(pixels);
}

std::vector<float> mirrored(const std::vector<float>& row, int H, int W) {
    std::vector<float> turned(row.size());
    for (int h = 0; h < H; ++h)
        for (int w = 0; w < W; ++w)
            for (int c = 0; c < 3; ++c)
                turned[size_t((h * W + w) * 3 + c)] = row[size_t((h * W + W - 1 - w) * 3 + c)];
    return turned;
}

}  // namespace

TEST_CASE("resizing gives Pillow's pixels exactly: down, up, odd, one pixel, parts of an image") {
    for (const golden::Resized& want : golden::kResized) {
        CAPTURE(want.H, want.W);
        const Image image = picture(want.H, want.W);
        const Image part = part_of(image, {want.top, want.left, want.h, want.w});
        const std::vector<float> got =
            resized(part, want.out_H, want.out_W, {0, 0, want.out_H, want.out_W}, false);
        CHECK(hash_of_pixels(got) == want.hash);
        // One channel alone: each is resized by itself.
        Image red{want.h, want.w, {}, 1};
        for (int i = 0; i < want.h * want.w; ++i) red.pixels.push_back(part.pixels[size_t(i) * 3]);
        const std::vector<float> one =
            resized(red, want.out_H, want.out_W, {0, 0, want.out_H, want.out_W}, false);
        REQUIRE(one.size() * 3 == got.size());
        for (size_t i = 0; i < one.size(); ++i) CHECK(one[i] == got[i * 3]);
    }
}

TEST_CASE("a window of a resized image is what the whole resized image has there") {
    for (int W : {45, 21}) {  // first the width, and first the height
        const Image image = picture(61, W);
        const std::vector<float> whole = resized(image, 20, 17, {0, 0, 20, 17}, false);
        for (Crop window : {Crop{0, 0, 20, 17}, {3, 5, 11, 7}, {19, 16, 1, 1}, {0, 16, 20, 1}}) {
            const std::vector<float> got = resized(image, 20, 17, window, false);
            std::vector<float> want;
            for (int h = 0; h < window.H; ++h)
                for (int i = 0; i < window.W * 3; ++i)
                    want.push_back(whole[size_t(((window.top + h) * 17 + window.left) * 3 + i)]);
            CHECK_CLOSE(got, want, 0);
            const std::vector<float> turned = resized(image, 20, 17, window, true);
            CHECK_CLOSE(turned, mirrored(want, window.H, window.W), 0);
        }
    }
}

TEST_CASE("the loops for AVX2 and for any machine give the same bits") {
    for (auto [in, out] : {std::pair{37, 9},
                           {9, 37},
                           {300, 21},
                           {5000, 3},
                           {64, 64},
                           {1, 4},
                           {40, 30},
                           {99, 50},
                           {200, 57},
                           {70, 23}}) {
        CAPTURE(in, out);
        Taps taps;
        taps.compute(in, out, 0, out);
        const Image image = picture(6, in);
        std::vector<uint8_t> pixels = image.pixels;
        pixels.resize(pixels.size() + kOverread);
        for (int C : {1, 3})
            for (bool flip : {false, true}) {
                const size_t in_bytes = size_t(in * C), out_bytes = size_t(out * C) + 1;
                std::vector<uint8_t> a(6 * out_bytes, 1), b(6 * out_bytes, 2);
                portable_across(pixels.data(), in_bytes, 6, C, taps, flip, a.data(), out_bytes);
                filter_across(pixels.data(), in_bytes, 6, C, taps, flip, b.data(), out_bytes);
                for (size_t i = 0; i < a.size(); ++i)
                    if ((i + 1) % out_bytes != 0) REQUIRE(a[i] == b[i]);  // but the spare byte
            }
        const std::vector<float> scale = random_floats(27, 1), bias = random_floats(27, 2);
        const Image tall = picture(in, 9);
        for (size_t n : {1u, 7u, 8u, 9u, 16u, 27u})
            for (size_t p = 0; p < size_t(out); ++p) {
                Guarded a(n), b(n);
                portable_down(tall.pixels.data(), 27, 0, n, taps, p, scale.data(), bias.data(),
                              a.data());
                filter_down(tall.pixels.data(), 27, 0, n, taps, p, scale.data(), bias.data(),
                            b.data());
                CHECK(std::equal(a.data(), a.data() + n, b.data()));
            }
    }
}

TEST_CASE("resizing does not read past the last pixel of the image") {
    // Exactly as many bytes as pixels, on the heap: the sanitizers see one byte more.
    for (int W : {1, 2, 3, 4, 5, 30}) {
        const Image image = picture(3, W);
        CHECK(resized(image, 2, 2, {0, 0, 2, 2}, false).size() == 12);
        CHECK(resized(part_of(image, {2, W - 1, 1, 1}), 2, 2, {0, 0, 2, 2}, true)[0] ==
              image.pixels[size_t(2 * W + W - 1) * 3]);
    }
}

TEST_CASE("validation rows are torchvision's: resized to ·256/224, centre, normalised") {
    struct Case {
        InputSize size;  // 14·256/224 = 16, and 7·256/224 = 8
        std::span<const golden::Validated> goldens;
    };
    for (const Case& one :
         {Case{14, golden::kValidated}, Case{{14, 7, 1}, golden::kValidatedGrey}}) {
        Preprocess how(one.size);
        how.augment = Augment::none;
        const size_t C = size_t(one.size.C);
        RowBuffers buffers;
        for (const golden::Validated& want : one.goldens) {
            CAPTURE(want.H, want.W);
            const Image image = picture(want.H, want.W);
            Guarded row(one.size.elems());
            input_row(C == 1 ? grey(image) : image, how, 0, 0, buffers, row.data());
            std::vector<float> pixels;
            std::vector<double> normalised;
            for (size_t i = 0; i < one.size.elems(); ++i) {
                const double mean = double(how.mean[i % C]), std = double(how.std[i % C]);
                pixels.push_back(std::round(float((double(row.data()[i]) * std + mean) * 255)));
                normalised.push_back((double(pixels[i]) / 255 - mean) / std);
            }
            CHECK_CLOSE(row.span(), normalised, 1e-6);
            CHECK(hash_of_pixels(pixels) == want.hash);
        }
    }
    CHECK(Preprocess({14, 7, 1}).mean[0] == doctest::Approx(0.449));
    CHECK(Preprocess({14, 7, 1}).std[0] == doctest::Approx(0.226));
}

TEST_CASE("a training row of a rectangle: the crop of a square input, scaled to height x width") {
    Preprocess how({6, 11, 3}), square(6);
    const Image image = picture(40, 30);
    for (Augment augment : {Augment::crop, Augment::resize}) {
        how.augment = square.augment = augment;
        for (uint64_t sample = 0; sample < 8; ++sample) {
            const Crop crop = input_crop(40, 30, how, 0, sample);
            CHECK(crop == input_crop(40, 30, square, 0, sample));
            const Resizing resizing = input_resizing(crop.H, crop.W, how, 0, sample);
            CHECK((resizing.H == 6 && resizing.W == 11 && resizing.window == Crop{0, 0, 6, 11}));
            CHECK(resizing.flip == flips(Flip::random, how.seed, 0, sample));
        }
    }
}

TEST_CASE("random_resized_crop obeys scale and ratio and depends on all of its arguments") {
    double area = 0;
    bool touched_top = false, touched_left = false;
    const int n = 2000;
    for (int i = 0; i < n; ++i) {
        const Crop crop = random_resized_crop(300, 400, 1, 2, uint64_t(i));
        CHECK(crop == random_resized_crop(300, 400, 1, 2, uint64_t(i)));
        CHECK((crop.top >= 0 && crop.left >= 0));
        CHECK((crop.top + crop.H <= 300 && crop.left + crop.W <= 400));
        // Sides are rounded to whole pixels: within half a pixel of the rule.
        CHECK((crop.W + 0.5) / (crop.H - 0.5) >= 3.0 / 4);
        CHECK((crop.W - 0.5) / (crop.H + 0.5) <= 4.0 / 3);
        CHECK((crop.H + 0.5) * (crop.W + 0.5) >= 0.08 * 300 * 400);
        area += double(crop.H) * crop.W / (300 * 400) / n;
        touched_top = touched_top || crop.top == 0;
        touched_left = touched_left || crop.left == 0;
    }
    // Uniform in [0.08, 1], but the largest often do not fit and are drawn again.
    CHECK(area > 0.40);
    CHECK(area < 0.54);
    CHECK((touched_top && touched_left));
    const Crop crop = random_resized_crop(300, 400, 1, 2, 3);
    CHECK(!(crop == random_resized_crop(300, 400, 2, 2, 3)));
    CHECK(!(crop == random_resized_crop(300, 400, 1, 3, 3)));
    CHECK(!(crop == random_resized_crop(300, 400, 1, 2, 4)));
}

TEST_CASE("random_resized_crop falls back to the centre where nothing fits, as torchvision does") {
    // 10:1 — a crop of 8 % and ratio 3/4 or more is higher than the image is: never fits.
    CHECK(random_resized_crop(1000, 10, 1, 0, 0) == Crop{493, 0, 13, 10});  // 10 / (3/4)
    CHECK(random_resized_crop(10, 1000, 1, 0, 0) == Crop{0, 493, 10, 13});  // 10 · 4/3
    CHECK(random_resized_crop(1, 1, 1, 0, 0) == Crop{0, 0, 1, 1});
    const Crop thin = random_resized_crop(1, 50000, 1, 0, 0);
    CHECK((thin.H == 1 && thin.W == 1));
}

TEST_CASE("--augment flip is a fair coin of (seed, epoch, sample)") {
    int heads = 0;
    for (uint64_t i = 0; i < 4000; ++i) heads += flips(Flip::random, 1, 2, i);
    CHECK(std::abs(heads - 2000) < 5 * 32);  // deviation √4000 / 2
    int changed = 0;
    for (uint64_t i = 0; i < 100; ++i)
        changed += flips(Flip::random, 1, 2, i) != flips(Flip::random, 1, 3, i);
    CHECK(changed > 20);
}

TEST_CASE(
    "--augment flip=alternating shows each image both ways in any two epochs; off never turns "
    "one") {
    int heads = 0;
    for (uint64_t i = 0; i < 1000; ++i) {
        const bool first = flips(Flip::alternating, 1, 0, i);
        heads += first;
        for (uint32_t epoch : {1u, 2u, 7u, 8u})
            CHECK(flips(Flip::alternating, 1, epoch, i) == (first != (epoch % 2 == 1)));
        CHECK(!flips(Flip::off, 1, uint32_t(i), i));
    }
    CHECK(std::abs(heads - 500) < 5 * 16);
    Preprocess how;
    how.augment = Augment::resize, how.changes.flip = Flip::off;
    for (uint64_t i = 0; i < 50; ++i) CHECK(!input_resizing(30, 30, how, 0, i).flip);
}

TEST_CASE(
    "a changed row: resized, moved, jittered, by the policy, normalised, erased; in this order") {
    Preprocess how;
    how.size = 15, how.seed = 5, how.augment = Augment::resize;
    const Image image = picture(40, 30);
    RowBuffers buffers;
    for (const Changes& changes :
         {Changes{.translate = 3}, Changes{.jitter = {0.4, 0.3, 0.2, 0.1}},
          Changes{.policy = AutoAugment::trivial}, Changes{.erase = 0.7},
          Changes{Flip::alternating, 2, {1, 0, 0, 0}, AutoAugment::randaugment, 0.5}}) {
        how.changes = changes;
        int plain = 0, erased = 0;
        for (uint64_t sample = 0; sample < 40; ++sample) {
            const auto random = [&](Purpose p) { return Random(how.seed, 1, sample, p); };
            const bool flip = flips(changes.flip, how.seed, 1, sample);
            CHECK(input_crop(40, 30, how, 1, sample) == Crop{0, 0, 40, 30});
            const std::vector<float> pixels = resized(image, 15, 15, {0, 0, 15, 15}, flip);
            Image want{15, 15, {pixels.begin(), pixels.end()}}, spare;
            if (changes.translate > 0) {
                Random draws = random(kTranslate);
                const uint64_t places = uint64_t(changes.translate) * 2 + 1;
                const int down = int(draws.below(places)), right = int(draws.below(places));
                shift_reflected(down - changes.translate, right - changes.translate, want, spare);
            }
            std::vector<PixelStep> steps;
            jitter_steps(changes.jitter, random(kJitter), steps);
            policy_steps(changes.policy, 15, 15, random(kPolicy), steps);
            for (const PixelStep& step : steps) change_pixels(step, want, spare);
            std::vector<float> row(want.pixels.size()), got(want.pixels.size());
            for (size_t i = 0; i < row.size(); ++i)
                row[i] = float(want.pixels[i]) * how.scale(int(i % 3)) + how.bias(int(i % 3));
            const Crop out = erased_part(15, 15, changes.erase, random(kErase));
            for (int h = out.top; h < out.top + out.H; ++h)
                std::fill_n(row.begin() + (h * 15 + out.left) * 3, out.W * 3, 0.0f);
            input_row(image, how, 1, sample, buffers, got.data());
            CHECK(got == row);
            erased += out.H > 0,
                plain += want.pixels == std::vector<uint8_t>(pixels.begin(), pixels.end());
        }
        CHECK(plain < (changes.to_bytes() ? 20 : 41));
        CHECK((erased > 0) == (changes.erase > 0));
    }
}
