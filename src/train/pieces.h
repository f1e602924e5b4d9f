// pieces.h — a batch that goes through the layers in pieces, one after the other, with one update:
// `--accumulate N`, and the pieces of `--sync pipeline:S:M` (pipeline.h).
//
//   batch     | piece 0 | piece 1 | … | piece N−1 |     activations: those of one piece
//   step        F0 B0     F1 B1         F(N−1) B(N−1)   gradients: added up by the backward passes
//                                           └ the ring sums beside this one, as without pieces
//
// Pieces are cut between the groups of batch norm, so what is trained is what the whole batch
// trains, up to the rounding of sums.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/model/layer.h"

namespace convoy {

struct Piece {
    int begin = 0, end = 0;  // images of the batch
    int64_t number = 0;      // among its pieces
    std::vector<int> groups = {};
    Pass pass = {};

    int images() const { return end - begin; }
    // What the piece has of a list of all images; nothing of an empty list.
    template <class T>
    std::span<const T> of(const std::vector<T>& all) const {
        return all.empty() ? std::span(all)
                           : std::span(all).subspan(size_t(begin), size_t(images()));
    }
};

// Images of a piece, at most, where a rank has up to `share` of a batch, and is to make `pieces` of
// them. bn_group: 0 without batch norm.
int piece_images(int64_t share, int pieces, int bn_group);

// The global batch is cut into as few parts of at most `most` images as possible, whose sizes
// differ by one at most: the number of image i's part. So an image has the same group on any ranks.
inline int64_t part_of(int64_t i, int64_t batch, int most) {
    return i * ((batch + most - 1) / most) / batch;
}
// Bounds, in a rank's images, of parts of the global batch: of batch norm groups, or of `joined`
// groups each. positions: places in the global batch; group: images of one, at most; 0: one part.
void group_bounds(std::span<const int32_t> positions, int64_t batch, int group,
                  std::vector<int>& bounds, int joined = 1);

class PieceCutter {
 public:
    // Of at most `images` each, of batches of at most max_batch.
    PieceCutter(int images, int max_batch, int bn_group);
    // Pieces of a batch whose images have these places in the global batch, which has `batch`
    // images; none of no images. pass: for all of them; its samples must stay where they are.
    // Pieces with the same number stay at the same address, for recorded steps.
    std::span<const Piece> cut(std::span<const int32_t> positions, int64_t batch, const Pass& pass);
    size_t most() const { return most_; }  // where all ranks have equal shares

 private:
    const int images_, bn_group_;
    const size_t most_;
    std::vector<int> bounds_;
    std::vector<Piece> pieces_;
};

}  // namespace convoy
