// decode.cpp — checks untrusted bytes, then calls the decoder of their format. Headers are read
// without decoding or allocating, and every read is checked against the end.
#include "data/images/decode.h"

#include <webp/decode.h>

#include <cctype>
#include <cmath>

#include "data/images/bitmap.h"
#include "data/images/jpeg.h"
#include "data/images/large_image.h"
#include "src/base/bytes.h"

namespace convoy {
namespace {

using Bytes = std::span<const uint8_t>;

// The formats that can be read: signature, and extensions of files.
constexpr struct {
    std::string_view name, signature, extensions;
} kFormats[] = {
    {"jpg", "\xFF\xD8\xFF", ".jpg.jpeg.jpe.jfif.jif."},
    {"png", "\x89PNG\r\n\x1a\n", ".png."},
    {"webp", "RIFF", ".webp."},  // and WEBP after the length
    {"bmp", "BM", ".bmp."},
    {"tif", {"II*\0", 4}, ".tif.tiff."},
    {"tif", {"MM\0*", 4}, ""},
    {"tif", {"II+\0", 4}, ""},  // BigTIFF
    {"tif", {"MM\0+", 4}, ""},
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
    {0, "\xFF\x0A", "a JPEG XL image: convert it to JPEG or PNG"},
    {4, "jP  ", "a JPEG 2000 image: convert it to JPEG or PNG"},
    {0, "\xFF\x4F\xFF\x51", "a JPEG 2000 image: convert it to JPEG or PNG"},
    {0, "8BPS", "a Photoshop document: convert it to PNG"},
    {0, "\x76\x2F\x31\x01", "an OpenEXR image: convert it to PNG"},
    {0, "%PDF", "a PDF: convert its pages to PNG"},
    {0, "\x1F\x8B", "a gzip archive: unpack it"},
    {0, "PK\3\4", "a zip archive: unpack it"},
    {0, "\x93NUMPY", "a NumPy array: save it as PNG"},
    {0, "{", "JSON text, such as the message of a server: download the image itself"},
    {0, "<", "a web page, XML or SVG: download the image itself, or convert it to PNG"},
    {0, "version https://git-lfs", "a pointer of Git LFS: run `git lfs pull`"},
};

// The decimal number after blanks and comments; -1 if there is none.
int64_t next_number(Bytes bytes, size_t& at, int digits = 10) {
    for (bool comment = false; at < bytes.size(); ++at) {
        comment = bytes[at] == '#' || (comment && bytes[at] != '\n');
        if (!comment && !std::isspace(bytes[at])) break;
    }
    if (at >= bytes.size() || !std::isdigit(bytes[at])) return -1;
    int64_t value = 0;
    for (; at < bytes.size() && std::isdigit(bytes[at]) && digits-- > 0; ++at)
        value = value * 10 + (bytes[at] - '0');
    return value;
}

// "P6", then width, height and largest value as decimal text between blanks and comments, and one
// blank before the samples. They are bytes, or two bytes each if the largest value is above 255;
// in P2 and P3 they are text. P1 and P4 hold bits where 1 is black, without a largest value.
class Pnm : public Bitmap {
 public:
    Pnm(Bytes bytes, const std::string& name) : Bitmap(bytes, name), kind_(bytes[1]) {
        W = next_number(bytes, begin_), H = next_number(bytes, begin_);
        if (!is_bits()) largest_ = next_number(bytes, begin_);
        if (largest_ < 1 || largest_ > UINT16_MAX)
            fail(name, ": truncated or damaged: its largest value is not between 1 and 65535");
        begin_ = std::min(begin_ + 1, bytes.size());
        C = kind_ % 3 == 0 ? 3 : 1;
        const int64_t row = kind_ == '4' ? (W + 7) / 8 : W * C * (largest_ > UINT8_MAX ? 2 : 1);
        if (kind_ >= '4' && H > 0 && row > int64_t(bytes.size() - begin_) / H) ends_early();
    }
    Bytes raw() const override {
        return kind_ > '4' && largest_ == UINT8_MAX ? bytes_.subspan(begin_, size_t(H * W * C))
                                                    : Bytes();
    }

    // Scales samples to 0 to 255, rounded as Pillow does.
    void read(uint8_t* out) override {
        if (kind_ == '4') {
            Samples samples;
            samples.bits = 1, samples.inverted = true;
            for (int64_t y = 0; y < H; ++y, out += W)
                samples.unpack(&bytes_[begin_ + size_t(y) * samples.row_bytes(W)], W, out, 1);
            return;
        }
        std::vector<uint8_t> scaled;
        for (int64_t v = 0; v <= largest_; ++v)
            scaled.push_back(uint8_t(std::nearbyint(double(v) / double(largest_) * UINT8_MAX)));
        if (is_bits()) std::swap(scaled[0], scaled[1]);
        const size_t width = largest_ > UINT8_MAX ? 2 : 1;
        size_t at = begin_;
        for (uint8_t* end = out + H * W * C; out < end; ++out, at += kind_ < '4' ? 0 : width) {
            const int64_t value = kind_ < '4' ? next_number(bytes_, at, is_bits() ? 1 : 10)
                                              : big_endian(bytes_, at, int(width));
            if (value < 0) ends_early();
            *out = scaled[size_t(std::min(value, largest_))];
        }
    }

 private:
    bool is_bits() const { return kind_ == '1' || kind_ == '4'; }

