// pieces.cpp — see pieces.h.
#include "src/train/pieces.h"

#include <algorithm>

#include "src/base/check.h"

namespace convoy {

static int64_t divided(int64_t n, int64_t by) { return (n + by - 1) / by; }

int piece_images(int64_t share, int pieces, int bn_group) {
    const int64_t images = divided(share, pieces);
    return int(bn_group > 0 ? divided(images, bn_group) * bn_group : images);
}

void group_bounds(std::span<const int32_t> positions, int64_t batch, int group,
                  std::vector<int>& bounds, int joined) {
    ENSURE(positions.empty() || positions.back() < batch, "a batch of ", batch, " images");
    const auto part = [&](size_t i) { return part_of(positions[i], batch, group) / joined; };
    bounds.assign(1, 0);
    for (size_t i = 1; group > 0 && i < positions.size(); ++i)
        if (part(i) != part(i - 1)) bounds.push_back(int(i));
    bounds.push_back(int(positions.size()));
}

// A share that begins within a piece has one more. If shares are unequal, a share may have a third
// more: of four or more parts, each has over 3/4 of `images`.
PieceCutter::PieceCutter(int images, int max_batch, int bn_group)
    : images_(images),
      bn_group_(bn_group),
      most_(size_t(divided(max_batch, images)) + (max_batch > images)),
      pieces_(size_t(divided(4 * int64_t(max_batch), 3 * int64_t(images)) + 1)) {
    bounds_.reserve(pieces_.size() + 1);
    for (Piece& piece : pieces_) piece.groups.reserve(size_t(images) + 1);
}

std::span<const Piece> PieceCutter::cut(std::span<const int32_t> positions, int64_t batch,
                                        const Pass& pass) {
    const int unit = bn_group_ > 0 ? bn_group_ : images_;
    group_bounds(positions, batch, positions.size() > size_t(images_) ? unit : 0, bounds_,
                 std::max(images_ / unit, 1));
    const size_t count = positions.empty() ? 0 : bounds_.size() - 1;
    ENSURE(count <= pieces_.size(), count, " pieces");
    for (size_t i = 0; i < count; ++i) {
        Piece& piece = pieces_[i];
        piece.begin = bounds_[i], piece.end = bounds_[i + 1], piece.number = int64_t(i);
        const size_t begin = size_t(piece.begin), n = size_t(piece.images());
        group_bounds(positions.subspan(begin, n), batch, bn_group_, piece.groups);
        piece.pass = pass;
        piece.pass.samples = pass.samples.subspan(begin, n), piece.pass.groups = piece.groups;
        piece.pass.refresh = pass.refresh && i == 0;
    }
    return std::span(pieces_).first(count);
}

}  // namespace convoy
