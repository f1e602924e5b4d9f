// tiff.cpp — TIFF by libtiff, strip by strip or tile by tile. Whatever libtiff reports while it
// decodes is an error here, and what layout() does not know is refused by name.
#define ZLIB_CONST  // next_in
#include <tiffio.h>
#include <zlib.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <vector>

#include "data/images/bitmap.h"
#include "src/base/bytes.h"
#include "src/base/text.h"

namespace convoy {
namespace {

class Tiff : public Bitmap {
 public:
    Tiff(std::span<const uint8_t> bytes, const std::string& name) : Bitmap(bytes, name) {
        [[maybe_unused]] static const bool once = [] {  // for the process; nothing is printed
            TIFFSetErrorHandler(nullptr), TIFFSetWarningHandler(nullptr);
            TIFFSetErrorHandlerExt(note), TIFFSetWarningHandlerExt(note);
            return true;
        }();
        tiff_.reset(TIFFClientOpen(
            "libtiff", "r", this,
            [](thandle_t at, void* to, tmsize_t n) {  // for the header alone, from its begin on
                Tiff& tiff = self(at);
                n = std::min(n, tmsize_t(tiff.bytes_.size() - tiff.at_));
                std::memcpy(to, &tiff.bytes_[tiff.at_], size_t(n)), tiff.at_ += size_t(n);
                return n;
            },
            [](thandle_t, void*, tmsize_t) { return tmsize_t(0); },
            [](thandle_t, toff_t, int) { return toff_t(0); }, [](thandle_t) { return 0; },
            [](thandle_t at) { return toff_t(self(at).bytes_.size()); },
            [](thandle_t at, void** begin, toff_t* n) {  // all else is read where it is
                *begin = const_cast<uint8_t*>(self(at).bytes_.data()), *n = self(at).bytes_.size();
                return 1;
            },
            [](thandle_t, void*, toff_t) {}));
        if (!tiff_) fail(name, ": truncated or damaged: ", fault_);
        layout();
        fault_.clear();
    }

    void read(uint8_t* out) override {
        const auto buffer = std::make_unique_for_overwrite<uint8_t[]>(size_t(memory));
        // From a pixel of the file to the next, and to the one below, in `out`.
        const bool turned = orientation_ > 4;
        const int64_t w = turned ? H : W, h = turned ? W : H;
        int64_t across = C * (turned ? W : 1), down = C * (turned ? 1 : W);
        if (is_one_of("\2\3\7\10", orientation_)) out += across * (w - 1), across = -across;
        if (is_one_of("\3\4\6\7", orientation_)) out += down * (h - 1), down = -down;
        for (uint16_t plane = 0; plane < (planes_ ? C : 1); ++plane)
            for (int64_t y = 0; y < h; y += unit_H_)
                for (int64_t x = 0; x < w; x += unit_W_) {
                    const int64_t rows = std::min(unit_H_, h - y);
                    read_unit(uint32_t(x), uint32_t(y), plane, rows, buffer.get());
                    for (int64_t r = 0; r < rows; ++r)
                        samples_.unpack(&buffer[size_t(r) * samples_.row_bytes(unit_W_)],
                                        std::min(unit_W_, w - x),
                                        out + (y + r) * down + x * across + plane, across);
                }
        samples_.check_largest(name_);
    }

 private:
    static Tiff& self(thandle_t at) { return *static_cast<Tiff*>(at); }
    static void note(thandle_t at, const char*, const char* format, va_list values) {
        char text[200];
        std::vsnprintf(text, sizeof text, format, values);
        if (at && self(at).fault_.empty()) self(at).fault_ = join_text(split(text, '\n'), " ");
    }
    static bool is_one_of(const char* numbers, int number) {
        return std::string_view(numbers).find(char(number)) != std::string_view::npos;
    }
    template <class... Parts>
    [[noreturn]] void refuse(const Parts&... what) const {
        fail(name_, ": not read here: a TIFF ", what..., ": convert it to PNG");
    }
    template <class Number>
    Number field(uint32_t tag, Number otherwise) const {
        TIFFGetField(tiff_.get(), tag, &otherwise);
        return otherwise;
    }

