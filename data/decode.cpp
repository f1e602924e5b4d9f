// decode.cpp — checks untrusted bytes, then calls libjpeg-turbo or OpenCV to decode them. Headers
// are read without decoding or allocating, and every read is checked against the end.
#include "data/decode.h"

#include <boost/crc.hpp>
#include <cctype>
#include <cmath>
#include <opencv2/core/utils/logger.hpp>
#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>

#include "data/jpeg.h"
#include "data/large_image.h"
#include "src/base/bytes.h"

namespace convoy {
namespace {

using Bytes = std::span<const uint8_t>;

// What the header of an image says.
struct Header {
    int64_t W = 0, H = 0;
    size_t alpha = 0;     // TIFF: offset of the kind of its extra channel; 0: there is none
    int64_t largest = 0;  // PNM: value of a sample
    size_t begin = 0;     // PNM: of the samples
};

constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1a\n";

// The formats that can be read: signature, and extensions of files.
constexpr struct {
    std::string_view name, signature, extensions;
} kFormats[] = {
    {"jpg", "\xFF\xD8\xFF", ".jpg.jpeg.jpe.jfif.jif."},
    {"png", kPngSignature, ".png."},
    {"webp", "RIFF", ".webp."},  // and WEBP after the length
    {"bmp", "BM", ".bmp."},
    {"tif", {"II*\0", 4}, ".tif.tiff."},
    {"tif", {"MM\0*", 4}, ""},
    {"ppm", "P3", ".ppm."},
    {"ppm", "P6", ""},
    {"pgm", "P1", ".pgm."},
    {"pgm", "P2", ""},
    {"pgm", "P4", ""},
    {"pgm", "P5", ""},
};

// Other files that are often found among images, and what to do about them.
constexpr struct {
    size_t at;
    std::string_view signature;
    const char* what;
} kForeign[] = {
    {0, "GIF8", "a GIF: convert one frame of it to PNG"},
    {4, "ftypavi", "an AVIF image: convert it to JPEG or PNG"},
    {4, "ftyphe", "a HEIC image: convert it to JPEG or PNG"},
    {4, "ftyp", "a HEIF image or a video: convert it, or one frame, to JPEG or PNG"},
    {4, "JXL ", "a JPEG XL image: convert it to JPEG or PNG"},
    {0, "<", "a web page, XML or SVG: download the image itself, or convert it to PNG"},
    {0, "version https://git-lfs", "a pointer of Git LFS: run `git lfs pull`"},
};

// RIFF, length, WEBP, then one of three kinds of first chunk.
Header webp_header(Bytes bytes) {
    if (bytes.size() < 32) return {};  // too short for any decoder
    const uint32_t packed = little_endian(bytes, 21);
    if (has_text(bytes, 12, "VP8 "))
        return {little_endian(bytes, 26, 2) & 0x3FFF, little_endian(bytes, 28, 2) & 0x3FFF};
    if (has_text(bytes, 12, "VP8L")) return {(packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1};
    if (has_text(bytes, 12, "VP8X"))
        return {little_endian(bytes, 24, 3) + 1, little_endian(bytes, 27, 3) + 1};
    return {};
}

Header bmp_header(Bytes bytes) {
    if (little_endian(bytes, 14) == 12)
        return {little_endian(bytes, 18, 2), little_endian(bytes, 20, 2)};
    const int64_t H = int32_t(little_endian(bytes, 22));  // negative: the first row is on top
    return {int32_t(little_endian(bytes, 18)), H < 0 ? -H : H};
}

// The first directory: number of entries (2), then tag (2), type (2), count (4), value (4) each.
Header tiff_header(Bytes bytes) {
    const bool is_big = bytes[0] == 'M';
    const auto number = [&](size_t at, int count) {
        return is_big ? big_endian(bytes, at, count) : little_endian(bytes, at, count);
    };
    const size_t directory = number(4, 4);
    Header tiff;
    for (uint32_t i = 0; i < number(directory, 2); ++i) {
        const size_t at = directory + 2 + size_t(i) * 12;
        const uint32_t value = number(at + 8, number(at + 2, 2) == 3 ? 2 : 4);
        if (number(at, 2) == 256) tiff.W = value;
        if (number(at, 2) == 257) tiff.H = value;
        if (number(at, 2) == 338 && number(at + 4, 4) == 1) tiff.alpha = at + 8;
    }
    return tiff;
}

// The decimal number after blanks and comments; -1 if there is none.
int64_t next_number(Bytes bytes, size_t& at) {
    for (bool comment = false; at < bytes.size(); ++at) {
        comment = bytes[at] == '#' || (comment && bytes[at] != '\n');
        if (!comment && !std::isspace(bytes[at])) break;
    }
    if (at >= bytes.size() || !std::isdigit(bytes[at])) return -1;
    int64_t value = 0;
    for (; at < bytes.size() && std::isdigit(bytes[at]) && value <= INT32_MAX; ++at)
        value = value * 10 + (bytes[at] - '0');
    return value;
}

// "P6", then width, height and largest value as decimal text between blanks and comments, and one
// blank before the samples. They are bytes, or two bytes each if the largest value is above 255;
// in P2 and P3 they are text. P1 and P4 hold bits, without a largest value.
Header pnm_header(Bytes bytes) {
    size_t at = 2;
    Header pnm;
    pnm.W = next_number(bytes, at), pnm.H = next_number(bytes, at);
    if (bytes[1] != '1' && bytes[1] != '4') pnm.largest = next_number(bytes, at);
    pnm.begin = std::min(at + 1, bytes.size());
    return pnm;
}

// Points `raw` to the samples of a PNM as bytes. If their largest value is not 255, they are scaled
// to 0 to 255 in `memory`, rounded as Pillow does. OpenCV decodes bits: then `raw` is empty.
// Returns the fault, or nullptr.
const char* find_raw(Bytes bytes, const Header& header, std::vector<uint8_t>& memory, Bytes& raw) {
    if (bytes[1] == '1' || bytes[1] == '4') return nullptr;
    const auto [W, H, alpha, largest, begin] = header;
    if (largest < 1 || largest > UINT16_MAX)
        return "truncated or damaged: its largest value is not between 1 and 65535";
    const size_t n = size_t(H) * size_t(W) * (bytes[1] % 3 == 0 ? 3 : 1);
    if (bytes[1] > '4' && largest == UINT8_MAX) {
        raw = bytes.subspan(begin, std::min(n, bytes.size() - begin));
        return raw.size() == n ? nullptr : "truncated: the image data ends early";
    }
    std::vector<uint8_t> scaled;
    for (int64_t v = 0; v <= largest; ++v)
        scaled.push_back(uint8_t(std::nearbyint(double(v) / double(largest) * UINT8_MAX)));
    const size_t width = largest > UINT8_MAX ? 2 : 1;
    memory.clear();
    for (size_t at = begin; memory.size() < n;) {
        int64_t value = -1;
        if (bytes[1] < '4')
            value = next_number(bytes, at);
        else if (at + width <= bytes.size())
            value = big_endian(bytes, at, int(width)), at += width;
        if (value < 0) return "truncated: the image data ends early";
        memory.push_back(scaled[size_t(std::min(value, largest))]);
    }
    raw = memory;
    return nullptr;
}

// The header of any format except JPEG. If it is cut short, width and height may be 0 or wrong.
Header header_of(Bytes bytes, std::string_view format) {
    if (format == "png") return {big_endian(bytes, 16), big_endian(bytes, 20)};
    if (format == "webp") return webp_header(bytes);
    if (format == "bmp") return bmp_header(bytes);
    return format == "tif" ? tiff_header(bytes) : pnm_header(bytes);
}

// Whether pixels are missing at the end of an uncompressed BMP or a PBM (P4). The header of these
// formats gives the number of bytes.
bool is_truncated(Bytes bytes, const Header& header) {
    int64_t begin = 0, bits = 0, unit = 8;  // of the pixels; of a pixel; rows are whole units
    if (bytes[0] == 'B' && little_endian(bytes, 14) >= 40 && little_endian(bytes, 30) == 0)
        begin = little_endian(bytes, 10), bits = little_endian(bytes, 28, 2), unit = 32;
    if (has_text(bytes, 0, "P4")) bits = 1;
    return begin + (header.W * bits + unit - 1) / unit * unit / 8 * header.H >
           int64_t(bytes.size());
}

// Copies the chunks of a PNG that hold the pixels into `out`, and tests their checksums. The other
// chunks change no pixel, but libpng prints warnings about them. Returns the fault, or nullptr.
// A chunk: length of the data (4), type (4), data, checksum of type and data (4).
const char* essential_png(Bytes bytes, std::vector<uint8_t>& out) {
    out.assign(bytes.begin(), bytes.begin() + kPngSignature.size());
    if (!has_text(bytes, 12, "IHDR")) return "damaged: it does not begin with a header";
    bool data = false;
    for (size_t at = kPngSignature.size();;) {
        if (at + 12 > bytes.size()) return "truncated: the image data ends early";
        const size_t length = big_endian(bytes, at);
        if (length > bytes.size() - at - 12) return "truncated: the image data ends early";
        const Bytes chunk = bytes.subspan(at, length + 12);
        const bool end = has_text(chunk, 4, "IEND");
        if (end || has_text(chunk, 4, "IHDR") || has_text(chunk, 4, "PLTE") ||
            has_text(chunk, 4, "IDAT")) {
            boost::crc_32_type checksum;
            checksum.process_bytes(chunk.data() + 4, length + 4);
            if (checksum.checksum() != big_endian(chunk, length + 8))
                return "damaged: a checksum is wrong";
            out.insert(out.end(), chunk.begin(), chunk.end());
        }
        data = data || has_text(chunk, 4, "IDAT");
        if (end) return data ? nullptr : "damaged: it holds no image data";
        at += length + 12;
    }
}

// A header of a hundred bytes may claim any size. No format packs more than about 8,000 pixels of
// one bit into a byte (deflate's 1,032 times 8), so a larger claim is false.
void check_claim(const std::string& name, int64_t H, int64_t W, size_t bytes, int64_t most) {
    if (H < 1 || W < 1) fail(name, ": truncated or damaged: the header says ", W, "x", H);
    if (W > most / H) fail(name, ": claims ", W, "x", H, " pixels, more than ", most);
    if (H * W > 1'000'000 + 10'000 * int64_t(bytes))
        fail(name, ": claims ", W, "x", H, " pixels, more than ", bytes, " bytes can hold");
}

// Divides colours by alpha, with Pillow's integer division. A pixel with alpha 0 becomes black.
void divide_by_alpha(cv::Mat& bgra) {
    for (cv::Vec4b& pixel : cv::Mat_<cv::Vec4b>(bgra))
        for (int c = 0; c < 3; ++c)
            pixel[c] = pixel[3] == 0 ? 0 : uint8_t(std::min(pixel[c] * 255 / pixel[3], 255));
    cv::cvtColor(bgra, bgra, cv::COLOR_BGRA2BGR);
}

cv::Mat decode_by_opencv(Bytes bytes, const std::string& name, int how) {
    // imdecode only reads, but a cv::Mat has no pointer to const.
    const cv::Mat raw(1, int(bytes.size()), CV_8U, const_cast<uint8_t*>(bytes.data()));
    try {
        return cv::imdecode(raw, how);
    } catch (const cv::Exception& error) {
        fail(name, ": damaged: ", error.err);
    }
}

}  // namespace

std::string image_extension(Bytes bytes) {
    for (const auto& [name, signature, extensions] : kFormats) {
        if (!has_text(bytes, 0, signature)) continue;
        const bool is_pnm = name[0] == 'p' && name[1] != 'n';
        if (is_pnm && (bytes.size() < 3 || !std::isspace(bytes[2]))) continue;
        if (name == "webp" && !has_text(bytes, 8, "WEBP")) continue;
        return std::string(name);
    }
    return "";
}

bool is_image_extension(std::string_view extension) {
    return extension.size() > 1 && extension.find('.', 1) == extension.npos &&
           std::ranges::any_of(kFormats, [&](const auto& format) {
               return format.extensions.find(cat(extension, ".")) != format.extensions.npos;
           });
}

std::vector<uint8_t> encoded(const Image& image, const char* extension) {
    // Only read; cv::Mat has no read-only form.
    cv::Mat pixels(image.H, image.W, CV_8UC(image.C), const_cast<uint8_t*>(image.pixels.data()));
    cv::Mat bgr = pixels;
    if (image.C == 3) bgr.release(), cv::cvtColor(pixels, bgr, cv::COLOR_RGB2BGR);
    std::vector<uint8_t> bytes;
    cv::imencode(extension, bgr, bytes, {cv::IMWRITE_JPEG_QUALITY, 90});
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
    bytes_ = bytes, name_ = name, raw_ = {};
    const std::string format = image_extension(bytes);
    is_jpeg_ = format == "jpg";
    if (format.empty()) {
        for (const auto& [at, signature, what] : kForeign)
            if (has_text(bytes, at, signature)) fail(name, ": not read here: ", what);
        fail(name, ": not an image (neither JPEG, PNG, WebP, BMP, TIFF nor PNM)");
    }
    Header header;
    if (is_jpeg_) {
        if (!jpeg_) jpeg_ = std::make_unique<JpegReader>();
        jpeg_->open(bytes, name);
        header = {jpeg_->W(), jpeg_->H()};
    } else {
        if (format == "png") {
            if (const char* fault = essential_png(bytes, prepared_)) fail(name, ": ", fault);
            bytes_ = prepared_;
        }
        if (format == "webp" && has_text(bytes, 12, "VP8X") && (little_endian(bytes, 20, 1) & 2))
            fail(name, ": not read here: an animated WebP: convert one frame of it to PNG");
        header = header_of(bytes, format);
    }
    check_claim(name, header.H, header.W, bytes.size(), max_pixels_);
    H_ = int(header.H), W_ = int(header.W);
    if (is_truncated(bytes, header)) fail(name, ": truncated: the image data ends early");
    if (bytes[0] == 'P')
        if (const char* fault = find_raw(bytes, header, prepared_, raw_)) fail(name, ": ", fault);
    // libtiff multiplies colours by alpha of kind 2, and does not if it is of kind 0, unspecified.
    // Colours with alpha of kind 1 are multiplied in the file.
    is_premultiplied_ = false;
    if (const size_t alpha = header.alpha; alpha > 0 && alpha + 1 < bytes.size()) {
        is_premultiplied_ = (bytes[alpha] | bytes[alpha + 1]) == 1;
        prepared_.assign(bytes.begin(), bytes.end());
        prepared_[alpha] = prepared_[alpha + 1] = 0;
        bytes_ = prepared_;
    }
}

// Copies a crop of the decoded pixels, with the channels that are wanted.
void Decoder::copy_crop(Bytes pixels, Crop crop, Image& image) const {
    const size_t n = size_t(crop.W), C = pixels.size() / (size_t(H_) * size_t(W_));
    image.H = crop.H, image.W = crop.W;
    image.pixels.resize(size_t(crop.H) * n * size_t(channels_));
    uint8_t* out = image.pixels.data();
    for (int h = crop.top; h < crop.top + crop.H; ++h, out += n * size_t(channels_)) {
        const uint8_t* in = pixels.data() + (size_t(h) * size_t(W_) + size_t(crop.left)) * C;
        if (int(C) == channels_)
            std::memcpy(out, in, n * C);
        else if (channels_ == 1)
            rgb_to_grey(in, n, out);
        else
            for (size_t w = 0; w < n; ++w) out[w * 3] = out[w * 3 + 1] = out[w * 3 + 2] = in[w];
    }
}

void Decoder::read(Crop crop, Image& image) {
    ENSURE(crop.top >= 0 && crop.left >= 0 && crop.H > 0 && crop.W > 0 && crop.top + crop.H <= H_ &&
               crop.left + crop.W <= W_,
           name_, ": the crop is not inside the image of ", W_, "x", H_);
    image.C = channels_;
    const uint64_t each = is_jpeg_ ? 6 * jpeg_->is_held_whole() : raw_.empty() ? 3 : 0;  // a pixel
    LargeImage::expect(each * uint64_t(H_) * uint64_t(W_) +
                       uint64_t(crop.H) * uint64_t(crop.W) * uint64_t(channels_));
    if (is_jpeg_) return jpeg_->read(crop, image);
    if (!raw_.empty()) return copy_crop(raw_, crop, image);
    constexpr int kColour = cv::IMREAD_COLOR | cv::IMREAD_IGNORE_ORIENTATION;
    cv::Mat bgr =
        decode_by_opencv(bytes_, name_, is_premultiplied_ ? cv::IMREAD_UNCHANGED : kColour);
    if (bgr.type() == CV_8UC4)
        divide_by_alpha(bgr);
    else if (is_premultiplied_)  // of 16 bits
        bgr = decode_by_opencv(bytes_, name_, kColour);
    if (bgr.empty())
        fail(name_, ": truncated or damaged",
             image_extension(bytes_) == "tif" ? ", or of a kind not read here (32 bits)" : "");
    if (bgr.rows != H_ || bgr.cols != W_)
        fail(name_, ": damaged: the header says ", W_, "x", H_, ", the image is ", bgr.cols, "x",
             bgr.rows);
    for (int h = crop.top; h < crop.top + crop.H; ++h) {
        uint8_t* row = bgr.ptr<uint8_t>(h) + size_t(crop.left) * 3;
        for (int w = 0; w < crop.W; ++w) std::swap(row[w * 3], row[w * 3 + 2]);
    }
    copy_crop({bgr.data, bgr.total() * 3}, crop, image);  // a decoded image has no padding
}

}  // namespace convoy
