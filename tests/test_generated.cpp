// test_generated.cpp — the built-in set is varied, repeatable, and not to be solved by colour.
#include "data/sources/generated.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>

#include "data_files.h"
#include "pictures.h"
#include "src/session/job_setup.h"
#include "support.h"

using namespace convoy;

namespace {

// How far the mean colours of a class, or their squares, lie from those of all n pictures: the
// largest difference, in standard errors. added: to one channel of each class.
double difference_of_colours(size_t n, double added) {
    std::vector<std::array<double, 6>> all(n);
    for (size_t i = 0; i < n; ++i) {
        const Image image = draw_shape(int(i % 3), 0, i);
        std::array<double, 3> mean = {};
        for (size_t at = 0; at < image.pixels.size(); ++at)
            mean[at % 3] += image.pixels[at] / (255.0 * image.H * image.W);
        mean[i % 3] += added;
        for (size_t c = 0; c < 3; ++c) all[i][c] = mean[c], all[i][c + 3] = mean[c] * mean[c];
    }
    double largest = 0;
    for (size_t f = 0; f < 6; ++f) {
        double of_class[3] = {}, sum = 0, squares = 0;
        for (size_t i = 0; i < n; ++i)
            of_class[i % 3] += all[i][f], sum += all[i][f], squares += all[i][f] * all[i][f];
        const double mean = sum / double(n), of_each = double(n) / 3;
        const double error = std::sqrt((squares / double(n) - mean * mean) / of_each);
        for (const double one : of_class)
            largest = std::max(largest, std::abs(one / of_each - mean) / error);
    }
    return largest;
}

}  // namespace

TEST_CASE("mean colour does not tell the generated classes apart") {
    CHECK(difference_of_colours(1500, 0) < 5);
    CHECK(difference_of_colours(300, 0.3) > 5);  // if there is a difference, it is found
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
    const SourcePtr source = generated_source(kGeneratedClasses, 7, 100, 12);
    const SourcePtr again = generated_source(kGeneratedClasses, 7, 100, 12);
    std::vector<std::vector<uint8_t>> got(12), want(12);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            std::vector<uint8_t> bytes;
            for (size_t i = 0; i < 12; ++i) {
                source->read(i, bytes);
                if (int(i) % 4 == t) got[i] = bytes;
            }
        });
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < 12; ++i) {
        again->read(i, want[i]);
        CHECK(got[i] == want[i]);
        const Image image = decoded(want[i]);
        CHECK((image.H == 96 && image.W == 96));
        CHECK(source->label(i) == int32_t(i % 3));
        // Near to what was drawn: JPEG at quality 90 changes little.
        const Image drawn = draw_shape(int(i % 3), 7, 100 + i);
        double error = 0;
        for (size_t at = 0; at < drawn.pixels.size(); ++at)
            error +=
                std::abs(double(image.pixels[at]) - drawn.pixels[at]) / double(drawn.pixels.size());
        CHECK(error < 25);  // of 255; colour noise is what JPEG drops first
    }
}

TEST_CASE("--generated takes a number") {
    Config config;
    set_option(config, "generated", "60");
    CHECK(data_options(config).generated == 60);
    for (const char* text : {"23", "x", "", "1000001", "music"})
        CHECK_FAILS(set_option(config, "generated", text), "--generated");
}
