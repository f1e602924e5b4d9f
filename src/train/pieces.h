// pieces.h — a batch that goes through the layers in pieces, one after the other, with one update:
// `--accumulate N`, and the pieces of `--pipeline` (pipeline.h).
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

// Bounds of the batch norm groups in a rank's part of a batch: images whose places in the global
// batch are in the same block of `group` share a group; 0: one group.
void group_bounds(std::span<const int32_t> positions, int group, std::vector<int>& bounds);

class PieceCutter {
 public:
    // Of at most `images` each, of batches of at most max_batch.
    PieceCutter(int images, int max_batch, int bn_group);
    // Pieces of a batch whose images have these places in the global batch; none of no images.
    // pass: for all of them; its samples must stay where they are. PieceCutter with the same number
    // stay at the same address, for recorded steps.
    std::span<const Piece> cut(std::span<const int32_t> positions, const Pass& pass);
    size_t most() const { return pieces_.size(); }

 private:
    const int images_, bn_group_;
    std::vector<int> bounds_;
    std::vector<Piece> pieces_;
};

}  // namespace convoy
