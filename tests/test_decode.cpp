// test_decode.cpp — pixels against Pillow's, parts against the whole, and hostile bytes.
#include "data/images/decode.h"

#include <sys/resource.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <opencv2/imgcodecs.hpp>

#include "data/images/large_image.h"
#include "golden.h"
#include "pictures.h"
#include "src/base/bytes.h"
#include "support.h"

using namespace convoy;

namespace {

using Bytes = std::vector<uint8_t>;

// A smooth picture with some structure, BGR as OpenCV wants it.
cv::Mat smooth(int H, int W) {
    cv::Mat bgr(H, W, CV_8UC3);
    for (int h = 0; h < H; ++h)
        for (int w = 0; w < W; ++w)
            bgr.at<cv::Vec3b>(h, w) = {uint8_t(h * 3 + w), uint8_t(200 - h + (w / 7 % 2) * 40),
                                       uint8_t(w * 2 + (h / 5 % 2) * 60)};
    return bgr;
}

Bytes encoded(const char* extension, int H = 40, int W = 50, const std::vector<int>& how = {}) {
    Bytes bytes;
    REQUIRE(cv::imencode(extension, smooth(H, W), bytes, how));
    return bytes;
}

std::string refusal(const Bytes& bytes) {
    return error_of([&] { decoded(bytes, "x/picture.jpg"); });
}

void put_big(Bytes& bytes, size_t at, uint32_t value, int count) {
    for (int i = count; i-- > 0; value >>= 8) bytes[at + size_t(i)] = uint8_t(value);
}

// A PNG that claims a square of this side, with the right checksum of its header.
void claim(Bytes& png, uint32_t side) {
    put_big(png, 16, side, 4), put_big(png, 20, side, 4);
    put_big(png, 29, uint32_t(crc32_z(0, png.data() + 12, 17)), 4);
}

// Largest resident size so far, in bytes.
int64_t peak_bytes() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return int64_t(usage.ru_maxrss) * 1024;
}

}  // namespace

TEST_CASE("an image is large by the memory that its decoding takes") {
    const int kSide = 4800;  // 23 million pixels
    const cv::Mat bgr(kSide, kSide, CV_8UC3, cv::Scalar(1, 2, 3));
    const auto is_large = [&](const char* extension, const std::vector<int>& how, int rows) {
        Bytes bytes;
        REQUIRE(cv::imencode(extension, bgr, bytes, how));
        LargeImage large;
        Decoder decoder;
        Image image;
        decoder.open(bytes, "picture");
        decoder.read({0, 0, rows, kSide}, image);
        return large.is_large();
    };
    CHECK(is_large(".jpg", {}, kSide));  // 69 MB
    CHECK(!is_large(".jpg", {}, 100));   // decoded row by row
    CHECK(is_large(".jpg", {cv::IMWRITE_JPEG_PROGRESSIVE, 1}, 100));
    CHECK(is_large(".png", {}, 100));  // decoded whole
    CHECK(!is_large(".ppm", {}, 100));
    LargeImage small;
    decoded(encoded(".png"));
    CHECK(!small.is_large());
}

TEST_CASE("JPEGs decode to Pillow's pixels: colour, progressive, grey and CMYK") {
    for (const golden::Kind& kind : golden::kinds()) {
        if (kind.pixels.empty()) continue;
        const Image image = decoded(kind.file);
        CHECK((image.H == 9 && image.W == 11));
        CHECK_CLOSE(image.pixels, kind.pixels, 1);  // another version may round another way
    }
}

TEST_CASE(
    "every kind of image decodes to the grey of its RGB pixels, and a part of it to the same") {
    for (const char* name : {"jpeg colour", "jpeg progressive", "jpeg grey", "jpeg CMYK",
                             "png grey of 16 bits", "png palette", "png alpha"}) {
        const Bytes& bytes = golden::kind(name).file;
        const Image image = decoded(bytes, "grey", 1);
        CHECK(image.C == 1);
        const Image rgb = decoded(bytes);
        REQUIRE(image.pixels.size() * 3 == rgb.pixels.size());
        for (size_t i = 0; i < image.pixels.size(); ++i) {
            const uint8_t* pixel = &rgb.pixels[i * 3];
            const uint32_t sum = 19595u * pixel[0] + 38470u * pixel[1] + 7471u * pixel[2];
            REQUIRE(image.pixels[i] == (sum + 32768) / 65536);
        }
        Decoder decoder(1);
        decoder.open(bytes, "grey");
        Image part;
        decoder.read({2, 3, 3, 4}, part);
        for (int h = 0; h < 3; ++h)
            for (int w = 0; w < 4; ++w)
                CHECK(part.pixels[size_t(h * 4 + w)] ==
                      image.pixels[size_t((h + 2) * image.W + w + 3)]);
    }
}

