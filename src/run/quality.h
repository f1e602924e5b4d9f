// quality.h — what a model took the images of a set for: confusions, calibration, the worst
// mistakes.
#pragma once

#include <string>
#include <vector>

#include "data/loader.h"
#include "net/communicator.h"

namespace convoy {

// Ends of the 95 % interval of a part of which `right` of n were seen: Wilson, "Probable inference"
// (1927). 0 to 1 where n is 0.
struct Interval {
    double low, high;
};
Interval wilson_interval(double right, double n);

struct Mistake {
    float probability;  // of the guess
    int truth, guess;
    uint64_t sample;            // in this rank's source
    std::string name;           // for people
    std::vector<uint8_t> jpeg;  // the image, of up to kMistakeSide pixels; empty: cannot be read
                                // again
};

struct ClassQuality {
    double images, guessed, right;  // of the class; taken for it; both
    // 0 where there is nothing to divide by.
    double precision() const { return guessed > 0 ? right / guessed : 0; }
    double recall() const { return images > 0 ? right / images : 0; }
    double f1() const { return images + guessed > 0 ? 2 * right / (images + guessed) : 0; }
};

class Quality {
 public:
    static constexpr int kMostClasses = 4096;    // for a table of all pairs
    static constexpr size_t kMostMistakes = 16;  // kept: those of highest probability
    static constexpr int kMistakeSide = 128;
    static constexpr size_t kBins = 15;  // of probability, equally wide

    explicit Quality(int classes);

    // logits: n × classes, finite or not.
    void add(const Batch& batch, std::span<const float> logits);
    // Of all ranks together, on all ranks. Collective; reads the mistakes once more from `source`.
    void gather(Communicator& communicator, const Source& source);

    int classes() const { return classes_; }
    ClassQuality of_class(int c) const;
    // The most frequent pairs of a class and another one that it was taken for, up to `most`.
    struct Confusion {
        size_t truth, guess;
        float images;
    };
    std::vector<Confusion> confusions(size_t most) const;
    // Expected calibration error: Σ of bins' parts · |accuracy − mean probability| (Naeini, Cooper
    // and Hauskrecht, 2015).
    double calibration_error() const;

    // [truth · classes + guess]: images. Floats, to be summed over ranks; none above kMostClasses.
    std::vector<float> pairs;
    // Of guesses by their probability, bin i from i / kBins on: how many, how many of them right,
    // and the sum of their probabilities.
    struct Bin {
        float images = 0, right = 0, probability = 0;
    };
    std::vector<Bin> bins;
    std::vector<Mistake> worst;  // the worst first

 private:
    const int classes_;
};

}  // namespace convoy