    // A field of the file, or 0: libtiff makes a palette image without colours grey, and fills up a
    // short palette. The first directory holds entries of tag, type, count and value.
    size_t in_file(uint32_t tag, bool is_count) const {
        const bool big = bytes_[0] == 'M', wide = (bytes_[2] | bytes_[3]) == 43;
        const auto number = [&](size_t at, int n) {
            return size_t(big ? big_endian(bytes_, at, n) : little_endian(bytes_, at, n));
        };
        const auto low = [&](size_t at) { return number(at + (wide && big ? 4 : 0), 4); };
        const size_t directory = low(wide ? 8 : 4), each = wide ? 20 : 12;
        const size_t n = number(directory + (wide && big ? 6 : 0), 2);
        for (size_t i = 0, at = directory + (wide ? 8 : 2); i < n; ++i, at += each)
            if (number(at, 2) == tag)
                return is_count ? low(at + 4) : number(at + (wide ? 12 : 8), 2);
        return 0;
    }

    // Reads the tags, and refuses what Pillow does not read, or reads in another way.
    void layout() {
        const int packing = field<uint16_t>(TIFFTAG_COMPRESSION, 1);
        const int kind = field<uint16_t>(TIFFTAG_PHOTOMETRIC, PHOTOMETRIC_MINISWHITE);
        const int bits = field<uint16_t>(TIFFTAG_BITSPERSAMPLE, 1);
        const int count = field<uint16_t>(TIFFTAG_SAMPLESPERPIXEL, 1);
        constexpr int kPackings[] = {1, 2, 3, 4, 5, 7, 8, 32773, 32946};
        if (!std::ranges::count(kPackings, packing)) {
            const TIFFCodec* codec = TIFFFindCODEC(uint16_t(packing));
            refuse("of compression ", packing, codec ? " " : "", codec ? codec->name : "");
        }
        if (const int format = field<uint16_t>(TIFFTAG_SAMPLEFORMAT, 1); format != 1)
            refuse("of ", bits, "-bit numbers with a sign or a fraction (sample format ", format,
                   ")");
        uint16_t extra = 0, *extras = nullptr;
        TIFFGetField(tiff_.get(), TIFFTAG_EXTRASAMPLES, &extra, &extras);
        const bool multiplied = extra > 0 && extras[0] == EXTRASAMPLE_ASSOCALPHA;
        planes_ = count > 1 && field<uint16_t>(TIFFTAG_PLANARCONFIG, 1) == PLANARCONFIG_SEPARATE;

        int used = 1;
        if (in_file(TIFFTAG_PHOTOMETRIC, false) == PHOTOMETRIC_PALETTE && bits <= 8)
            read_palette(bits, kind);
        else if (kind == PHOTOMETRIC_RGB)
            used = 3;
        else if (kind == PHOTOMETRIC_SEPARATED && !planes_)
            used = 4;
        else if (kind == PHOTOMETRIC_YCBCR && packing == COMPRESSION_JPEG && count == 3 && !planes_)
            used = 3, TIFFSetField(tiff_.get(), TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
        else if (kind != PHOTOMETRIC_MINISBLACK && kind != PHOTOMETRIC_MINISWHITE)
            refuse("of photometric interpretation ", kind, ", ", bits, " bits and compression ",
                   packing);
        const int more = count - used;
        const bool inverted = kind == PHOTOMETRIC_MINISWHITE;
        is_deflate_ = packing == COMPRESSION_DEFLATE || packing == COMPRESSION_ADOBE_DEFLATE;
        if (is_deflate_ && field<uint16_t>(TIFFTAG_FILLORDER, 1) != 1)
            refuse("of compression ", packing, " with reversed bits");
        const bool is_small = (bits == 1 || bits == 2 || bits == 4) && used == 1 && more == 0;
        if (!is_small && bits != 8 && (bits != 16 || inverted))
            refuse("of ", bits, " bits, photometric interpretation ", kind);
        if (more < 0 || more > (used == 1 ? 1 : 3) || (more > 0 && inverted) ||
            (multiplied && (used != 3 || more == 0)) || (planes_ && (multiplied || bits != 8)))
            refuse("of ", count, " samples a pixel, photometric interpretation ", kind);

        const uint32_t w = field<uint32_t>(TIFFTAG_IMAGEWIDTH, 0);
        const uint32_t h = field<uint32_t>(TIFFTAG_IMAGELENGTH, 0);
        orientation_ = field<uint16_t>(TIFFTAG_ORIENTATION, 1);
        W = orientation_ > 4 ? h : w, H = orientation_ > 4 ? w : h;
        C = used == 1 && !samples_.palette ? 1 : 3;
        if (std::max(w, h) > 1 << 20) return;  // refused for its size
        samples_.bits = bits, samples_.count = planes_ ? 1 : count,
        samples_.used = planes_ ? 1 : used;
        samples_.low_first = true, samples_.inverted = inverted, samples_.multiplied = multiplied;
        is_tiled_ = TIFFIsTiled(tiff_.get());
        unit_W_ = is_tiled_ ? field<uint32_t>(TIFFTAG_TILEWIDTH, 0) : w;
        unit_H_ = is_tiled_ ? field<uint32_t>(TIFFTAG_TILELENGTH, 0)
                            : std::min(field<uint32_t>(TIFFTAG_ROWSPERSTRIP, h), h);
        memory = int64_t(is_tiled_ ? TIFFTileSize64(tiff_.get()) : TIFFStripSize64(tiff_.get()));
        if (is_tiled_ && unit_W_ > (1 << 24) / std::max<int64_t>(unit_H_, 1))
            refuse("of tiles of ", unit_W_, "x", unit_H_);
        if (unit_W_ < 1 || unit_H_ < 1 || memory != unit_H_ * int64_t(samples_.row_bytes(unit_W_)))
            fail(name_, ": damaged: a strip or tile of ", memory, " bytes");
    }

    void read_palette(int bits, int kind) {
        uint16_t* colours[3];
        if ((kind != PHOTOMETRIC_PALETTE && kind != PHOTOMETRIC_MINISBLACK) ||
            in_file(TIFFTAG_COLORMAP, true) != size_t(3) << bits ||
            !TIFFGetField(tiff_.get(), TIFFTAG_COLORMAP, &colours[0], &colours[1], &colours[2]))
            refuse("whose palette is missing or damaged");
        for (size_t i = 0; i < size_t(3) << bits; ++i)
            palette_.push_back(uint8_t(colours[i % 3][i / 3] >> 8));
        if (std::ranges::count(palette_, 0) == std::ssize(palette_))
            refuse("with a palette of 8-bit colours, not 16-bit ones");
        samples_.palette = palette_.data();
    }

    void read_unit(uint32_t x, uint32_t y, uint16_t plane, int64_t rows, uint8_t* to) {
        TIFF* tiff = tiff_.get();
        const tmsize_t size = is_tiled_ ? memory : rows * tmsize_t(samples_.row_bytes(unit_W_));
        const uint32_t unit =
            is_tiled_ ? TIFFComputeTile(tiff, x, y, 0, plane) : TIFFComputeStrip(tiff, y, plane);
        const auto decode = is_tiled_ ? TIFFReadEncodedTile : TIFFReadEncodedStrip;
        if (decode(tiff, unit, to, size) != size && fault_.empty()) fault_ = "its data ends early";
        if (fault_.empty() && is_deflate_) check_sum(unit);
        if (!fault_.empty()) fail(name_, ": truncated or damaged: ", fault_);
    }

    // libtiff stops before the checksum of deflate, so garbage would be accepted.
    void check_sum(uint32_t unit) {
        z_stream stream{};
        stream.next_in = &bytes_[TIFFGetStrileOffset(tiff_.get(), unit)];
        stream.avail_in = uInt(TIFFGetStrileByteCount(tiff_.get(), unit));
        if (inflateInit(&stream) != Z_OK) fail(name_, ": zlib does not start");
        uint8_t ignored[1 << 15];
        int result = Z_OK;
        while (result == Z_OK) {
            stream.next_out = ignored, stream.avail_out = sizeof ignored;
            result = inflate(&stream, Z_NO_FLUSH);
        }
        if (result == Z_DATA_ERROR) fault_ = stream.msg;
        inflateEnd(&stream);
    }

    size_t at_ = 0;      // what libtiff reads next
    std::string fault_;  // what libtiff has reported first
    Samples samples_;
    std::vector<uint8_t> palette_;
    bool planes_ = false, is_tiled_ = false, is_deflate_ = false;
    int orientation_ = 1;
    int64_t unit_W_ = 0, unit_H_ = 0;  // of a strip or tile
    std::unique_ptr<TIFF, void (*)(TIFF*)> tiff_{nullptr, TIFFClose};
};

}  // namespace

std::unique_ptr<Bitmap> open_tiff(std::span<const uint8_t> bytes, const std::string& name) {
    return std::make_unique<Tiff>(bytes, name);
}

}  // namespace convoy