TEST_CASE("TIFF, BMP, PNG and PBM of every kind decode to Pillow's pixels, and parts to the same") {
    for (const golden::Kind& kind : golden::kinds()) {
        if (!kind.pixels.empty()) continue;
        CAPTURE(kind.name);
        const Bytes& file = kind.file;
        const Image image = decoded(file);
        REQUIRE((image.H == kind.H && image.W == kind.W));
        CHECK(hash_bytes(std::string(image.pixels.begin(), image.pixels.end())) == kind.hash);
        CHECK(decoded(file, "grey", 1).pixels == grey(image).pixels);
        const Crop crop{kind.H / 2, kind.W / 2, kind.H - kind.H / 2, kind.W - kind.W / 2};
        Decoder decoder;
        Image part;
        decoder.open(file, "part");
        decoder.read(crop, part);
        CHECK(part.pixels == part_of(image, crop).pixels);
        // A file that ends early is never read, unless what is missing is no pixel.
        for (size_t n = file.size() - 1; n > 2; n -= std::min<size_t>(n, 7)) {
            const Bytes cut(file.begin(), file.begin() + long(n));
            Image less;
            if (error_of([&] { less = decoded(cut); }).empty()) CHECK(less.pixels == image.pixels);
        }
    }
}

// Sets the number of a tag in the directory at offset 8 of a little-endian TIFF.
static Bytes with_tag(Bytes tiff, int tag, int value) {
    for (size_t at = 10; at + 12 <= tiff.size(); at += 12)
        if (tiff[at] + tiff[at + 1] * 256 == tag) {
            tiff[at + 8] = uint8_t(value), tiff[at + 9] = uint8_t(value >> 8);
            return tiff;
        }
    fail("no tag ", tag);
}

TEST_CASE("what a TIFF or BMP holds and is not read here is refused by its name or number") {
    const Bytes tiff = golden::kind("tiff of 8 bits, 1").file;
    CHECK(refusal(tiff) == "");
    for (int packing : {6, 34712, 34925, 50000, 50002, 61234})
        CHECK(contains(refusal(with_tag(tiff, 259, packing)), std::to_string(packing)));
    for (int bits : {3, 12, 32, 64})
        CHECK(contains(refusal(with_tag(tiff, 258, bits)), cat(bits, " bits")));
    CHECK(contains(refusal(with_tag(tiff, 262, 8)), "interpretation 8"));
    CHECK(contains(refusal(with_tag(tiff, 277, 9)), "9 samples"));
    Bytes bmp = golden::kind("bmp of 32 bits, ff, 124").file;
    put_big(bmp, 54, 0xFF030000, 4);  // red: ten bits
    CHECK(contains(refusal(bmp), cat("mask ", 0x3FF)));
    put_big(bmp, 30, 0x05000000, 4);  // compressed as PNG
    CHECK(contains(refusal(bmp), "compression 5"));
}

TEST_CASE("16 bits whose values all are small are refused, as they would be nearly black") {
    cv::Mat grey16(6, 8, CV_16UC1);
    for (int top : {4095, 4096, 0}) {
        for (int i = 0; i < 48; ++i) grey16.at<uint16_t>(i / 8, i % 8) = uint16_t(top * i / 47);
        for (const char* extension : {".png", ".tiff"}) {
            Bytes bytes;
            REQUIRE(cv::imencode(extension, grey16, bytes));
            CHECK(contains(refusal(bytes), "4095") == (top == 4095));
            CHECK((refusal(bytes) == "") == (top != 4095));
        }
    }
}

TEST_CASE(
    "a damaged strip of a TIFF is noticed: deflate by its checksum, LZW and PackBits by length") {
    for (const char* how : {"tiff tiff_adobe_deflate", "tiff tiff_lzw", "tiff packbits"}) {
        CAPTURE(how);
        const Bytes tiff = golden::kind(how).file;
        // The strips, one after the other, are the longest part of the file.
        int noticed = 0, unnoticed = 0;
        for (size_t at = 8; at + 60 < tiff.size(); at += 40) {
            Bytes broken = tiff;
            for (size_t i = at; i < at + 40; ++i) broken[i] = 0x80;
            ++(refusal(broken).empty() ? unnoticed : noticed);
        }
        CHECK(noticed > unnoticed);
    }
    // Deflate has a checksum: no byte of the pixels may change without notice.
    Bytes pixels(120 * 100 * 3);
    for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = uint8_t(i * i / 7 ^ i >> 5);
    Bytes tiff;
    REQUIRE(cv::imencode(".tiff", cv::Mat(100, 120, CV_8UC3, pixels.data()), tiff,
                         {cv::IMWRITE_TIFF_COMPRESSION, 8}));
    const Image whole = decoded(tiff);
    int noticed = 0;
    for (size_t at = 20; at < 6000; at += 7) {
        Bytes broken = tiff;
        for (size_t i = at; i < at + 3; ++i) broken[i] ^= 0xA5;
        Image read = whole;
        if (error_of([&] { read = decoded(broken); }).empty())
            CHECK(read.pixels == whole.pixels);
        else
            ++noticed;
    }
    CHECK(noticed > 500);
}

