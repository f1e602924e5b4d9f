// decode.cpp — which library decodes what, and the checks before it may.
#include "data/decode.h"

#include <cstring>
#include <mutex>
#include <opencv2/core/utils/logger.hpp>
#include <opencv2/imgcodecs.hpp>

#include "data/format.h"
#include "data/jpeg.h"
#include "src/base/check.h"

namespace convoy {
namespace {

constexpr int64_t kMaxPixels = 178'956'970;  // Pillow's: a quarter of 2^31 bytes at 3 a pixel

// A header of a hundred bytes may claim any size. No format packs more than about 8,000 pixels of
// one bit into a byte (deflate's 1,032 times 8), so a claim beyond that is a lie.
void check_claim(const std::string& name, int64_t H, int64_t W, size_t bytes) {
    if (H < 1 || W < 1) fail(name, ": damaged: the size ", W, "x", H, " makes no sense");
    if (W > kMaxPixels / H)
        fail(name, ": claims ", W, "x", H, " pixels; the limit is ", kMaxPixels);
    if (H * W > 1'000'000 + 10'000 * int64_t(bytes))
        fail(name, ": claims ", W, "x", H, " pixels, more than ", bytes, " bytes can hold");
}

cv::Mat decode_by_opencv(std::span<const uint8_t> bytes, const std::string& name) {
    static std::once_flag silenced;
    std::call_once(silenced,
                   [] { cv::utils::logging::setLogLevel(cv::utils::logging::LOG_LEVEL_SILENT); });
    // imdecode only reads, but a cv::Mat has no pointer to const.
    const cv::Mat raw(1, int(bytes.size()), CV_8U, const_cast<uint8_t*>(bytes.data()));
    try {
        return cv::imdecode(raw, cv::IMREAD_COLOR | cv::IMREAD_IGNORE_ORIENTATION);
    } catch (const cv::Exception& error) {
        fail(name, ": damaged: ", error.err);
    }
}

}  // namespace

Decoder::Decoder() = default;
Decoder::~Decoder() = default;

void Decoder::open(std::span<const uint8_t> bytes, const std::string& name) {
    if (bytes.empty()) fail(name, ": the file is empty (0 bytes)");
    if (bytes.size() > size_t(INT32_MAX)) fail(name, ": ", bytes.size(), " bytes are too many");
    bytes_ = bytes, name_ = name;
    format_ = format_of(bytes);
    if (format_ == Format::unknown)
        fail(name, ": not an image (neither JPEG, PNG, WebP, BMP, TIFF nor PNM)");
    ImageSize size;
    if (format_ == Format::jpeg) {
        if (!jpeg_) jpeg_ = std::make_unique<JpegReader>();
        jpeg_->open(bytes, name);
        size = {jpeg_->W(), jpeg_->H()};
    } else {
        if (format_ == Format::png)
            if (const char* fault = essential_png(bytes, essential_)) fail(name, ": ", fault);
        size = size_of(bytes, format_);
    }
    check_claim(name, size.H, size.W, bytes.size());
    if (is_cut_short(bytes, format_)) fail(name, ": truncated: the image data ends early");
    H_ = int(size.H), W_ = int(size.W);
}

void Decoder::read(Crop crop, Image& image) {
    ENSURE(crop.top >= 0 && crop.left >= 0 && crop.H > 0 && crop.W > 0 && crop.top + crop.H <= H_ &&
               crop.left + crop.W <= W_,
           name_, ": the crop leaves the image of ", W_, "x", H_);
    if (format_ == Format::jpeg) return jpeg_->read(crop, image);
    const cv::Mat bgr = decode_by_opencv(
        format_ == Format::png ? std::span<const uint8_t>(essential_) : bytes_, name_);
    if (bgr.empty()) fail(name_, ": truncated or damaged");
    if (bgr.rows != H_ || bgr.cols != W_)
        fail(name_, ": damaged: the header says ", W_, "x", H_, ", the image is ", bgr.cols, "x",
             bgr.rows);
    image.H = crop.H, image.W = crop.W;
    image.pixels.resize(size_t(crop.H) * size_t(crop.W) * 3);
    uint8_t* out = image.pixels.data();
    for (int h = crop.top; h < crop.top + crop.H; ++h) {
        const uint8_t* in = bgr.ptr<uint8_t>(h) + size_t(crop.left) * 3;
        for (int w = 0; w < crop.W; ++w, in += 3, out += 3)
            out[0] = in[2], out[1] = in[1], out[2] = in[0];
    }
}

void decode(std::span<const uint8_t> bytes, const std::string& name, Image& image) {
    Decoder decoder;
    decoder.open(bytes, name);
    decoder.read(image);
}

}  // namespace convoy
