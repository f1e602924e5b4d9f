// jpeg.cpp — libjpeg-turbo with our error manager.
//
// The library reports damage as a warning and fills missing pixels with grey. Here a warning that
// means wrong pixels is an error. Other warnings (stray bytes between segments, an odd version
// number) are ignored. libjpeg leaves an error by longjmp, which runs no destructors, so there are
// only plain values between setjmp and the calls that may jump.
#include "data/images/jpeg.h"

#include <jerror.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "src/base/bytes.h"

namespace convoy {

constexpr int kMaxScans = 500;  // a progressive file of tiny scans could take hours

// Colour is stored at half the resolution and interpolated between neighbours. The edge of a crop
// needs its neighbours too, so this many more rows and columns are decoded.
constexpr int kMargin = 2;

// Whether an end-of-image marker follows the last scan. Goes from marker to marker, as libjpeg
// does, by the lengths of segments. Ignores data after the end, such as the film of a motion photo.
static bool has_end(std::span<const uint8_t> bytes) {
    for (size_t at = 2; at + 1 < bytes.size();) {
        const uint8_t marker = bytes[at + 1];
        if (bytes[at] != 0xFF) {  // entropy-coded data
            const void* next = std::memchr(&bytes[at], 0xFF, bytes.size() - at);
            if (!next) return false;
            at = size_t(static_cast<const uint8_t*>(next) - bytes.data());
        } else if (marker == 0xFF) {  // a fill byte
            ++at;
        } else if (marker == 0xD9) {
            return true;
        } else if (marker <= 1 || (marker >= 0xD0 && marker <= 0xD8)) {
            at += 2;  // a byte 0xFF of the data, a restart marker, or another one without a segment
        } else {
            at += 2 + std::max(big_endian(bytes, at + 2, 2), 2u);
        }
    }
    return false;
}

static JpegReader& reader_of(j_common_ptr info) {
    return *static_cast<JpegReader*>(info->client_data);
}

void cmyk_to_rgb(const uint8_t* cmyk, int W, uint8_t* rgb) {
    for (int q = 0; q < W; ++q, cmyk += 4, rgb += 3)
        for (int c = 0; c < 3; ++c) {
            const uint32_t product = (255u - cmyk[c]) * cmyk[3] + 128;
            rgb[c] = uint8_t(cmyk[3] - ((product + (product >> 8)) >> 8));
        }
}

void JpegReader::give_up(const char* what, const char* why) {
    std::snprintf(reason_, sizeof reason_, "%s%s", what, why);
    std::longjmp(escape_, 1);
}

JpegReader::JpegReader() {
    info_.err = jpeg_std_error(&errors_);
    info_.client_data = this;  // jpeg_create_decompress keeps both
    errors_.error_exit = [](j_common_ptr info) {
        char why[JMSG_LENGTH_MAX];
        info->err->format_message(info, why);
        const int code = info->err->msg_code;  // of 12 bits, lossless or JPEG-LS
        const bool is_unknown = code == JERR_BAD_PRECISION || code == JERR_SOF_UNSUPPORTED ||
                                code == JERR_UNKNOWN_MARKER;
        reader_of(info).give_up(
            is_unknown ? "damaged, or a JPEG that is not read here: " : "damaged: ", why);
    };
    errors_.emit_message = [](j_common_ptr info, int level) {
        if (level >= 0) return;  // a trace, not a warning
        switch (info->err->msg_code) {
            case JWRN_JPEG_EOF:
            case JWRN_HIT_MARKER: reader_of(info).give_up("truncated: the image data ends early");
            case JWRN_HUFF_BAD_CODE:
            case JWRN_ARITH_BAD_CODE:
            case JWRN_MUST_RESYNC: info->err->error_exit(info); break;
            default: break;
        }
    };
    errors_.output_message = [](j_common_ptr) {};  // nothing is printed
    if (setjmp(escape_)) fail("libjpeg does not start: ", reason_);
    jpeg_create_decompress(&info_);
    progress_.progress_monitor = [](j_common_ptr info) {
        if (reader_of(info).info_.input_scan_number > kMaxScans)
            reader_of(info).give_up("damaged: too many scans");
    };
    info_.progress = &progress_;
}

void JpegReader::open(std::span<const uint8_t> bytes, const std::string& name) {
    name_ = name;
    if (setjmp(escape_)) fail(name_, ": ", reason_);
    // If this image lacks tables, it must not use those of an earlier image.
    jpeg_destroy_decompress(&info_);
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    if (!has_end(bytes)) give_up("truncated: the end of the image is missing");
    jpeg_mem_src(&info_, bytes.data(), bytes.size());
    jpeg_read_header(&info_, TRUE);
    info_.out_color_space = info_.num_components == 4 ? JCS_CMYK : JCS_RGB;
}

void JpegReader::read(Crop crop, Image& image) {
    const size_t C = size_t(image.C);
    image.H = crop.H, image.W = crop.W;
    image.pixels.resize(size_t(crop.H) * size_t(crop.W) * C);
    line_.resize(size_t(W()) * 4);
    if (setjmp(escape_)) fail(name_, ": ", reason_);
    if (C == 1 && info_.jpeg_color_space == JCS_GRAYSCALE) info_.out_color_space = JCS_GRAYSCALE;
    jpeg_start_decompress(&info_);
    // libjpeg would smooth over blocks: each version in its way, and a part other than the whole.
    for (int i = 0; info_.coef_bits && i < info_.num_components; ++i)
        if (std::any_of(info_.coef_bits[i] + 1, info_.coef_bits[i] + 10, [](int n) { return n; }))
            give_up("truncated: the last scans of a progressive JPEG are missing");
    const bool cmyk = info_.out_color_space == JCS_CMYK;
    const size_t there = cmyk ? 4 : info_.out_color_space == JCS_GRAYSCALE ? 1 : 3;
    if (size_t(info_.output_components) != there)
        give_up("damaged: the number of colours contradicts the header");
    const JDIMENSION begin = JDIMENSION(crop.top), end = JDIMENSION(crop.top + crop.H);
    size_t left = size_t(crop.left);  // of the crop in line_
    if (crop.W < W()) {
        JDIMENSION first = JDIMENSION(std::max(crop.left - kMargin, 0));
        JDIMENSION width = JDIMENSION(std::min(crop.left + crop.W + kMargin, W())) - first;
        jpeg_crop_scanline(&info_, &first, &width);  // moves `first` down to a block boundary
        left -= first;
    }
    if (begin > kMargin) jpeg_skip_scanlines(&info_, begin - kMargin);
    while (info_.output_scanline < end) {
        const JDIMENSION row = info_.output_scanline;
        JSAMPROW line = line_.data();
        if (jpeg_read_scanlines(&info_, &line, 1) != 1) give_up("damaged: a row is missing");
        if (row < begin) continue;
        uint8_t* out = image.pixels.data() + size_t(row - begin) * size_t(crop.W) * C;
        const uint8_t* in = line + left * there;
        if (cmyk) cmyk_to_rgb(in, crop.W, C == 1 ? line : out);
        if (C == 1 && there > 1)
            rgb_to_grey(cmyk ? line : in, size_t(crop.W), out);
        else if (!cmyk)
            std::memcpy(out, in, size_t(crop.W) * C);
    }
    if (end == info_.output_height)
        jpeg_finish_decompress(&info_);
    else
        jpeg_abort_decompress(&info_);
}

std::vector<uint8_t> encoded(const Image& image) {
    jpeg_compress_struct info{};
    jpeg_error_mgr errors;
    std::jmp_buf escape;
    unsigned char* out = nullptr;
    unsigned long bytes = 0;
    info.err = jpeg_std_error(&errors);
    info.client_data = &escape;
    errors.error_exit = [](j_common_ptr info) {
        std::longjmp(*static_cast<std::jmp_buf*>(info->client_data), 1);
    };
    if (setjmp(escape)) {
        jpeg_destroy_compress(&info);
        fail("libjpeg cannot write an image of ", image.W, "x", image.H);
    }
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &out, &bytes);
    info.image_width = JDIMENSION(image.W), info.image_height = JDIMENSION(image.H);
    info.input_components = image.C;
    info.in_color_space = image.C == 3 ? JCS_RGB : JCS_GRAYSCALE;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, 90, TRUE);
    jpeg_start_compress(&info, TRUE);
    while (info.next_scanline < info.image_height) {  // only read, though no type says so
        auto* row = const_cast<JSAMPROW>(
            &image.pixels[size_t(info.next_scanline) * size_t(image.W) * size_t(image.C)]);
        jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
    jpeg_destroy_compress(&info);
    const std::unique_ptr<unsigned char, decltype(&std::free)> held(out, std::free);
    return {out, out + bytes};
}

}  // namespace convoy
