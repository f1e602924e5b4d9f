// quality.h — how well a model classifies the images of a set: confusions, calibration, the worst
// mistakes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/loader.h"
#include "kernels/backend.h"
#include "net/ring/communicator.h"

namespace convoy {

// The 95 % confidence interval of a fraction, if `right` of n samples had it: Wilson, "Probable
// inference" (1927). 0 to 1 if n is 0.
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
    float images, guessed, right;  // images of the class; guesses of it; right guesses
    // 0 instead of a division by 0.
    double precision() const { return guessed > 0 ? double(right) / guessed : 0; }
    double recall() const { return images > 0 ? double(right) / images : 0; }
    double f1() const { return images + guessed > 0 ? 2.0 * right / (images + guessed) : 0; }
};

// The fields "macro_f1" and "recall" (of each class) of an event, and their text ("macro F1 0.713
// recall hat 33.3 %, …", the lowest recall first). Empty if no class has more than three times the
// images of another. Classes without images do not count.
nlohmann::json class_fields(const std::vector<ClassQuality>& all);
std::string class_text(const std::vector<ClassQuality>& all, const std::vector<std::string>& names);

class Quality {
 public:
    static constexpr int kMostClasses = 4096;    // for a table of all pairs
    static constexpr size_t kMostMistakes = 16;  // with the highest probability
    static constexpr int kMistakeSide = 128;
    static constexpr size_t kBins = 15;  // of probability, equally wide

    explicit Quality(int classes);

    // logits: n × classes, finite or not.
    void add(const Batch& batch, std::span<const float> logits);
    void add(const Batch& batch, Tensor logits, Backend& backend) {
        logits_.resize(logits.elems());
        backend.download(logits_.data(), logits.data, logits_.size() * sizeof(float));
        add(batch, logits_);
    }
    // Adds up all ranks, on all ranks. Collective. Reads the mistakes again from `source`.
    void gather(Communicator& communicator, const Source& source);

    ClassQuality of_class(int c) const;
    // Of every class, summed over the ranks, before gather(). Collective. None above kMostClasses.
    std::vector<ClassQuality> classes_of_all(Communicator& communicator) const;
    // Up to `most` pairs of a true class and a wrong guess, the most frequent first.
    struct Confusion {
        size_t truth, guess;
        float images;
    };
    std::vector<Confusion> confusions(size_t most) const;
    // Expected calibration error: Σ of bins' parts · |accuracy − mean probability| (Naeini, Cooper
    // and Hauskrecht, 2015).
    double calibration_error() const;

    const int classes;
    // [truth · classes + guess]: images. Floats, to be summed over ranks; none above kMostClasses.
    std::vector<float> pairs;
    // Guesses by their probability. Bin i begins at i / kBins: number of guesses, number of right
    // guesses, and sum of the probabilities.
    struct Bin {
        float images = 0, right = 0, probability = 0;
    };
    std::vector<Bin> bins;
    std::vector<Mistake> worst;  // the worst first

 private:
    std::vector<float> logits_;
};

}  // namespace convoy
