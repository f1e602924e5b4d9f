// pack.cpp — see pack.h.
#include "data/pack.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/check.h"

namespace convoy {
namespace {

constexpr size_t kWord = sizeof(int32_t);
constexpr int kOwnTaps = 4;               // weights of a place, at most, where nothing is resized
constexpr size_t kImageBytes = 64 << 10;  // for each image of a block, at least

size_t whole_words(size_t bytes) { return (bytes + kWord - 1) / kWord * kWord; }
size_t pixel_bytes(const ImageView& image) {
    return whole_words(size_t(image.H) * size_t(image.W) * 3);
}
size_t table_bytes(size_t places, int taps) { return places * size_t(2 + taps) * kWord; }

// What an image needs that is size×size already.
size_t least_bytes(int size) {
    const size_t side = size_t(size);
    return whole_words(side * side * 3) + 2 * table_bytes(side, kOwnTaps);
}

int most_taps(const Taps& taps) { return *std::max_element(taps.count.begin(), taps.count.end()); }

// `origin` is the first input place that was packed.
void write_table(const Taps& taps, int origin, int most, bool reversed, uint8_t* to) {
    const size_t places = taps.first.size();
    std::vector<int32_t> row(2 + size_t(most));
    for (size_t i = 0; i < places; ++i, to += row.size() * kWord) {
        const size_t place = reversed ? places - 1 - i : i;
        const int count = taps.count[place];
        row[0] = taps.first[place] - origin, row[1] = count;
        for (int k = 0; k < most; ++k)  // at most 2^22
            row[size_t(2 + k)] = k < count ? int32_t(taps.weight(place, k)) : 0;
        std::memcpy(to, row.data(), row.size() * kWord);
    }
}

}  // namespace

size_t packed_block_bytes(int64_t images, int size) {
    const size_t finished = size_t(size) * size_t(size) * 3 * sizeof(float);
    return size_t(images) * std::max(finished, kImageBytes);  // more than least_bytes()
}

PackedRoom::PackedRoom(int64_t images, int size)
    : capacity_(packed_block_bytes(images, size)), least_(least_bytes(size)), waiting_(images) {}

std::optional<size_t> PackedRoom::take(size_t bytes) {
    ENSURE(waiting_ > 0, "more images than there is room for");
    if (used_ + bytes + size_t(waiting_ - 1) * least_ > capacity_) return std::nullopt;
    --waiting_;
    return std::exchange(used_, used_ + bytes);
}

size_t Packer::look(ImageView from, const Resizing& how) {
    check_resizing(from, how);
    whole_ = from, how_ = how;
    columns_.compute(from.W, how.W, how.window.left, how.window.W);
    rows_.compute(from.H, how.H, how.window.top, how.window.H);
    column_taps_ = most_taps(columns_), row_taps_ = most_taps(rows_);
    const size_t skipped = size_t(rows_.begin()) * from.row_bytes + size_t(columns_.begin()) * 3;
    part_ = {from.pixels + skipped, rows_.end() - rows_.begin(), columns_.end() - columns_.begin(),
             from.row_bytes};
    return pixel_bytes(part_) + table_bytes(columns_.first.size(), column_taps_) +
           table_bytes(rows_.first.size(), row_taps_);
}

size_t Packer::resize() {
    constexpr float kOnes[3] = {1, 1, 1}, kZeros[3] = {0, 0, 0};
    const int H = how_.window.H, W = how_.window.W;
    floats_.resize(size_t(H) * size_t(W) * 3);
    resizer_.run(whole_, how_, kOnes, kZeros, floats_.data());
    small_.H = H, small_.W = W;
    small_.pixels.assign(floats_.begin(), floats_.end());  // whole numbers from 0 to 255
    return look(view(small_), {H, W, {0, 0, H, W}, false});
}

Picture Packer::write(uint8_t* block, size_t at) const {
    const size_t columns = at + pixel_bytes(part_);
    const size_t rows = columns + table_bytes(columns_.first.size(), column_taps_);
    const size_t row_bytes = size_t(part_.W) * 3;
    for (size_t h = 0; h < size_t(part_.H); ++h)
        std::memcpy(block + at + h * row_bytes, part_.pixels + h * part_.row_bytes, row_bytes);
    write_table(columns_, columns_.begin(), column_taps_, how_.flip, block + columns);
    write_table(rows_, rows_.begin(), row_taps_, false, block + rows);
    return {int64_t(at), int64_t(columns), int64_t(rows), part_.H,
            part_.W,     column_taps_,     row_taps_};
}

}  // namespace convoy
