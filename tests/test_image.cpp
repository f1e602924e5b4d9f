// test_image.cpp — images resized by a backend: Pillow's pixels, and the decode threads' floats.
#include <algorithm>

#include "data/augment.h"
#include "data/pack.h"
#include "src/train/input.h"
#include "tests/golden.h"
#include "tests/golden_images.h"
#include "tests/pictures.h"
#include "tests/support.h"
#include "tests/through_device.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

namespace {

// A block that images are packed into, one behind the other.
struct Block {
    std::vector<uint8_t> bytes;
    std::vector<Picture> pictures;

    void add(ImageView image, const Resizing& how) {
        Packer packer;
        const size_t size = packer.prepare(image, how), at = bytes.size();
        CHECK(at % 4 == 0);
        bytes.resize(at + size, 0xEE);
        pictures.push_back(packer.write(bytes.data(), at));
    }
};

std::vector<float> resized(Backend& backend, const Block& block, const std::vector<float>& values,
                           int P, int Q, int C = 3) {
    const Shape shape{int(block.pictures.size()), P, Q, C};
    Guarded y(shape.elems());
    backend.resize(block.bytes, block.pictures, values.data(), {y.data(), shape});
    return y;
}

// As many images as there are ways for one to be odd.
std::vector<Image> images() {
    std::vector<Image> all = {decoded(from_hex(golden::kGreyJpeg)),
                              decoded(from_hex(golden::kCmykJpeg)),
                              decoded(from_hex(golden::kGrey16Png))};
    for (auto [H, W] :
         {std::pair{1, 1}, {1, 50}, {70, 1}, {2, 3}, {23, 31}, {64, 48}, {31, 90}, {170, 230}})
        all.push_back(picture(H, W));
    return all;
}

}  // namespace

TEST_CASE("resize gives Pillow's pixels exactly: down, up, odd, one pixel, parts of an image") {
    auto backend = each_backend();
    std::vector<float> values;
    for (int i = 0; i < 3 * 256; ++i) values.push_back(float(i % 256));
    for (const golden::Resized& want : golden::kResized) {
        CAPTURE(want.H);
        CAPTURE(want.W);
        const Image image = picture(want.H, want.W);
        const int P = want.out_H, Q = want.out_W;
        Block block;
        block.add(view(image, {want.top, want.left, want.h, want.w}), {P, Q, {0, 0, P, Q}, false});
        CHECK_CLOSE(resized(*backend, block, values, P, Q), from_hex(want.pixels), 0);
    }
}

TEST_CASE("resize makes of packed crops what decode threads make of them, bit for bit") {
    auto backend = each_backend();
    RowBuffers buffers;
    const std::vector<Image> all = images();
    for (InputSize size : {InputSize(1), {9}, {16}, {9, 16, 3}, {16, 5, 1}, {28, 28, 1}}) {
        CAPTURE(input_size_text(size));
        Preprocess how(size);
        Block block;
        std::vector<float> want;
        const auto expect = [&](const Image& image, uint64_t sample) {
            const size_t row = want.size();
            want.resize(row + size.elems());
            input_row(image, how, 0, sample, buffers, want.data() + row);
        };
        uint64_t sample = 0;
        int flips = 0;
        const auto in_channels = [&](const Image& image) {
            return size.C == 1 ? grey(image) : image;
        };
        for (const Image& rgb : all)
            for (Augment augment : {Augment::crop, Augment::resize, Augment::none}) {
                how.augment = augment;
                const Image image = in_channels(rgb);
                const Crop crop = input_crop(image.H, image.W, how, 0, ++sample);
                Image part{crop.H, crop.W, {}, size.C};
                for (int h = 0; h < crop.H; ++h) {
                    const uint8_t* row = view(image, crop).pixels + size_t(h * image.W * size.C);
                    part.pixels.insert(part.pixels.end(), row, row + crop.W * size.C);
                }
                const Resizing resizing = input_resizing(crop.H, crop.W, how, 0, sample);
                flips += resizing.flip;
                block.add(view(part), resizing);
                expect(part, sample);
            }
        CHECK(flips > 3);
        for (const Image& rgb : all) {
            const Image image = in_channels(rgb);
            block.add(view(image), input_resizing(image.H, image.W, how, 0, 0));
            expect(image, 0);
        }
        CHECK(resized(*backend, block, pixel_values(how), size.H, size.W, size.C) == want);
    }
}

TEST_CASE("resize takes no images too, and refuses tables that leave the block") {
    auto backend = each_backend();
    const std::vector<float> values(3 * 256, 1);
    Block block;
    CHECK(resized(*backend, block, values, 4, 4).empty());
    const Image image = picture(5, 6);
    block.add(view(image), {4, 4, {0, 0, 4, 4}, true});
    CHECK(resized(*backend, block, values, 4, 4) == std::vector<float>(48, 1));
    const Picture good = block.pictures[0];
    const auto refused = [&](auto change) {
        block.pictures[0] = good;
        change(block.pictures[0]);
        CHECK_THROWS_WITH_AS(resized(*backend, block, values, 4, 4), doctest::Contains("picture 0"),
                             Error);
    };
    refused([&](Picture& p) { p.rows += 4; });
    refused([&](Picture& p) { p.columns = -4; });
    refused([&](Picture& p) { p.columns = int64_t(block.bytes.size()); });
    refused([&](Picture& p) { p.pixels += 2; });
    refused([&](Picture& p) { p.H = INT32_MAX, p.W = INT32_MAX; });
    refused([&](Picture& p) { p.row_taps = 0; });
}

TEST_CASE("an image that needs more bytes than its floats is resized before it is packed") {
    for (int size : {1, 2, 16, 224}) {
        CAPTURE(size);
        const size_t most = packed_image_bytes(size);
        CHECK(most == std::max<size_t>(size_t(size) * size_t(size) * 12, 64 << 10));
        Packer packer;
        for (auto [H, W] : {std::pair{1, 1}, {size, size}, {3, 4000}, {4000, 3}, {600, 900}}) {
            const Image image = picture(H, W);
            const size_t bytes =
                packer.prepare(view(image), {size, size, {0, 0, size, size}, false});
            CHECK(bytes % 4 == 0);
            CHECK(bytes <= most);
            std::vector<uint8_t> block(bytes);
            const Picture packed = packer.write(block.data(), 0);
            const size_t pixel_bytes = size_t(H) * size_t(W) * 3;  // and tables
            if (2 * pixel_bytes < most) CHECK((packed.H == H && packed.W == W));
            if (pixel_bytes > most) CHECK((packed.H == size && packed.W == size));
        }
    }
}

}  // namespace convoy