TEST_CASE("a blank page of a few bytes is read, and a false claim of one takes no memory") {
    const int H = 4000, W = 5000;
    Bytes page;  // G4: one bit for a row like the one above, and above the first all is white
    const auto put = [&](uint32_t value, int count) {
        for (int i = 0; i < count; ++i) page.push_back(uint8_t(value >> 8 * i));
    };
    const uint32_t entries[][2] = {{256, W}, {257, H}, {258, 1}, {259, 4},        {262, 0},
                                   {273, 0}, {277, 1}, {278, H}, {279, H / 8 + 3}};
    put(0x4949, 2), put(42, 2), put(8, 4), put(uint32_t(std::size(entries)), 2);
    const uint32_t begin = 8 + 2 + 12 * uint32_t(std::size(entries)) + 4;
    for (const auto& [tag, value] : entries)
        put(tag, 2), put(4, 2), put(1, 4), put(tag == 273 ? begin : value, 4);
    put(0, 4);
    Bytes forged = page;
    page.insert(page.end(), size_t(H / 8), 0xFF);
    page.insert(page.end(), {0, 0x10, 0x01});  // the end: 000000000001 twice
    const Image white = decoded(page, "page", 1);
    CHECK((white.H == H && white.W == W && count_of(as_text(white.pixels), "\xFF") == H * W));
    Bytes webp;
    REQUIRE(cv::imencode(".webp", cv::Mat(H, W, CV_8UC3, cv::Scalar(3, 2, 1)), webp,
                         {cv::IMWRITE_WEBP_QUALITY, 101}));
    REQUIRE(webp.size() < 3000);
    CHECK(decoded(webp).pixels[2] == 3);

    const int64_t before = peak_bytes();
    forged.insert(forged.end(), 40, 0);
    CHECK(contains(refusal(forged), "truncated or damaged"));
    CHECK(contains(refusal(with_tag(with_tag(forged, 256, 60000), 257, 60000)), "60000x60000"));
    CHECK(peak_bytes() - before < 50'000'000);
}

TEST_CASE(
    "a progressive JPEG whose last scans are missing is refused, as libjpeg would make them up") {
    const Bytes whole = encoded(".jpg", 131, 97, {cv::IMWRITE_JPEG_PROGRESSIVE, 1});
    const uint8_t scan[] = {0xFF, 0xDA};
    auto at = std::search(whole.begin(), whole.end(), std::begin(scan), std::end(scan));
    for (int scans = 1; scans < 4; ++scans) {
        at = std::search(at + 1, whole.end(), std::begin(scan), std::end(scan));
        Bytes jpeg(whole.begin(), at);
        jpeg.insert(jpeg.end(), {0xFF, 0xD9});
        CHECK(contains(refusal(jpeg), "truncated"));
        Decoder decoder;
        Image part;
        decoder.open(jpeg, "part");
        CHECK_FAILS(decoder.read({40, 30, 50, 40}, part), "part: truncated");
    }
}

TEST_CASE("the libraries print nothing about damaged images") {
    std::fflush(stderr);
    const int kept = dup(2);
    std::FILE* file = std::tmpfile();
    dup2(fileno(file), 2);
    for (const golden::Kind& kind : golden::kinds())
        for (size_t at = 9; at < 400; at += 5) {
            Bytes bytes = kind.file;
            if (at < bytes.size()) bytes[at] ^= 0xA5, refusal(bytes);
        }
    Bytes webp = encoded(".webp");
    for (size_t n = webp.size(); n > 8; n -= 4)
        refusal(Bytes(webp.begin(), webp.begin() + long(n)));
    for (size_t at = 12; at < webp.size(); at += 9) webp[at] ^= 0xA5, refusal(webp);
    std::fflush(stderr);
    dup2(kept, 2), close(kept);
    CHECK(std::ftell(file) == 0);
    std::fseek(file, 0, SEEK_END);
    CHECK(std::ftell(file) == 0);
    std::fclose(file);
}