    const uint8_t kind_;
    int64_t largest_ = 1;
    size_t begin_ = 2;
};

// WebP by libwebp: RIFF, length, WEBP, then one of three kinds of first chunk.
class WebP : public Bitmap {
 public:
    WebP(Bytes bytes, const std::string& name) : Bitmap(bytes, name) {
        const uint32_t packed = little_endian(bytes, 21);
        if (has_text(bytes, 12, "VP8 "))
            W = little_endian(bytes, 26, 2) & 0x3FFF, H = little_endian(bytes, 28, 2) & 0x3FFF;
        if (has_text(bytes, 12, "VP8L")) W = (packed & 0x3FFF) + 1, H = (packed >> 14 & 0x3FFF) + 1;
        if (has_text(bytes, 12, "VP8X"))
            W = little_endian(bytes, 24, 3) + 1, H = little_endian(bytes, 27, 3) + 1;
        if (has_text(bytes, 12, "VP8X") && (little_endian(bytes, 20, 1) & 2))
            fail(name, ": not read here: an animated WebP: convert one frame of it to PNG");
        memory = 4 * W * H;
    }
    void read(uint8_t* out) override {
        int width = 0, height = 0;
        if (!WebPGetInfo(bytes_.data(), bytes_.size(), &width, &height))
            fail(name_, ": truncated or damaged");
        if (width != W || height != H)
            fail(name_, ": damaged: the header says ", W, "x", H, ", the image is ", width, "x",
                 height);
        if (!WebPDecodeRGBInto(bytes_.data(), bytes_.size(), out, size_t(3 * W * H), int(3 * W)))
            fail(name_, ": truncated or damaged");
    }
};

// A header of a hundred bytes may claim any size. A byte of deflate holds at most 1,032 · 8 pixels
// of one bit, a byte of another format fewer than 1,000; except that TIFF and WebP pack a blank
// page of any size into a few bytes.
void check_claim(const std::string& name, std::string_view format, int64_t H, int64_t W,
                 size_t bytes) {
    constexpr int64_t kLongest = 1 << 20, kBlank = 150'000'000;
    if (H < 1 || W < 1) fail(name, ": truncated or damaged: the header says ", W, "x", H);
    if (H > kLongest || W > kLongest || W > kMaxPixels / H)
        fail(name, ": claims ", W, "x", H, " pixels, more than ", kMaxPixels);
    const int64_t each = format == "png" ? 10'000 : 1'000;
    if (H * W > each * int64_t(bytes) + (format == "tif" || format == "webp" ? kBlank : 1'000'000))
        fail(name, ": claims ", W, "x", H, " pixels, more than ", bytes, " bytes can hold");
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

void rgb_to_grey(const uint8_t* rgb, size_t n, uint8_t* grey) {
    for (size_t i = 0; i < n; ++i, rgb += 3)
        grey[i] = uint8_t((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000) >> 16);
}

Decoder::Decoder(int channels) : channels_(channels) {
    ENSURE(channels == 1 || channels == 3, channels, " channels");
}
Decoder::~Decoder() = default;

void Decoder::open(Bytes bytes, const std::string& name) {
    if (bytes.empty()) fail(name, ": the file is empty (0 bytes)");
    if (bytes.size() > size_t(INT32_MAX)) fail(name, ": ", bytes.size(), " bytes are too many");
    name_ = name, bitmap_.reset();
    const std::string format = image_extension(bytes);
    if (format.empty()) {
        size_t blank = has_text(bytes, 0, "\xEF\xBB\xBF") ? 3 : 0;  // before a web page
        while (blank < bytes.size() && std::isspace(bytes[blank])) ++blank;
        for (const auto& [at, signature, what] : kForeign)
            if (has_text(bytes, at, signature) || (at == 0 && has_text(bytes, blank, signature)))
                fail(name, ": not read here: ", what);
        fail(name, ": not an image (neither JPEG, PNG, WebP, BMP, TIFF nor PNM)");
    }
    int64_t H, W;
    if (format == "jpg") {
        if (!jpeg_) jpeg_ = std::make_unique<JpegReader>();
        jpeg_->open(bytes, name);
        H = jpeg_->H(), W = jpeg_->W();
    } else {
        bitmap_ = format == "png"    ? open_png(bytes, name)
                  : format == "bmp"  ? open_bmp(bytes, name)
                  : format == "tif"  ? open_tiff(bytes, name)
                  : format == "webp" ? std::make_unique<WebP>(bytes, name)
                                     : std::unique_ptr<Bitmap>(new Pnm(bytes, name));
        H = bitmap_->H, W = bitmap_->W;
    }
    check_claim(name, format, H, W, bytes.size());
    H_ = int(H), W_ = int(W);
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
    const uint64_t pixels = uint64_t(H_) * uint64_t(W_);
    const Bytes raw = bitmap_ ? bitmap_->raw() : Bytes();
    const uint64_t decoded = raw.empty() && bitmap_ ? pixels * uint64_t(bitmap_->C) : 0;
    LargeImage::expect(
        (bitmap_ ? decoded + uint64_t(bitmap_->memory) : 6 * pixels * jpeg_->is_held_whole()) +
        uint64_t(crop.H) * uint64_t(crop.W) * uint64_t(channels_));
    if (!bitmap_) return jpeg_->read(crop, image);
    if (!raw.empty()) return copy_crop(raw, crop, image);
    if (decoded_bytes_ < decoded)
        decoded_ = std::make_unique_for_overwrite<uint8_t[]>(decoded), decoded_bytes_ = decoded;
    bitmap_->read(decoded_.get());
    copy_crop({decoded_.get(), decoded}, crop, image);
}

}  // namespace convoy
