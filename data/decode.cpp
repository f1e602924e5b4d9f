// decode.cpp — checks untrusted bytes, then lets libjpeg-turbo or OpenCV decode them. Headers are
// read without decoding or allocating, and every read is checked against the end.
#include "data/decode.h"

#include <boost/crc.hpp>
#include <cctype>
#include <cstring>
#include <opencv2/core/utils/logger.hpp>
#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>
#include <string_view>

#include "data/jpeg.h"
#include "data/large_image.h"
#include "src/base/check.h"

namespace convoy {
namespace {

using Bytes = std::span<const uint8_t>;

enum class Format { unknown, jpeg, png, webp, bmp, tiff, pnm };

struct ImageSize {
    int64_t W = 0, H = 0;
};

constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1a\n";

bool has(Bytes bytes, size_t at, std::string_view text) {
    return at + text.size() <= bytes.size() &&
           std::memcmp(bytes.data() + at, text.data(), text.size()) == 0;
}

// `count` bytes from `at`, most significant first. Past the end: 0.
uint32_t big(Bytes bytes, size_t at, int count) {
    uint32_t value = 0;
    for (size_t i = at; i < at + size_t(count); ++i)
        value = value << 8 | (i < bytes.size() ? bytes[i] : 0u);
    return value;
}
// The same, least significant first.
uint32_t little(Bytes bytes, size_t at, int count) {
    return __builtin_bswap32(big(bytes, at, count)) >> (32 - 8 * count);
}

// RIFF, length, WEBP, then one of three kinds of first chunk.
ImageSize webp_size(Bytes bytes) {
    if (bytes.size() < 32) return {};  // too short for any decoder
    const uint32_t packed = little(bytes, 21, 4);
    if (has(bytes, 12, "VP8 "))
        return {little(bytes, 26, 2) & 0x3FFF, little(bytes, 28, 2) & 0x3FFF};
    if (has(bytes, 12, "VP8L")) return {(packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1};
    if (has(bytes, 12, "VP8X")) return {little(bytes, 24, 3) + 1, little(bytes, 27, 3) + 1};
    return {};
}

ImageSize bmp_size(Bytes bytes) {
    if (little(bytes, 14, 4) == 12) return {little(bytes, 18, 2), little(bytes, 20, 2)};
    const int64_t H = int32_t(little(bytes, 22, 4));  // negative: the first row is on top
    return {int32_t(little(bytes, 18, 4)), H < 0 ? -H : H};
}

// The first directory: number of entries (2), then tag (2), type (2), count (4), value (4) each.
ImageSize tiff_size(Bytes bytes) {
    const auto number = bytes[0] == 'M' ? big : little;
    const size_t directory = number(bytes, 4, 4);
    ImageSize size;
    for (uint32_t i = 0; i < number(bytes, directory, 2); ++i) {
        const size_t at = directory + 2 + size_t(i) * 12;
        const uint32_t value = number(bytes, at + 8, number(bytes, at + 2, 2) == 3 ? 2 : 4);
        if (number(bytes, at, 2) == 256) size.W = value;
        if (number(bytes, at, 2) == 257) size.H = value;
    }
    return size;
}

// "P6", then width, height and largest value as decimal text between blanks and comments, and one
// blank before the pixels.
struct Pnm {
    ImageSize size;
    size_t raw = 0;  // where the pixels begin, if they are binary and of 8 bits
};

Pnm pnm_header(Bytes bytes) {
    size_t at = 2;
    const auto next = [&] {
        for (bool comment = false; at < bytes.size(); ++at) {
            comment = bytes[at] == '#' || (comment && bytes[at] != '\n');
            if (!comment && !std::isspace(bytes[at])) break;
        }
        int64_t value = 0;
        for (; at < bytes.size() && std::isdigit(bytes[at]) && value <= INT32_MAX; ++at)
            value = value * 10 + (bytes[at] - '0');
        return value;
    };
    Pnm pnm;
    pnm.size.W = next(), pnm.size.H = next();
    if ((bytes[1] == '5' || bytes[1] == '6') && next() == 255 && at < bytes.size())
        pnm.raw = at + 1;
    return pnm;
}

Format format_of(Bytes bytes) {
    if (has(bytes, 0, "\xFF\xD8\xFF")) return Format::jpeg;
    if (has(bytes, 0, kPngSignature)) return Format::png;
    if (has(bytes, 0, "RIFF") && has(bytes, 8, "WEBP")) return Format::webp;
    if (has(bytes, 0, "BM")) return Format::bmp;
    if (has(bytes, 0, {"II*\0", 4}) || has(bytes, 0, {"MM\0*", 4})) return Format::tiff;
    if (bytes.size() > 2 && bytes[0] == 'P' && bytes[1] >= '1' && bytes[1] <= '6' &&
        std::isspace(bytes[2]))
        return Format::pnm;
    return Format::unknown;
}

// Width and height from the header of any format but JPEG (libjpeg reads that). When it is cut
// short they may be 0, or anything.
ImageSize size_of(Bytes bytes, Format format) {
    switch (format) {
        case Format::png: return {big(bytes, 16, 4), big(bytes, 20, 4)};
        case Format::webp: return webp_size(bytes);
        case Format::bmp: return bmp_size(bytes);
        case Format::tiff: return tiff_size(bytes);
        case Format::pnm: return pnm_header(bytes).size;
        default: return {};
    }
}

// Whether bytes are missing, where the header alone tells: uncompressed BMP, binary PNM.
bool is_truncated(Bytes bytes, Format format, ImageSize size) {
    int64_t begin = 0, bits = 0, unit = 8;  // of the pixels; of a pixel; rows are whole units
    if (format == Format::bmp && little(bytes, 14, 4) >= 40 && little(bytes, 30, 4) == 0)
        begin = little(bytes, 10, 4), bits = little(bytes, 28, 2), unit = 32;
    if (format == Format::pnm && bytes[1] >= '4')
        bits = bytes[1] == '4' ? 1 : bytes[1] == '5' ? 8 : 24;
    return begin + (size.W * bits + unit - 1) / unit * unit / 8 * size.H > int64_t(bytes.size());
}

// Copies the chunks of a PNG that hold the pixels into `out` and tests their checksums. The others
// (colour profiles, texts, animation) change no pixel here, but libpng prints its warnings about
// them. Returns the fault, or nullptr. A chunk: length of the data (4), type (4), data, checksum of
// type and data (4).
const char* essential_png(Bytes bytes, std::vector<uint8_t>& out) {
    out.assign(bytes.begin(), bytes.begin() + kPngSignature.size());
    if (!has(bytes, 12, "IHDR")) return "damaged: it does not begin with a header";
    bool data = false;
    for (size_t at = kPngSignature.size();;) {
        if (at + 12 > bytes.size()) return "truncated: the image data ends early";
        const size_t length = big(bytes, at, 4);
        if (length > bytes.size() - at - 12) return "truncated: the image data ends early";
        const Bytes chunk = bytes.subspan(at, length + 12);
        const bool end = has(chunk, 4, "IEND");
        if (end || has(chunk, 4, "IHDR") || has(chunk, 4, "PLTE") || has(chunk, 4, "IDAT")) {
            boost::crc_32_type checksum;
            checksum.process_bytes(chunk.data() + 4, length + 4);
            if (checksum.checksum() != big(chunk, length + 8, 4))
                return "damaged: a checksum is wrong";
            out.insert(out.end(), chunk.begin(), chunk.end());
        }
        data = data || has(chunk, 4, "IDAT");
        if (end) return data ? nullptr : "damaged: it holds no image data";
        at += length + 12;
    }
}

// A header of a hundred bytes may claim any size. No format packs more than about 8,000 pixels of
// one bit into a byte (deflate's 1,032 times 8), so a larger claim is false.
void check_claim(const std::string& name, int64_t H, int64_t W, size_t bytes, int64_t most) {
    if (H < 1 || W < 1) fail(name, ": truncated or damaged: the header says ", W, "x", H);
    if (W > most / H) fail(name, ": claims ", W, "x", H, " pixels; --max-pixels is ", most);
    if (H * W > 1'000'000 + 10'000 * int64_t(bytes))
        fail(name, ": claims ", W, "x", H, " pixels, more than ", bytes, " bytes can hold");
}

cv::Mat decode_by_opencv(Bytes bytes, const std::string& name) {
    // imdecode only reads, but a cv::Mat has no pointer to const.
    const cv::Mat raw(1, int(bytes.size()), CV_8U, const_cast<uint8_t*>(bytes.data()));
    try {
        return cv::imdecode(raw, cv::IMREAD_COLOR | cv::IMREAD_IGNORE_ORIENTATION);
    } catch (const cv::Exception& error) {
        fail(name, ": damaged: ", error.err);
    }
}

}  // namespace

std::vector<uint8_t> encoded(const Image& image, const char* extension, int quality) {
    // Only read; cv::Mat has no read-only form.
    cv::Mat pixels(image.H, image.W, CV_8UC(image.C), const_cast<uint8_t*>(image.pixels.data()));
    cv::Mat bgr = pixels;
    if (image.C == 3) bgr.release(), cv::cvtColor(pixels, bgr, cv::COLOR_RGB2BGR);
    std::vector<uint8_t> bytes;
    cv::imencode(extension, bgr, bytes, {cv::IMWRITE_JPEG_QUALITY, quality});
    return bytes;
}

void rgb_to_grey(const uint8_t* rgb, size_t n, uint8_t* grey) {
    for (size_t i = 0; i < n; ++i, rgb += 3)
        grey[i] = uint8_t((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000) >> 16);
}

Decoder::Decoder(int channels, int64_t max_pixels) : channels_(channels), max_pixels_(max_pixels) {
    ENSURE(channels == 1 || channels == 3, channels, " channels");
    [[maybe_unused]] static const auto once =
        cv::utils::logging::setLogLevel(cv::utils::logging::LOG_LEVEL_SILENT);
}
Decoder::~Decoder() = default;

void Decoder::open(Bytes bytes, const std::string& name) {
    if (bytes.empty()) fail(name, ": the file is empty (0 bytes)");
    if (bytes.size() > size_t(INT32_MAX)) fail(name, ": ", bytes.size(), " bytes are too many");
    bytes_ = bytes, name_ = name;
    const Format format = format_of(bytes);
    is_jpeg_ = format == Format::jpeg;
    if (format == Format::unknown)
        fail(name, ": not an image (neither JPEG, PNG, WebP, BMP, TIFF nor PNM)");
    ImageSize size;
    if (is_jpeg_) {
        if (!jpeg_) jpeg_ = std::make_unique<JpegReader>();
        jpeg_->open(bytes, name);
        size = {jpeg_->W(), jpeg_->H()};
    } else {
        if (format == Format::png) {
            if (const char* fault = essential_png(bytes, essential_)) fail(name, ": ", fault);
            bytes_ = essential_;
        }
        size = size_of(bytes, format);
    }
    check_claim(name, size.H, size.W, bytes.size(), max_pixels_);
    if (is_truncated(bytes, format, size)) fail(name, ": truncated: the image data ends early");
    H_ = int(size.H), W_ = int(size.W);
    raw_ = format == Format::pnm ? pnm_header(bytes).raw : 0;
    if (raw_ && bytes.size() - raw_ < size_t(H_) * size_t(W_) * (bytes[1] == '5' ? 1 : 3))
        fail(name, ": truncated: the image data ends early");
}

// Pixels that are there already: a crop of them is copied, in the channels that are wanted.
void Decoder::read_raw(Crop crop, Image& image) const {
    const bool grey = bytes_[1] == '5';
    const size_t C = grey ? 1 : 3, n = size_t(crop.W);
    image.H = crop.H, image.W = crop.W;
    image.pixels.resize(size_t(crop.H) * n * size_t(channels_));
    uint8_t* out = image.pixels.data();
    for (int h = crop.top; h < crop.top + crop.H; ++h, out += n * size_t(channels_)) {
        const uint8_t* in = bytes_.data() + raw_ + (size_t(h) * size_t(W_) + size_t(crop.left)) * C;
        if (int(C) == channels_)
            std::memcpy(out, in, n * C);
        else if (channels_ == 1)
            rgb_to_grey(in, n, out);
        else
            for (size_t w = 0; w < n; ++w) out[w * 3] = out[w * 3 + 1] = out[w * 3 + 2] = in[w];
    }
}

void Decoder::read(Crop crop, Image& image, int reduction) {
    ENSURE(crop.top >= 0 && crop.left >= 0 && crop.H > 0 && crop.W > 0 && crop.top + crop.H <= H_ &&
               crop.left + crop.W <= W_,
           name_, ": the crop is not inside the image of ", W_, "x", H_);
    image.C = channels_;
    const uint64_t each = is_jpeg_ ? 6 * jpeg_->is_held_whole() : raw_ ? 0 : 3;  // bytes a pixel
    LargeImage::expect(each * uint64_t(H_) * uint64_t(W_) +
                       uint64_t(crop.H) * uint64_t(crop.W) * uint64_t(channels_));
    if (is_jpeg_) return jpeg_->read(crop, image, reduction);
    if (raw_) return read_raw(crop, image);
    cv::Mat bgr = decode_by_opencv(bytes_, name_);
    if (bgr.empty())
        fail(name_, ": truncated or damaged",
             format_of(bytes_) == Format::tiff ? ", or compressed in a way that is not read here"
                                               : "");
    if (bgr.rows != H_ || bgr.cols != W_)
        fail(name_, ": damaged: the header says ", W_, "x", H_, ", the image is ", bgr.cols, "x",
             bgr.rows);
    image.H = crop.H, image.W = crop.W;
    const size_t row_bytes = size_t(crop.W) * size_t(channels_);
    image.pixels.resize(size_t(crop.H) * row_bytes);
    uint8_t* out = image.pixels.data();
    for (int h = crop.top; h < crop.top + crop.H; ++h, out += row_bytes) {
        uint8_t* row = bgr.ptr<uint8_t>(h) + size_t(crop.left) * 3;
        for (int w = 0; w < crop.W; ++w) std::swap(row[w * 3], row[w * 3 + 2]);
        if (channels_ == 3)
            std::copy_n(row, row_bytes, out);
        else
            rgb_to_grey(row, row_bytes, out);
    }
}

}  // namespace convoy