TEST_CASE("every lossless format gives the same pixels, whatever the file is called") {
    Bytes want;
    const cv::Mat bgr = smooth(40, 50);
    for (int i = 0; i < 40 * 50; ++i)
        for (int c = 0; c < 3; ++c) want.push_back(bgr.data[i * 3 + 2 - c]);
    for (const char* extension : {".png", ".bmp", ".tiff", ".ppm"}) {
        CAPTURE(extension);
        const Image image = decoded(encoded(extension));
        CHECK((image.H == 40 && image.W == 50));
        CHECK(image.pixels == want);
    }
    const Image webp = decoded(encoded(".webp", 40, 50, {cv::IMWRITE_WEBP_QUALITY, 101}));
    CHECK(webp.pixels == want);
}

TEST_CASE("binary PPM and PGM are read where they are, in both numbers of channels") {
    const Image rgb = picture(6, 5);
    const Image one = grey(rgb);
    for (const Image* image : {&rgb, &one}) {
        const std::string header = cat(image->C == 1 ? "P5" : "P6", "\n# made\n5 6\t# by\n255\n");
        Bytes bytes(header.begin(), header.end());
        bytes.insert(bytes.end(), image->pixels.begin(), image->pixels.end());
        CHECK(decoded(bytes, "pnm", image->C).pixels == image->pixels);
        const Image other = decoded(bytes, "pnm", 4 - image->C);
        if (image->C == 3) CHECK(other.pixels == one.pixels);
        for (size_t i = 0; image->C == 1 && i < 90; ++i)
            CHECK(other.pixels[i] == image->pixels[i / 3]);
        Decoder decoder(image->C);
        decoder.open(bytes, "pnm");
        Image part;
        decoder.read({2, 1, 3, 2}, part);
        CHECK((part.H == 3 && part.W == 2));
        const size_t C = size_t(image->C);
        for (size_t h = 0; h < 3; ++h)
            for (size_t i = 0; i < 2 * C; ++i)
                CHECK(part.pixels[h * 2 * C + i] == image->pixels[(h + 2) * 5 * C + C + i]);
        bytes.pop_back();
        CHECK(contains(refusal(bytes), "truncated: the image data ends early"));
    }
}

TEST_CASE("the largest value of a PPM or PGM becomes 255, as Pillow scales it") {
    const auto pixels = [](const std::string& text) {
        return decoded(Bytes(text.begin(), text.end()), "pnm", text[1] % 3 == 0 ? 3 : 1).pixels;
    };
    CHECK(pixels(std::string("P5 3 1 15\n\0\7\17", 13)) == Bytes{0, 119, 255});
    CHECK(pixels("P5 3 1 100\n2\x1f\x96") == Bytes{128, 79, 255});       // 150 is more than 100
    CHECK(pixels(std::string("P5 2 1 10\n\1\3", 12)) == Bytes{26, 76});  // 25.5 and 76.5
    CHECK(pixels("P5 2 1 4095\n\x07\xFF\x0F\xFF") == Bytes{127, 255});
    CHECK(pixels(std::string("P6 1 1 65535\n\0\1\x80\x80\xFF\xFF", 19)) == Bytes{0, 128, 255});
    CHECK(pixels("P2 2 2 15 # four\n0 7\n# more\n15 3") == Bytes{0, 119, 255, 51});
    CHECK(pixels("P3 1 1 1023\n0 511 1023\n") == Bytes{0, 127, 255});
    for (const char* text : {"P5 1 1 0\n1", "P5 1 1 65536\n123", "P6 1 1\n", "P2 1 1 -3\n1"})
        CHECK(contains(refusal(Bytes(text, text + std::strlen(text))), "65535"));
    for (const char* text : {"P5 3 1 15\nab", "P5 2 1 256\nabc", "P2 2 1 9\n1", "P2 2 1 9\n1 x"})
        CHECK(contains(refusal(Bytes(text, text + std::strlen(text))), "truncated"));
}

// A TIFF of one row, RGB and one more channel of this kind, in both orders of bytes. samples: what
// it says about the number of channels.
static Bytes tiff(bool is_big, uint32_t W, uint32_t kind, const Bytes& pixels,
                  uint32_t samples = 4) {
    Bytes bytes(2, is_big ? 'M' : 'I');
    const auto put = [&](uint32_t value, int count) {
        for (int i = 0; i < count; ++i)
            bytes.push_back(uint8_t(value >> 8 * (is_big ? count - 1 - i : i)));
    };
    const uint32_t kEntries = 11, after = 8 + 2 + kEntries * 12 + 4;
    put(42, 2), put(8, 4), put(kEntries, 2);
    // Tag and value; long ones point behind the directory, to 8 bits a channel and to the pixels.
    const uint32_t entries[kEntries][2] = {
        {256, W},       {257, 1}, {258, after},       {259, 1}, {262, 2},   {273, after + 8},
        {277, samples}, {278, 1}, {279, W * samples}, {284, 1}, {338, kind}};
    for (const auto& [tag, value] : entries) {
        const bool is_long = tag == 258 || tag == 273;
        put(tag, 2), put(tag == 273 ? 4 : 3, 2), put(tag == 258 ? 4 : 1, 4);
        put(value, is_long ? 4 : 2), put(0, is_long ? 0 : 2);
    }
    put(0, 4);
    for (int c = 0; c < 4; ++c) put(8, 2);
    bytes.insert(bytes.end(), pixels.begin(), pixels.end());
    return bytes;
}

