#include "src/step/micro_batch.h"

#include <algorithm>

#include "src/base/check.h"

namespace convoy {

static int64_t divided(int64_t n, int64_t by) { return (n + by - 1) / by; }

int micro_batch_images(int64_t share, int parts, int bn_group) {
    const int64_t images = divided(share, parts);
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

// A share that begins in the middle of a micro-batch has one micro-batch more.
size_t BatchCutter::most(int images, int max_batch) {
    return size_t(divided(max_batch, images)) + (max_batch > images);
}

// Unequal shares may have a third more micro-batches than equal shares: if the batch is cut into
// four or more parts, each part has over 3/4 of `images`.
BatchCutter::BatchCutter(int images, int max_batch, int bn_group)
    : images_(images),
      bn_group_(bn_group),
      parts_(size_t(divided(4 * int64_t(max_batch), 3 * int64_t(images)) + 1)) {
    bounds_.reserve(parts_.size() + 1);
    for (MicroBatch& part : parts_) part.groups.reserve(size_t(images) + 1);
}

std::span<MicroBatch> BatchCutter::cut(std::span<const int32_t> positions, int64_t batch,
                                       const Pass& pass) {
    const int unit = bn_group_ > 0 ? bn_group_ : images_;
    group_bounds(positions, batch, positions.size() > size_t(images_) ? unit : 0, bounds_,
                 std::max(images_ / unit, 1));
    const size_t count = positions.empty() ? 0 : bounds_.size() - 1;
    ENSURE(count <= parts_.size(), count, " micro-batches");
    for (size_t i = 0; i < count; ++i) {
        MicroBatch& part = parts_[i];
        part.begin = bounds_[i], part.end = bounds_[i + 1];
        part.number = int64_t(i), part.is_last = i + 1 == count;
        const size_t begin = size_t(part.begin), n = size_t(part.images());
        group_bounds(positions.subspan(begin, n), batch, bn_group_, part.groups);
        part.pass = pass;
        part.pass.samples = pass.samples.subspan(begin, n), part.pass.groups = part.groups;
        part.pass.refresh = pass.refresh && i == 0;
    }
    return std::span(parts_).first(count);
}

}  // namespace convoy
