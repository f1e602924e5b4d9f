// bitmap.cpp — packed samples to pixels, and the decoders of PNG and BMP.
#include "data/images/bitmap.h"

#define ZLIB_CONST  // next_in
#include <zlib.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "data/images/jpeg.h"
#include "src/base/bytes.h"

namespace convoy {

void Samples::unpack(const uint8_t* row, int64_t W, uint8_t* out, int64_t step) {
    if (bits == 8 && used == 3 && !multiplied) {
        for (int64_t w = 0; w < W; ++w, row += count, out += step)
            out[0] = row[0], out[1] = row[1], out[2] = row[2];
        return;
    }
    const int most = (1 << std::min(bits, 8)) - 1, scale = palette ? 1 : 255 / most;
    for (int64_t w = 0; w < W; ++w, out += step) {
        uint8_t pixel[8];
        for (int s = 0; s < used + multiplied; ++s) {
            const size_t i = size_t(w * count + s);
            int value = 0;
            if (bits == 8) {
                value = row[i];
            } else if (bits == 16) {
                value = row[2 * i + low_first];
                largest = std::max(largest, value << 8 | row[2 * i + !low_first]);
            } else {
                const size_t bit = i * size_t(bits);
                value = (row[bit / 8] >> (8 - bits - int(bit % 8)) & most) * scale;
            }
            pixel[s] = uint8_t(inverted != (used == 4) ? 255 - value : value);
        }
        if (palette)
            std::copy_n(palette + 3 * pixel[0], 3, out);
        else if (used == 4)
            cmyk_to_rgb(pixel, 1, out);
        else
            for (int s = 0; s < used; ++s)
                out[s] = !multiplied        ? pixel[s]
                         : pixel[used] == 0 ? uint8_t(0)
                                            : uint8_t(std::min(pixel[s] * 255 / pixel[used], 255));
    }
}

void Samples::check_largest(const std::string& name) const {
    if (bits == 16 && largest > 0 && largest < 4096)
        fail(name, ": no sample of 16 bits is above ", largest, " of 65535, so it would be nearly ",
             "black: scale it, for 12 bits by `mogrify -evaluate multiply 16 FILE` (ImageMagick)");
}

namespace {

using Bytes = std::span<const uint8_t>;

// A chunk: length of the data (4), type (4), data, checksum of type and data (4). Chunks that
// change no pixel are ignored, also where they are damaged.
class Png : public Bitmap {
 public:
    Png(Bytes bytes, const std::string& name) : Bitmap(bytes, name) {
        const int bits = bytes.size() < 29 ? 0 : bytes[24],
                  kind = bytes.size() < 29 ? 0 : bytes[25];
        // For each kind: samples of a pixel, and the sum of the possible numbers of bits.
        constexpr int kCounts[] = {1, 0, 3, 1, 2, 0, 4}, kBits[] = {31, 0, 24, 15, 24, 0, 24};
        if (!has_text(bytes, 12, "IHDR") || kind > 6 || bits == 0 || (bits & kBits[kind]) != bits ||
            (bits & (bits - 1)))
            fail(name, ": truncated or damaged: no header, or an impossible one");
        W = big_endian(bytes, 16), H = big_endian(bytes, 20), C = kind == 0 || kind == 4 ? 1 : 3;
        samples_.bits = bits, samples_.count = kCounts[kind],
        samples_.used = kCounts[kind] < 3 ? 1 : 3;
        if (kind == 3) samples_.palette = palette_.data();
    }

    void read(uint8_t* out) override {
        // An interlaced image is seven smaller ones: the first row and column of each, and the
        // steps.
        constexpr int kPasses[][4] = {{0, 0, 8, 8}, {0, 4, 8, 8}, {4, 0, 8, 4}, {0, 2, 4, 4},
                                      {2, 0, 4, 2}, {0, 1, 2, 2}, {1, 0, 2, 1}, {0, 0, 1, 1}};
        if (inflateInit(&stream_) != Z_OK) fail(name_, ": zlib does not start");
        const std::unique_ptr<z_stream, int (*)(z_stream*)> closed(&stream_, inflateEnd);
        const bool interlaced = big_endian(bytes_, 28, 1) == 1;
        for (int pass = interlaced ? 0 : 7; pass < (interlaced ? 7 : 8); ++pass) {
            const auto [top, left, down, across] = kPasses[pass];
            const int64_t width = (W - left + across - 1) / across;
            if (width < 1) continue;
            std::vector<uint8_t> row(kZeros + samples_.row_bytes(width)), above(row.size());
            for (int64_t y = top; y < H; y += down, row.swap(above)) {
                inflate_row(row);
                undo_filter(&row[kZeros], &above[kZeros], row.size() - kZeros);
                samples_.unpack(&row[kZeros], width, out + (y * W + left) * C, across * C);
            }
        }
        samples_.check_largest(name_);
    }