TEST_CASE("alpha of a TIFF is dropped; if it was multiplied in, colours are divided as in Pillow") {
    const Bytes two = {200, 100, 50, 0, 10, 20, 30, 128};
    const Bytes four = {200, 100, 50, 0, 10, 20, 30, 128, 9, 8, 7, 255, 90, 60, 1, 60};
    for (const bool is_big : {false, true}) {
        for (const uint32_t kind : {0u, 2u})
            CHECK(decoded(tiff(is_big, 2, kind, two)).pixels == Bytes{200, 100, 50, 10, 20, 30});
        CHECK(decoded(tiff(is_big, 4, 1, four)).pixels ==
              Bytes{0, 0, 0, 19, 39, 59, 9, 8, 7, 255, 255, 4});
        // Alpha that the file names and does not have.
        CHECK(contains(refusal(tiff(is_big, 2, 1, two, 3)), "3 samples a pixel"));
    }
}

TEST_CASE("a part of a JPEG has the very pixels of the whole, for every kind of JPEG") {
    const std::vector<std::vector<int>> kinds = {
        {cv::IMWRITE_JPEG_QUALITY, 90},
        {cv::IMWRITE_JPEG_QUALITY, 60, cv::IMWRITE_JPEG_RST_INTERVAL, 3},
        {cv::IMWRITE_JPEG_QUALITY, 90, cv::IMWRITE_JPEG_PROGRESSIVE, 1}};
    Decoder decoder;
    Image part;
    uint64_t number = 0;
    const auto compare = [&](const Bytes& bytes, int tries) {
        const Image whole = decoded(bytes);
        for (int i = 0; i < tries; ++i) {
            Random random(1, 0, number++, kTest);
            Crop crop;
            crop.H = 1 + int(random.below(uint64_t(whole.H)));
            crop.W = 1 + int(random.below(uint64_t(whole.W)));
            crop.top = int(random.below(uint64_t(whole.H - crop.H) + 1));
            crop.left = int(random.below(uint64_t(whole.W - crop.W) + 1));
            decoder.open(bytes, "picture");
            decoder.read(crop, part);
            REQUIRE((part.H == crop.H && part.W == crop.W));
            bool same = true;
            for (int h = 0; h < crop.H; ++h)
                same = same && std::equal(part.pixels.begin() + h * crop.W * 3,
                                          part.pixels.begin() + (h + 1) * crop.W * 3,
                                          whole.pixels.begin() +
                                              ((crop.top + h) * whole.W + crop.left) * 3);
            INFO(whole.W, "x", whole.H, ": ", crop.W, "x", crop.H, " at ", crop.left, ",",
                 crop.top);
            CHECK(same);
        }
    };
    for (const std::vector<int>& kind : kinds)
        for (auto [H, W] : {std::pair{40, 50}, {131, 97}, {16, 16}, {200, 300}, {1, 77}, {77, 1}})
            compare(encoded(".jpg", H, W, kind), 12);
    for (const char* name :
         {"jpeg colour", "jpeg progressive", "jpeg grey", "jpeg CMYK", "png palette"})
        compare(golden::kind(name).file, 10);
    for (const char* other : {".png", ".bmp"}) compare(encoded(other), 10);
}

TEST_CASE("the EXIF orientation is ignored") {
    Bytes bytes = encoded(".jpg");
    const Image upright = decoded(bytes);
    // APP1, "Exif", a little-endian TIFF with one entry: orientation (0x112) = 6, a quarter turn.
    const uint8_t exif[] = {0xFF, 0xE1, 0, 34, 'E', 'x', 'i', 'f', 0,    0, 'I', 'I',
                            42,   0,    8, 0,  0,   0,   1,   0,   0x12, 1, 3,   0,
                            1,    0,    0, 0,  6,   0,   0,   0,   0,    0, 0,   0};
    bytes.insert(bytes.begin() + 2, std::begin(exif), std::end(exif));
    const Image turned = decoded(bytes);
    CHECK((turned.H == 40 && turned.W == 50));
    CHECK(turned.pixels == upright.pixels);
}

