// pack.cpp — see pack.h.
#include "data/pack.h"

#include <algorithm>
#include <cstring>

namespace convoy {
namespace {

constexpr size_t kWord = sizeof(int32_t);

// Fills a table of src/base/picture.h and returns its weights a row. Places are counted from the
// first one that is read, which is the first that is packed.
int fill_table(const Taps& taps, bool reversed, std::vector<int32_t>& table) {
    const int most = *std::max_element(taps.count.begin(), taps.count.end());
    const size_t places = taps.first.size();
    table.assign(places * size_t(2 + most), 0);
    for (size_t i = 0; i < places; ++i) {
        const size_t place = reversed ? places - 1 - i : i;
        int32_t* row = &table[i * size_t(2 + most)];
        row[0] = taps.first[place] - taps.begin(), row[1] = taps.count[place];
        for (int k = 0; k < row[1]; ++k) row[2 + k] = int32_t(taps.weight(place, k));  // ≤ 2^22
    }
    return most;
}

}  // namespace

// 64 KB are enough for the tables of any size at which 12 bytes a pixel are not.
size_t packed_image_bytes(InputSize size) {
    return std::max(size.elems() * sizeof(float), size_t(64) << 10);
}

size_t Packer::prepare(ImageView from, const Resizing& how) {
    part_ = from;
    const size_t C = size_t(from.C);
    taps_.compute(from.W, how.W, how.window.left, how.window.W);
    picture_.column_taps = fill_table(taps_, how.flip, columns_);
    part_.pixels += size_t(taps_.begin()) * C;
    picture_.W = part_.W = taps_.end() - taps_.begin();
    taps_.compute(from.H, how.H, how.window.top, how.window.H);
    picture_.row_taps = fill_table(taps_, false, rows_);
    part_.pixels += size_t(taps_.begin()) * from.row_bytes;
    picture_.H = part_.H = taps_.end() - taps_.begin();
    const size_t pixel_words = (size_t(part_.H) * size_t(part_.W) * C + kWord - 1) / kWord;
    picture_.columns = int64_t(pixel_words * kWord);
    picture_.rows = picture_.columns + int64_t(columns_.size() * kWord);
    const size_t bytes = size_t(picture_.rows) + rows_.size() * kWord;

    const int H = how.window.H, W = how.window.W;
    if (bytes <= packed_image_bytes({H, W, from.C})) return bytes;
    constexpr float kOnes[3] = {1, 1, 1}, kZeros[3] = {0, 0, 0};
    floats_.resize(size_t(H) * size_t(W) * C);
    resizer_.run(from, how, kOnes, kZeros, floats_.data());
    small_.H = H, small_.W = W, small_.C = from.C;
    small_.pixels.assign(floats_.begin(), floats_.end());  // whole numbers from 0 to 255
    return prepare(view(small_), {H, W, {0, 0, H, W}, false});
}

Picture Packer::write(uint8_t* block, size_t at) const {
    const size_t row_bytes = size_t(part_.W) * size_t(part_.C);
    for (size_t h = 0; h < size_t(part_.H); ++h)
        std::memcpy(block + at + h * row_bytes, part_.pixels + h * part_.row_bytes, row_bytes);
    Picture picture = picture_;
    for (int64_t* offset : {&picture.pixels, &picture.columns, &picture.rows})
        *offset += int64_t(at);
    std::memcpy(block + picture.columns, columns_.data(), columns_.size() * kWord);
    std::memcpy(block + picture.rows, rows_.data(), rows_.size() * kWord);
    return picture;
}

}  // namespace convoy