 private:
    void inflate_row(std::vector<uint8_t>& row) {
        stream_.next_out = &row[kZeros - 1], stream_.avail_out = uInt(row.size() - kZeros + 1);
        while (stream_.avail_out > 0) {
            while (stream_.avail_in == 0) next_chunk();
            const int result = inflate(&stream_, Z_NO_FLUSH);
            if (result != Z_OK && (result != Z_STREAM_END || stream_.avail_out > 0))
                fail(name_, ": damaged: ", stream_.msg ? stream_.msg : "rows are missing");
        }
    }

    void next_chunk() {
        const size_t length = big_endian(bytes_, at_);
        if (at_ + 12 > bytes_.size() || length > bytes_.size() - at_ - 12) ends_early();
        const Bytes chunk = bytes_.subspan(at_ + 4, length + 4);
        if (has_text(chunk, 0, "IEND")) fail(name_, ": damaged: rows are missing");
        const bool is_data = has_text(chunk, 0, "IDAT"), is_palette = has_text(chunk, 0, "PLTE");
        if ((is_data || is_palette || has_text(chunk, 0, "IHDR")) &&
            crc32_z(0, chunk.data(), chunk.size()) != big_endian(bytes_, at_ + 8 + length))
            fail(name_, ": damaged: a checksum is wrong");
        if (is_palette) std::copy_n(&chunk[4], std::min(length, palette_.size()), &palette_[0]);
        if (is_data) stream_.next_in = chunk.data() + 4, stream_.avail_in = uInt(length);
        at_ += length + 12;
    }

    // The byte before a row says what was subtracted from each byte: 0 nothing, 1 the byte of the
    // pixel to the left, 2 that above, 3 their mean, 4 the nearest of left, above, and upper left
    // to left + above − upper left.
    void undo_filter(uint8_t* row, const uint8_t* above, size_t n) {
        const int pixel = std::max(samples_.bits * samples_.count / 8, 1);
        const uint8_t *left = row - pixel, *corner = above - pixel;
        const int kind = std::exchange(row[-1], 0);
        if (kind > 4) fail(name_, ": damaged: a row has a filter of kind ", kind);
        for (size_t i = 0; kind == 1 && i < n; ++i) row[i] = uint8_t(row[i] + left[i]);
        for (size_t i = 0; kind == 2 && i < n; ++i) row[i] = uint8_t(row[i] + above[i]);
        for (size_t i = 0; kind == 3 && i < n; ++i)
            row[i] = uint8_t(row[i] + (left[i] + above[i]) / 2);
        for (size_t i = 0; kind == 4 && i < n; ++i) {
            const int up = above[i] - corner[i], side = left[i] - corner[i];
            const int a = std::abs(up), b = std::abs(side), c = std::abs(up + side);
            const uint8_t other = b <= c ? above[i] : corner[i];
            row[i] = uint8_t(row[i] + (a <= b && a <= c ? left[i] : other));
        }
    }

    static constexpr size_t kZeros = 8;  // before a row: the pixel to the left of the first
    Samples samples_;
    std::array<uint8_t, 768> palette_{};
    z_stream stream_{};
    size_t at_ = 8;  // of the next chunk
};

// Pixels of 1, 4 or 8 bits are indices into a palette, also packed as runs (RLE). Those of 16, 24
// and 32 bits have a mask for each colour. Rows begin at the bottom, and are whole words of 32
// bits.
class Bmp : public Bitmap {
 public:
    Bmp(Bytes bytes, const std::string& name) : Bitmap(bytes, name) {
        const size_t size = little_endian(bytes, 14);
        const bool old = size == 12;
        W = old ? little_endian(bytes, 18, 2) : little_endian(bytes, 18);
        H = old ? int64_t(little_endian(bytes, 20, 2)) : int32_t(little_endian(bytes, 22));
        from_top_ = H < 0, H = std::abs(H), begin_ = little_endian(bytes, 10);
        bits_ = int(little_endian(bytes, old ? 24 : 28, 2));
        const uint32_t packing = old ? 0 : little_endian(bytes, 30);
        is_packed_ = (packing == 1 && bits_ == 8) || (packing == 2 && bits_ == 4);
        const bool has_palette = bits_ == 1 || bits_ == 4 || bits_ == 8;
        if (!(has_palette || bits_ == 16 || bits_ == 24 || bits_ == 32) ||
            !(is_packed_ || packing == 0 || (packing == 3 && !has_palette)))
            fail(name, ": not read here: a BMP of ", bits_, " bits and compression ", packing,
                 ": convert it to PNG");
        const size_t colours = old ? 0 : little_endian(bytes, 46), each = old ? 3 : 4;
        const size_t n = std::min<size_t>(colours ? colours : 1u << std::min(bits_, 8), 256);
        if (begin_ == 0) begin_ = 14 + size + (packing == 3 && size == 40 ? 12 : 0);
        if (has_palette && begin_ == 14 + size) begin_ += n * each;
        for (size_t i = 0; has_palette && i < 3 * n; ++i)
            palette_[i] = uint8_t(little_endian(bytes, 14 + size + i / 3 * each + 2 - i % 3, 1));
        if (bits_ == 16) masks_ = {0x7C00, 0x3E0, 0x1F};
        for (size_t c = 0; c < 3 && packing == 3; ++c) {
            const uint32_t mask = masks_[c] = little_endian(bytes, 54 + 4 * c);
            const uint32_t ones = mask ? mask >> __builtin_ctz(mask) : 0;
            if (ones < 1 || ones > 255 || (ones & (ones + 1)))
                fail(name, ": not read here: a BMP with the mask ", mask, ", which is not up to 8 ",
                     "bits side by side: convert it to PNG");
        }
        if (std::max(W, H) > 1 << 20) return;  // refused for its size
        if (begin_ < 14 + size || begin_ >= bytes.size() ||
            (!is_packed_ &&
             row_bytes() * (H - 1) + (W * bits_ + 7) / 8 > int64_t(bytes.size() - begin_)))
            ends_early();
    }

