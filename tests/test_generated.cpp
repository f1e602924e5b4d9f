// test_generated.cpp — the built-in set is varied, repeatable, and not to be solved by colour.
#include "data/generated.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>

#include "data/dataset.h"
#include "pictures.h"
#include "src/base/check.h"
#include "src/job/job_setup.h"
#include "support.h"

using namespace convoy;

namespace {

struct Colours {
    std::vector<std::array<double, 3>> mean;
    std::vector<int> label;
};

// Mean colour of n pictures from `first` on, in [0, 1].
Colours mean_colours(uint64_t first, size_t n) {
    Colours set;
    for (size_t i = 0; i < n; ++i) {
        const int kind = int(i % 3);
        const Image image = draw_shape(kind, 0, first + i);
        std::array<double, 3> mean = {};
        for (size_t at = 0; at < image.pixels.size(); ++at)
            mean[at % 3] += image.pixels[at] / (255.0 * image.H * image.W);
        set.mean.push_back(mean), set.label.push_back(kind);
    }
    return set;
}

// Multinomial logistic regression on the mean colour and its squares, by gradient descent.
double logistic_accuracy(const Colours& train, const Colours& val) {
    const auto features = [](const std::array<double, 3>& m) {
        return std::array<double, 7>{1,
                                     m[0] - 0.5,
                                     m[1] - 0.5,
                                     m[2] - 0.5,
                                     4 * std::pow(m[0] - 0.5, 2),
                                     4 * std::pow(m[1] - 0.5, 2),
                                     4 * std::pow(m[2] - 0.5, 2)};
    };
    double w[3][7] = {};
    const auto scores = [&](const std::array<double, 7>& x) {
        std::array<double, 3> s = {};
        for (int k = 0; k < 3; ++k)
            for (size_t f = 0; f < 7; ++f) s[size_t(k)] += w[k][f] * x[f];
        return s;
    };
    for (int round = 0; round < 400; ++round) {
        double gradient[3][7] = {};
        for (size_t i = 0; i < train.mean.size(); ++i) {
            const std::array<double, 7> x = features(train.mean[i]);
            std::array<double, 3> s = scores(x);
            double sum = 0;
            for (double& v : s) v = std::exp(v), sum += v;
            for (int k = 0; k < 3; ++k)
                for (size_t f = 0; f < 7; ++f)
                    gradient[k][f] += (s[size_t(k)] / sum - (train.label[i] == k)) * x[f] /
                                      double(train.mean.size());
        }
        for (int k = 0; k < 3; ++k)
            for (size_t f = 0; f < 7; ++f) w[k][f] -= 5 * gradient[k][f];
    }
    int right = 0;
    for (size_t i = 0; i < val.mean.size(); ++i) {
        const std::array<double, 3> s = scores(features(val.mean[i]));
        right += std::max_element(s.begin(), s.end()) - s.begin() == val.label[i];
    }
    return double(right) / double(val.mean.size());
}

DataSet open(const DataOptions& options) {
    Log log;
    return open_data(options, log);
}

}  // namespace

TEST_CASE("mean colour does not tell the generated classes apart") {
    const Colours train = mean_colours(0, 900), val = mean_colours(900, 600);
    // Chance is 1/3; the deviation of 600 guesses √(1/3 · 2/3 / 600) = 0.019.
    CHECK(logistic_accuracy(train, val) < 1.0 / 3 + 3 * 0.02);
}

TEST_CASE("the colour classifier of this test does find colour if there is some") {
    Colours train = mean_colours(0, 150), val = mean_colours(150, 150);
    for (Colours* set : {&train, &val})
        for (size_t i = 0; i < set->mean.size(); ++i) set->mean[i][size_t(set->label[i])] += 0.3;
    CHECK(logistic_accuracy(train, val) > 0.6);
}

TEST_CASE("a bare trainer's data: 2,500 pictures to train on, 500 to validate, none in both") {
    const DataSet set = open({});
    CHECK(set.train->size() == 2500);
    CHECK(set.val->size() == 500);
    CHECK(set.train->classes() == std::vector<std::string>{"circle", "square", "triangle"});
    std::vector<uint8_t> train, val;
    set.train->read(0, train), set.val->read(0, val);
    CHECK(train != val);
    CHECK(set.train->name(0) != set.val->name(0));
    CHECK(set.train->fingerprint() != set.val->fingerprint());
    CHECK(set.train->fingerprint() == open({}).train->fingerprint());
    CHECK(set.train->fingerprint() != open({.seed = 1}).train->fingerprint());
    const DataSet two = open({.classes = {"triangle", "circle"}, .generated = 60});
    CHECK(two.train->classes().size() == 2);
    CHECK(two.train->size() == 50);
    CHECK_FAILS(open({.classes = {"circle", "star"}}), "no class 'star'");
    CHECK_FAILS(open({.generated = 2}), "too few");
}

TEST_CASE("a generated sample is a JPEG, the same at every read, from many threads at once") {
    const GeneratedSource source(GeneratedSource::all_classes(), 7, 100, 12);
    const GeneratedSource again(GeneratedSource::all_classes(), 7, 100, 12);
    std::vector<std::vector<uint8_t>> got(12), want(12);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            std::vector<uint8_t> bytes;
            for (size_t i = 0; i < 12; ++i) {
                source.read(i, bytes);
                if (int(i) % 4 == t) got[i] = bytes;
            }
        });
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < 12; ++i) {
        again.read(i, want[i]);
        CHECK(got[i] == want[i]);
        const Image image = decoded(want[i]);
        CHECK((image.H == 96 && image.W == 96));
        CHECK(source.label(i) == int32_t(i % 3));
        // Near to what was drawn: JPEG at quality 90 changes little.
        const Image drawn = draw_shape(int(i % 3), 7, 100 + i);
        double error = 0;
        for (size_t at = 0; at < drawn.pixels.size(); ++at)
            error +=
                std::abs(double(image.pixels[at]) - drawn.pixels[at]) / double(drawn.pixels.size());
        CHECK(error < 25);  // of 255; colour noise is what JPEG drops first
    }
}

TEST_CASE("--generated takes a number; music is made by another program, which the error names") {
    Config config;
    config.generated = "60";
    CHECK(data_options(config).generated == 60);
    for (const char* text : {"music", "music:600"}) {
        config.generated = text;
        CHECK_FAILS(data_options(config), "./spectrograms --music");
    }
    for (const char* text : {"23", "x", "", "1000001"}) {
        config.generated = text;
        CHECK_FAILS(data_options(config), "--generated");
    }
}
