// format.cpp — signatures and sizes of the image formats. Every read is checked against the end.
#include "data/format.h"

#include <array>
#include <cctype>
#include <cstring>
#include <string_view>

namespace convoy {
namespace {

using Bytes = std::span<const uint8_t>;

bool has(Bytes bytes, size_t at, std::string_view text) {
    return at + text.size() <= bytes.size() &&
           std::memcmp(bytes.data() + at, text.data(), text.size()) == 0;
}

// `count` bytes from `at`, most significant first, or the other way round. Past the end: 0.
uint32_t big(Bytes bytes, size_t at, int count) {
    uint32_t value = 0;
    for (int i = 0; i < count; ++i)
        value = value << 8 | (at + size_t(i) < bytes.size() ? bytes[at + size_t(i)] : 0u);
    return value;
}
uint32_t little(Bytes bytes, size_t at, int count) {
    uint32_t value = 0;
    for (int i = count; i-- > 0;)
        value = value << 8 | (at + size_t(i) < bytes.size() ? bytes[at + size_t(i)] : 0u);
    return value;
}

// RIFF, length, WEBP, then one of three kinds of first chunk.
ImageSize webp_size(Bytes bytes) {
    if (bytes.size() < 30) return {};
    if (has(bytes, 12, "VP8 "))
        return {little(bytes, 26, 2) & 0x3FFF, little(bytes, 28, 2) & 0x3FFF};
    if (has(bytes, 12, "VP8L"))
        return {(little(bytes, 21, 4) & 0x3FFF) + 1, (little(bytes, 21, 4) >> 14 & 0x3FFF) + 1};
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
        if (at + 12 > bytes.size()) return {};
        const uint32_t value = number(bytes, at + 8, number(bytes, at + 2, 2) == 3 ? 2 : 4);
        if (number(bytes, at, 2) == 256) size.W = value;
        if (number(bytes, at, 2) == 257) size.H = value;
    }
    return size;
}

// "P6", width, height and (but for bitmaps) the largest value as decimal text between blanks and
// comments, one blank, pixels.
struct PnmHeader {
    ImageSize size;
    int64_t largest = 1;
    size_t pixels_at = 0;
};
PnmHeader pnm_header(Bytes bytes) {
    size_t at = 2;
    const auto next = [&]() -> int64_t {
        while (at < bytes.size() && (std::isspace(bytes[at]) || bytes[at] == '#')) {
            if (bytes[at] == '#')
                while (at < bytes.size() && bytes[at] != '\n') ++at;
            else
                ++at;
        }
        int64_t value = 0;
        for (int digits = 0; at < bytes.size() && std::isdigit(bytes[at]) && digits < 10; ++digits)
            value = value * 10 + (bytes[at++] - '0');
        return value;
    };
    PnmHeader header;
    header.size.W = next(), header.size.H = next();
    if (bytes[1] != '1' && bytes[1] != '4') header.largest = next();
    header.pixels_at = at + 1;
    return header;
}

// ISO 3309, the polynomial of PNG's appendix D, a byte at a time.
constexpr std::array<uint32_t, 256> kCrcTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t n = 0; n < 256; ++n) {
        uint32_t c = n;
        for (int bit = 0; bit < 8; ++bit) c = c & 1 ? 0xEDB88320u ^ c >> 1 : c >> 1;
        table[n] = c;
    }
    return table;
}();
uint32_t crc(Bytes bytes) {
    uint32_t c = ~0u;
    for (uint8_t byte : bytes) c = kCrcTable[(c ^ byte) & 255] ^ c >> 8;
    return ~c;
}

constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1a\n";

}  // namespace

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

bool is_cut_short(Bytes bytes, Format format) {
    const ImageSize size = size_of(bytes, format);
    const auto lacks = [&](int64_t begin, int64_t row_bytes) {
        return row_bytes > 0 && size.H > (int64_t(bytes.size()) - begin) / row_bytes;
    };
    if (format == Format::bmp) {
        if (little(bytes, 14, 4) < 40 || little(bytes, 30, 4) != 0) return false;  // old, packed
        return lacks(little(bytes, 10, 4), (size.W * little(bytes, 28, 2) + 31) / 32 * 4);
    }
    if (format == Format::pnm && bytes[1] >= '4') {
        const PnmHeader header = pnm_header(bytes);
        const int64_t samples = size.W * (bytes[1] == '6' ? 3 : 1);
        const int64_t row_bytes =
            bytes[1] == '4' ? (size.W + 7) / 8 : samples * (header.largest > 255 ? 2 : 1);
        return lacks(int64_t(header.pixels_at), row_bytes);
    }
    return false;
}

// A chunk: length of the data (4), type (4), data, checksum of type and data (4).
const char* essential_png(Bytes bytes, std::vector<uint8_t>& out) {
    out.assign(bytes.begin(), bytes.begin() + kPngSignature.size());
    if (!has(bytes, 12, "IHDR")) return "damaged: it does not begin with a header";
    bool data = false;
    for (size_t at = kPngSignature.size();;) {
        if (at + 12 > bytes.size()) return "truncated";
        const size_t length = big(bytes, at, 4);
        if (length > bytes.size() - at - 12) return "truncated";
        const Bytes chunk = bytes.subspan(at, length + 12);
        const bool end = has(chunk, 4, "IEND");
        if (end || has(chunk, 4, "IHDR") || has(chunk, 4, "PLTE") || has(chunk, 4, "IDAT")) {
            if (crc(chunk.subspan(4, length + 4)) != big(chunk, length + 8, 4))
                return "damaged: a checksum is wrong";
            out.insert(out.end(), chunk.begin(), chunk.end());
        }
        data = data || has(chunk, 4, "IDAT");
        if (end) return data ? nullptr : "damaged: there is no picture in it";
        at += length + 12;
    }
}

}  // namespace convoy