    void read(uint8_t* out) override {
        std::vector<uint8_t> unpacked;
        if (is_packed_) unpack_runs(unpacked);
        Samples samples;
        samples.bits = is_packed_ ? 8 : bits_, samples.palette = palette_.data();
        for (int64_t y = 0; y < H; ++y) {
            uint8_t* to = out + 3 * W * (from_top_ ? y : H - 1 - y);
            const uint8_t* row =
                is_packed_ ? &unpacked[size_t(y * W)] : &bytes_[begin_ + size_t(y * row_bytes())];
            if (bits_ <= 8) samples.unpack(row, W, to, 3);
            for (int64_t w = 0; bits_ > 8 && w < W; ++w, row += bits_ / 8, to += 3) {
                uint32_t pixel = 0;
                std::memcpy(&pixel, row, size_t(bits_) / 8);
                for (size_t c = 0; c < 3; ++c)
                    to[c] = uint8_t((pixel & masks_[c]) * uint64_t(255) / masks_[c]);
            }
        }
    }

 private:
    int64_t row_bytes() const { return (W * bits_ + 31) / 32 * 4; }

    // Two bytes: a number of pixels, and the index that they have; of 4 bits two indices by turns.
    // After the number 0 follow 0 (the row ends), 1 (the image ends), 2 (so many columns and rows
    // are left out), or a number of indices that stand there one by one.
    void unpack_runs(std::vector<uint8_t>& out) {
        const size_t all = size_t(W * H), row = size_t(W);
        size_t x = 0, at = begin_;
        const auto put = [&](size_t n, bool repeated) {
            for (size_t i = 0; i < n && out.size() < all; ++i) {
                const uint8_t two = bytes_[at + (repeated ? 0 : bits_ == 8 ? i : i / 2)];
                out.push_back(uint8_t(bits_ == 8 ? two : i % 2 ? two & 15 : two >> 4));
            }
            x += n;
        };
        while (out.size() < all) {
            if (at + 4 > bytes_.size()) ends_early();
            const size_t n = bytes_[at++], what = bytes_[at],
                         in_bytes = (what * size_t(bits_) + 7) / 8;
            if (n > 0) {
                put(std::min(n, row - std::min(x, row)), true);
            } else if (what == 1) {
                fail(name_, ": damaged: rows are missing");
            } else if (what == 0 || what == 2) {
                const size_t left = bytes_[at + 1] + bytes_[at + 2] * row;
                const size_t skipped = what == 2 ? left : (row - out.size() % row) % row;
                out.resize(std::min(all, out.size() + skipped));
                x = out.size() % row, at += what;
            } else {
                if (++at + in_bytes > bytes_.size()) ends_early();
                put(what, false);
                at += in_bytes - 1;
                at += (at + 1) % 2;  // at an even place
            }
            ++at;
        }
    }

    bool from_top_, is_packed_;
    int bits_;
    size_t begin_;
    std::array<uint32_t, 3> masks_{0xFF0000, 0xFF00, 0xFF};
    std::array<uint8_t, 768> palette_{};
};

}  // namespace

std::unique_ptr<Bitmap> open_png(Bytes bytes, const std::string& name) {
    return std::make_unique<Png>(bytes, name);
}
std::unique_ptr<Bitmap> open_bmp(Bytes bytes, const std::string& name) {
    return std::make_unique<Bmp>(bytes, name);
}

}  // namespace convoy