TEST_CASE("what cannot be decoded is refused with the name and the cause") {
    CHECK(refusal({}) == "x/picture.jpg: the file is empty (0 bytes)");
    const std::string text = "this is no image";
    CHECK(refusal(Bytes(text.begin(), text.end())).find("x/picture.jpg: not an image") == 0);
    CHECK(refusal({0xFF, 0xD8, 0xFF}).find("x/picture.jpg: truncated") == 0);
    for (const char* extension : {".jpg", ".png", ".bmp", ".tiff", ".ppm", ".webp"}) {
        CAPTURE(extension);
        const Bytes whole = encoded(extension);
        CHECK(refusal(whole) == "");
        for (double part : {0.1, 0.5, 0.9, 0.99}) {
            CAPTURE(part);
            const Bytes cut(whole.begin(), whole.begin() + long(part * double(whole.size())));
            const std::string why = refusal(cut);
            CHECK(why.find("x/picture.jpg: ") == 0);
            if (extension == std::string(".jpg") || extension == std::string(".png"))
                CHECK(contains(why, "truncated"));
        }
    }
}

TEST_CASE("a truncated JPEG is noticed at any length, also with an end marker stuck on") {
    const Bytes whole = encoded(".jpg", 64, 64);
    for (size_t n = 2; n + 2 < whole.size(); n += 13) {
        CAPTURE(n);
        Bytes cut(whole.begin(), whole.begin() + long(n));
        CHECK(refusal(cut) != "");
        cut.push_back(0xFF), cut.push_back(0xD9);
        if (n + 40 < whole.size()) CHECK(refusal(cut) != "");
    }
    Decoder decoder;
    const Bytes half(whole.begin(), whole.begin() + long(whole.size() / 2));
    CHECK_FAILS(decoder.open(half, "half"), "half: truncated");
}

TEST_CASE("data behind the end of a JPEG does not count, whatever bytes it holds") {
    const std::string film(
        "\0\0\0\x18"
        "ftypmp42 \xFF\xDA \xFF\xD9 \xFF\xDA and more \xFF",
        36);
    for (const auto& how : std::vector<std::vector<int>>{
             {},
             {cv::IMWRITE_JPEG_PROGRESSIVE, 1},
             {cv::IMWRITE_JPEG_RST_INTERVAL, 2, cv::IMWRITE_JPEG_OPTIMIZE, 1}}) {
        Bytes photo = encoded(".jpg", 64, 64, how);
        const Image want = decoded(photo);
        // A fill byte before a marker, and a segment that holds a scan and an end.
        const uint8_t odd[] = {0xFF, 0xFF, 0xE1, 0, 8, 0xFF, 0xDA, 0xFF, 0xD9, 0xFF, 0xDA};
        photo.insert(photo.begin() + 2, std::begin(odd), std::end(odd));
        const long whole = long(photo.size());
        photo.insert(photo.end(), film.begin(), film.end());
        CHECK(decoded(photo).pixels == want.pixels);
        // The photo is cut, and the film stands behind it.
        for (long cut = 2; cut < whole - 60; cut += 31) {
            CAPTURE(cut);
            Bytes part(photo.begin(), photo.begin() + whole - cut);
            CHECK(refusal(part) != "");
            part.insert(part.end(), film.begin(), film.end());
            if (cut > 40) CHECK(refusal(part) != "");
        }
    }
}

TEST_CASE("files that look like images and are read by other programs are named by what they are") {
    const std::string box = "\1\1\1\x1c";
    const std::string cases[][2] = {{"GIF89a, a picture", "GIF"},
                                    {box + "ftypavif....", "AVIF"},
                                    {box + "ftypheic....", "HEIC"},
                                    {box + "ftypmif1....", "HEIF"},
                                    {"<!DOCTYPE html>", "web page"},
                                    {"\xEF\xBB\xBF\r\n <html>", "web page"},
                                    {"\xFF\x0A and more", "JPEG XL"},
                                    {"\xFF\x4F\xFF\x51", "JPEG 2000"},
                                    {box + "jP  \r\n", "JPEG 2000"},
                                    {"%PDF-1.7", "PDF"},
                                    {"\x1F\x8B\x08", "gzip"},
                                    {"PK\3\4", "zip"},
                                    {"version https://git-lfs.github.com/spec/v1", "git lfs pull"}};
    for (const auto& [bytes, what] : cases)
        CHECK(contains(refusal(Bytes(bytes.begin(), bytes.end())), what));
    Bytes webp = encoded(".webp");
    const uint8_t extended[] = {'V', 'P', '8', 'X', 10, 0, 0, 0, 2, 0, 0, 0, 49, 0, 0, 39, 0, 0};
    webp.insert(webp.begin() + 12, std::begin(extended), std::end(extended));
    CHECK(contains(refusal(webp), "animated"));
}

