// pieces.cpp — see pieces.h.
#include "src/train/pieces.h"

#include "src/base/check.h"

namespace convoy {

static int64_t divided(int64_t n, int64_t by) { return (n + by - 1) / by; }

int piece_images(int64_t share, int pieces, int bn_group) {
    const int64_t images = divided(share, pieces);
    return int(bn_group > 0 ? divided(images, bn_group) * bn_group : images);
}

void group_bounds(std::span<const int32_t> positions, int group, std::vector<int>& bounds) {
    bounds.assign(1, 0);
    for (size_t i = 1; group > 0 && i < positions.size(); ++i)
        if (positions[i] / group != positions[i - 1] / group) bounds.push_back(int(i));
    bounds.push_back(int(positions.size()));
}

// A share that does not begin with a piece has one more.
PieceCutter::PieceCutter(int images, int max_batch, int bn_group)
    : images_(images),
      bn_group_(bn_group),
      pieces_(size_t(divided(max_batch, images)) + (max_batch > images)) {
    bounds_.reserve(pieces_.size() + 1);
    for (Piece& piece : pieces_) piece.groups.reserve(size_t(images) + 1);
}

std::span<const Piece> PieceCutter::cut(std::span<const int32_t> positions, const Pass& pass) {
    group_bounds(positions, positions.size() > size_t(images_) ? images_ : 0, bounds_);
    const size_t count = positions.empty() ? 0 : bounds_.size() - 1;
    ENSURE(count <= pieces_.size(), count, " pieces");
    for (size_t i = 0; i < count; ++i) {
        Piece& piece = pieces_[i];
        piece.begin = bounds_[i], piece.end = bounds_[i + 1], piece.number = int64_t(i);
        const size_t begin = size_t(piece.begin), n = size_t(piece.images());
        group_bounds(positions.subspan(begin, n), bn_group_, piece.groups);
        piece.pass = pass;
        piece.pass.samples = pass.samples.subspan(begin, n), piece.pass.groups = piece.groups;
        piece.pass.refresh = pass.refresh && i == 0;
    }
    return std::span(pieces_).first(count);
}

}  // namespace convoy
