// augmentations.cpp — draws data/augmentations.jpg: what each augmentation makes of a generated
// picture. `make augmentations` builds it; it takes the name of the file to write.
#include <fmt/format.h>

#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>

#include "data/augment.h"
#include "data/generated.h"

using namespace convoy;

namespace {

constexpr int kSide = 48, kStep = kSide + 4, kMargin = 208, kColumns = 7;

class Sheet {
 public:
    explicit Sheet(int rows)
        : canvas_(rows * kStep, kMargin + kColumns * kStep, CV_8UC3, cv::Scalar::all(255)) {}
    void title(const std::string& text) {
        cv::putText(canvas_, text, {4, ++row_ * kStep + kStep / 2 + 4}, cv::FONT_HERSHEY_SIMPLEX,
                    0.42, cv::Scalar::all(0), 1, cv::LINE_AA);
        column_ = 0;
    }
    void add(const std::vector<float>& row, const Preprocess& how) {
        const int top = row_ * kStep + 2, left = kMargin + column_++ * kStep;
        for (int i = 0; i < kSide * kSide * 3; ++i) {
            const int c = i % 3;
            const double pixel = double((row[size_t(i)] - how.bias(c)) / how.scale(c));
            canvas_.at<cv::Vec3b>(top + i / 3 / kSide, left + i / 3 % kSide)[2 - c] =
                cv::saturate_cast<uint8_t>(pixel);
        }
    }
    void write(const char* file) const {
        cv::imwrite(file, canvas_, {cv::IMWRITE_JPEG_QUALITY, 45});
    }

 private:
    cv::Mat canvas_;
    int row_ = -1, column_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
    const struct {
        const char* title;
        Changes changes;
        Augment augment = Augment::resize;
    } rows[] = {
        {"crop,flip", {}, Augment::crop},
        {"flip=alternating", {.flip = Flip::alternating}},
        {"translate=16", {.flip = Flip::off, .translate = 16}},
        {"jitter=0.4:0.4:0.4:0.1", {.flip = Flip::off, .jitter = {0.4, 0.4, 0.4, 0.1}}},
        {"randaugment", {.flip = Flip::off, .policy = AutoAugment::randaugment}},
        {"trivial", {.flip = Flip::off, .policy = AutoAugment::trivial}},
        {"erase=1", {.flip = Flip::off, .erase = 1}},
        {"mixup=1", {.flip = Flip::off, .mixup = 1}},
        {"cutmix=1", {.flip = Flip::off, .cutmix = 1}},
    };
    const Image picture = draw_shape(2, 1, 38), other = draw_shape(0, 1, 45);
    Sheet sheet(11);
    RowBuffers buffers;
    std::vector<float> row(kSide * kSide * 3), partner(row.size());
    for (const auto& [title, changes, augment] : rows) {
        sheet.title(title);
        Preprocess how(kSide);
        how.augment = augment, how.changes = changes;
        for (uint32_t epoch = 0; epoch < kColumns; ++epoch) {
            const Crop crop = input_crop(picture.H, picture.W, how, epoch, 0);
            Image part{crop.H, crop.W, {}};
            for (int h = crop.top; h < crop.top + crop.H; ++h) {
                const auto from = picture.pixels.begin() + (h * picture.W + crop.left) * 3;
                part.pixels.insert(part.pixels.end(), from, from + crop.W * 3);
            }
            input_row(part, how, epoch, 0, buffers, row.data());
            if (changes.mix()) {
                input_row(other, how, epoch, 1, buffers, partner.data());
                mix_rows(draw_mix(changes.mixup, changes.cutmix, kSide, kSide,
                                  {how.seed, epoch, 0, kMix}),
                         kSide, kSide, 3, partner.data(), row.data());
            }
            sheet.add(row, how);
        }
    }
    // The operations of the policies, one after the other.
    Preprocess how(kSide);
    how.augment = Augment::resize, how.changes.flip = Flip::off;
    const float scale[] = {how.scale(0), how.scale(1), how.scale(2)};
    const float bias[] = {how.bias(0), how.bias(1), how.bias(2)};
    for (int op = 0; op < kPolicyOps; ++op) {
        if (op % kColumns == 0)
            sheet.title(op == 0 ? "trivial's operations" : "at magnitude 12 of 30");
        constexpr float kOnes[] = {1, 1, 1}, kZeros[] = {0, 0, 0};
        Resizer().run(view(picture), {kSide, kSide, {0, 0, kSide, kSide}, false}, kOnes, kZeros,
                      row.data());
        Image image{kSide, kSide, {row.begin(), row.end()}}, spare;
        change_pixels(policy_step(AutoAugment::trivial, op, 12, false, kSide, kSide), image, spare);
        normalise_pixels(image, scale, bias, row.data());
        sheet.add(row, how);
    }
    sheet.write(argc > 1 ? argv[1] : "augmentations.jpg");
}