TEST_CASE("a decoder works on after a refusal") {
    Decoder decoder;
    Image image;
    const Bytes good = encoded(".jpg");
    Bytes damaged = good;
    std::fill(damaged.end() - long(damaged.size() / 3), damaged.end() - 2, uint8_t(0xFF));
    for (int i = 0; i < 3; ++i) {
        CHECK_THROWS_AS(
            [&] {
                decoder.open(damaged, "damaged");
                decoder.read(image);
            }(),
            Error);
        decoder.open(good, "good");
        decoder.read(image);
        CHECK(image.pixels == decoded(good).pixels);
    }
}

TEST_CASE(
    "an image becomes the same JPEG as by OpenCV, in colour and grey; one too large is refused") {
    for (const int channels : {3, 1}) {
        const cv::Mat bgr = smooth(41, 50);
        Image image = decoded(encoded(".png", 41, 50), "image", channels);
        cv::Mat pixels(41, 50, CV_8UC(channels), image.pixels.data());
        if (channels == 3) pixels = bgr;
        Bytes jpeg;
        REQUIRE(cv::imencode(".jpg", pixels, jpeg, {cv::IMWRITE_JPEG_QUALITY, 90}));
        CHECK(encoded(image) == jpeg);
    }
    CHECK_FAILS(encoded({1, 70'000, std::vector<uint8_t>(70'000), 1}), "70000x1");
}

TEST_CASE("a JPEG without its tables does not take those of the image before") {
    const std::vector<uint8_t> whole = encoded(picture(16, 16));
    std::vector<uint8_t> bare;
    for (size_t at = 0; at < whole.size();) {
        const bool is_table = whole[at] == 0xFF && whole[at + 1] == 0xDB;
        const size_t n = is_table ? size_t(2 + whole[at + 2] * 256 + whole[at + 3]) : 1;
        if (!is_table) bare.push_back(whole[at]);
        at += n;
    }
    REQUIRE(bare.size() < whole.size());
    Decoder decoder;
    Image image;
    decoder.open(whole, "whole.jpg");
    decoder.read(image);
    CHECK_FAILS((decoder.open(bare, "bare.jpg"), decoder.read(image)), "bare.jpg");
}

TEST_CASE("a BMP without the offset of its pixels has them behind the header") {
    Bytes bmp = encoded(".bmp", 9, 7);
    const Image whole = decoded(bmp);
    std::fill_n(bmp.begin() + 10, 4, uint8_t(0));
    CHECK(decoded(bmp).pixels == whole.pixels);
    bmp[10] = 20;  // inside the header
    CHECK_FAILS(decoded(bmp, "bad.bmp"), "bad.bmp");
    bmp[10] = 54, bmp[21] = bmp[25] = 64;  // 2^30 pixels wide and high: the product wraps
    CHECK_FAILS(decoded(bmp, "huge.bmp"), "huge.bmp");
}

TEST_CASE("a palette TIFF without its colours, with too few, or of many kinds is refused") {
    for (const auto& [colours, kinds] : {std::pair(0u, 1u), {3 * 128, 1}, {3 * 256, 1793}}) {
        std::string tiff = std::string("II*\0\x08\0\0\0", 8);
        const auto number = [&](uint32_t value, int bytes) {
            for (int i = 0; i < bytes; ++i) tiff += char(value >> 8 * i);
        };
        const std::vector<std::array<uint32_t, 3>> tags = {
            {256, 1, 4},     {257, 1, 4}, {258, 1, 8},  {259, 1, 1},
            {262, kinds, 3}, {273, 1, 8}, {279, 1, 16}, {320, colours, 8}};
        number(colours ? 8 : 7, 2);
        for (const auto& [tag, count, value] : tags)
            if (count > 0) number(tag, 2), number(3, 2), number(count, 4), number(value, 4);
        number(0, 4);
        tiff.resize(1000, '\x10');
        const std::vector<uint8_t> bytes(tiff.begin(), tiff.end());
        CHECK_FAILS(decoded(bytes, "p.tif"), "palette");
    }
}

