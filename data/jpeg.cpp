// jpeg.cpp — libjpeg-turbo with our error manager.
//
// The library reports damage as a warning and fills what is missing with grey. Here a warning that
// means wrong pixels is an error; one that does not (stray bytes between segments, an odd version
// number) is ignored. libjpeg's way out of an error is longjmp, which runs no destructors: so
// between setjmp and the calls that may jump there are only plain values.
#include "data/jpeg.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>  // jpeglib.h needs FILE
#include <cstring>

#include <jpeglib.h>  // before jerror.h
//
#include <jerror.h>

#include "src/base/check.h"

namespace convoy {
namespace {

constexpr int kMaxScans = 500;  // progressive files of a few bytes a scan could keep us for hours

// Colour is stored at half the resolution and interpolated between neighbours. At the edge of a
// part the library has no neighbour, so a little more than the part is decoded.
constexpr int kMargin = 16;

}  // namespace

struct JpegReader::State {
    jpeg_decompress_struct info;  // first: the callbacks find the State by this address
    jpeg_error_mgr errors;
    jpeg_progress_mgr progress;
    std::jmp_buf escape;
    char reason[JMSG_LENGTH_MAX + 16];

    [[noreturn]] void give_up(const char* why) {
        std::snprintf(reason, sizeof reason, "%s", why);
        std::longjmp(escape, 1);
    }
    bool open(std::span<const uint8_t> bytes);
    bool read(Crop crop, uint8_t* pixels, uint8_t* line);
};

namespace {

using State = JpegReader::State;

[[noreturn]] void on_error(j_common_ptr info) {
    char why[JMSG_LENGTH_MAX];
    info->err->format_message(info, why);
    reinterpret_cast<State*>(info)->give_up(why);
}

void on_message(j_common_ptr info, int level) {
    if (level >= 0) return;  // a trace, not a warning
    switch (info->err->msg_code) {
        case JWRN_JPEG_EOF:
        case JWRN_HIT_MARKER:
            reinterpret_cast<State*>(info)->give_up("truncated: the image data ends early");
        case JWRN_HUFF_BAD_CODE:
        case JWRN_ARITH_BAD_CODE:
        case JWRN_MUST_RESYNC: on_error(info);
        default: break;
    }
}

void on_progress(j_common_ptr info) {
    State& state = *reinterpret_cast<State*>(info);
    if (state.info.input_scan_number > kMaxScans) state.give_up("damaged: too many scans");
}

// Inks as Adobe stores them, inverted: 255 is no ink. rgb = k − k·ink/255, rounded as Pillow does.
void cmyk_to_rgb(const uint8_t* cmyk, int W, uint8_t* rgb) {
    for (int q = 0; q < W; ++q, cmyk += 4, rgb += 3)
        for (int c = 0; c < 3; ++c) {
            const uint32_t product = (255u - cmyk[c]) * cmyk[3] + 128;
            rgb[c] = uint8_t(cmyk[3] - ((product + (product >> 8)) >> 8));
        }
}

// A file that was cut short has no end-of-image marker behind its last scan header.
bool has_end(std::span<const uint8_t> bytes) {
    for (size_t i = bytes.size(); i >= 2; --i) {
        if (bytes[i - 2] != 0xFF) continue;
        if (bytes[i - 1] == 0xD9) return true;
        if (bytes[i - 1] == 0xDA) return false;
    }
    return false;
}

}  // namespace

// The two functions that may be jumped back into return false with `reason` set.
bool State::open(std::span<const uint8_t> bytes) {
    if (setjmp(escape)) return false;
    jpeg_abort_decompress(&info);  // what an earlier error left behind
    if (!has_end(bytes)) give_up("truncated: the end of the image is missing");
    jpeg_mem_src(&info, bytes.data(), bytes.size());
    jpeg_read_header(&info, TRUE);
    info.out_color_space = info.num_components == 4 ? JCS_CMYK : JCS_RGB;
    return true;
}

bool State::read(Crop crop, uint8_t* pixels, uint8_t* line) {
    if (setjmp(escape)) return false;
    jpeg_start_decompress(&info);
    const bool cmyk = info.out_color_space == JCS_CMYK;
    if (info.output_components != (cmyk ? 4 : 3)) give_up("damaged: the colours make no sense");
    const JDIMENSION begin = JDIMENSION(crop.top), end = JDIMENSION(crop.top + crop.H);
    size_t left = size_t(crop.left);  // of the crop in `line`
    if (crop.W < int(info.output_width)) {
        JDIMENSION first = JDIMENSION(std::max(crop.left - kMargin, 0));
        JDIMENSION width =
            std::min(JDIMENSION(crop.left + crop.W + kMargin), info.output_width) - first;
        jpeg_crop_scanline(&info, &first, &width);  // moves `first` down to a block boundary
        left -= first;
    }
    if (begin > kMargin) jpeg_skip_scanlines(&info, begin - kMargin);
    while (info.output_scanline < end) {
        const JDIMENSION row = info.output_scanline;
        if (jpeg_read_scanlines(&info, &line, 1) != 1) give_up("damaged: a row is missing");
        if (row < begin) continue;
        uint8_t* out = pixels + size_t(row - begin) * size_t(crop.W) * 3;
        if (cmyk)
            cmyk_to_rgb(line + left * 4, crop.W, out);
        else
            std::memcpy(out, line + left * 3, size_t(crop.W) * 3);
    }
    if (end == info.output_height)
        jpeg_finish_decompress(&info);
    else
        jpeg_abort_decompress(&info);
    return true;
}

JpegReader::JpegReader() : state_(std::make_unique<State>()) {
    State& state = *state_;
    state.info.err = jpeg_std_error(&state.errors);
    state.errors.error_exit = on_error;
    state.errors.emit_message = on_message;
    state.errors.output_message = [](j_common_ptr) {};  // nothing is printed
    if (setjmp(state.escape)) fail("libjpeg does not start: ", state.reason);
    jpeg_create_decompress(&state.info);
    state.progress.progress_monitor = on_progress;
    state.info.progress = &state.progress;
}

JpegReader::~JpegReader() { jpeg_destroy_decompress(&state_->info); }

void JpegReader::open(std::span<const uint8_t> bytes, const std::string& name) {
    name_ = name;
    if (!state_->open(bytes)) fail(name_, ": ", state_->reason);
}

int JpegReader::H() const { return int(state_->info.image_height); }
int JpegReader::W() const { return int(state_->info.image_width); }

void JpegReader::read(Crop crop, Image& image) {
    image.H = crop.H, image.W = crop.W;
    image.pixels.resize(size_t(crop.H) * size_t(crop.W) * 3);
    line_.resize(size_t(W()) * 4);
    if (!state_->read(crop, image.pixels.data(), line_.data())) fail(name_, ": ", state_->reason);
}

}  // namespace convoy