TEST_CASE("a claimed size is checked before anything is allocated for it") {
    const int64_t before = peak_bytes();
    Bytes jpeg = encoded(".jpg");
    const uint8_t frame[] = {0xFF, 0xC0};
    const auto at = std::search(jpeg.begin(), jpeg.end(), std::begin(frame), std::end(frame));
    REQUIRE(at != jpeg.end());
    put_big(jpeg, size_t(at - jpeg.begin()) + 5, 65500, 2);
    put_big(jpeg, size_t(at - jpeg.begin()) + 7, 65500, 2);
    CHECK(contains(refusal(jpeg), cat("claims 65500x65500 pixels, more than ", kMaxPixels)));
    put_big(jpeg, size_t(at - jpeg.begin()) + 5, 9000, 2);
    put_big(jpeg, size_t(at - jpeg.begin()) + 7, 9000, 2);
    CHECK(contains(refusal(jpeg), "claims 9000x9000 pixels, more than"));

    for (uint32_t side : {12000u, 2000000000u}) {
        Bytes png = encoded(".png");
        claim(png, side);
        CHECK(contains(refusal(png), "claims"));
        Bytes bmp = encoded(".bmp");
        for (size_t i = 0; i < 4; ++i) bmp[18 + i] = bmp[22 + i] = uint8_t(side >> 8 * i);
        CHECK(refusal(bmp) != "");
        const std::string ppm = cat("P6\n# a comment\n", side, " ", side, "\n255\nabc");
        CHECK(refusal(Bytes(ppm.begin(), ppm.end())) != "");
    }
    Bytes tiff = encoded(".tiff");
    Decoder decoder;
    decoder.open(tiff, "tiff");
    CHECK((decoder.W() == 50 && decoder.H() == 40));
    CHECK(peak_bytes() - before < 100'000'000);  // the claims were 400 MB and more
}

TEST_CASE("an image of too many pixels is refused before memory is taken for it") {
    cv::Mat noise(100, 100, CV_8UC3);
    cv::randu(noise, 0, 256);
    Bytes png;
    REQUIRE(cv::imencode(".png", noise, png));
    REQUIRE(png.size() > 29'000);  // a stream that could hold 289 million pixels
    claim(png, 17'000);
    const int64_t before = peak_bytes();
    CHECK(refusal(png) == cat("x/picture.jpg: claims 17000x17000 pixels, more than ", kMaxPixels));
    CHECK(peak_bytes() - before < 50'000'000);
    claim(png, 16'384);
    Decoder().open(png, "at the limit");
    claim(png, 16'385);
    CHECK_THROWS_AS(Decoder().open(png, "above it"), Error);
    claim(png, 16'000);  // possible: memory is taken only as far as the rows go
    CHECK(contains(refusal(png), "x/picture.jpg: "));
    CHECK(peak_bytes() - before < 50'000'000);
}

TEST_CASE(
    "a damaged PNG chunk is noticed by its checksum; the chunks that are not needed are ignored") {
    Bytes png = encoded(".png");
    const Image want = decoded(png);
    Bytes broken = png;
    broken[broken.size() / 2] ^= 4;
    CHECK(contains(refusal(broken), "checksum"));
    // A text chunk with a wrong checksum, behind IHDR (8 + 25 bytes).
    const uint8_t note[] = {0, 0, 0, 2, 't', 'E', 'X', 't', 'h', 'i', 1, 2, 3, 4};
    png.insert(png.begin() + 33, std::begin(note), std::end(note));
    CHECK(decoded(png).pixels == want.pixels);
}

TEST_CASE("hostile bytes never crash the decoder") {
    const std::vector<Bytes> seeds = {encoded(".jpg"),
                                      encoded(".jpg", 40, 50, {cv::IMWRITE_JPEG_PROGRESSIVE, 1}),
                                      golden::kind("jpeg CMYK").file,
                                      encoded(".png", 20, 20),
                                      encoded(".webp", 20, 20),
                                      golden::kind("tiff tiff_lzw").file,
                                      golden::kind("bmp runs of 8").file,
                                      golden::kind("tiff group4").file};
    Decoder decoder;
    Image image;
    int refused = 0, read = 0;
    for (uint64_t round = 0; round < 1000; ++round) {
        Random random(9, 0, round, kTest);
        Bytes bytes = seeds[random.below(seeds.size())];
        const uint64_t kind = random.below(4);
        if (kind == 0) {  // noise behind a true signature
            for (size_t i = 4; i < bytes.size(); ++i) bytes[i] = uint8_t(random.bits());
        } else {
            // Bits flipped in the header, or anywhere.
            const size_t range = kind == 1 ? std::min<size_t>(bytes.size(), 700) : bytes.size();
            for (uint64_t i = 1 + random.below(4); i-- > 0;)
                bytes[4 + random.below(range - 4)] ^= uint8_t(1u << random.below(8));
            if (kind == 3) bytes.resize(4 + random.below(bytes.size() - 4));
        }
        try {
            decoder.open(bytes, "hostile");
            const int H = decoder.H(), W = decoder.W();
            if (random.below(2))
                decoder.read(image);
            else
                decoder.read({H / 3, W / 3, H - H / 3, (W + 1) / 2}, image);
            CHECK(image.pixels.size() == size_t(image.H) * size_t(image.W) * 3);
            ++read;
        } catch (const Error& error) {
            CHECK(std::string(error.what()).find("hostile: ") == 0);
            ++refused;
        }
    }
    CHECK(refused > 150);
    CHECK(read > 20);
}
